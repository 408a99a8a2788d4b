"""Shared by the tests of `verify wiring` on real engines: drafters worth looking at, one launch for many judgements, a moved target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from draftsmith.job import Job
from draftsmith.models.checkpoint import write_random_drafter
from draftsmith.models.target import load_target
from draftsmith.settings import DrafterSettings
from draftsmith.verify.wiring import run as wiring_run

WORDS = (",", ".", " the", " and", " to", " of", " a", " in", " is", "\n", " that", " it", " for", " with", " on", " are")


def guessing_drafter(target: Path, folder: Path, taps: Sequence[int], engine: str = "", more: int = 0) -> Path:
    """Random weights over sixteen common words: right now and then, so that rows of rejected and of accepted drafts both occur.

    more: other words in the vocabulary, where an engine wants a rounder number.
    """
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    known = {tokenizer.encode(word, add_special_tokens=False).ids[0] for word in WORDS}
    ids = torch.tensor(sorted(known | set([i for i in range(300, 600) if i not in known][:more])))
    write_random_drafter(target, DrafterSettings(draft_vocab_size=len(ids), taps=tuple(taps)), folder, seed=7, engine=engine)
    tensors = load_file(folder / "model.safetensors")
    tensors["d2t"], tensors["t2d"] = ids - torch.arange(len(ids)), torch.zeros_like(tensors["t2d"])
    tensors["t2d"][ids] = True
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def launch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next look launches the engine; those after it judge the same rows anew. Three short sequences are enough here."""
    launch = wiring_run.take_down
    kept: list[list[wiring_run.Asked]] = []

    def once(job: Job, subject: wiring_run.Subject) -> list[wiring_run.Asked]:
        if not kept:
            kept.append(launch(job, subject))
        return kept[0]

    monkeypatch.setattr(wiring_run, "REQUESTS", 3)
    monkeypatch.setattr(wiring_run, "PROMPT_TOKENS", 96)
    monkeypatch.setattr(wiring_run, "take_down", once)


def revised(*about: Any) -> Any:
    """The target after a little more training: every matrix moved by a twentieth of its size. Stands for load_target."""
    target = load_target(*about)
    generator = torch.Generator().manual_seed(9)
    for parameter in target.model.parameters():
        if parameter.ndim == 2:
            noise = torch.randn(parameter.shape, generator=generator) * float(parameter.std()) * 0.05
            parameter.data += noise.to(parameter.dtype)
    return target
