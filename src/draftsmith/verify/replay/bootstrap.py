"""Is acceptance lower here than there, or do these prompts only happen to show it? The bootstrap over prompts.

All rounds of a prompt are drawn together, since they are alike. The interval is the estimate plus and minus t times the deviation of the
resampled differences; t has as many degrees of freedom as the smaller side has prompts (less one), and the level is divided by the number
of comparisons that were made (Bonferroni), so that looking at many of them finds no more by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import stats

from draftsmith.measure.bootstrap import RESAMPLES

LEAST_PROMPTS, LEAST_ROUNDS = 5, 30  # on each side of a comparison
LEAST_SHARE = 0.05  # a difference below this share of accept_len is not worth a sentence


@dataclass(frozen=True)
class Counts:
    """Rounds and accepted drafts of each prompt, on one side of a comparison; the same order of prompts on both sides."""

    rounds_P: np.ndarray
    accepted_P: np.ndarray

    @property
    def accept_len(self) -> float:
        """nan without rounds."""
        rounds = float(self.rounds_P.sum())
        return 1 + float(self.accepted_P.sum()) / rounds if rounds else math.nan

    @property
    def prompts(self) -> int:
        return int((self.rounds_P > 0).sum())

    @property
    def enough(self) -> bool:
        return self.prompts >= LEAST_PROMPTS and self.rounds_P.sum() >= LEAST_ROUNDS

    def resampled(self, times_RP: np.ndarray) -> np.ndarray:
        """accept_len of each resample; nan where it drew no round."""
        rounds_R = times_RP @ self.rounds_P
        with np.errstate(invalid="ignore", divide="ignore"):
            return 1 + (times_RP @ self.accepted_P) / rounds_R


@dataclass(frozen=True)
class Difference:
    """a's accept_len minus b's, with its interval."""

    a: float
    b: float
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.a - self.b

    @property
    def sure(self) -> bool:
        """Not chance, and large enough to matter."""
        return (self.low > 0 or self.high < 0) and abs(self.value) >= LEAST_SHARE * max(self.a, self.b)

    @property
    def strength(self) -> float:
        """How many half widths it is away from 0."""
        half = (self.high - self.low) / 2
        return abs(self.value) / half if half > 0 else math.inf


@cache
def resamples(num_prompts: int, seed: int = 0) -> np.ndarray:
    """How often each prompt is drawn: [resamples, prompts]."""
    return np.random.default_rng(seed).multinomial(num_prompts, np.full(num_prompts, 1 / num_prompts), RESAMPLES).astype(float)


def compare(a: Counts, b: Counts, comparisons: int = 1, confidence: float = 0.99) -> Difference:
    """Both sides over the same prompts, which are drawn together."""
    assert len(a.rounds_P) == len(b.rounds_P), (len(a.rounds_P), len(b.rounds_P))
    times_RP = resamples(len(a.rounds_P))
    found_R = a.resampled(times_RP) - b.resampled(times_RP)
    return interval(a.accept_len, b.accept_len, found_R, min(a.prompts, b.prompts), 1 - (1 - confidence) / comparisons)


def compare_apart(a: Counts, b: Counts, comparisons: int = 1, confidence: float = 0.999) -> Difference:
    """Two sets of prompts that have nothing to do with each other. Stricter, since an error hangs on it."""
    found_R = a.resampled(resamples(len(a.rounds_P), 1)) - b.resampled(resamples(len(b.rounds_P), 2))
    return interval(a.accept_len, b.accept_len, found_R, min(a.prompts, b.prompts), 1 - (1 - confidence) / comparisons)


def interval(a: float, b: float, found_R: np.ndarray, prompts: int, confidence: float) -> Difference:
    """From resampled differences; the whole line when there is nothing to draw from."""
    known = found_R[np.isfinite(found_R)]
    if prompts < 2 or len(known) < 2:
        return Difference(a, b, -math.inf, math.inf)
    t = float(stats.t(prompts - 1).ppf(0.5 + confidence / 2))
    half = t * float(known.std()) * math.sqrt(prompts / (prompts - 1))
    return Difference(a, b, a - b - half, a - b + half)


def counts(pairs: Sequence[tuple[int, int]]) -> Counts:
    """From (rounds, accepted) of each prompt."""
    table = np.array(pairs, dtype=float).reshape(-1, 2)
    return Counts(table[:, 0], table[:, 1])
