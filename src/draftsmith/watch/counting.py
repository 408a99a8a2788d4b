"""From readings of a metrics page to what was counted between them. A restart of the server is seen, and makes no negative counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from draftsmith.engines.rounds import LiveCounts
from draftsmith.metrics import Acceptance, output_tok_s

BORN_SLACK_S = 1.0


@dataclass(frozen=True)
class Span:
    """What happened in `seconds`.

    accepted: drafts in `rounds`. reached[i]: rounds that accepted at least i + 1 drafts; () when the server does not tell by position.
    drafted, requests (finished ones): None when it does not tell. first_tokens: first tokens of requests, which come from no round.
    """

    seconds: float = 0.0
    tokens: int = 0
    rounds: int = 0
    accepted: int = 0
    reached: tuple[int, ...] = ()
    drafted: int | None = None
    requests: int | None = None

    def __add__(self, other: Span) -> Span:
        reached = self.reached or (0,) * len(other.reached)
        return Span(
            self.seconds + other.seconds,
            self.tokens + other.tokens,
            self.rounds + other.rounds,
            self.accepted + other.accepted,
            tuple(a + b for a, b in zip(reached, other.reached or (0,) * len(reached), strict=True)),
            known_sum(self.drafted, other.drafted),
            known_sum(self.requests, other.requests),
        )

    @property
    def acceptance(self) -> Acceptance:
        """By position, or with all accepted drafts in one place when the server does not tell."""
        return Acceptance(self.rounds, self.reached or (max(0, self.accepted),))

    @property
    def accept_len(self) -> float:
        return self.acceptance.accept_len

    @property
    def survival(self) -> tuple[float, ...]:
        """() when the server does not tell by position, or no round happened."""
        return self.acceptance.survival if self.reached and self.rounds else ()

    @property
    def decoded(self) -> int:
        """Tokens that decode steps made: all but the first of each request, as far as finished requests are told."""
        return max(0, self.tokens - (self.requests or 0))

    @property
    def from_rounds(self) -> float:
        """Share of the decoded tokens that came from rounds, at most 1; the others were decoded without drafts."""
        return min(1.0, (self.rounds + self.accepted) / self.decoded) if self.decoded else 0.0

    @property
    def tok_s(self) -> float:
        return output_tok_s(self.tokens, self.seconds)


def known_sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


def between(before: LiveCounts, after: LiveCounts, seconds: float) -> Span:
    """What was counted from one reading to the next of the same process. Counters that appear start at 0."""
    reached = before.reached or (0,) * len(after.reached)
    return Span(
        seconds,
        (after.tokens or 0) - (before.tokens or 0),
        (after.rounds or 0) - (before.rounds or 0),
        (after.accepted or 0) - (before.accepted or 0),
        tuple(b - a for a, b in zip(reached, after.reached, strict=True)),
        None if after.drafted is None else after.drafted - (before.drafted or 0),
        None if after.requests is None else after.requests - (before.requests or 0),
    )


def restarted(before: LiveCounts, after: LiveCounts) -> bool:
    """Is `after` of another process? A counter fell or is gone, there are other positions, or the process says that it is younger."""
    if None not in (before.born, after.born) and abs((after.born or 0) - (before.born or 0)) > BORN_SLACK_S:
        return True
    if before.reached and len(before.reached) != len(after.reached):
        return True
    counters = [(before.tokens, after.tokens), (before.requests, after.requests), (before.rounds, after.rounds)]
    return any((b or 0) < (a or 0) for a, b in [*counters, *zip(before.reached, after.reached, strict=False)])


class Meter:
    """Readings in, spans out; keeps the last `window_s` seconds of them."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.last: LiveCounts | None = None
        self.last_s = 0.0
        self.spans: deque[Span] = deque()
        self.total = Span()
        self.restarts = 0

    def read(self, counts: LiveCounts, at_s: float) -> tuple[Span | None, bool]:
        """(what was counted since the last reading, whether the server is another process now). None for the first reading of a process."""
        before, before_s = self.last, self.last_s
        self.last, self.last_s = counts, at_s
        if before is None:
            return None, False
        if restarted(before, counts):
            self.restarts += 1
            self.spans.clear()
            return None, True
        span = between(before, counts, at_s - before_s)
        self.spans.append(span)
        while len(self.spans) > 1 and sum(s.seconds for s in self.spans) - self.spans[0].seconds >= self.window_s:
            self.spans.popleft()
        self.total += span
        return span, False

    @property
    def window(self) -> Span:
        """The sum of the spans that are kept."""
        return sum(self.spans, Span())
