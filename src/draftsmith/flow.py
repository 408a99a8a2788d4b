"""The order of the stages, and how one is run, skipped or continued."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from draftsmith.engines.targets import target_folder
from draftsmith.errors import UsageError
from draftsmith.job import Job, Plan, Stage, Talk, clock
from draftsmith.keys import GATES, PASSED, stage_config
from draftsmith.manifest import Manifest, hash_outputs, stage_key
from draftsmith.recipe import Recipe
from draftsmith.runfolder import State, disk_errors_said_plainly, find, first_start, locked, prepare, worked_s, working
from draftsmith.stages import STAGES

GATE_EXIT = {"passed": 0, "failed": 1, "inconclusive": 3}
STOP_EXIT = {"no": 0, "yes": 1, "unsure": 3}


@dataclass(frozen=True)
class Done:
    """One finished stage."""

    stage: str
    state: Literal["done", "skipped"]
    active_s: float
    summary: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a command leaves behind."""

    run: Path
    stages: list[Done] = field(default_factory=list)

    def summary(self, stage: str) -> dict[str, Any]:
        """The stage's summary; empty when the command did not get to it."""
        return next((done.summary for done in self.stages if done.stage == stage), {})

    @property
    def verdict(self) -> str:
        """The sentence at the end; empty when the command had no report to make."""
        summary = self.summary("report")
        return str(summary["verdict"]) if summary else ""

    @property
    def exit_code(self) -> int:
        """0, or what the bench gate says; before a bench, whether break-even advises to stop."""
        if summary := self.summary("bench"):
            return GATE_EXIT[summary["gate"]]
        return STOP_EXIT[self.summary("breakeven").get("stop", "no")]

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        stages = {done.stage: {"state": done.state, "active_s": round(done.active_s, 3), "summary": done.summary} for done in self.stages}
        return {"run": str(self.run), "stages": stages, "verdict": self.verdict, "exit_code": self.exit_code}


def load_stage(name: str) -> Stage:
    """Import a stage's module (some import torch, so only when it is needed)."""
    return cast(Stage, importlib.import_module(f"draftsmith.{name}.stage"))


def make_job(recipe: Recipe, run: Path, talk: Talk) -> Job:
    """The job that every stage of this recipe gets. Raises EnvironmentFailed when the target is not there."""
    target = target_folder(recipe.target.model)
    return Job(run.resolve(), target, recipe.engine, recipe.drafter, talk, recipe.target.trust_remote_code)


def selection(until: str | None) -> list[str]:
    """The stages of a whole run, or up to and with `until`."""
    names = list(STAGES)
    return names if until is None else names[: names.index(until) + 1]


# --- doing -----------------------------------------------------------------------------------------------------------


def run(recipe: Recipe, job: Job, until: str | None = None) -> Outcome:
    """Walk the stages in order: skip what is finished, go on with what is half done.

    Raises the first DraftsmithError of a stage; everything before it stays, and the same command goes on from there.
    """
    outcome = Outcome(job.run)
    with disk_errors_said_plainly(job.run), locked(job.run):
        for name in selection(until):
            outcome.stages.append(run_stage(name, recipe, job))
    total_s = sum(done.active_s for done in outcome.stages)
    job.talk.say(f"all {len(outcome.stages)} stages finished: {clock(total_s)} of work in {job.run}")
    return outcome


def run_one(name: str, recipe: Recipe, job: Job) -> Outcome:
    """Run a single stage on the finished folders of the stages that it reads. Raises UsageError when one of those is missing or stale."""
    outcome = Outcome(job.run)
    with disk_errors_said_plainly(job.run), locked(job.run):
        require_inputs(name, recipe, job)
        outcome.stages.append(run_stage(name, recipe, job))
    return outcome


def run_stage(name: str, recipe: Recipe, job: Job) -> Done:
    """One stage: skipped when finished with the same key and undamaged, else run to its manifest."""
    stage = load_stage(name)
    settings = getattr(recipe, name)
    folder = job.folder(name)
    inputs = {source: identity_for(name, source, job.folder(source)) for source in stage.INPUTS}
    config = stage_config(name, settings, job)
    finished = prepare(folder, stage_key(name, config, inputs), job.talk)
    if finished is not None:
        job.talk.say(f"{name}: finished before in {clock(finished.active_s)}, nothing to do")
        return Done(name, "skipped", finished.active_s, finished.summary)
    before_s = worked_s(folder)
    job.talk.say(f"{name}: {'goes on after ' + clock(before_s) if before_s else 'starts'} ({STAGES[name]})")
    with working(folder):
        summary = stage.run(settings, job)
        outputs = hash_outputs(folder)
    manifest = Manifest(name, config, inputs, outputs, summary, started=first_start(folder), active_s=worked_s(folder))
    manifest.write(folder)
    job.talk.say(f"{name}: done in {clock(manifest.active_s)}")
    return Done(name, "done", manifest.active_s, summary)


def identity_for(name: str, source: str, folder: Path) -> str:
    """Identity of the result that a stage reads; only that it is there when the stage does not read it."""
    manifest = Manifest.read(folder)
    assert manifest is not None, f"{folder.name} has no manifest, though it comes earlier in the order"
    return PASSED if source in GATES.get(name, ()) else manifest.identity


def require_inputs(name: str, recipe: Recipe, job: Job) -> None:
    """Every stage that `name` reads, directly or not, is finished for this recipe."""
    sources = needed(name)
    for source, found in survey(recipe, job, sources).items():
        folder = job.folder(source)
        if found.state == "finished" and found.place == folder:
            continue
        why = "was made with other settings or inputs" if Manifest.read(folder) is not None else "has not finished"
        raise UsageError(f"{name} needs {source}, which {why} in {job.run}", hint=f"draftsmith run RECIPE --until {sources[-1]}")


def needed(name: str) -> list[str]:
    """All stages that must be finished before `name`, in order."""
    wanted: set[str] = set()
    queue = [name]
    while queue:
        sources = [source for source in load_stage(queue.pop()).INPUTS if source not in wanted]
        wanted.update(sources)
        queue.extend(sources)
    return [stage for stage in STAGES if stage in wanted]


# --- looking ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """One line of `--dry-run`."""

    stage: str
    state: State
    plan: Plan


def plan(recipe: Recipe, job: Job, names: Sequence[str]) -> list[Planned]:
    """What a command would do, without doing anything. Finished stages cost nothing."""
    states: dict[str, State] = {name: found.state for name, found in survey(recipe, job, STAGES).items()}
    costs = {
        name: Plan(note="finished, will be skipped") if states[name] == "finished" else load_stage(name).plan(getattr(recipe, name), job)
        for name in names
    }
    return [Planned(name, states[name], costs[name]) for name in names]


@dataclass(frozen=True)
class Found:
    """What is on disk for one stage of this recipe."""

    state: State
    place: Path


def survey(recipe: Recipe, job: Job, names: Iterable[str]) -> dict[str, Found]:
    """State of stages, in order; a stage whose inputs are not finished is to do. `names` holds the inputs of each of its stages."""
    seen: dict[str, Found] = {}
    for name in names:
        sources = load_stage(name).INPUTS
        if any(seen[source].state != "finished" for source in sources):
            seen[name] = Found("to do", job.folder(name))
            continue
        inputs = {source: identity_for(name, source, seen[source].place) for source in sources}
        key = stage_key(name, stage_config(name, getattr(recipe, name), job), inputs)
        state, place = find(job.folder(name), key)
        seen[name] = Found(state, place)
    return seen
