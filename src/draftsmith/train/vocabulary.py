"""The draft vocabulary: the target tokens that occur most often under the loss mask."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def choose_vocabulary(supervised: Iterable[Tensor], vocab_size: int, draft_vocab_size: int) -> Tensor:
    """Target ids of the draft vocabulary, strictly increasing: [W].

    The most frequent tokens of `supervised` (1-D id tensors); ties and free places go to the smaller id.
    """
    count = torch.zeros(vocab_size, dtype=torch.int64)
    for ids in supervised:
        count += torch.bincount(ids, minlength=vocab_size)
    return count.argsort(descending=True, stable=True)[:draft_vocab_size].sort().values


def coverage(supervised: Iterable[Tensor], target_ids_W: Tensor, vocab_size: int) -> float:
    """Share of tokens that the draft vocabulary can name."""
    inside = torch.zeros(vocab_size, dtype=torch.bool)
    inside[target_ids_W] = True
    hits = total = 0
    for ids in supervised:
        hits, total = hits + int(inside[ids].sum()), total + len(ids)
    return hits / total if total else 0.0
