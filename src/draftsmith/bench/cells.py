"""One cell: from the launches that measured it to its speed-up, its verdict and what explains them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from draftsmith.bench.context import Context
from draftsmith.bench.runs import ARMS, Row, Runs
from draftsmith.engines.protocol import Arm
from draftsmith.measure.bootstrap import LaunchTimes, hierarchical_bootstrap
from draftsmith.measure.latency import finish_mix, goodput_of, latency, reasoning, user_tok_s
from draftsmith.measure.messages import Reply
from draftsmith.measure.statistics import geometric_mean, method_name, num_pairs, ratio_interval, verdict
from draftsmith.measure.stopping import accept_len_high, cannot_pay
from draftsmith.measure.window import chunk_rounds, decode_tok_s, request_s
from draftsmith.metrics import Acceptance, Slo, relative_gap

CHUNK_TOLERANCE = 0.02


def over_launches(values: Sequence[float]) -> Row:
    """Geometric mean with the t interval over launches; what cannot be told is None."""
    found = ratio_interval([math.log(value) for value in values]) if len(values) >= 2 else None
    return {
        "mean": geometric_mean(values) if values else None,
        "low": found.low if found else None,
        "high": found.high if found else None,
        "launches": list(values),
    }


def over_prompts(runs: Runs, label: str) -> Row | None:
    """How the speed-up varies from prompt to prompt: per prompt the mean log decode rate of each arm, t interval over prompts.

    It answers another question than the interval over launches: would other prompts of this kind show the same?
    """
    logs: dict[Arm, dict[str, list[float]]] = {arm: defaultdict(list) for arm in ARMS}
    for arm in ARMS:
        for reply in runs.replies(arm, label):
            rate = decode_tok_s(reply)
            if not math.isnan(rate):
                logs[arm][reply.id].append(math.log(rate))
    shared = sorted(logs["baseline"].keys() & logs["speculative"].keys())
    if len(shared) < 2:
        return None
    means = {arm: [sum(logs[arm][name]) / len(logs[arm][name]) for name in shared] for arm in ARMS}
    found = ratio_interval([b - a for a, b in zip(means["baseline"], means["speculative"], strict=True)])
    return {"ratio": found.value, "low": found.low, "high": found.high, "prompts": len(shared)}


def resampled(runs: Runs, label: str) -> Row | None:
    """The hierarchical bootstrap, a second opinion; None when the launches share fewer than two prompts."""
    sums: list[tuple[bool, dict[str, tuple[int, float]]]] = []
    for arm in ARMS:
        for replies in runs.replies_by_launch(arm, label):
            by_prompt: dict[str, tuple[int, float]] = {}
            for reply in replies:
                tokens, seconds = by_prompt.get(reply.id, (0, 0.0))
                by_prompt[reply.id] = (tokens + reply.completion_tokens, seconds + request_s(reply))
            sums.append((arm == "speculative", by_prompt))
    shared = sorted(set.intersection(*(set(by_prompt) for _, by_prompt in sums))) if sums else []
    launches = [
        LaunchTimes(arm, np.array([by_prompt[name][0] for name in shared]), np.array([by_prompt[name][1] for name in shared]))
        for arm, by_prompt in sums
    ]
    found = hierarchical_bootstrap(launches) if shared else None
    return asdict(found) if found else None


# --- acceptance ------------------------------------------------------------------------------------------------------


def total_acceptance(cells: Sequence[Row]) -> Acceptance | None:
    """Counts summed over launches; None when a launch has none."""
    counts = [Acceptance.from_dict(cell["acceptance"]) for cell in cells if cell["acceptance"]]
    total = None
    for count in counts:
        total = count if total is None else total + count
    return total if len(counts) == len(cells) else None


def acceptance_by_category(replies: Sequence[Reply], counted: Acceptance | None) -> dict[str, Row] | None:
    """rounds, accept_len and survival of each prompt category. None when nobody says which request a round belonged to.

    Believed: what the server says of each request; else the chunks, as long as they add up to the server's counter of rounds.
    """
    told = bool(replies) and all(reply.rounds is not None for reply in replies)
    chunks = sum(map(chunk_rounds, replies))
    if not told and (counted is None or not replies or abs(chunks - counted.rounds) > CHUNK_TOLERANCE * counted.rounds):
        return None
    groups: dict[str, list[Reply]] = defaultdict(list)
    for reply in replies:
        groups[reply.category].append(reply)
    return {name: of_requests(groups[name], told) for name in sorted(groups)}


def of_requests(replies: Sequence[Reply], told: bool) -> Row:
    """Acceptance of some requests. The first token of each comes from the prefill, not from a round."""
    rounds = sum(reply.rounds or 0 for reply in replies) if told else sum(map(chunk_rounds, replies))
    survival = None
    if told and all(reply.reached is not None for reply in replies):
        depth = max(len(reply.reached or ()) for reply in replies)
        reached = [sum(r.reached[i] for r in replies if r.reached and len(r.reached) > i) for i in range(depth)]
        survival = [n / rounds for n in reached] if rounds else None
    tokens = sum(reply.completion_tokens - 1 for reply in replies)
    accept_len = None if not rounds else 1 + sum(survival) if survival is not None else tokens / rounds
    return {"rounds": rounds, "accept_len": accept_len, "survival": survival}


# --- the cell --------------------------------------------------------------------------------------------------------


def speedup_of(runs: Runs, label: str, context: Context) -> Row | None:
    """The interval that the number of pairs is entitled to; None with fewer than two valid launches of an arm."""
    rates = runs.rates(label)
    if num_pairs(rates) < 2:
        return None
    found = context.looks.interval(rates, runs.pairs_done)
    method = method_name(rates) if context.unit == "launch" else method_name(rates).replace("launches", "blocks at one server each")
    if context.looks.first < context.looks.last:
        method += f", repeated at {100 * found.confidence:.1f} % for the looks"
    row = {"ratio": found.value, "low": found.low, "high": found.high, "pairs": num_pairs(rates), "df": found.df}
    return row | {"confidence": 0.95, "nominal_confidence": found.confidence, "method": method, "says": verdict(found)}


def break_even_of(context: Context, cell: Row) -> Row | None:
    """The accept_len that breakeven found necessary here, with its interval."""
    entry = context.break_even_at(cell["concurrency"]) if cell["load"]["kind"] == "closed" else None
    if entry is None:
        return None
    return {"value": entry["accept_len"], "low": entry.get("accept_len_low"), "high": entry.get("accept_len_high")}


def rejection(counted: Acceptance | None, needed: Row | None) -> str:
    """Why this cell cannot pay whatever its speed-up looks like; empty when it can."""
    if not needed or not cannot_pay(counted, needed["low"]):
        return ""
    assert counted is not None
    return (
        f"accept_len {counted.accept_len:.2f} (at most {accept_len_high(counted):.2f}, {counted.rounds} rounds) is below the break-even "
        f"{needed['value']:.2f} (at least {needed['low']:.2f})"
    )


def predict(context: Context, concurrency: int, accept_len: float) -> float | None:
    """accept_len * T_ar / T_round with the times that breakeven measured; None where it did not measure this cell."""
    entry = context.break_even_at(concurrency)
    return accept_len * entry["decode_step_s"] / entry["round_s"] if entry and "round_s" in entry else None


def summarise_cell(runs: Runs, described: Row, context: Context) -> Row:
    """One entry of `cells`. described: concurrency, label and load of the cell."""
    label = described["label"]
    row: Row = dict(described)
    rates = runs.rates(label)
    for arm in ARMS:
        row[f"{arm}_tok_s"] = over_launches([rate.rate for rate in rates if rate.arm == arm])
    row["per_user_tok_s"] = {
        arm: over_launches([speed for r in runs.replies_by_launch(arm, label) if (speed := user_tok_s(r))]) for arm in ARMS
    }
    row["speedup"] = speedup_of(runs, label, context)
    row["verdict"] = row["speedup"].pop("says") if row["speedup"] else "inconclusive"
    row["speedup_over_prompts"] = over_prompts(runs, label)
    row["speedup_bootstrap"] = resampled(runs, label)
    row["output_tokens"] = {arm: sum(cell["usage_tokens"] for cell in runs.cells(arm, label)) for arm in ARMS}
    replies = {arm: runs.replies(arm, label) for arm in ARMS}
    row["latency"] = {arm: latency(replies[arm]) for arm in ARMS}
    row["goodput"] = none_if_empty({arm: goodput_of(runs.replies_by_launch(arm, label), Slo(**context.settings.slo)) for arm in ARMS})
    row["finish"] = {arm: finish_mix(replies[arm]) for arm in ARMS}
    thought = {arm: reasoning(replies[arm]) for arm in ARMS}
    row["reasoning"] = thought if any(counts and counts["reasoning_tokens"] for counts in thought.values()) else None
    counted = total_acceptance(runs.cells("speculative", label))
    row["acceptance"] = None if counted is None else counted.as_dict()
    row["acceptance_by_category"] = acceptance_by_category(replies["speculative"], counted)
    row["break_even_accept_len"] = break_even_of(context, row)
    row["verdict_reason"] = ""
    ended_early = context.settings.early_reject and runs.pairs_done < context.settings.last_pair
    if ended_early and row["verdict"] == "inconclusive" and (reason := rejection(counted, row["break_even_accept_len"])):
        row["verdict"], row["verdict_reason"] = "does not pay", reason  # the pairs that would have told were not spent
    closed = row["load"]["kind"] == "closed"
    row["predicted_speedup"] = predict(context, row["concurrency"], counted.accept_len) if counted and closed else None
    row["prediction_gap"] = None
    if row["predicted_speedup"] is not None and row["speedup"] is not None:
        row["prediction_gap"] = relative_gap(row["predicted_speedup"], row["speedup"]["ratio"])
    return row


def none_if_empty(by_arm: dict[Arm, Any]) -> dict[Arm, Any] | None:
    """None when no arm has anything."""
    return by_arm if any(value is not None for value in by_arm.values()) else None
