"""From raw launches to speed-ups, verdicts and the gate (pure, apart from reading the two JSONL files)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftsmith.bench.sentences import gate_reason, verdict_sentence
from draftsmith.bench.settings import BenchSettings
from draftsmith.engines.protocol import Arm
from draftsmith.manifest import read_jsonl
from draftsmith.measure.client import Reply
from draftsmith.measure.protocol import LAUNCHES, Row, replies_of
from draftsmith.measure.statistics import (
    Interval,
    Measured,
    geometric_mean,
    method_name,
    num_pairs,
    ratio_interval,
    speedup_interval,
    verdict,
)
from draftsmith.measure.window import chunk_rounds, decode_tok_s
from draftsmith.metrics import Acceptance, relative_gap

LENGTH_TOLERANCE = 0.02  # output tokens of the arms may differ by this share before it is a finding
CANARY_TOLERANCE = 0.05
CHUNK_TOLERANCE = 0.02
ARMS: tuple[Arm, Arm] = ("baseline", "speculative")


class Runs:
    """The raw lines of one experiment; `valid` leaves out what proves nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launches = read_jsonl(folder / LAUNCHES)
        self.valid = [row for row in self.launches if not row["invalid"]]

    def of(self, arm: Arm) -> list[Row]:
        return [row for row in self.valid if row["arm"] == arm]

    def cells(self, arm: Arm, concurrency: int) -> list[Row]:
        """This cell of every valid launch of an arm."""
        return [cell for row in self.of(arm) for cell in row["cells"] if cell["concurrency"] == concurrency]

    def replies(self, arm: Arm, concurrency: int) -> list[Reply]:
        """Replies of this cell over all valid launches of an arm."""
        return [reply for row in self.of(arm) for reply in replies_of(self.folder, row["launch"], "cell", concurrency)]

    def rates(self, concurrency: int) -> list[Measured]:
        """Output tok/s of this cell by launch."""
        return [
            Measured(row["launch"], row["arm"], cell["tok_s"])
            for row in self.valid
            for cell in row["cells"]
            if cell["concurrency"] == concurrency
        ]


def over_prompts(runs: Runs, concurrency: int) -> dict[str, Any] | None:
    """How the speed-up varies from prompt to prompt: per prompt the mean log decode rate of each arm, t interval over prompts.

    It answers another question than the interval over launches: would other prompts of this kind show the same?
    """
    logs: dict[Arm, dict[str, list[float]]] = {arm: defaultdict(list) for arm in ARMS}
    for arm in ARMS:
        for reply in runs.replies(arm, concurrency):
            rate = decode_tok_s(reply)
            if not math.isnan(rate):
                logs[arm][reply.id].append(math.log(rate))
    shared = sorted(logs["baseline"].keys() & logs["speculative"].keys())
    if len(shared) < 2:
        return None
    means = {arm: [sum(logs[arm][name]) / len(logs[arm][name]) for name in shared] for arm in ARMS}
    found = ratio_interval([b - a for a, b in zip(means["baseline"], means["speculative"], strict=True)])
    return {"ratio": found.value, "low": found.low, "high": found.high, "prompts": len(shared)}


def total_acceptance(cells: Sequence[Row]) -> Acceptance | None:
    """Counts summed over launches."""
    counts = [Acceptance.from_dict(cell["acceptance"]) for cell in cells]
    total = None
    for count in counts:
        total = count if total is None else total + count
    return total


def predict(break_even: Sequence[Row], concurrency: int, depth: int, accept_len: float) -> float | None:
    """accept_len * T_ar / T_round with the times that breakeven measured; None where it did not measure this cell."""
    for entry in break_even:
        if (entry["concurrency"], entry["depth"]) == (concurrency, depth):
            return accept_len * entry["decode_step_s"] / entry["round_s"]
    return None


def summarise_cell(runs: Runs, concurrency: int, break_even: Sequence[Row], depth: int) -> Row:
    """One entry of `cells`."""
    rates = runs.rates(concurrency)
    row: Row = {"concurrency": concurrency}
    for arm in ARMS:
        values = [rate.rate for rate in rates if rate.arm == arm]
        row[f"{arm}_tok_s"] = {"mean": geometric_mean(values) if values else None, "launches": values}
    row["speedup"], row["verdict"] = None, "inconclusive"
    if num_pairs(rates) >= 2:
        found: Interval = speedup_interval(rates)
        row["speedup"] = {"ratio": found.value, "low": found.low, "high": found.high, "pairs": num_pairs(rates), "df": found.df}
        row["speedup"] |= {"confidence": found.confidence, "method": method_name(rates)}
        row["verdict"] = verdict(found)
    row["speedup_over_prompts"] = over_prompts(runs, concurrency)
    row["output_tokens"] = {arm: sum(cell["usage_tokens"] for cell in runs.cells(arm, concurrency)) for arm in ARMS}
    acceptance = total_acceptance(runs.cells("speculative", concurrency))
    row["acceptance"] = None if acceptance is None else acceptance.as_dict()
    predicted = None if acceptance is None else predict(break_even, concurrency, depth, acceptance.accept_len)
    if predicted is not None:
        row["predicted_speedup"] = predicted
        if row["speedup"]:
            row["prediction_gap"] = relative_gap(predicted, row["speedup"]["ratio"])
    return row


def accept_len_by_source(runs: Runs, concurrency: Sequence[int], sources: Mapping[str, str]) -> dict[str, float] | None:
    """accept_len of each prompt source over all speculative cells; None when chunks and counters do not agree.

    The server counts rounds for all requests together. A chunk per round gives them per request, which is believed only when the
    chunks of all requests add up to the counter.
    """
    cells = [cell for c in concurrency for cell in runs.cells("speculative", c)]
    acceptance = total_acceptance(cells)
    replies = [reply for c in concurrency for reply in runs.replies("speculative", c)]
    chunks = sum(map(chunk_rounds, replies))
    if acceptance is None or abs(chunks - acceptance.rounds) > CHUNK_TOLERANCE * acceptance.rounds:
        return None
    tokens: dict[str, int] = defaultdict(int)
    rounds: dict[str, int] = defaultdict(int)
    for reply in replies:
        tokens[sources[reply.id]] += reply.completion_tokens - 1  # the first comes from the prefill
        rounds[sources[reply.id]] += chunk_rounds(reply)
    return {source: tokens[source] / rounds[source] for source in sorted(rounds) if rounds[source]}


def find_doubts(runs: Runs, cells: Sequence[Row], reused: int) -> list[str]:
    """What a reader should know although it does not make a launch invalid."""
    findings = []
    for cell in cells:
        per_launch = {arm: cell["output_tokens"][arm] / max(1, len(runs.of(arm))) for arm in ARMS}
        if per_launch["baseline"] and abs(gap := relative_gap(per_launch["speculative"], per_launch["baseline"])) > LENGTH_TOLERANCE:
            word = "longer" if gap > 0 else "shorter"
            findings.append(
                f"concurrency {cell['concurrency']}: the speculative arm's answers are {abs(gap):.1%} {word} than the baseline's"
            )
    for arm in ARMS:
        rates = [row["canary_tok_s"] for row in runs.of(arm)]
        if rates and max(rates) / min(rates) - 1 > CANARY_TOLERANCE:
            findings.append(
                f"the canary of the {arm} launches ran at {min(rates):.1f} to {max(rates):.1f} tok/s: the machine was not steady"
            )
    for row in runs.valid:
        for cell in row["cells"]:
            if cell["counter_tokens"] != cell["usage_tokens"]:
                counted = "nothing" if cell["counter_tokens"] is None else f"{cell['counter_tokens']} output tokens"
                findings.append(f"launch {row['launch']}: the server counted {counted}, usage says {cell['usage_tokens']}")
    if reused:
        findings.append(f"{reused} requests repeat a prompt of the same launch: the prefix cache may have answered part of their prefill")
    return findings


def gate(settings: BenchSettings, cells: Sequence[Row], num_invalid: int) -> str:
    """passed, failed or inconclusive, at `gate_concurrency`. An experiment with invalid launches proves nothing to a gate."""
    [cell] = [cell for cell in cells if cell["concurrency"] == settings.gate_concurrency]
    if num_invalid or cell["speedup"] is None:
        return "inconclusive"
    if cell["speedup"]["low"] > settings.min_speedup:
        return "passed"
    return "failed" if cell["speedup"]["high"] <= settings.min_speedup else "inconclusive"


def summarise(
    folder: Path, settings: BenchSettings, depth: int, sources: Mapping[str, str], break_even: Sequence[Row], reused: int = 0
) -> dict[str, Any]:
    """The content of summary.json. sources: prompt id -> source. break_even: entries of breakeven/summary.json."""
    runs = Runs(folder)
    cells = [summarise_cell(runs, c, break_even, depth) for c in settings.concurrency]
    invalid = [{"launch": row["launch"], "arm": row["arm"], "reason": reason} for row in runs.launches for reason in row["invalid"]]
    num_invalid = len(runs.launches) - len(runs.valid)
    by_source = accept_len_by_source(runs, settings.concurrency, sources)
    findings = find_doubts(runs, cells, reused)
    if by_source is None and runs.of("speculative"):
        findings.append("no accept_len by source: the server does not send one chunk per round")
    result = gate(settings, cells, num_invalid)
    return {
        "cells": cells,
        "depth": depth,
        "launches": len(runs.launches),
        "launches_used": len(runs.valid),
        "invalid": invalid,
        "findings": findings,
        "canary": [{"launch": row["launch"], "arm": row["arm"], "tok_s": row["canary_tok_s"]} for row in runs.launches],
        "accept_len_by_source": by_source or {},
        "order": "".join("A" if row["arm"] == "baseline" else "B" for row in runs.launches),
        "tok_s": "output tokens from usage / second, from the first send until a slot finds the queue empty",
        "acceptance_source": "difference of the server's counters over each cell, summed over launches",
        "bf16 texts": "requests.jsonl holds token_ids",
        "gate": result,
        "gate_reason": gate_reason(settings, cells, num_invalid, result),
        "verdict_sentence": verdict_sentence(cells, depth),
    }
