"""bench: baseline and drafter in launches that take turns, the same held-out prompts in the same order; speed-up with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftsmith.bench.settings import BenchSettings
from draftsmith.bench.summary import summarise
from draftsmith.engines.registry import engine_for
from draftsmith.job import Job, Plan
from draftsmith.manifest import atomic_write_json
from draftsmith.measure.launching import engine_starter, launch_for
from draftsmith.measure.protocol import Planned, Starter, Workload, launch_arms, run_launches
from draftsmith.measure.workload import CellShape, Deck, Prompt, make_workload
from draftsmith.samples import read_samples

NAME = "bench"
INPUTS = ("breakeven", "data", "export", "verify", "serve")
LAUNCH_S = 28.0  # seen on two CPU cores with a 135 M target
BASELINE_TOK_S = {1: 32.0, 8: 190.0}  # the same, for the estimate only


def plan(settings: BenchSettings, job: Job) -> Plan:
    """Launches and time."""
    launches = 2 * settings.pairs
    tokens_s = sum(
        n * settings.output_tokens / BASELINE_TOK_S.get(c, 32.0 * min(c, 6))
        for c, n in zip(settings.concurrency, settings.requests, strict=False)
    )
    return Plan(launches=launches, seconds=launches * (LAUNCH_S + tokens_s), note=f"{settings.pairs} pairs in turned order")


def plan_launches(settings: BenchSettings, job: Job) -> list[Planned]:
    """A B B A A B ..."""
    baseline, speculative = launch_for(job), launch_for(job, job.folder("export"), job.drafter.depth)
    return [
        Planned(index, index // 2, arm, baseline if arm == "baseline" else speculative)
        for index, arm in enumerate(launch_arms(settings.pairs))
    ]


def plan_workload(settings: BenchSettings, deck: Deck) -> Workload:
    """Canary, warm-ups and cells, dealt from `deck`."""
    shapes = [
        CellShape(c, requests, warmup, settings.output_tokens, settings.warmup_tokens)
        for c, requests, warmup in zip(settings.concurrency, settings.requests, settings.warmup_requests, strict=True)
    ]
    return make_workload(deck, shapes, settings.canary_tokens, settings.temperature)


def measure(
    settings: BenchSettings, job: Job, start: Starter, model: str, sources: dict[str, str], prompts: Sequence[Prompt]
) -> dict[str, Any]:
    """All launches that are still missing, then the summary."""
    folder = job.folder(NAME)
    deck = Deck(prompts, settings.seed)
    run_launches(folder, plan_launches(settings, job), plan_workload(settings, deck), start, model, job.talk, settings.start_together)
    break_even = job.read("breakeven", "summary.json")["break_even"]
    summary = summarise(folder, settings, job.drafter.depth, sources, break_even, deck.reused)
    atomic_write_json(folder / "summary.json", summary)
    return summary


def run(settings: BenchSettings, job: Job) -> dict[str, Any]:
    """Measure and write summary.json; a failed gate is a result, not an error. Raises EnvironmentFailed when an engine dies."""
    samples = read_samples(job.folder("data") / "samples-heldout.parquet")
    sources = {sample.id: sample.source for sample in samples}
    prompts = [Prompt(sample.id, tuple(int(i) for i in sample.prompt_ids)) for sample in samples]
    engine, python = engine_for(job.engine)
    starter = engine_starter(engine, python, job.folder(NAME), job)
    summary = measure(settings, job, starter, engine.served_model, sources, prompts)
    job.talk.say(summary["verdict_sentence"])
    for finding in summary["findings"]:
        job.talk.say(f"note: {finding}")
    kept = ("cells", "invalid", "findings", "gate", "gate_reason", "verdict_sentence", "launches", "launches_used")
    return {key: summary[key] for key in kept}
