"""Gates, where speculation stops paying, and whether an experiment may end before its last pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from draftsmith.bench.cells import break_even_of, rejection, total_acceptance
from draftsmith.bench.context import Context
from draftsmith.bench.runs import Row, Runs, rates_of
from draftsmith.bench.sentences import place
from draftsmith.measure.statistics import num_pairs, ratio_interval
from draftsmith.measure.stopping import is_futile, judge
from draftsmith.settings import Gate

# --- ending early ----------------------------------------------------------------------------------------------------


def reason_to_stop(folder: Path, context: Context, pairs: int, described: Sequence[Row]) -> str:
    """Why the experiment ends after `pairs` pairs; "" when it goes on. Follows from the raw lines of those pairs alone.

    described: concurrency, label and load of every cell.
    """
    runs = Runs(folder, pairs - 1, with_replies=False)
    if context.settings.early_reject and (reason := rejected_everywhere(runs, context, described)):
        return reason
    looks = context.looks
    if pairs >= looks.last or pairs < looks.first:
        return ""
    open_cells, futile = [], []
    for cell in described:
        rates = runs.rates(cell["label"])
        if num_pairs(rates) < 2:
            return ""
        found = looks.interval(rates, pairs)
        undecided = [bar for bar in bars(context, cell) if judge(found, bar) == "open"]
        if undecided:
            (futile if all(is_futile(found, bar, pairs, looks) for bar in undecided) else open_cells).append(cell["label"])
    if open_cells:
        return ""
    if futile:
        return f"futile: more pairs up to {looks.last} would hardly decide {', '.join(futile)}"
    return "decided: every interval is clear of what it is compared with"


def rejected_everywhere(runs: Runs, context: Context, described: Sequence[Row]) -> str:
    """The early reject: accept_len is below break-even in every cell, so no cell can pay."""
    reasons = []
    for cell in described:
        cells = runs.cells("speculative", cell["label"])
        reason = rejection(total_acceptance(cells), break_even_of(context, cell)) if cells else ""
        if not reason:
            return ""
        reasons.append(f"{cell['label']}: {reason}")
    return f"does not pay: {'; '.join(reasons)}"


def bars(context: Context, cell: Row) -> list[float]:
    """What this cell's interval must be clear of: 1, or the gates at its concurrency."""
    found = [gate.min_speedup for gate in context.settings.gates if is_at(gate, cell)]
    return found or [1.0]


# --- gates -----------------------------------------------------------------------------------------------------------


def is_at(gate: Gate, cell: Row) -> bool:
    return cell["load"]["kind"] == "closed" and cell["concurrency"] == gate.concurrency


def judge_gate(gate: Gate, cell: Row, num_invalid: int) -> Row:
    """An entry of `gates`. An experiment with invalid launches proves nothing to a gate."""
    result, reason = gate_result(gate, cell, num_invalid)
    return {"concurrency": gate.concurrency, "min_speedup": gate.min_speedup, "result": result, "reason": reason}


def gate_result(gate: Gate, cell: Row, num_invalid: int) -> tuple[str, str]:
    where = place(cell)[3:]
    found = cell["speedup"]
    if cell["verdict_reason"] and gate.min_speedup >= 1 and not num_invalid:
        return "failed", f"at {where} {cell['verdict_reason']}"
    if found is None:
        return "inconclusive", f"fewer than two valid launches of each arm at {where}"
    bound = f"at {where} the interval {found['low']:.3f}-{found['high']:.3f}"
    if num_invalid:
        return "inconclusive", f"{num_invalid} launch{'es are' if num_invalid > 1 else ' is'} invalid ({bound} comes from the others)"
    if found["low"] > gate.min_speedup:
        return "passed", f"{bound} lies above {gate.min_speedup:g}"
    if found["high"] <= gate.min_speedup:
        return "failed", f"{bound} lies below {gate.min_speedup:g}"
    return "inconclusive", f"{bound} contains {gate.min_speedup:g}"


def all_gates(gates: Sequence[Row]) -> tuple[str, str]:
    """(result, reason) over all gates: the first that failed, else the first that is inconclusive, else passed."""
    for wanted in ("failed", "inconclusive"):
        for gate in gates:
            if gate["result"] == wanted:
                return wanted, gate["reason"]
    return "passed", "; ".join(gate["reason"] for gate in gates) or "no gate was asked for"


def stops_paying_above(cells: Sequence[Row]) -> int | None:
    """The highest concurrency that pays (with several lengths of answers: at each), when a higher one does not (at any); None when none
    pays or no higher one was found not to."""
    verdicts: dict[int, set[str]] = {}
    for cell in cells:
        if cell["load"]["kind"] == "closed":
            verdicts.setdefault(cell["concurrency"], set()).add(cell["verdict"])
    best = max((concurrency for concurrency, found in verdicts.items() if found == {"pays"}), default=None)
    if best is None or not any("does not pay" in found for concurrency, found in verdicts.items() if concurrency > best):
        return None
    return best


# --- the noise floor -------------------------------------------------------------------------------------------------


def noise_floor(runs: Runs, described: Sequence[Row], pairs: int) -> dict[str, Any] | None:
    """What two launches of the same thing differ by, in the cell where they differ most; None with fewer than two baseline launches.

    From the A/A launches when there are two or more, else from the baseline launches of the pairs. ratio, low, high: as if every second
    launch had another arm, in the order A A' A' A (t interval over the ratios of neighbours; None with fewer than two). detectable: the
    smallest speed-up that the planned pairs could tell from 1 if launches scatter as these did.
    """
    measured_apart = len(runs.noise) >= 2
    launches = runs.noise if measured_apart else runs.of("baseline")
    found = [noise_of(rates_of(launches, cell["label"]), pairs) | {"label": cell["label"]} for cell in described if len(launches) >= 2]
    worst = max(found, key=lambda row: row["max_abs_log_ratio"], default=None)
    if worst is None:
        return None
    return worst | {"source": "A/A launches" if measured_apart else "baseline launches of the pairs"}


def noise_of(rates: Sequence[Any], pairs: int) -> dict[str, Any]:
    """The noise floor of one cell."""
    logs = np.log([rate.rate for rate in rates])
    ratios = [float(second - first) for first, second in zip(logs[::2], logs[1::2], strict=False)]
    ratios = [-ratio if place % 2 else ratio for place, ratio in enumerate(ratios)]  # A A' A' A: a steady drift cancels, as in the pairs
    inside = ratio_interval(ratios) if len(ratios) >= 2 else None
    scatter = float(np.std(logs, ddof=1))
    df = 2 * pairs - (3 if pairs >= 3 else 2)
    return {
        "ratio": math.exp(float(np.mean(ratios))),
        "low": inside.low if inside else None,
        "high": inside.high if inside else None,
        "launches": len(logs),
        "max_abs_log_ratio": max(abs(ratio) for ratio in ratios),
        "scatter": scatter,
        "detectable": math.exp(float(stats.t.ppf(0.975, df)) * scatter * math.sqrt(2 / pairs)),
    }
