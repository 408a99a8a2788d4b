"""The rows that are replayed: from a capture store, or token files put through the local target. Also what training saw of lengths."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.job import Talk
from draftsmith.manifest import Manifest
from draftsmith.measure.prompts import Prompt, rows_of
from draftsmith.metrics import Acceptance
from draftsmith.models.target import Target
from draftsmith.samples import read_samples, samples_file, spread
from draftsmith.store import Index, StoredSample, read_store
from draftsmith.verify.reference import batches
from draftsmith.verify.replay.causes import Trained

EMPTY = torch.empty(0)


@dataclass(frozen=True)
class Rows:
    """Samples with features of the drafter's taps, and their categories by id. captured: the features are the store's own."""

    source: str
    samples: list[StoredSample]
    categories: Mapping[str, str]
    captured: bool

    @property
    def prompts(self) -> dict[str, Prompt]:
        """By id, as a server has to be asked."""
        return {
            sample.id: Prompt(sample.id, tuple(sample.token_ids_T[: sample.num_prompt_tokens].tolist()), self.categories.get(sample.id, ""))
            for sample in self.samples
        }


def from_store(folder: Path, split: str, limit: int | None, target: Target, talk: Talk) -> Rows:
    """A split of a store. Features of other taps than the store's are computed anew from its tokens. Raises EnvironmentFailed."""
    index = Index.read(folder)
    samples = list(read_store(folder, split))  # raises when there is no index
    assert index is not None
    if not samples:
        there = sorted({shard.split for shard in index.shards})
        raise EnvironmentFailed(f"{folder} has no split {split!r}", hint=f"--split: {', '.join(there) or 'the store is empty'}")
    samples = spread(samples, limit)
    categories = categories_beside(folder, split)
    width, taps = target.config.hidden_size, target.taps
    if index.hidden_size == width and set(taps) <= set(index.taps):
        columns = torch.cat([torch.arange(width) + index.taps.index(tap) * width for tap in taps])
        if list(taps) != index.taps:
            samples = [with_features(sample, sample.features_TF[:, columns]) for sample in samples]
        return Rows(f"{folder.name}, {split} split", samples, categories, True)
    said = f"{folder.name}, {split} split (its taps {index.taps} are not the drafter's: features computed anew)"
    return Rows(said, captured(samples, target, talk), categories, False)


def with_features(sample: StoredSample, features_TF: torch.Tensor) -> StoredSample:
    return StoredSample(sample.id, sample.num_prompt_tokens, sample.token_ids_T, sample.loss_mask_T, features_TF, sample.last_TH)


def categories_beside(store: Path, split: str) -> dict[str, str]:
    """Category of each sample, from the data folder beside the store; {} when there is none."""
    path = samples_file(store.parent / "data", split)
    return {sample.id: sample.source for sample in read_samples(path)} if path.is_file() else {}


def from_file(path: Path, limit: int | None, target: Target, talk: Talk) -> Rows:
    """Rows of a .jsonl or .parquet file: token_ids with num_prompt_tokens, or prompt_token_ids with the answer's token_ids.

    Optional: id, category or source. Raises UsageError.
    """
    samples, categories = [], {}
    for number, row in enumerate(rows_of(path), start=1):
        sample = sample_from(row, f"{path}, row {number}", str(row.get("id") or f"{path.stem}-{number:05d}"), target.config.vocab_size)
        samples.append(sample)
        categories[sample.id] = str(row.get("category") or row.get("source") or "")
    if not samples:
        raise UsageError(f"{path} holds no rows", hint="one JSON object a line: prompt_token_ids and token_ids")
    return Rows(path.name, captured(spread(samples, limit), target, talk), categories, False)


def sample_from(row: Mapping[str, Any], where: str, name: str, vocab_size: int) -> StoredSample:
    """Tokens of one row, without features. Raises UsageError."""
    prompt, tokens, count = row.get("prompt_token_ids"), row.get("token_ids"), row.get("num_prompt_tokens")
    whole = [*(prompt or ()), *(tokens or ())] if prompt is not None else list(tokens or ())
    begin = len(prompt) if prompt is not None else count
    hint = "expected prompt_token_ids and token_ids, or token_ids and num_prompt_tokens"
    if not isinstance(begin, int) or not all(isinstance(token, int) for token in whole):
        raise UsageError(f"{where}: found {', '.join(row) or 'nothing'}", hint=hint)
    if not 0 < begin < len(whole) - 1:
        raise UsageError(f"{where}: {begin} prompt tokens of {len(whole)}", hint="a prompt and at least two tokens of answer are needed")
    if not 0 <= min(whole) <= max(whole) < vocab_size:
        raise UsageError(f"{where}: token {max(whole)} is not in the target's vocabulary of {vocab_size}", hint="is this the target?")
    mask_T = torch.arange(len(whole)) >= begin
    return StoredSample(name, begin, torch.tensor(whole), mask_T, EMPTY, EMPTY)


@torch.inference_mode()
def captured(samples: Sequence[StoredSample], target: Target, talk: Talk) -> list[StoredSample]:
    """The same samples with the target's states, computed here."""
    rows = [sample.token_ids_T.tolist() for sample in samples]
    found: list[StoredSample] = list(samples)
    tokens, done, started = sum(map(len, rows)), 0, time.monotonic()
    for places, ids_BT, mask_BT in batches(rows):
        states = target.states(ids_BT, mask_BT)
        for i, place in enumerate(places):
            old, length = samples[place], len(rows[place])
            features, last = states.features_BTF[i, :length].clone(), states.last_BTH[i, :length].clone()
            found[place] = StoredSample(old.id, old.num_prompt_tokens, old.token_ids_T, old.loss_mask_T, features, last)
            done += length
        talk.progress("replay: the target's states", done, tokens, started)
    return found


# --- training --------------------------------------------------------------------------------------------------------


def trained_acceptance(train: Path) -> Acceptance | None:
    """The held-out figure that the train stage ended with; None when it has not."""
    manifest = Manifest.read(train)
    return Acceptance.from_dict(manifest.summary["heldout"]) if manifest is not None and "heldout" in manifest.summary else None


def what_training_saw(run: Path) -> Trained:
    """Longest conversation, answer and prompt of the training split, from the shards' offsets alone; the drafts that training unrolled."""
    heldout = trained_acceptance(run / "train")
    depth = heldout.depth if heldout is not None else None
    index = Index.read(run / "capture")
    lengths: list[int] = []
    prompts: list[int] = []
    for shard in index.shards if index is not None else ():
        if shard.split == "train":
            with safe_open(str(run / "capture" / shard.file), "pt") as file:
                lengths += file.get_tensor("offsets").diff().tolist()
            prompts += shard.num_prompt_tokens
    if not lengths:
        return Trained(depth)
    return Trained(depth, max(lengths), max(a - b for a, b in zip(lengths, prompts, strict=True)), max(prompts))
