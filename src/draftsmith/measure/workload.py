"""Which prompts are sent, and where they go: canary, warm-ups and cells take different prompts as long as they last.

A prompt that was sent before in the same launch may be answered from the prefix cache, so prompts are dealt out like cards; the
deck is dealt again only when it is empty, and the caller is told.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftsmith.errors import EnvironmentFailed
from draftsmith.measure.client import Request
from draftsmith.measure.protocol import Cell, Workload

BUILTIN = Path(__file__).with_name("prompts.json")


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt: what the server receives."""

    id: str
    token_ids: tuple[int, ...]


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
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(target, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise EnvironmentFailed(f"cannot load the tokenizer of {target}: {error}", hint="the target folder needs tokenizer.json") from error
    prompts = []
    for number, text in enumerate(json.loads(BUILTIN.read_text())):
        if tokenizer.chat_template:
            text = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=not tokenizer.chat_template)
        prompts.append(Prompt(f"builtin-{number:02d}", tuple(int(i) for i in ids)))
    return prompts


class Deck:
    """Deals prompts in a shuffled order that `seed` fixes.."""

    def __init__(self, prompts: Sequence[Prompt], seed: int) -> None:
        assert prompts
        self.prompts = list(prompts)
        random.Random(seed).shuffle(self.prompts)
        self.dealt = 0

    def deal(self, count: int, max_tokens: int, temperature: float = 0.0, ignore_eos: bool = False) -> tuple[Request, ...]:
        """`count` requests for the next prompts."""
        chosen = [self.prompts[(self.dealt + i) % len(self.prompts)] for i in range(count)]
        self.dealt += count
        return tuple(
            Request(
                prompt.id, prompt.token_ids, max_tokens, temperature=temperature, seed=0 if temperature else None, ignore_eos=ignore_eos
            )
            for prompt in chosen
        )

    @property
    def reused(self) -> int:
        """Requests whose prompt had been dealt before."""
        return max(0, self.dealt - len(self.prompts))


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
