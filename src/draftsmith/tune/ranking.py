"""Which arm is the best at a concurrency, and when the simpler one is taken instead (pure).

y = log(output tok/s) of a launch = arm + noise; the scatter of launches is estimated once from all arms of the cell that were launched
twice or more. Two arms tie when the interval of their ratio contains 1, or when the slower one is slower by at most the margin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from draftsmith.measure.statistics import Scatter, log_interval, pooled_scatter
from draftsmith.tune.candidates import Arm

Rates = Mapping[Arm, Sequence[float]]  # output tok/s of each launch of each arm


@dataclass(frozen=True)
class Ratio:
    """tok/s over tok/s, with its 95 % interval; without bounds when nothing was launched twice."""

    value: float
    low: float | None
    high: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.value:.3f}x" + (f" ({self.low:.3f} to {self.high:.3f})" if self.low is not None else "")


@dataclass(frozen=True)
class Choice:
    """arm: what is taken. fastest: what had the highest rate. ratio: arm over fastest. why: a sentence."""

    arm: Arm
    fastest: Arm
    ratio: Ratio
    why: str


def scatter(rates: Rates) -> Scatter:
    """Pooled over the arms."""
    return pooled_scatter(np.log(values) for values in rates.values())


def ratio(top: Sequence[float], bottom: Sequence[float], spread: Scatter) -> Ratio:
    """Geometric means over launches, t interval with the pooled scatter."""
    estimate = float(np.mean(np.log(top)) - np.mean(np.log(bottom)))
    return with_bounds(estimate, spread.sd * math.sqrt(1 / len(top) + 1 / len(bottom)), spread.df)


def with_bounds(estimate: float, error: float, df: int) -> Ratio:
    """From a log ratio and its standard error; without bounds for df 0."""
    if not df:
        return Ratio(math.exp(estimate), None, None)
    found = log_interval(estimate, error, df)
    return Ratio(found.value, found.low, found.high)


def ties(found: Ratio, margin: float) -> bool:
    """Is an arm that is `found` times as fast as the fastest one as good as it?"""
    return found.value >= 1 - margin or (found.high is not None and found.high >= 1)


def choose(rates: Rates, margin: float) -> Choice:
    """The simplest of the arms that tie with the fastest one. rates: one arm or more, each with a launch or more."""
    spread = scatter(rates)
    fastest = max(rates, key=lambda arm: float(np.mean(np.log(rates[arm]))))
    told = {arm: ratio(values, rates[fastest], spread) for arm, values in rates.items()}
    equal = [arm for arm in rates if ties(told[arm], margin)]
    arm = min(equal, key=lambda arm: arm.complexity)
    if arm == fastest:
        others = [other for other in rates if other != arm]
        why = "the fastest" if others else "the only one measured"
    else:
        why = f"as fast as {fastest.name}, the fastest, and simpler: {told[arm]}"
    return Choice(arm, fastest, told[arm], why)


def environment_effect(cells: Mapping[int, Rates], name: str, baseline: bool) -> Ratio | None:
    """What the environment `name` does to speed against the recipe's own, over all arms and concurrencies of a kind; None when no arm
    was launched in both. A launch counts once: its cells share its luck, so scatter is that of the mean over its cells."""
    plain, other = means_by_arm(cells, "", baseline), means_by_arm(cells, name, baseline)
    shared = [candidate for candidate in plain if candidate in other]
    if not shared:
        return None
    gaps = [float(np.mean(other[candidate]) - np.mean(plain[candidate])) for candidate in shared]
    groups = [values for candidate in shared for values in (plain[candidate], other[candidate])]
    spread = pooled_scatter(groups)
    error = spread.sd * math.sqrt(sum(1 / len(values) for values in groups)) / len(shared)
    return with_bounds(float(np.mean(gaps)), error, spread.df)


def means_by_arm(cells: Mapping[int, Rates], name: str, baseline: bool) -> dict[Any, np.ndarray]:
    """candidate -> mean log rate of each launch over its cells, for arms in the environment `name`."""
    logs: dict[Any, list[list[float]]] = {}
    for rates in cells.values():
        for arm, values in rates.items():
            if arm.env_set == name and (arm.candidate is None) == baseline:
                logs.setdefault(arm.candidate, []).append([math.log(value) for value in values])
    return {candidate: np.mean(rows, axis=0) for candidate, rows in logs.items() if len({len(row) for row in rows}) == 1}


def better_environment(effects: Mapping[str, Ratio | None], margin: float) -> str:
    """The environment that is clearly faster than the recipe's own, else "" (the recipe's)."""
    clear = {
        name: effect
        for name, effect in effects.items()
        if effect is not None and effect.value > 1 + margin and (effect.low is None or effect.low > 1)
    }
    return max(clear, key=lambda name: clear[name].value, default="")
