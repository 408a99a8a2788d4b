"""What a reader should know although it does not make a launch invalid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from draftsmith.bench.context import Context, named
from draftsmith.bench.runs import ARMS, Row, Runs
from draftsmith.bench.sentences import place
from draftsmith.measure.latency import findings
from draftsmith.measure.loads import size_problems
from draftsmith.measure.sensors import suspicions
from draftsmith.measure.statistics import sets_interval
from draftsmith.metrics import relative_gap

LENGTH_TOLERANCE = 0.02  # output tokens of the arms may differ by this share before it is a finding
CANARY_TOLERANCE = 0.05


def find_doubts(runs: Runs, cells: Sequence[Row], noise: Row | None, context: Context) -> list[str]:
    """All findings, the experiment's first."""
    settings = context.settings
    found = [f"{text}; less was asked for" for shape in settings.shapes() for text in size_problems(*shape)]
    if context.unit == "block":
        found.append("one server per arm: the intervals are over blocks at it, and what another start would change is not in them")
    if context.reused:
        found.append(
            f"{context.reused} requests repeat a prompt of the same launch: the prefix cache may have answered part of their prefill"
        )
    return [
        *found,
        *of_noise(noise, cells),
        *of_lengths(runs, cells),
        *of_canaries(runs),
        *of_sets(runs, cells, settings.gpu_sets),
        *of_counters(runs),
        *of_client(runs, cells),
        *of_reasoning(cells, settings.reasoning),
        *of_arms(context),
    ]


def of_noise(noise: Row | None, cells: Sequence[Row]) -> Iterator[str]:
    """Is the measurement able to tell what it tells?"""
    if noise is None or noise["source"] != "A/A launches":
        return
    if noise["low"] is not None and not noise["low"] <= 1 <= noise["high"]:
        yield (
            f"baseline against baseline is {noise['ratio']:.3f}x ({noise['low']:.3f}-{noise['high']:.3f}) at {noise['label']}: "
            "two equal launches should not differ; the machine was not steady"
        )
    for cell in cells:
        if cell["speedup"] and cell["verdict"] != "inconclusive" and abs(math.log(cell["speedup"]["ratio"])) < noise["max_abs_log_ratio"]:
            yield f"{place(cell)} the speed-up is smaller than what two baseline launches differed by ({noise['max_abs_log_ratio']:.1%})"


def of_lengths(runs: Runs, cells: Sequence[Row]) -> Iterator[str]:
    """Did one arm answer at greater length?"""
    for cell in cells:
        per_launch = {arm: cell["output_tokens"][arm] / max(1, len(runs.of(arm))) for arm in ARMS}
        if per_launch["baseline"] and abs(gap := relative_gap(per_launch["speculative"], per_launch["baseline"])) > LENGTH_TOLERANCE:
            word = "longer" if gap > 0 else "shorter"
            yield f"{place(cell)[3:]}: the speculative arm's answers are {abs(gap):.1%} {word} than the baseline's"


def of_sets(runs: Runs, cells: Sequence[Row], sets: Sequence[Sequence[int]]) -> Iterator[str]:
    """How far do the two sets of GPUs differ? It is fitted, so it is not in the speed-up; a reader may want to know which set is slow."""
    if not sets:
        return
    first, second = (",".join(map(str, gpus)) for gpus in sets)
    for cell in cells:
        found = sets_interval(runs.rates(cell["label"]))
        if found:
            said = f"{found.value:.3f}x of GPU {first} (95 % interval {found.low:.3f}-{found.high:.3f})"
            yield f"{place(cell)[3:]}: GPU {second} ran at {said}; fitted, so not in the speed-up"


def of_canaries(runs: Runs) -> Iterator[str]:
    """Was the machine steady, and alone?"""
    for arm in ARMS:
        rates = [row["canary_tok_s"] for row in runs.of(arm) if row["canary_tok_s"]]
        if rates and max(rates) / min(rates) - 1 > CANARY_TOLERANCE:
            yield f"the canary of the {arm} launches ran at {min(rates):.1f} to {max(rates):.1f} tok/s: the machine was not steady"
    for row in runs.valid:
        start, end = row["canary_tok_s"], row.get("canary_end_tok_s")
        if start and end and abs(change := end / start - 1) > CANARY_TOLERANCE:
            yield f"launch {row['launch']}: the canary was {abs(change):.0%} {'faster' if change > 0 else 'slower'} at its end"
        if row.get("sensors"):
            yield from (f"launch {row['launch']}: {text}" for text in suspicions(row["sensors"]))


def of_counters(runs: Runs) -> Iterator[str]:
    """Does the server count what it told the client?"""
    for row in runs.valid:
        for cell in row["cells"]:
            if cell["counter_tokens"] != cell["usage_tokens"]:
                counted = "nothing" if cell["counter_tokens"] is None else f"{cell['counter_tokens']} output tokens"
                yield f"launch {row['launch']}: the server counted {counted}, usage says {cell['usage_tokens']}"


def of_client(runs: Runs, cells: Sequence[Row]) -> Iterator[str]:
    """Was the client quick enough, did answers come in pieces that can be placed in time, was the prefix cache out of it?"""
    for cell in cells:
        for arm in ARMS:
            waits = cell["load"].get("max_concurrency") is not None
            yield from (f"{place(cell)[3:]}, {arm}: {text}" for text in findings(runs.replies(arm, cell["label"]), waits))


def of_reasoning(cells: Sequence[Row], asked: str) -> Iterator[str]:
    """Did the chat template do what was asked?"""
    for cell in cells:
        thought = sum(counts["reasoning_tokens"] for counts in (cell["reasoning"] or {}).values() if counts)
        if asked == "off" and thought:
            yield f"{place(cell)[3:]}: {thought} thinking tokens although reasoning is off: the chat template does not know the switch"
        if asked == "on" and not thought:
            yield f"{place(cell)[3:]}: reasoning is on, but nothing was thought: no such model, or no --reasoning-parser at the server"


def of_arms(context: Context) -> Iterator[str]:
    """Do the arms differ in more than speculation?"""
    wrong = [row for row in context.differences if row["matters"]]
    if wrong:
        yield f"the arms differ in more than speculation: {named(wrong)}"
