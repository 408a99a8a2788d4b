"""The tests of one look: is something lower than it should be, by more than chance can do?

A look is a stretch of traffic of at least the window's length and MIN_ROUNDS rounds; looks do not overlap. After each, the last twelve
together are tested as well, for what is too small for one. Each quantity is held against a threshold that lies well below what is expected,
with the variance that it would have at that threshold (a score test). It is bad when it is below by the critical number of standard errors
(spread.critical: Bonferroni over the tests of a day), and good again when it is above by 1.96 of them; in between an alarm stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from draftsmith.job import clock
from draftsmith.watch.counting import Span
from draftsmith.watch.expected import Reference
from draftsmith.watch.spread import round_variance

MIN_ROUNDS = 200
HALF = 0.5  # a collapse: below half of what it should be
CLEARS_AT = 1.959964
MOSTLY, AGAIN = 0.5, 0.75  # share of decoded tokens that came from rounds: not speculating below the first, again above the second


@dataclass(frozen=True)
class Test:
    """One quantity of a look against a threshold. name: of the alarm."""

    name: str
    said: str
    value: float
    threshold: float
    error: float

    __test__ = False  # for pytest

    def bad(self, critical: float) -> bool:
        return self.value + critical * self.error < self.threshold

    def good(self) -> bool:
        return self.value - CLEARS_AT * self.error > self.threshold


def tests_of(look: Span, reference: Reference, effect: float, margin: float, name: str) -> Iterator[Test]:
    """Tests of a look against one reference. effect: the design effect. margin: share of accept_len that may be lost without an alarm.

    name: of the alarm for the mean, "decay" or "drift_from_report". Without counts by position there is only that one; a reference of
    less depth cuts the look.
    """
    place = f"in {clock(look.seconds)} ({look.rounds:,} rounds)" if look.seconds else f"in {look.rounds:,} rounds"
    if (test := mean_test(look, reference, effect, margin)) is not None:
        mean, expected = test.value, test.threshold
        yield Test(name, f"accept_len {mean:.2f} {place}, {reference.accept_len:.2f} {reference.source}", mean, expected, test.error)
    for share in shares_of(look, reference):
        said = f"{share.what} {100 * share.value:.1f} % {place}, {100 * share.expected:.1f} % {reference.source}"
        yield Test(share.alarm, said, share.value, HALF * share.expected, share.error(effect, reference.rounds))


@dataclass(frozen=True)
class Share:
    """hits of trials, and what is expected. behind: share of a reference's rounds that are its trials."""

    alarm: str
    what: str
    hits: int
    trials: int
    expected: float
    behind: float

    @property
    def value(self) -> float:
        return self.hits / self.trials

    def error(self, effect: float, rounds: int | None) -> float:
        """Standard error of the distance to the threshold, at the threshold, with that of the reference (from `rounds`; None: exact)."""
        at = HALF * self.expected
        own = at * (1 - at) / self.trials
        theirs = HALF**2 * self.expected * (1 - self.expected) / (rounds * self.behind) if rounds and self.behind else 0.0
        return math.sqrt(effect * (own + theirs))


def shares_of(look: Span, reference: Reference) -> Iterator[Share]:
    """The first draft over all rounds; each later one over the rounds that accepted the one before it."""
    if not look.reached or not reference.survival:
        return
    chances = (1.0, *reference.survival)
    trials = (look.rounds, *look.reached)
    for i in range(min(len(look.reached), len(reference.survival))):
        if chances[i + 1] <= 0 or trials[i] < MIN_ROUNDS / 2:
            continue  # what was never accepted cannot collapse; what is seldom reached says little
        alarm = "position_collapse" if i else "first_position_collapse"
        what = f"draft {i + 1} accepted where draft {i} was:" if i else "draft 1 accepted in"
        yield Share(alarm, what, trials[i + 1], trials[i], chances[i + 1] / chances[i], chances[i])


def mean_test(look: Span, reference: Reference, effect: float, margin: float) -> Test | None:
    """accept_len against the lower end of the reference's 95 % interval less the margin. None when the depths cannot be compared."""
    counted = look.acceptance
    if reference.survival and look.reached and len(reference.survival) < len(look.reached):
        counted = counted.at_depth(len(reference.survival))
    variance = effect * max(round_variance(counted), reference.variance)
    low = reference.accept_len - CLEARS_AT * math.sqrt(variance / reference.rounds) if reference.rounds else reference.accept_len
    threshold = low - margin * reference.accept_len
    if threshold <= 1:
        return None  # acceptance of 0 would not be below it; that has an alarm of its own
    return Test("", "", counted.accept_len, threshold, math.sqrt(variance / look.rounds))


def speculates(look: Span) -> tuple[bool, bool, str]:
    """(mostly not, certainly again, in words) of a look or a longer stretch with tokens."""
    share = look.from_rounds
    said = f"{100 * (1 - share):.0f} % of {look.decoded:,} decoded tokens came without drafts"
    return share < MOSTLY, share >= AGAIN, said
