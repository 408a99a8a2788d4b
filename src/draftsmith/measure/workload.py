"""Which prompts are sent, and where they go: canary, warm-ups and cells take different prompts as long as they last.

A prompt that was sent before in the same launch may be answered from the prefix cache, so prompts are dealt out like cards. The deck
is dealt again only when it is empty: then each prompt is salted (measure/prompts.py), or, where it cannot be, the caller is told.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.measure.client import Request
from draftsmith.measure.prompts import Prompt, Renderer, forty_prompts
from draftsmith.measure.protocol import Cell, Workload


@dataclass(frozen=True)
class CellShape:
    """How many requests of a cell are measured, how many warm it up, and how long the answers of each are at most (tokens)."""

    concurrency: int
    requests: int
    warmup: int
    output_tokens: int
    warmup_tokens: int


def builtin_prompts(target: Path, trust_remote_code: bool = False) -> list[Prompt]:
    """Forty short user turns through the target's own chat template (without one: the plain text). Raises EnvironmentFailed."""
    renderer = Renderer(target, trust_remote_code)
    return [renderer.render(prompt) for prompt in forty_prompts()]


class Deck:
    """Deals prompts in a shuffled order that `seed` fixes.

    salt: how a prompt that was dealt before is made different (Renderer.salt), so that the prefix cache does not know it.
    extra: more fields of every request's body.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        seed: int,
        salt: Callable[[Prompt, int], Prompt] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        assert prompts
        self.extra = extra or {}
        self.prompts = list(prompts)
        random.Random(seed).shuffle(self.prompts)
        self.dealt = 0
        self.salt = salt

    def draw(self) -> Prompt:
        """The next prompt."""
        use, place = divmod(self.dealt, len(self.prompts))
        self.dealt += 1
        prompt = self.prompts[place]
        return self.salt(prompt, use) if use and self.salt is not None else prompt

    def deal(self, count: int, max_tokens: int, temperature: float = 0.0, ignore_eos: bool = False) -> tuple[Request, ...]:
        """`count` requests for the next prompts."""
        return tuple(
            Request(
                prompt.id,
                prompt.token_ids,
                max_tokens,
                temperature=temperature,
                seed=0 if temperature else None,
                ignore_eos=ignore_eos,
                category=prompt.category,
                messages=prompt.messages,
                extra=self.extra,
            )
            for prompt in (self.draw() for _ in range(count))
        )

    @property
    def reused(self) -> int:
        """Requests whose prompt had been dealt before, unchanged."""
        return 0 if self.salt is not None else max(0, self.dealt - len(self.prompts))


def make_workload(
    deck: Deck, shapes: Sequence[CellShape], canary_tokens: int, temperature: float = 0.0, ignore_eos: bool = False
) -> Workload:
    """Canary first, then warm-up and requests of each cell. Canary and warm-ups always run to their full length."""
    [canary] = deck.deal(1, canary_tokens, ignore_eos=True)
    cells = []
    for shape in shapes:
        warmup = deck.deal(shape.warmup, shape.warmup_tokens, temperature, ignore_eos=True)
        requests = deck.deal(shape.requests, shape.output_tokens, temperature, ignore_eos)
        cells.append(Cell(shape.concurrency, warmup, requests))
    return Workload(canary, tuple(cells))
