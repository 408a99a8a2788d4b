"""The hidden-state store: what capture writes, train and verify read.

A folder of `shard-*.safetensors` and `index.json`. A shard holds ragged rows: `offsets` [n + 1], and per token `token_ids`,
`loss_mask`, `features` [tokens, taps * H] and `last` [tokens, H] (boundary N, before the final norm).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from draftsmith.errors import EnvironmentFailed
from draftsmith.manifest import atomic_write_bytes, atomic_write_json, read_json, sha256_bytes, sha256_file, shaped

INDEX = "index.json"
SCHEMA = 1


@dataclass(frozen=True)
class StoredSample:
    """One sequence: token_ids_T int64, loss_mask_T bool, features_TF (concatenated taps) and last_TH (boundary N)."""

    id: str
    num_prompt_tokens: int
    token_ids_T: Tensor
    loss_mask_T: Tensor
    features_TF: Tensor
    last_TH: Tensor


@dataclass(frozen=True)
class Shard:
    """One finished shard as the index lists it."""

    file: str
    split: str
    ids: list[str]
    num_prompt_tokens: list[int]
    tokens: int
    bytes: int
    sha256: str


@dataclass
class Index:
    """What the store says about itself; written again after every shard."""

    taps: list[int]
    hidden_size: int
    dtype: str
    tap_unit: str = "boundary: residual stream after j decoder layers, 0 = embedding output"
    last_norm_state: str = "boundary N, before the final norm"
    source: dict[str, Any] = field(default_factory=dict)  # target files, library versions
    shards: list[Shard] = field(default_factory=list)
    complete: bool = False
    schema: int = SCHEMA

    def write(self, folder: Path) -> None:
        atomic_write_json(folder / INDEX, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Index | None:
        """The index of a store, or None when there is none yet."""
        path = folder / INDEX
        if not path.exists():
            return None
        content = read_json(path)
        if content.get("schema") != SCHEMA:
            raise EnvironmentFailed(
                f"{path}: schema {content.get('schema')}, this version reads {SCHEMA}", hint="capture again in a new run folder"
            )
        with shaped(path):
            content["shards"] = [Shard(**shard) for shard in content["shards"]]
            return cls(**content)


def bytes_per_token(num_taps: int, hidden_size: int, element_bytes: int) -> int:
    """Size of one stored token: taps and last state, token id and mask."""
    return (num_taps + 1) * hidden_size * element_bytes + 4 + 1


def write_shard(folder: Path, number: int, split: str, samples: Sequence[StoredSample]) -> Shard:
    """Write one shard atomically and return its index entry."""
    lengths = torch.tensor([0, *(len(sample.token_ids_T) for sample in samples)])
    tensors = {
        "offsets": lengths.cumsum(0),
        "token_ids": torch.cat([sample.token_ids_T for sample in samples]).to(torch.int32),
        "loss_mask": torch.cat([sample.loss_mask_T for sample in samples]).to(torch.uint8),
        "features": torch.cat([sample.features_TF for sample in samples]),
        "last": torch.cat([sample.last_TH for sample in samples]),
    }
    content = save(tensors)
    name = f"shard-{number:05d}.safetensors"
    atomic_write_bytes(folder / name, content)
    prompts = [sample.num_prompt_tokens for sample in samples]
    return Shard(name, split, [s.id for s in samples], prompts, int(lengths.sum()), len(content), sha256_bytes(content))


def intact(folder: Path, shard: Shard) -> bool:
    """Is the shard's file there with the recorded size and digest?"""
    path = folder / shard.file
    return path.is_file() and path.stat().st_size == shard.bytes and sha256_file(path) == shard.sha256


def read_store(folder: Path, split: str) -> Iterator[StoredSample]:
    """All samples of a split, in shard order. Raises EnvironmentFailed when the store is incomplete or a shard is damaged."""
    index = Index.read(folder)
    if index is None or not index.complete:
        raise EnvironmentFailed(
            f"{folder}: the hidden-state store is not complete", hint="run the capture stage again; it goes on where it stopped"
        )
    for shard in index.shards:
        if shard.split != split:
            continue
        try:
            with safe_open(str(folder / shard.file), "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is not a mapping)
        except (OSError, SafetensorError) as error:
            raise EnvironmentFailed(
                f"{folder / shard.file} is damaged: {error}", hint="delete it and run the capture stage again"
            ) from error
        bounds = tensors["offsets"].tolist()
        for i, (begin, end) in enumerate(pairwise(bounds)):
            yield StoredSample(
                shard.ids[i],
                shard.num_prompt_tokens[i],
                tensors["token_ids"][begin:end].long(),
                tensors["loss_mask"][begin:end].bool(),
                tensors["features"][begin:end],
                tensors["last"][begin:end],
            )
