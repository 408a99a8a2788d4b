"""From waves to break-even: A* = T_round / T_ar with its interval, for every kind of launch and every concurrency (pure).

The number of a launch at a concurrency is the mean of log T over its waves. How much launches of one kind differ is estimated once, from
every kind that was launched more than once, and holds for all kinds: y = kind + launch + noise on the log scale. The interval of A* is
exp(difference -+ t * s * sqrt(1/n + 1/m)) with n and m launches. Without a second launch of anything only the waves inside the launches
are left; such an interval knows nothing of the next start, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftsmith.breakeven.depths import needed_share, worth_training
from draftsmith.breakeven.summary import advice_for, implausible, pays_if
from draftsmith.errors import InvalidMeasurement
from draftsmith.measure.statistics import Interval, Scatter, log_interval, pooled_scatter, quotient_interval

Row = Mapping[str, Any]
Key = tuple[str, int]  # name of the kind, concurrency
SOURCE = (
    "measured on the engine: waves of equal requests, prefill left out; T_round with forced acceptance, rounds as the engine tells them"
)


@dataclass(frozen=True)
class Timed:
    """One kind at one concurrency: seconds per step or round, by launch and by wave; tokens per round where it speculates."""

    launches: tuple[float, ...]  # geometric means over waves
    waves: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return math.exp(float(np.mean(np.log(self.launches))))


def timed(rows: Sequence[Row]) -> dict[Key, Timed]:
    """All cells of waves.jsonl that hold; other phases and invalid waves are left out."""
    by_launch: dict[Key, dict[int, list[float]]] = {}
    for row in rows:
        if row["phase"] == "cell" and not row.get("invalid"):
            seconds = row["round_s"] if row["depth"] else row["decode_step_s"]
            by_launch.setdefault((row["name"], row["concurrency"]), {}).setdefault(row["launch"], []).append(seconds)
    return {
        key: Timed(
            tuple(math.exp(float(np.mean(np.log(waves)))) for waves in launches.values()),
            tuple(seconds for waves in launches.values() for seconds in waves),
        )
        for key, launches in by_launch.items()
    }


def scatter(cells: Mapping[Key, Timed]) -> Scatter:
    """Pooled over all cells. A launch counts once however many cells it has: they share its luck."""
    df: dict[str, int] = {}
    for (name, _), cell in cells.items():
        df[name] = max(df.get(name, 0), len(cell.launches) - 1)
    return Scatter(pooled_scatter(np.log(cell.launches) for cell in cells.values()).sd, sum(df.values()))


def break_even(top: Timed, bottom: Timed, spread: Scatter) -> Interval:
    """A* of a cell. Raises InvalidMeasurement when one wave is all there is."""
    if spread.df:
        error = spread.sd * math.sqrt(1 / len(top.launches) + 1 / len(bottom.launches))
        return log_interval(math.log(top.seconds / bottom.seconds), error, spread.df)
    if min(len(top.waves), len(bottom.waves)) < 2:
        raise InvalidMeasurement("one wave of a kind has no interval", hint="--waves 2 or more, or --replicates 2")
    return quotient_interval(top.waves, bottom.waves)


def surface(rows: Sequence[Row], baseline: str = "baseline", min_speedup: float = 1.0) -> dict[str, Any]:
    """The summary of a sweep. Raises InvalidMeasurement when there is no baseline, or nothing to set against it."""
    cells = timed(rows)
    heads = {row["name"]: row for row in reversed(rows)}
    spread = scatter(cells)
    step = {concurrency: cell for (name, concurrency), cell in cells.items() if name == baseline}
    entries = [
        entry(heads[name], concurrency, cell, step[concurrency], spread)
        for (name, concurrency), cell in sorted(cells.items(), key=lambda item: (item[0][1], heads[item[0][0]]["depth"]))
        if heads[name]["depth"] and concurrency in step
    ]
    if not entries:
        raise InvalidMeasurement("no valid round and no valid decode step at the same concurrency", hint="raw lines: waves.jsonl")
    found = [text for c, cell in sorted(step.items()) for text in doubtful(c, cell, cells, heads)]
    return {
        "concurrency": sorted({e["concurrency"] for e in entries}),
        "depths": sorted({e["depth"] for e in entries}),
        "decode_step_s": {str(c): {"value": cell.seconds, "launches": cell.launches} for c, cell in sorted(step.items())},
        "break_even": entries,
        "depth_worth_training": worth_training(entries),
        "advice": advice_for(entries, min_speedup),
        "min_speedup": min_speedup,
        "findings": found,
        "source": SOURCE,
        "launch_scatter": {"sd": None if math.isnan(spread.sd) else spread.sd, "df": spread.df},
        "note": "" if spread.df else "nothing was launched twice: noise between launches is not in the intervals",
        "invalid": sorted({f"launch {row['launch']}: {row['invalid']}" for row in rows if row.get("invalid")}),
    }


def entry(head: Row, concurrency: int, cell: Timed, step: Timed, spread: Scatter) -> dict[str, Any]:
    """One row of the break-even table."""
    needed = break_even(cell, step, spread)
    depth = head["depth"]
    chain = head["method"] == "eagle3" and head["rows"] == depth + 1
    return {
        "name": head["name"],
        "method": head["method"],
        "concurrency": concurrency,
        "depth": depth,
        "rows": head["rows"],
        "decode_step_s": step.seconds,
        "round_s": cell.seconds,
        "accept_len": needed.value,
        "accept_len_low": needed.low,
        "accept_len_high": needed.high,
        "ceiling": depth + 1,
        "needed_share": needed_share(needed.value, depth) if chain else None,
        "pays_if": pays_if(concurrency, depth, needed.value, "" if chain else f"a {head['name']}"),
    }


def doubtful(concurrency: int, step: Timed, cells: Mapping[Key, Timed], heads: Mapping[str, Row]) -> list[str]:
    """Chains whose times cannot be (see `summary.implausible`)."""
    chains = {
        heads[name]["depth"]: {"value": cell.seconds}
        for (name, c), cell in cells.items()
        if c == concurrency and name == f"depth {heads[name]['depth']}"
    }
    return implausible(concurrency, {"value": step.seconds}, chains)
