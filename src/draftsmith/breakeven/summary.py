"""From raw launches to the accept_len that speculation needs (pure, apart from reading the two JSONL files).

T_ar(C): seconds a slot spends on one token in the baseline. T_round(C, depth): seconds a slot spends on one round. Both are decode
time, summed over all replies of a cell, first to last token of each (prefill is the same in both arms and left out), divided by
the tokens decoded in that time, or by the rounds that the server counted. Speculation pays when accept_len > T_round / T_ar.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.breakeven.depths import needed_share, worth_training
from draftsmith.errors import InvalidMeasurement
from draftsmith.manifest import read_jsonl
from draftsmith.measure.client import Reply
from draftsmith.measure.protocol import LAUNCHES, Row, replies_of
from draftsmith.measure.statistics import quotient_interval, t_interval
from draftsmith.measure.window import decode_s, seconds_per_token
from draftsmith.metrics import break_even_accept_len

SOURCE = (
    "measured on the engine: decode time of all slots / tokens from usage (T_ar, baseline launch), / rounds from the server's counters "
    "(T_round, a drafter of the recipe's shape with random weights; a round costs the same whatever is accepted)"
)


def waves(replies: Sequence[Reply], concurrency: int) -> list[Sequence[Reply]]:
    """Replies in groups of `concurrency`, as they ended; requests of equal length move through the slots in such waves."""
    return [replies[i : i + concurrency] for i in range(0, len(replies) - concurrency + 1, concurrency)]


def cell_time(replies: Sequence[Reply], concurrency: int, rounds: int | None) -> tuple[float, list[float]]:
    """(seconds per token, or per round when `rounds` is given, in one cell of one launch; the same in each of its waves)."""
    per_token = seconds_per_token(replies)
    value = sum(map(decode_s, replies)) / rounds if rounds else per_token
    tokens_per_round = value / per_token
    return value, [tokens_per_round * seconds_per_token(wave) for wave in waves(replies, concurrency)]


def over_launches(cells: Sequence[tuple[float, list[float]]]) -> dict[str, Any]:
    """One figure from the launches that measured it. With one launch the interval is the one over its waves, and says so."""
    values = [value for value, _ in cells]
    samples, kind = (values, "over launches") if len(values) > 1 else (cells[0][1], "inside one launch")
    inside = t_interval(samples)
    value = float(np.mean(values))
    half = inside.high - inside.value
    return {"value": value, "low": value - half, "high": value + half, "launches": values, "samples": samples, "interval": kind}


def measured_times(folder: Path, launches: Sequence[Row], depth: int, concurrency: int) -> dict[str, Any]:
    """T_ar (depth 0) or T_round at one concurrency. Raises InvalidMeasurement when no valid launch measured it."""
    cells = []
    for row in launches:
        if row["depth"] != depth or row["invalid"]:
            continue
        [cell] = [cell for cell in row["cells"] if cell["concurrency"] == concurrency]
        replies = replies_of(folder, row["launch"], "cell", concurrency)
        cells.append(cell_time(replies, concurrency, cell["acceptance"]["rounds"] if depth else None))
    if not cells:
        reasons = [reason for row in launches if row["depth"] == depth for reason in row["invalid"]]
        what = f"depth {depth}" if depth else "the baseline"
        raise InvalidMeasurement(f"no valid launch of {what}: {'; '.join(reasons)}", hint=f"raw replies: {folder}/requests.jsonl")
    return over_launches(cells)


def pays_if(concurrency: int, depth: int, needed: float, how: str = "") -> str:
    """The break-even in words. how: what drafts, where the depth alone does not say it."""
    drafts = f"{depth} draft{'s' if depth > 1 else ''} per round"
    where = f"at concurrency {concurrency} with {how or drafts}"
    if needed >= depth + 1:
        return f"{where}: cannot pay; {needed:.2f} tokens per round would be needed and {depth + 1} is the most there can be"
    return f"{where}: pays if accept_len is above {needed:.2f} (of {depth + 1} at most)"


def advice_for(entries: Sequence[dict[str, Any]], min_speedup: float = 1.0) -> str:
    """What to do when no drafter could reach the speed-up that is asked for; empty when one could somewhere."""
    if any(entry["ceiling"] / entry["accept_len"] > min_speedup for entry in entries):
        return ""
    best = max(entries, key=lambda entry: entry["ceiling"] / entry["accept_len"])
    what = "pay here" if min_speedup <= 1 else f"reach the {min_speedup:.2f}x that is asked for"
    return (
        f"no drafter of this shape can {what}: even with every draft accepted the best speed-up is "
        f"{best['ceiling'] / best['accept_len']:.2f}x (concurrency {best['concurrency']}, depth {best['depth']}). "
        "Try a smaller drafter, a lower concurrency, or a target and engine whose verify step costs less; do not train."
    )


def implausible(concurrency: int, step: dict[str, Any], rounds: dict[int, dict[str, Any]]) -> list[str]:
    """Times that cannot be: a round that drafts more, or drafts at all, is never the quicker one. Shows the noise between launches."""
    found = []
    known = [("a decode step", step["value"]), *((f"a round of depth {d}", rounds[d]["value"]) for d in sorted(rounds))]
    for (less, less_s), (more, more_s) in pairwise(known):
        if more_s < less_s:
            found.append(
                f"concurrency {concurrency}: {more} took {1000 * more_s:.1f} ms, {less} {1000 * less_s:.1f} ms: "
                f"launches differ by {less_s / more_s - 1:.0%} or more for no reason of their own; give breakeven.replicates=2"
            )
    return found


def summarise(folder: Path, depths: Sequence[int], concurrency: Sequence[int], min_speedup: float = 1.0) -> dict[str, Any]:
    """The content of summary.json. Raises InvalidMeasurement when a figure has no valid launch."""
    launches = read_jsonl(folder / LAUNCHES)
    step = {c: measured_times(folder, launches, 0, c) for c in concurrency}
    rounds = {d: {c: measured_times(folder, launches, d, c) for c in concurrency} for d in depths}
    entries = []
    for c in concurrency:
        for d in depths:
            needed = break_even_accept_len(rounds[d][c]["value"], step[c]["value"])
            inside = quotient_interval(rounds[d][c]["samples"], step[c]["samples"])
            entries.append(
                {
                    "concurrency": c,
                    "depth": d,
                    "decode_step_s": step[c]["value"],
                    "round_s": rounds[d][c]["value"],
                    "accept_len": needed,
                    "accept_len_low": min(inside.low, needed),  # arithmetic and geometric means differ in the last digits
                    "accept_len_high": max(inside.high, needed),
                    "ceiling": d + 1,
                    "needed_share": needed_share(needed, d),
                    "pays_if": pays_if(c, d, needed),
                }
            )
    return {
        "concurrency": list(concurrency),
        "depths": list(depths),
        "decode_step_s": {str(c): value for c, value in step.items()},
        "round_s": {str(d): {str(c): value for c, value in by.items()} for d, by in rounds.items()},
        "break_even": entries,
        "depth_worth_training": worth_training(entries),
        "advice": advice_for(entries, min_speedup),
        "findings": [text for c in concurrency for text in implausible(c, step[c], {d: rounds[d][c] for d in depths})],
        "source": SOURCE,
        "note": "one launch of each kind: noise between launches is not in the intervals" if len(launches) == 1 + len(depths) else "",
        "invalid": [{"launch": row["launch"], "reason": reason} for row in launches for reason in row["invalid"]],
        "canary": [{"launch": row["launch"], "arm": row["arm"], "tok_s": row["canary_tok_s"]} for row in launches],
    }
