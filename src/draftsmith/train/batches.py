"""Captured samples -> padded batches of similar length, in an order that depends only on seed and epoch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from draftsmith.store import StoredSample
from draftsmith.train.objective import Batch


def supervised_rows(loss_mask_T: Tensor) -> Tensor:
    """Rows i whose tokens i + 1 (bonus) and i + 2 (first draft) are both under the loss mask: 1-D indices."""
    return (loss_mask_T[1:-1] & loss_mask_T[2:]).nonzero().flatten()


def collate(samples: Sequence[StoredSample], steps: int) -> Batch:
    """Pad samples to one batch. Each needs at least one supervised row."""
    rows = [supervised_rows(sample.loss_mask_T) for sample in samples]
    B, T, A = len(samples), max(len(s.token_ids_T) for s in samples), max(len(row) for row in rows)
    assert min(len(row) for row in rows) > 0, "a sample without a supervised row cannot be collated"
    features = torch.zeros(B, T, samples[0].features_TF.shape[1], dtype=samples[0].features_TF.dtype)
    last = torch.zeros(B, T, samples[0].last_TH.shape[1], dtype=samples[0].last_TH.dtype)
    tokens = torch.zeros(B, T + steps, dtype=torch.int64)
    mask = torch.zeros(B, T + steps, dtype=torch.bool)
    row_BA = torch.empty(B, A, dtype=torch.int64)
    for b, (sample, row) in enumerate(zip(samples, rows, strict=True)):
        length = len(sample.token_ids_T)
        features[b, :length], last[b, :length], tokens[b, :length] = sample.features_TF, sample.last_TH, sample.token_ids_T
        mask[b, :length] = sample.loss_mask_T
        row_BA[b] = torch.cat([row, row[-1:].expand(A - len(row))])
    valid_BA = torch.arange(A) < torch.tensor([len(row) for row in rows])[:, None]
    return Batch(features, last, tokens, mask, row_BA, valid_BA)


def plan_batches(num_rows: Sequence[int], tokens_per_batch: int, seed: int, epoch: int) -> list[list[int]]:
    """Indices of each batch of one epoch: similar numbers of rows together, about `tokens_per_batch` padded rows each, shuffled."""
    rng = random.Random(f"{seed}/{epoch}")
    order = [i for i, rows in enumerate(num_rows) if rows > 0]
    rng.shuffle(order)
    order.sort(key=lambda i: num_rows[i] // 16)  # stable: the shuffle decides inside a band of 16 rows
    batches: list[list[int]] = []
    current: list[int] = []
    for i in order:
        widest = max([num_rows[i], *(num_rows[j] for j in current)])
        if current and widest * (len(current) + 1) > tokens_per_batch:
            batches.append(current)
            current = []
        current.append(i)
    if current:
        batches.append(current)
    rng.shuffle(batches)
    return batches


def batches(samples: Sequence[StoredSample], tokens_per_batch: int, steps: int, seed: int, epoch: int) -> Iterator[Batch]:
    """The batches of one epoch. Samples without a supervised row are left out."""
    num_rows = [len(supervised_rows(sample.loss_mask_T)) for sample in samples]
    for indices in plan_batches(num_rows, tokens_per_batch, seed, epoch):
        yield collate([samples[i] for i in indices], steps)
