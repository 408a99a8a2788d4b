"""Token sequences side by side: where two answers part, and whether a near-tie explains it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What one server answered to one prompt."""

    id: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    finish_reason: str


@dataclass(frozen=True)
class Divergence:
    """The first output position at which two answers differ; a token is None where that answer had already ended.

    logit_gap: how far below the target's best float32 logit the worse of the two tokens lies, on the common prefix.
    """

    id: str
    position: int
    reference: int | None
    served: int | None
    logit_gap: float = math.nan
    explained: bool = False

    def as_dict(self) -> dict[str, Any]:
        """JSON form; an unknown gap is null."""
        return {**asdict(self), "logit_gap": None if math.isnan(self.logit_gap) else self.logit_gap}

    def judged(self, logit_gap: float, limit: float) -> Divergence:
        """With the gap, explained when it is below `limit`."""
        return replace(self, logit_gap=logit_gap, explained=logit_gap < limit)


def first_difference(reference: Sequence[int], served: Sequence[int]) -> int | None:
    """First position at which the two differ, the shorter's length when it is a proper prefix, None when they are equal."""
    for position, (a, b) in enumerate(zip(reference, served, strict=False)):
        if a != b:
            return position
    return None if len(reference) == len(served) else min(len(reference), len(served))


def divergences(reference: Sequence[Answer], served: Sequence[Answer], num_tokens: int) -> list[Divergence]:
    """First divergence of every prompt within the first `num_tokens` output tokens, not yet judged.

    An answer that was cut by its own token limit says nothing about what would have followed.
    """
    assert [a.id for a in reference] == [a.id for a in served], "the two arms answered different prompts"
    found = []
    for a, b in zip(reference, served, strict=True):
        horizon = min([num_tokens, *(len(answer.tokens) for answer in (a, b) if answer.finish_reason == "length")])
        left, right = a.tokens[:horizon], b.tokens[:horizon]
        position = first_difference(left, right)
        if position is not None:
            found.append(Divergence(a.id, position, token_at(left, position), token_at(right, position)))
    return found


def token_at(tokens: Sequence[int], position: int) -> int | None:
    """The token, or None past the end."""
    return tokens[position] if position < len(tokens) else None


def known_continuation(longer: Answer, served: Answer) -> tuple[int, ...]:
    """Tokens that follow `served` in a longer greedy answer that begins with it; empty when it does not."""
    length = len(served.tokens)
    return longer.tokens[length:] if longer.tokens[:length] == served.tokens else ()
