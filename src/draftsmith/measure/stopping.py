"""When an experiment may end before its last pair, without making a false verdict more likely.

Looks happen after `first`, `first` + 1, ..., `last` pairs. Each look takes part of the 5 % that a verdict may be wrong, by the
Pocock-like spending function of Lan and DeMets (1983): share t of the pairs has used up alpha * ln(1 + (e - 1) t). The nominal level of
each look follows by recursive integration of a Brownian motion (Armitage, McPherson and Rowe 1969) and is used with the t quantile of
that look's degrees of freedom (Jennison and Turnbull 2000, section 11.5: accurate also for few degrees of freedom). The
interval at such a level is a repeated confidence interval: it holds with 95 % over all looks together, whatever made the experiment
stop. Pocock's shape rather than O'Brien and Fleming's, whose first levels are so small that with 2 or 3 pairs nothing could be seen.
benchmarks/coverage measures error rate and power.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from scipy import optimize, stats

from draftsmith.measure.statistics import Interval, Measured, speedup_interval
from draftsmith.metrics import Acceptance

ALPHA = 0.05
SPENT = 0.045  # of it over the looks: t statistics of few launches cross a little more often than the Brownian motion (simulated: 5 %)
GRID = 801
FUTILE_POWER = 0.10  # a chance below this of telling the effect apart by the last pair is not worth the launches
ENOUGH_ROUNDS = 200  # from here on accept_len may end an experiment
REJECT_MARGIN = 0.95  # break-even often comes from one launch of each kind, and noise between launches is not in its interval
Outcome = Literal["above", "below", "open", "futile"]


@dataclass(frozen=True)
class Looks:
    """The pairs after which the intervals are looked at. first == last: once, at the end, without any price."""

    first: int
    last: int

    def __post_init__(self) -> None:
        assert 2 <= self.first <= self.last, (self.first, self.last)

    @property
    def rule(self) -> str:
        """For reports."""
        if self.first == self.last:
            return f"fixed: {self.last} pairs"
        return f"looks after {self.first} to {self.last} pairs, errors spent as Pocock does (Lan-DeMets), repeated confidence intervals"

    def confidence(self, pairs: int) -> float:
        """Nominal confidence of an interval that is looked at after `pairs` pairs (fewer than `first` count as the first look)."""
        if self.first == self.last:
            return 1 - ALPHA
        place = min(max(pairs, self.first), self.last) - self.first
        return 1 - nominal_levels(self.first, self.last)[place]

    def interval(self, launches: Sequence[Measured], pairs: int) -> Interval:
        """The speed-up with the interval that this look is entitled to."""
        return speedup_interval(launches, self.confidence(pairs))


@cache
def nominal_levels(first: int, last: int, alpha: float = SPENT) -> tuple[float, ...]:
    """Two-sided nominal level of each look. Their joint chance of a false alarm is alpha."""
    times = [pairs / last for pairs in range(first, last + 1)]
    spent = [alpha * math.log(1 + (math.e - 1) * t) for t in times]
    levels: list[float] = []
    grid, density = np.zeros(1), np.ones(1)  # the score process B(t) so far not stopped: points, and probability in each
    before_t, before_alpha = 0.0, 0.0
    for t, upto in zip(times, spent, strict=True):
        step = math.sqrt(t - before_t)
        wanted, known, mass = upto - before_alpha, grid, density

        def excess(bound: float, known: np.ndarray = known, mass: np.ndarray = mass, step: float = step, wanted: float = wanted) -> float:
            return float(mass @ (stats.norm.sf((bound - known) / step) + stats.norm.cdf((-bound - known) / step))) - wanted

        bound = float(optimize.brentq(excess, 0.1 * math.sqrt(t), 9 * math.sqrt(t)))  # type: ignore[arg-type]
        levels.append(2 * float(stats.norm.sf(bound / math.sqrt(t))))
        grid = np.linspace(-bound, bound, GRID)
        weights = np.full(GRID, grid[1] - grid[0])
        weights[[0, -1]] /= 2
        density = weights * (stats.norm.pdf((grid[:, None] - known[None, :]) / step) / step @ mass)
        before_t, before_alpha = t, upto
    return tuple(levels)


def judge(found: Interval, bar: float) -> Outcome:
    """Is the interval clear of `bar` (a speed-up)?"""
    if found.low > bar:
        return "above"
    return "below" if found.high < bar else "open"


def chance_left(distance: np.ndarray, error: np.ndarray, df: int, pairs: int, looks: Looks) -> np.ndarray:
    """Chance that the last look tells the effect apart, if it is what it seems (conditional power under the current trend).

    distance: |log speed-up - log bar| now; error: its standard error; df: degrees of freedom now. Arrays of one shape.
    """
    error_last = error * math.sqrt(pairs / looks.last)
    needed = float(stats.t.ppf(0.5 + looks.confidence(looks.last) / 2, df + 2 * (looks.last - pairs))) * error_last
    to_come = np.maximum(error_last * math.sqrt(1 - pairs / looks.last), 1e-12)
    return stats.norm.sf((needed - distance) / to_come)


def is_futile(found: Interval, bar: float, pairs: int, looks: Looks) -> bool:
    """Is the chance that more pairs would tell this speed-up from `bar` below FUTILE_POWER? Not asked before 3 pairs.

    Stopping for this reason cannot make a false verdict more likely: it only gives up.
    """
    if pairs < 3 or pairs >= looks.last:
        return False
    error = (math.log(found.high) - math.log(found.low)) / 2 / float(stats.t.ppf(0.5 + found.confidence / 2, found.df))
    distance = abs(math.log(found.value / bar))
    return float(chance_left(np.array(distance), np.array(error), found.df, pairs, looks)) < FUTILE_POWER


def accept_len_high(counted: Acceptance) -> float:
    """Upper 99 % bound of accept_len over rounds that are taken as independent (normal; the variance follows from the survival counts)."""
    mean = counted.accept_len - 1
    square = sum((2 * i + 1) * share for i, share in enumerate(counted.survival))
    error = math.sqrt(max(square - mean**2, 0.0) / counted.rounds)
    return counted.accept_len + float(stats.norm.ppf(0.99)) * error


def cannot_pay(counted: Acceptance | None, break_even_low: float | None) -> bool:
    """Early reject: after ENOUGH_ROUNDS rounds even the upper bound of accept_len is clearly below the lower bound of the break-even."""
    if counted is None or break_even_low is None or counted.rounds < ENOUGH_ROUNDS:
        return False
    return accept_len_high(counted) < REJECT_MARGIN * break_even_low
