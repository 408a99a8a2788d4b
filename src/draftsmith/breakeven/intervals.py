"""The interval of A* = T_round / T_ar from launches, or, without a second launch, from what was seen inside one (pure).

The number of a launch at a concurrency is the mean of log T over its waves: y = kind + launch + noise. How much launches of one kind
differ is estimated at every concurrency from all kinds that were launched more than once there, because it is not the same at all of
them: a small batch feels the host, a large one the GPU. Pooled over concurrencies the interval would hold in 80 % of all cases instead
of 95 where scatter differs by a factor of four, and have no degree of freedom more, because the cells of a launch share its luck
(benchmarks/coverage/breakeven.py). The interval is exp(difference -+ t * s * sqrt(1/n + 1/m)) with n and m launches and as many degrees
of freedom as there are second launches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from draftsmith.errors import InvalidMeasurement
from draftsmith.measure.statistics import Interval, Scatter, geometric_mean, log_interval, pooled_scatter, quotient_interval
from draftsmith.metrics import break_even_accept_len

Key = tuple[str, int]  # name of the kind, concurrency
OVER_LAUNCHES, INSIDE = "over launches", "inside one launch"


@dataclass(frozen=True)
class Timed:
    """One kind at one concurrency: seconds per step or round, by launch and by wave; tokens per round where it speculates."""

    launches: tuple[float, ...]  # geometric means over waves
    waves: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return geometric_mean(self.launches)


def scatter(cells: Mapping[Key, Timed], concurrency: int | None = None) -> Scatter:
    """Pooled over the kinds at one concurrency; None: over all concurrencies (a launch counts once however many cells it has)."""
    there = {key: cell for key, cell in cells.items() if concurrency in (None, key[1])}
    df: dict[str, int] = {}
    for (name, _), cell in there.items():
        df[name] = max(df.get(name, 0), len(cell.launches) - 1)
    return Scatter(pooled_scatter(np.log(cell.launches) for cell in there.values()).sd, sum(df.values()))


def scatter_at(cells: Mapping[Key, Timed], concurrency: int) -> Scatter:
    """The scatter at a concurrency; where nothing valid was launched twice that of all others together."""
    here = scatter(cells, concurrency)
    return here if here.df else scatter(cells)


def break_even(top: Timed, bottom: Timed, spread: Scatter) -> Interval:
    """A* of a cell. Raises InvalidMeasurement when one wave is all there is."""
    value = break_even_accept_len(top.seconds, bottom.seconds)
    if spread.df:
        error = spread.sd * math.sqrt(1 / len(top.launches) + 1 / len(bottom.launches))
        return log_interval(math.log(value), error, spread.df)
    if min(len(top.waves), len(bottom.waves)) < 2:
        raise InvalidMeasurement("one wave of a kind has no interval", hint="--replicates 2, or more requests_per_slot in a recipe")
    inside = quotient_interval(top.waves, bottom.waves)  # its middle and the value differ in the last digits where waves are weighted
    return replace(inside, value=value, low=min(inside.low, value), high=max(inside.high, value))


def measured_fields(round_: Timed, step: Timed, spread: Scatter) -> dict[str, Any]:
    """Times, A* and its interval, as a row of the break-even table has them."""
    needed = break_even(round_, step, spread)
    return {
        "decode_step_s": step.seconds,
        "round_s": round_.seconds,
        "accept_len": needed.value,
        "accept_len_low": needed.low,
        "accept_len_high": needed.high,
        "interval": kind_of(spread),
    }


def kind_of(spread: Scatter) -> str:
    """What an interval knows of: the next start, or only the inside of this one."""
    return OVER_LAUNCHES if spread.df else INSIDE
