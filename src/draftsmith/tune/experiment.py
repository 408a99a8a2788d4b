"""The launches of a tune, phase after phase in one folder, by the bench protocol (measure/protocol.py).

probe: what predictions need and nobody measured. screen: every surviving arm. confirm: the best against the baseline. schedule: what the
engine is given, against the baseline. A phase follows from what the phases before it left on disk, so a tune that was killed plans the
same launches again and goes on with the first that is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.errors import CheckFailed, EnvironmentFailed
from draftsmith.job import Job
from draftsmith.manifest import append_jsonl, read_jsonl
from draftsmith.measure.live import Live
from draftsmith.measure.protocol import LAUNCHES, How, Starter, run_launches
from draftsmith.measure.recorder import Planned, Watch, Workload
from draftsmith.measure.statistics import Measured
from draftsmith.metrics import Acceptance
from draftsmith.tune.candidates import Arm, Drafter

Phase = Literal["probe", "screen", "confirm", "schedule"]
Schedule = tuple[tuple[int, int, int], ...]  # (batch size from, to, drafts)
DEATHS = "deaths.jsonl"
LIVES = 2  # an arm that did not come up so often is left out
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What all launches share. env_sets: variables by name; "" is the recipe's own. served: model name of the server."""

    job: Job
    folder: Path
    drafter: Drafter
    env_sets: Mapping[str, Mapping[str, str]]
    workload: Workload
    start: Starter
    served: str
    watch: Watch
    together: bool = False

    def launch(self, arm: Arm, schedule: Drafting | None = None, flags: Mapping[str, Any] | None = None) -> Launch:
        """schedule, flags: of the arm that serves a schedule instead of one candidate."""
        job = self.job
        drafting = schedule or (arm.candidate.drafting(self.drafter.method, self.drafter.folder) if arm.candidate else None)
        return Launch(
            arm="speculative" if drafting else "baseline",
            target=job.target,
            flags={**job.engine.flags, **(flags or {})},
            env={**job.engine.env, **self.env_sets.get(arm.env_set, {})},
            drafting=drafting,
            trust_remote_code=job.trust_remote_code,
        )


@dataclass(frozen=True)
class Step:
    """One launch of the plan: which arm, in which phase, and at which concurrencies it is measured."""

    planned: Planned
    phase: Phase
    arm: Arm
    name: str
    concurrency: tuple[int, ...]


class Experiment:
    """Plans, measures, and reads what was measured."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.folder = setting.folder
        self.steps: list[Step] = []
        self.planned = 0  # launches, with those that an early end made unnecessary: their numbers are not given again
        self.together = setting.together

    # --- planning ---

    def add(
        self,
        phase: Phase,
        arms: Mapping[Arm, Sequence[int]],
        rounds: int,
        launches: Mapping[str, Launch] | None = None,
        quiet: Sequence[int] = (),
    ) -> None:
        """A phase: `arms` with their concurrencies, in order, each round in the reverse order of the one before.

        launches: for arms whose launch is not that of a candidate, by the arm's name. quiet: where those draft nothing.
        """
        first_pair = self.steps[-1].planned.pair + 1 if self.steps else 0
        for number in range(rounds):
            for arm in list(arms) if number % 2 == 0 else list(arms)[::-1]:
                name = arm.name
                launch = (launches or {}).get(name) or self.setting.launch(arm)
                silent = tuple(quiet) if name in (launches or {}) else ()
                planned = Planned(self.planned, first_pair + number, f"{name} ({phase})", launch, quiet=silent)
                self.steps.append(Step(planned, phase, arm, name, tuple(arms[arm])))
                self.planned += 1

    def workload_of(self, planned: Planned) -> Workload:
        """The cells that this launch is for; prompts and order are those of every other launch."""
        wanted = next(step.concurrency for step in self.steps if step.planned.index == planned.index)
        workload = self.setting.workload
        return replace(workload, cells=tuple(cell for cell in workload.cells if cell.concurrency in wanted))

    # --- measuring ---

    def run(self, after_round: Callable[[int], str] | None = None) -> None:
        """Every launch that is missing. after_round: asked with the rounds done of the last phase; a reason ends the phase.

        An arm that twice does not come up is left out. Raises EnvironmentFailed when that is the baseline.
        """
        setting = self.setting
        last = self.steps[-1].phase
        first_pair = min(step.planned.pair for step in self.steps if step.phase == last)

        def after_pair(pairs: int) -> str:
            return after_round(pairs - first_pair) if after_round and pairs > first_pair else ""

        while True:
            steps = [step for step in self.steps if not self.dead(step.arm)]
            live = Live(setting.job.talk, len(self.steps))
            how = How(setting.watch, live, after_pair, self.workload_of)
            launches = [step.planned for step in steps]
            try:
                self.end(
                    run_launches(
                        self.folder, launches, setting.workload, setting.start, setting.served, setting.job.talk, self.together, how
                    )
                )
                return
            except (EnvironmentFailed, CheckFailed) as error:
                self.bury(steps, error)

    def end(self, reason: str) -> None:
        """A phase that ended early leaves no launch behind that a later phase would make up for."""
        if reason:
            finished = {row["launch"] for row in read_jsonl(self.folder / LAUNCHES)}
            self.steps = [step for step in self.steps if step.planned.index in finished or self.dead(step.arm)]

    def bury(self, steps: Sequence[Step], error: EnvironmentFailed | CheckFailed) -> None:
        """Write down that an arm did not come up. Side by side nobody knows which, so from then on one at a time."""
        finished = {row["launch"] for row in read_jsonl(self.folder / LAUNCHES)}
        step = next((step for step in steps if step.planned.index not in finished), None)
        if self.together:
            self.together = False
            self.setting.job.talk.say(f"tune: not side by side any more: {error.message}")
            return
        if step is None or step.arm == Arm(None):
            raise error
        append_jsonl(self.folder / DEATHS, {"arm": step.arm.name, "phase": step.phase, "reason": error.message})
        lost = ": left out" if self.dead(step.arm) else ", tried once more"
        self.setting.job.talk.say(f"tune: {step.name} does not come up{lost}: {error.message}")

    def dead(self, arm: Arm) -> bool:
        return arm.name in self.deaths()

    def deaths(self) -> dict[str, str]:
        """Arms that were left out, and why."""
        rows = read_jsonl(self.folder / DEATHS)
        return {row["arm"]: row["reason"] for row in rows if sum(other["arm"] == row["arm"] for other in rows) >= LIVES}

    # --- reading ---

    def rows(self, *phases: Phase, valid: bool = True) -> list[tuple[Step, Row]]:
        """Finished launches of these phases, in order."""
        steps = {step.planned.index: step for step in self.steps}
        found = [(steps[row["launch"]], row) for row in read_jsonl(self.folder / LAUNCHES) if row["launch"] in steps]
        return [(step, row) for step, row in found if step.phase in phases and not (valid and row["invalid"])]

    def rates(self, concurrency: int, *phases: Phase) -> dict[Arm, list[float]]:
        """Output tok/s at a concurrency, by arm and launch."""
        found: dict[Arm, list[float]] = {}
        for step, row in self.rows(*phases):
            for cell in row["cells"]:
                if cell["concurrency"] == concurrency:
                    found.setdefault(step.arm, []).append(cell["tok_s"])
        return found

    def measured(self, concurrency: int, phase: Phase, baseline: Arm, arm: Arm) -> list[Measured]:
        """The launches of two arms at a concurrency, as `measure.statistics` takes them."""
        return [
            Measured(row["launch"], "baseline" if step.arm == baseline else "speculative", cell["tok_s"])
            for step, row in self.rows(phase)
            if step.arm in (baseline, arm)
            for cell in row["cells"]
            if cell["concurrency"] == concurrency
        ]

    def acceptance(self, arm: Arm, concurrency: int | None = None) -> Acceptance | None:
        """Counts of an arm over all its valid launches, at one concurrency or at all; None when nobody counted a round."""
        total = None
        for step, row in self.rows("probe", "screen", "confirm", "schedule"):
            for cell in row["cells"]:
                if step.arm == arm and cell["acceptance"] and concurrency in (None, cell["concurrency"]):
                    counted = Acceptance.from_dict(cell["acceptance"])
                    total = counted if total is None else total + counted
        return total if total is not None and total.rounds else None

    def invalid(self) -> list[Row]:
        """Launches that prove nothing."""
        return [
            {"launch": row["launch"], "phase": step.phase, "arm": step.name, "reason": reason}
            for step, row in self.rows("probe", "screen", "confirm", "schedule", valid=False)
            for reason in row["invalid"]
        ]
