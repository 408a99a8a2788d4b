"""How far an accept_len can be from another by chance, when rounds of one request are alike and requests are not.

The variance of the mean over n rounds is D * v / n. v: variance of the accepted drafts of one round, from the counts. D: the design effect
of samples that come in clusters (L. Kish, Survey Sampling, 1965, section 5.4): 1 + (rounds per request - 1) * r, with r the correlation
within a request. r is not known at the start: a prior of 0.2 is believed like 20 looks and gives way to what the looks show, as a factor
on D. They show it by the squared differences of consecutive looks (J. von Neumann, 1941), which a slow drift does not inflate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

from draftsmith.metrics import Acceptance
from draftsmith.watch.counting import Span

ALIKE = 0.2  # prior of the correlation within a request; 0.05 to 0.1 is usual between prompts of one service
PRIOR_LOOKS = 20.0
ROUNDS_PER_REQUEST = 300.0  # where the server does not tell finished requests
PER_DIFFERENCE = 2 / 3  # degrees of freedom that one consecutive difference is worth
MOST = 10.0  # a single jump counts at most so many times the present estimate
FALSE_ALARMS_PER_DAY = 0.01


def round_variance(acceptance: Acceptance) -> float:
    """Variance of the number of drafts that one round accepts; one more round of each outcome is counted, so that it is never 0.

    By position exact: E[X^2] = sum of (2 i + 1) survival[i], i from 0. With one number for all positions (depth 1 here) of a mean above
    what one draft can give: as if every draft were accepted with the same chance, without an end.
    """
    mean = acceptance.accept_len - 1
    if acceptance.depth == 1 and mean > 1:
        return mean * (1 + mean)
    shares = [(n + 1) / (acceptance.rounds + 2) for n in acceptance.reached]
    return sum((2 * i + 1) * share for i, share in enumerate(shares)) - sum(shares) ** 2


@dataclass
class Dispersion:
    """The design effect, learned look by look. `seen` and `weight` grow with the consecutive differences, in units of what was expected."""

    seen: float = 0.0
    weight: float = 0.0
    last: tuple[Span, float] | None = field(default=None, repr=False)

    def effect(self, span: Span, running: float) -> float:
        """D of a span, at least 1. running: requests in flight at its end."""
        return max(1.0, self.factor * prior_effect(span, running))

    @property
    def factor(self) -> float:
        return (PRIOR_LOOKS + self.seen) / (PRIOR_LOOKS + self.weight)

    @property
    def df(self) -> float:
        return PRIOR_LOOKS + self.weight

    def add(self, look: Span, running: float) -> None:
        """Learn from a look that is beyond suspicion."""
        before, self.last = self.last, (look, running)
        if before is None or not before[0].rounds or not look.rounds:
            return
        clustered = sum(prior_effect(span, running) / span.rounds for span, running in (before, self.last))
        expected = round_variance((before[0] + look).acceptance) * clustered
        found = (look.accept_len - before[0].accept_len) ** 2 / expected
        self.seen += PER_DIFFERENCE * min(found, MOST * self.factor)
        self.weight += PER_DIFFERENCE

    def forget_last(self) -> None:
        """The next look is not a neighbour of the last one."""
        self.last = None


def prior_effect(span: Span, running: float) -> float:
    """D with the prior of r."""
    requests = span.rounds / ROUNDS_PER_REQUEST if span.requests is None else span.requests + running
    return 1 + ALIKE * max(0.0, span.rounds / max(1.0, requests) - 1)


def half_width(span: Span, effect: float) -> float:
    """Half of the 95 % interval of accept_len; nan without rounds."""
    if not span.rounds:
        return math.nan
    return 1.959964 * math.sqrt(effect * round_variance(span.acceptance) / span.rounds)


@lru_cache(maxsize=4096)
def critical(tests_per_day: float, df: float) -> float:
    """Standard errors that a value must be away for one false alarm in 1 / FALSE_ALARMS_PER_DAY days: Bonferroni over a day's tests, t."""
    from scipy.special import stdtrit

    return float(stdtrit(df, 1 - FALSE_ALARMS_PER_DAY / tests_per_day))
