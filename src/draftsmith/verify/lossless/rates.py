"""Does one server part from the baseline more often than the baseline parts from itself? Pure.

A first divergence ends what can be compared of an answer, so each answer is a censored waiting time: d divergences over n compared
tokens, with a constant rate per token. For two Poisson rates, d_b given d_a + d_b is binomial with the share of b's exposure
(Przyborowski and Wilenski 1940). A verify pass has other batch shapes than decoding, so rounding may part it up to RATIO times as
often as the baseline asked again; only what goes beyond that is held against it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from draftsmith.verify.sequences import Answer, Divergence

RATIO = 2.0
POWER = 0.8
GRID = np.geomspace(1.0, 1000.0, 61)  # rates, as multiples of the baseline's own, at which the power is looked up


@dataclass(frozen=True)
class Count:
    """Divergences over the compared tokens of some answers."""

    divergences: int
    tokens: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compared(reference: Sequence[Answer], served: Sequence[Answer], parted: Sequence[Divergence], num_tokens: int) -> Count:
    """Tokens of `reference` and `served` that were held against each other, the parting ones included."""
    at = {d.id: d.position for d in parted}
    total = 0
    for a, b in zip(reference, served, strict=True):
        end = at[a.id] + 1 if a.id in at else min(len(a.tokens), len(b.tokens))
        total += min(end, num_tokens)
    return Count(len(parted), total)


def excess_p(served: Count, baseline: Count, ratio: float = RATIO) -> float:
    """One-sided p that `served` parts at a rate above `ratio` times the baseline's own."""
    together = served.divergences + baseline.divergences
    if not together or not served.tokens or not baseline.tokens:
        return 1.0
    share = ratio * served.tokens / (ratio * served.tokens + baseline.tokens)
    return float(stats.binom.sf(served.divergences - 1, together, share))


def detectable_ratio(served: Count, baseline: Count, alpha: float, power: float = POWER) -> float:
    """Smallest rate, as a multiple of the baseline's own, that `excess_p` < alpha finds with `power`; inf beyond 1000.

    The baseline's own rate is taken as (divergences + 1/2) / tokens.
    """
    if not served.tokens or not baseline.tokens:
        return math.inf
    mean_a = baseline.divergences + 0.5
    most_a = int(stats.poisson.ppf(1 - 1e-6, mean_a)) + 1
    a = np.arange(most_a + 1)
    critical = np.array([critical_count(int(n), served, baseline, alpha) for n in a])
    weights = stats.poisson.pmf(a, mean_a)
    for multiple in GRID:
        mean_b = mean_a / baseline.tokens * served.tokens * multiple
        if float(weights @ stats.poisson.sf(critical - 1, mean_b)) >= power:
            return float(multiple)
    return math.inf


def critical_count(baseline_divergences: int, served: Count, baseline: Count, alpha: float) -> int:
    """Fewest divergences of `served` at which `excess_p` is below alpha, beside so many of the baseline."""
    count = 1
    while excess_p(Count(count, served.tokens), Count(baseline_divergences, baseline.tokens)) >= alpha:
        count += max(1, count // 64)
    return count


def fault_bound(tokens: int, confidence: float = 0.95) -> float:
    """Without any fault in `tokens` compared tokens: the largest share of faulty tokens that would have gone unseen (rule of three)."""
    return 1.0 if not tokens else 1 - (1 - confidence) ** (1 / tokens)
