"""Every metric, defined once. Training, replay and serving all count acceptance through `Acceptance`.

A round is one draft and one verify. accept_len is the tokens emitted per round INCLUDING the bonus token,
1 + accepted / rounds. survival[i] (i = 0, 1, ...) is the share of rounds that accepted at least i + 1 drafts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Acceptance:
    """Counts over a set of rounds. `reached[i]` = rounds that accepted at least i + 1 drafts."""

    rounds: int
    reached: tuple[int, ...]

    @classmethod
    def from_rounds(cls, accepted: Iterable[int], depth: int) -> Acceptance:
        """From the number of accepted drafts in each round, 0..depth."""
        accepted = list(accepted)
        assert all(0 <= n <= depth for n in accepted), (depth, max(accepted, default=0))
        return cls(len(accepted), tuple(sum(n > i for n in accepted) for i in range(depth)))

    @classmethod
    def from_matches(cls, matches: Sequence[Sequence[bool]], depth: int) -> Acceptance:
        """From per-round rows of `depth` booleans: did draft i equal the target's token? Only the leading run of True counts."""
        return cls.from_rounds((leading_run(row[:depth]) for row in matches), depth)

    @property
    def depth(self) -> int:
        return len(self.reached)

    @property
    def accepted(self) -> int:
        """Accepted drafts in all."""
        return sum(self.reached)

    @property
    def accept_len(self) -> float:
        """Tokens per round with the bonus token; nan when there was no round."""
        return 1 + self.accepted / self.rounds if self.rounds else math.nan

    @property
    def survival(self) -> tuple[float, ...]:
        """Share of rounds that accepted at least 1, 2, ... drafts."""
        return tuple(n / self.rounds if self.rounds else math.nan for n in self.reached)

    @property
    def conditional(self) -> tuple[float, ...]:
        """Share of rounds that accepted draft i among those that accepted all drafts before it."""
        before = (self.rounds, *self.reached[:-1])
        return tuple(n / b if b else math.nan for n, b in zip(self.reached, before, strict=True))

    def at_depth(self, depth: int) -> Acceptance:
        """The same rounds, had only `depth` drafts been proposed. Exact for a chain, whose drafts do not depend on its depth."""
        assert depth <= self.depth, (depth, self.depth)
        return Acceptance(self.rounds, self.reached[:depth])

    def __add__(self, other: Acceptance) -> Acceptance:
        assert self.depth == other.depth, (self.depth, other.depth)
        return Acceptance(self.rounds + other.rounds, tuple(a + b for a, b in zip(self.reached, other.reached, strict=True)))

    def __sub__(self, before: Acceptance) -> Acceptance:
        """Difference of two cumulative counters of one server."""
        assert self.depth == before.depth, (self.depth, before.depth)
        return Acceptance(self.rounds - before.rounds, tuple(a - b for a, b in zip(self.reached, before.reached, strict=True)))

    def as_dict(self) -> dict[str, object]:
        """JSON form; the counts are the record, the rest is for readers."""
        return {"rounds": self.rounds, "reached": list(self.reached), "accept_len": self.accept_len, "survival": list(self.survival)}

    @classmethod
    def from_dict(cls, content: dict) -> Acceptance:
        return cls(int(content["rounds"]), tuple(int(n) for n in content["reached"]))


def leading_run(row: Sequence[bool]) -> int:
    """How many leading entries are true."""
    for i, hit in enumerate(row):
        if not hit:
            return i
    return len(row)


def output_tok_s(num_tokens: float, window_s: float) -> float:
    """Output tokens (server usage) per second of the measured window."""
    return num_tokens / window_s


def time_per_output_token_s(last_token_s: float, first_chunk_s: float, num_tokens: int, first_chunk_tokens: int) -> float:
    """TPOT of one request: decode time / tokens after the first chunk. The first chunk may carry several tokens; they are not
    decoded inside the window. nan when everything came in the first chunk."""
    rest = num_tokens - first_chunk_tokens
    return (last_token_s - first_chunk_s) / rest if rest > 0 else math.nan


def break_even_accept_len(round_s: float, decode_step_s: float) -> float:
    """A* = T_round / T_ar: tokens per round from which speculation is faster than plain decoding."""
    return round_s / decode_step_s


def relative_gap(predicted: float, measured: float) -> float:
    """(predicted - measured) / measured."""
    return (predicted - measured) / measured
