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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from draftsmith.errors import InvalidMeasurement
from draftsmith.measure.statistics import Interval, quotient_interval
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
        return math.exp(float(np.mean(np.log(self.launches))))


@dataclass(frozen=True)
class Scatter:
    """Standard deviation of launches of one kind on the log scale; df 0: nothing was launched twice."""

    sd: float
    df: int


def scatter(cells: Mapping[Key, Timed], concurrency: int | None = None) -> Scatter:
    """Pooled over the kinds at one concurrency; None: over all concurrencies (a launch counts once however many cells it has)."""
    squares, weights = 0.0, 0
    df: dict[str, int] = {}
    for (name, at), cell in cells.items():
        extra = len(cell.launches) - 1
        if extra > 0 and concurrency in (None, at):
            squares += float(np.var(np.log(cell.launches))) * (extra + 1)
            weights += extra
            df[name] = max(df.get(name, 0), extra)
    return Scatter(math.sqrt(squares / weights), sum(df.values())) if weights else Scatter(math.nan, 0)


def scatter_at(cells: Mapping[Key, Timed], concurrency: int) -> Scatter:
    """The scatter at a concurrency; where nothing valid was launched twice that of all others together."""
    here = scatter(cells, concurrency)
    return here if here.df else scatter(cells)


def break_even(top: Timed, bottom: Timed, spread: Scatter) -> Interval:
    """A* of a cell. Raises InvalidMeasurement when one wave is all there is."""
    value = break_even_accept_len(top.seconds, bottom.seconds)
    if spread.df:
        error = spread.sd * math.sqrt(1 / len(top.launches) + 1 / len(bottom.launches))
        half = float(stats.t.ppf(0.975, spread.df)) * error
        return Interval(value, value * math.exp(-half), value * math.exp(half), spread.df)
    if min(len(top.waves), len(bottom.waves)) < 2:
        raise InvalidMeasurement("one wave of a kind has no interval", hint="--replicates 2, or more requests_per_slot in a recipe")
    inside = quotient_interval(top.waves, bottom.waves)  # its middle and the value differ in the last digits where waves are weighted
    return replace(inside, value=value, low=min(inside.low, value), high=max(inside.high, value))


def kind_of(spread: Scatter) -> str:
    """What an interval knows of: the next start, or only the inside of this one."""
    return OVER_LAUNCHES if spread.df else INSIDE


def geometric(waves: Sequence[float]) -> float:
    """exp(mean(log))."""
    return math.exp(float(np.mean(np.log(waves))))
