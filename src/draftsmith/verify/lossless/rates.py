"""Does one server part from the baseline more often than the baseline parts from itself? Pure.

Each prompt is a race of two answers against the baseline's first one: the speculative server's and the baseline's second. Near-ties lie
where the text has them, mostly early and in some prompts only, so that no rate per token can be taken as constant. Within a prompt both
answers pass the same tokens until one of them parts: given that exactly one does, it is the speculative one with probability
r / (1 + r) when its hazard is r times the other's there, whatever that is (the partial likelihood of matched pairs, D. R. Cox 1972).
A verify pass has other batch shapes than decoding, so rounding may part it up to RATIO times as often; only what goes beyond is held
against it.
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


@dataclass(frozen=True)
class Races:
    """Prompts in which the speculative answer, or the baseline's second one, was the first to part; `both`: at the same token."""

    speculative: int
    baseline: int
    both: int
    prompts: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def races(answers: Sequence[Answer], speculative: Sequence[Divergence], baseline: Sequence[Divergence]) -> Races:
    """answers: those that were compared; a baseline's divergence of another one does not count."""
    ours, theirs = ({d.id: d.position for d in parted} for parted in (speculative, baseline))
    places = [(ours.get(answer.id, math.inf), theirs.get(answer.id, math.inf)) for answer in answers]
    first, second = sum(a < b for a, b in places), sum(b < a for a, b in places)
    return Races(first, second, sum(a == b < math.inf for a, b in places), len(places))


def excess_p(found: Races, ratio: float = RATIO) -> float:
    """One-sided p that the speculative server parts at more than `ratio` times the baseline's own rate."""
    decided = found.speculative + found.baseline
    return float(stats.binom.sf(found.speculative - 1, decided, ratio / (1 + ratio))) if decided else 1.0


def detectable_ratio(baseline: Count, prompts: int, alpha: float, power: float = POWER) -> float:
    """Smallest rate, as a multiple of the baseline's own, that `excess_p` < alpha finds with `power`; inf beyond 1000.

    The baseline's own hazard of a whole answer is taken from (divergences + 1/2) of the prompts.
    """
    if not prompts:
        return math.inf
    own = -math.log1p(-min(baseline.divergences + 0.5, prompts - 0.5) / prompts) if prompts > 1 else math.log(2)
    decided = np.arange(prompts + 1)
    critical = np.array([critical_count(int(n), alpha) for n in decided])
    for multiple in GRID:
        weights = stats.binom.pmf(decided, prompts, 1 - math.exp(-own * (1 + multiple)))
        if float(weights @ stats.binom.sf(critical - 1, decided, multiple / (1 + multiple))) >= power:
            return float(multiple)
    return math.inf


def critical_count(decided: int, alpha: float, ratio: float = RATIO) -> int:
    """Fewest of so many decided races that have `excess_p` below alpha when the speculative server is first in them; decided + 1: none."""
    return int(stats.binom.isf(alpha, decided, ratio / (1 + ratio))) + 1 if decided else 1


def fault_bound(tokens: int, confidence: float = 0.95) -> float:
    """Without any fault in `tokens` compared tokens: the largest share of faulty tokens that would have gone unseen (rule of three)."""
    return 1.0 if not tokens else 1 - (1 - confidence) ** (1 / tokens)
