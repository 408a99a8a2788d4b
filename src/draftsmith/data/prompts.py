"""The prompt mix: what is taken from the project's own templates, and what is held out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from draftsmith.data.dedup import Seen, normalise
from draftsmith.data.settings import DataSettings, HoldOut
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


def is_heldout(unit: str) -> bool:
    """One unit in ten, by its digest: a topic is held out with all its templates, a prompt by itself."""
    return int(sha256_bytes(unit.encode()), 16) % HELDOUT_ONE_IN == 0


@cache
def written_prompts(hold_out: HoldOut, categories: tuple[str, ...] | None = None) -> tuple[Prompt, ...]:
    """Every template with every topic of its category, without repeats, in file order. Raises UsageError for an unknown category."""
    found: dict[str, Prompt] = {}
    there = yaml.safe_load(WRITTEN.read_text())
    if unknown := sorted(set(categories or ()) - there.keys()):
        raise UsageError(f"data.categories: there is no {', '.join(unknown)}", hint=f"there are {', '.join(there)}")
    for category, part in there.items():
        if categories is not None and category not in categories:
            continue
        for topic in part["topics"]:
            for template in part["templates"]:
                text = template.replace("{topic}", topic)
                split: Split = "heldout" if is_heldout(topic if hold_out == "topic" else text) else "train"
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


def choose_written(mix: Mix, hold_out: HoldOut, seed: int, categories: tuple[str, ...] | None = None) -> list[Prompt]:
    """Train and held-out prompts from the project's templates; no training prompt is nearly the same as a held-out one.

    Raises UsageError when more are asked for than there are.
    """
    every = written_prompts(hold_out, categories)
    there = {split: [prompt for prompt in every if prompt.split == split] for split in ("heldout", "train")}
    heldout = shuffled(there["heldout"], seed)[: mix.written_heldout]
    seen = Seen()
    for prompt in heldout:
        seen.add(prompt.text)
    train = [prompt for prompt in shuffled(there["train"], seed) if seen.like(prompt.text) is None][: mix.written_train]
    for name, chosen, wanted in (("train", train, mix.written_train), ("heldout", heldout, mix.written_heldout)):
        if len(chosen) < wanted:
            raise UsageError(
                f"data asks for {wanted} written {name} prompts, the project's templates give {len(chosen)}",
                hint=f"lower data.{'written' if name == 'train' else 'heldout'}, or raise data.synthesised",
            )
    return train + heldout


def split_synthesised(texts: list[str], mix: Mix, seed: int) -> list[Prompt]:
    """Give the target's own prompts to the two splits in the mix's proportions; no two of them are near-duplicates."""
    order = [prompt.text for prompt in shuffled((make_prompt(SYNTHESISED, text, "train") for text in texts), seed)]
    heldout = round(len(order) * mix.synthesised_heldout / mix.synthesised) if mix.synthesised else 0
    return [make_prompt(SYNTHESISED, text, "heldout" if place < heldout else "train") for place, text in enumerate(order)]
