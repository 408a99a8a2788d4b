"""breakeven: what accept_len would pay here, at each concurrency and depth? Measured before anything is trained.

One baseline launch and one launch per depth with a random-weight drafter of the recipe's shape; see `summary.py` for the figures, or
`lockstep.py` for engines that can force acceptance: SGLang, and vLLM on a GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from draftsmith.breakeven import lockstep
from draftsmith.breakeven.lockstep import Models
from draftsmith.breakeven.model import all_reduce_of, between, observations
from draftsmith.breakeven.page import write_page
from draftsmith.breakeven.settings import BreakevenSettings
from draftsmith.breakeven.summary import all_times, name_of, summarise
from draftsmith.engines.registry import engine_for
from draftsmith.errors import UsageError
from draftsmith.job import Job, Plan
from draftsmith.manifest import atomic_write_json
from draftsmith.measure.costmodel_terms import shape_of
from draftsmith.measure.launching import engine_starter, launch_for
from draftsmith.measure.protocol import Planned, Starter, Workload, run_launches
from draftsmith.measure.workload import CellShape, Deck, Prompt, builtin_prompts, make_workload

NAME = "breakeven"
INPUTS = ("check",)
DRAFTER = ".random-drafter"  # hidden: not a result, removed at the end
LAUNCH_S, MEASURE_S = 28.0, 20.0  # seen on two CPU cores with a 135 M target


def plan(settings: BreakevenSettings, job: Job) -> Plan:
    """Launches and time."""
    launches = settings.replicates * (1 + len(settings.depths))
    return Plan(launches=launches, seconds=launches * (LAUNCH_S + MEASURE_S), note=f"depths {list(settings.depths)}, random-weight drafter")


def plan_launches(settings: BreakevenSettings, job: Job, drafter: Path) -> list[Planned]:
    """Baseline and every depth; each replicate in the reverse order of the one before."""
    launches: list[Planned] = []
    for replicate in range(settings.replicates):
        kinds = (0, *settings.depths)
        for depth in kinds if replicate % 2 == 0 else kinds[::-1]:
            launch = launch_for(job, drafter, depth) if depth else launch_for(job)
            name = f"depth {depth}, random drafter" if depth else "baseline"
            launches.append(Planned(len(launches), replicate, name, launch, must_accept=False))
    return launches


def plan_workload(settings: BreakevenSettings, prompts: Sequence[Prompt]) -> Workload:
    """Forced lengths: every request of a cell decodes the same number of tokens, in both arms."""
    shapes = [
        CellShape(c, requests=c * settings.requests_per_slot, warmup=c, output_tokens=settings.output_tokens, warmup_tokens=4)
        for c in settings.concurrency
    ]
    return make_workload(Deck(prompts, settings.seed), shapes, settings.canary_tokens, ignore_eos=True)


def measure(settings: BreakevenSettings, job: Job, start: Starter, model: str, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """All launches that are still missing, then the summary."""
    if settings.prompt_tokens is not None:
        raise UsageError(f"{job.engine.name} answers prompts of text: their length is no setting", hint="leave prompt_tokens out")
    folder, all_reduce = job.folder(NAME), all_reduce_of(settings.collectives, job.engine.flags)
    launches = plan_launches(settings, job, folder / DRAFTER)
    run_launches(folder, launches, plan_workload(settings, prompts), start, model, job.talk, settings.start_together)
    cells = all_times(folder, settings.depths, settings.concurrency)
    kinds = {name_of(depth): depth for depth in (0, *settings.depths)}
    fitted = between(observations(cells, kinds), shape_of(job.target), all_reduce, [gate.concurrency for gate in settings.gates])
    summary = summarise(folder, settings, cells, fitted)
    atomic_write_json(folder / "summary.json", summary)
    return summary


def run(settings: BreakevenSettings, job: Job) -> dict[str, Any]:
    """Measure and write summary.json. Raises EnvironmentFailed when an engine dies, InvalidMeasurement when a figure is missing."""
    folder = job.folder(NAME)
    engine, python = engine_for(job.engine)
    write_drafter(job, folder / DRAFTER, settings.seed)
    models = Models(job.target, dict.fromkeys(settings.depths, folder / DRAFTER), job.drafter.algorithm)
    if lockstep.forces(job.engine):
        summary = lockstep.measure(settings, job, models, engine, python, folder)
    else:
        prompts = builtin_prompts(job.target, job.trust_remote_code)
        summary = measure(settings, job, engine_starter(engine, python, folder, job), engine.served_model, prompts)
        write_page(folder, summary, replace(lockstep.subject(job, models, settings), forced=False))
    shutil.rmtree(folder / DRAFTER)
    for entry in cast(list[dict[str, Any]], summary["break_even"]):
        job.talk.say(entry["pays_if"])
    for finding in summary["findings"]:
        job.talk.say(f"note: {finding}")
    if summary["advice"]:
        job.talk.say(summary["advice"])
    return {key: summary[key] for key in ("break_even", "stop", "advice", "findings", "note", "invalid")}


def write_drafter(job: Job, folder: Path, seed: int) -> None:
    """A drafter of the recipe's shape with random weights, made anew on every start (torch is imported only here)."""
    from draftsmith.models.checkpoint import write_random_drafter

    shutil.rmtree(folder, ignore_errors=True)
    write_random_drafter(job.target, job.drafter, folder, seed, job.engine.name)
