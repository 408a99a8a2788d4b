"""`draftsmith tune`: from a recipe's run folder to tune.json, a page and a table; or only what that would cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.engines.registry import engine_for
from draftsmith.errors import UsageError
from draftsmith.job import Job, Plan
from draftsmith.manifest import atomic_write_json, read_json, read_jsonl
from draftsmith.measure.gpus import gpu_reader
from draftsmith.measure.launching import engine_starter
from draftsmith.measure.protocol import LAUNCHES
from draftsmith.measure.rates import rates
from draftsmith.measure.recorder import Watch
from draftsmith.measure.sensors import Sensors
from draftsmith.tune.candidates import Candidate, Drafter, candidates_for, read_drafter
from draftsmith.tune.emit import engine_version
from draftsmith.tune.experiment import Setting
from draftsmith.tune.load import workload_for
from draftsmith.tune.page import write_page
from draftsmith.tune.result import document
from draftsmith.tune.run import measure
from draftsmith.tune.settings import TuneSettings

NAME, RESULT = "tune", "tune.json"
LAUNCH_S = 28.0  # seen on two CPU cores with a 135 M target; only for an estimate without any launch to go by


@dataclass(frozen=True)
class Subject:
    """What is tuned. fresh: stages of the run that are finished for this recipe, so that their figures may be used."""

    job: Job
    drafter: Drafter
    candidates: Sequence[Candidate]
    fresh: frozenset[str] = frozenset()


def subject_of(job: Job, settings: TuneSettings, folder: Path | None, fresh: frozenset[str]) -> Subject:
    """folder: a drafter from elsewhere; None: what the run exported. Raises UsageError when there is none, or for what cannot be tried."""
    if folder is None and "export" not in fresh:
        raise UsageError(
            f"no drafter of this recipe in {job.folder('export')}", hint="draftsmith run RECIPE --until export, or --drafter DIR"
        )
    drafter = read_drafter(job.folder("export") if folder is None else folder.resolve())
    return Subject(job, drafter, candidates_for(settings, drafter, engine_version(job.engine.name)[0]), fresh)


def plan(subject: Subject, settings: TuneSettings) -> Plan:
    """The most launches there can be, and their time: as long as those that the run already has, else a guess."""
    job, candidates, places = subject.job, len(subject.candidates), len(settings.concurrency)
    pruned = candidates > settings.keep
    probes = (1 if "breakeven" in subject.fresh else 3) if pruned else 0
    arms = min(candidates, settings.keep * places)
    screened = settings.rounds * (1 + arms) * (1 + len(settings.env_sets)) if arms > 1 or settings.env_sets else 0
    confirmed = settings.last_pair * (1 + min(arms, places))
    schedule = 4 if places > 1 and settings.check_schedule == "auto" else 0
    launches = probes + screened + confirmed + schedule
    seen = [row for stage in (NAME, "bench") for row in read_jsonl(job.folder(stage) / LAUNCHES) if row.get("measured_s")]
    known = rates(job.folder("breakeven"))
    each = LAUNCH_S + sum(n * settings.output_tokens / known.at(c) for c, n, _ in settings.shapes())
    if seen:
        each = sum(row["measured_s"] + (row.get("ready_s") or 0.0) for row in seen) / len(seen)
    note = f"at most: {probes} probes, {screened} to screen, {confirmed} to confirm, {schedule} for the schedule; nothing was done"
    return Plan(launches, seconds=launches * each, note=note)


def run(subject: Subject, settings: TuneSettings) -> dict[str, Any]:
    """Measure what is missing and write tune.json and tune.html. Raises EnvironmentFailed, InvalidMeasurement."""
    job, folder = subject.job, subject.job.folder(NAME)
    engine, python = engine_for(job.engine)
    setting = Setting(
        job=job,
        folder=folder,
        drafter=subject.drafter,
        env_sets=settings.env_sets,
        workload=workload_for(settings, job),
        start=engine_starter(engine, python, folder, job),
        served=engine.served_model,
        watch=Watch("generate" if engine.name == "sglang" else "completions", Sensors(gpu_reader())),
        together=settings.start_together,
    )
    return conclude(setting, subject, settings)


def conclude(setting: Setting, subject: Subject, settings: TuneSettings) -> dict[str, Any]:
    """All phases on whatever starts servers, and the files."""
    experiment, found = measure(setting, subject.candidates, settings, subject.fresh)
    content = document(subject.job, subject.drafter, settings, experiment, found)
    atomic_write_json(setting.folder / RESULT, content)
    write_page(setting.folder, content)
    return content


def read_result(folder: Path) -> Mapping[str, Any]:
    """tune.json of a finished tune."""
    return read_json(folder / RESULT)
