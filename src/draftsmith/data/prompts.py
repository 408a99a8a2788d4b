"""The prompt mix: what is taken from the project's own templates, and what is held out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from draftsmith.data.dedup import normalise
from draftsmith.data.settings import DataSettings
from draftsmith.errors import UsageError
from draftsmith.manifest import sha256_bytes

WRITTEN = Path(__file__).with_name("prompts.yaml")
SYNTHESISED = "synthesised"
HELDOUT_ONE_IN = 10

Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class Prompt:
    """One user turn. `id` is a digest of the text, so equal prompts have equal ids in every run."""

    id: str
    source: str  # category in prompts.yaml, or "synthesised"
    text: str
    split: Split


def make_prompt(source: str, text: str, split: Split) -> Prompt:
    return Prompt(sha256_bytes(text.encode())[:16], source, text, split)


def topic_is_heldout(topic: str) -> bool:
    """A topic is held out in every category and every template, or in none."""
    return int(sha256_bytes(topic.encode()), 16) % HELDOUT_ONE_IN == 0


@cache
def written_prompts() -> tuple[Prompt, ...]:
    """Every template with every topic of its category, without repeats, in file order."""
    found: dict[str, Prompt] = {}
    for category, part in yaml.safe_load(WRITTEN.read_text()).items():
        for topic in part["topics"]:
            split: Split = "heldout" if topic_is_heldout(topic) else "train"
            for template in part["templates"]:
                text = template.replace("{topic}", topic)
                found.setdefault(normalise(text), make_prompt(category, text, split))
    return tuple(found.values())


def shuffled(prompts: Iterable[Prompt], seed: int) -> list[Prompt]:
    """An order that depends on the texts and the seed only, so that any leading part keeps the mix."""
    return sorted(prompts, key=lambda prompt: sha256_bytes(f"{seed}:{prompt.text}".encode()))


@dataclass(frozen=True)
class Mix:
    """How many prompts of each kind go into each split."""

    written_train: int
    written_heldout: int
    synthesised_train: int
    synthesised_heldout: int

    @classmethod
    def of(cls, settings: DataSettings) -> Mix:
        """The held-out prompts are divided in the proportion of the training prompts."""
        written_share = settings.written / (settings.written + settings.synthesised)
        written_heldout = round(settings.heldout * written_share)
        return cls(settings.written, written_heldout, settings.synthesised, settings.heldout - written_heldout)

    @property
    def synthesised(self) -> int:
        return self.synthesised_train + self.synthesised_heldout


def choose_written(mix: Mix, seed: int) -> list[Prompt]:
    """Train and held-out prompts from the project's templates. Raises UsageError when more are asked for than there are."""
    chosen: list[Prompt] = []
    for split, wanted in (("train", mix.written_train), ("heldout", mix.written_heldout)):
        there = [prompt for prompt in written_prompts() if prompt.split == split]
        if wanted > len(there):
            raise UsageError(
                f"data asks for {wanted} written {split} prompts, the project's templates give {len(there)}",
                hint=f"lower data.{'written' if split == 'train' else 'heldout'}, or raise data.synthesised",
            )
        chosen += shuffled(there, seed)[:wanted]
    return chosen


def split_synthesised(texts: list[str], mix: Mix, seed: int) -> list[Prompt]:
    """Give the target's own prompts to the two splits in the mix's proportions; no two of them are near-duplicates."""
    order = [prompt.text for prompt in shuffled((make_prompt(SYNTHESISED, text, "train") for text in texts), seed)]
    heldout = round(len(order) * mix.synthesised_heldout / mix.synthesised) if mix.synthesised else 0
    return [make_prompt(SYNTHESISED, text, "heldout" if place < heldout else "train") for place, text in enumerate(order)]
