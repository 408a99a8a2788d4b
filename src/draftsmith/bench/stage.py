"""bench: baseline and drafter in launches that take turns, the same held-out prompts in the same order; speed-up with its interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from draftsmith.bench.context import Context
from draftsmith.bench.decide import noise_floor, reason_to_stop
from draftsmith.bench.planning import described_cells, make_context, plan_launches, plan_workload
from draftsmith.bench.prompting import Prompting, of_recipe
from draftsmith.bench.runs import Runs
from draftsmith.bench.sentences import interval_text
from draftsmith.bench.settings import BenchSettings
from draftsmith.bench.summary import write_summary
from draftsmith.engines.registry import engine_for
from draftsmith.job import Job, Plan, Talk
from draftsmith.measure.gpus import gpu_reader
from draftsmith.measure.launching import engine_starter
from draftsmith.measure.live import Live
from draftsmith.measure.protocol import How, Starter, run_launches
from draftsmith.measure.rates import rates
from draftsmith.measure.recorder import Watch
from draftsmith.measure.sensors import Limits, Sensors
from draftsmith.measure.sleeping import switch_for, taking_turns
from draftsmith.measure.statistics import num_pairs

NAME = "bench"
INPUTS = ("breakeven", "data", "export", "verify", "serve")
LAUNCH_S = 28.0  # seen on two CPU cores with a 135 M target


def plan(settings: BenchSettings, job: Job) -> Plan:
    """Launches and time; with pairs_max the most there can be."""
    launches = settings.noise_launches + 2 * settings.last_pair
    known = rates(job.folder("breakeven"))
    tokens_s = sum(n * sum(settings.lengths) / known.at(c) for c, n, _ in settings.shapes())
    tokens_s += sum(load.requests / (load.rate or 1.0) for load in settings.loads)
    most = f"{settings.pairs} to {settings.last_pair}" if settings.last_pair > settings.pairs else str(settings.pairs)
    noise = f" after {settings.noise_launches} of the noise floor" if settings.noise_launches else ""
    return Plan(launches=launches, seconds=launches * (LAUNCH_S + tokens_s), note=f"{most} pairs in turned order{noise}; {known.source}")


def after_pair(folder: Path, context: Context, live: Live, talk: Talk) -> Callable[[int], str]:
    """What is asked when a pair has ended: show the intervals so far, and is that enough?"""
    described = described_cells(context.settings)

    def look(pairs: int) -> str:
        if pairs == 0:
            say_noise(folder, context, talk)
            return ""
        runs = Runs(folder, pairs - 1, with_replies=False)
        found = {}
        for cell in described:
            rates = runs.rates(cell["label"])
            if num_pairs(rates) >= 2:
                inside = context.looks.interval(rates, pairs)
                values = {"ratio": inside.value, "low": inside.low, "high": inside.high, "confidence": 0.95, "pairs": num_pairs(rates)}
                found[cell["label"]] = interval_text(values)
        live.found(found)
        reason = reason_to_stop(folder, context, pairs, described)
        if reason:
            talk.say(f"ends after {pairs} of {context.looks.last} pairs: {reason}")
        return reason

    return look


def say_noise(folder: Path, context: Context, talk: Talk) -> None:
    """What the pairs will be able to tell, before they are spent."""
    noise = noise_floor(Runs(folder, with_replies=False), described_cells(context.settings), context.looks.last)
    if noise:
        talk.say(
            f"noise floor: baseline launches differ by up to {math.expm1(noise['max_abs_log_ratio']):.1%} ({noise['label']}); "
            f"{context.looks.last} pairs can tell a speed-up from {noise['detectable']:.3f}x on"
        )


def measure(
    settings: BenchSettings,
    job: Job,
    start: Starter,
    model: str,
    prompting: Prompting,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """All launches that are still missing, then the summary."""
    folder = job.folder(NAME)
    deck = prompting.deck(settings)
    workload = plan_workload(settings, deck, prompting.render)
    context = make_context(settings, job, workload, deck.reused)
    context.write(folder)
    launches = plan_launches(settings, job)
    live = Live(job.talk, len(launches))
    how = How(watch or Watch(settings.endpoint), live, after_pair(folder, context, live, job.talk))
    with ExitStack() as stack:
        if settings.mode == "sleep":
            start = stack.enter_context(taking_turns(start, switch_for(job.engine.name.partition("==")[0])))
        run_launches(folder, launches, workload, start, model, job.talk, settings.start_together, how)
    return write_summary(folder, context)


def run(settings: BenchSettings, job: Job) -> dict[str, Any]:
    """Measure and write summary.json; a failed gate is a result, not an error. Raises EnvironmentFailed when an engine dies."""
    prompting = of_recipe(settings, job)
    engine, python = engine_for(job.engine)
    starter = engine_starter(engine, python, job.folder(NAME), job)
    watch = Watch(settings.endpoint, Sensors(gpu_reader()), Limits(foreign_cpu=settings.max_foreign_cpu))
    summary = measure(settings, job, starter, engine.served_model, prompting, watch)
    job.talk.say(summary["verdict_sentence"])
    if summary["stops_paying_above"] is not None:
        job.talk.say(f"stops paying above concurrency {summary['stops_paying_above']}")
    for finding in summary["findings"]:
        job.talk.say(f"note: {finding}")
    kept = ("cells", "invalid", "findings", "gate", "gate_reason", "gates", "verdict_sentence", "launches", "launches_used", "stopping")
    return {key: summary[key] for key in kept}
