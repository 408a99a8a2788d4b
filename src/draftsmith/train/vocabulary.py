"""The draft vocabulary: the target tokens that occur most often under the loss mask, or would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from draftsmith.models.target import Target
from draftsmith.store import StoredSample


def token_counts(supervised: Iterable[Tensor], vocab_size: int) -> Tensor:
    """How often each target token occurs under the loss mask: float64 [V]. `supervised`: 1-D id tensors."""
    count = torch.zeros(vocab_size, dtype=torch.int64)
    for ids in supervised:
        count += torch.bincount(ids, minlength=vocab_size)
    return count.double()


def expected_counts(target: Target, samples: Sequence[StoredSample], positions: int) -> Tensor:
    """How often the target would emit each token at the supervised positions: its own probabilities, summed. float64 [V].

    Computed on an evenly spaced share of about `positions` of them and scaled up. Ranks the tokens that the training text happens
    not to hold, which counts cannot.
    """
    total = sum(int(sample.loss_mask_T.sum()) for sample in samples)
    stride = max(total // positions, 1)
    summed = torch.zeros(target.config.vocab_size, dtype=torch.float64)
    for sample in samples:
        emitting_T = sample.loss_mask_T.roll(-1)  # the state of token i emits token i + 1
        emitting_T[-1] = False
        last_SH = sample.last_TH[emitting_T][::stride].to(target.device, target.head_VH.dtype)
        if len(last_SH):
            summed += target.logits(last_SH[None])[0].float().softmax(-1).sum(0).double().cpu()
    return summed * stride


def choose_vocabulary(weight_V: Tensor, draft_vocab_size: int) -> Tensor:
    """Target ids of the draft vocabulary, strictly increasing: the W largest weights; ties go to the smaller id."""
    return weight_V.argsort(descending=True, stable=True)[:draft_vocab_size].sort().values


def coverage(supervised: Iterable[Tensor], target_ids_W: Tensor, vocab_size: int) -> float:
    """Share of tokens that the draft vocabulary can name."""
    inside = torch.zeros(vocab_size, dtype=torch.bool)
    inside[target_ids_W] = True
    hits = total = 0
    for ids in supervised:
        hits, total = hits + int(inside[ids].sum()), total + len(ids)
    return hits / total if total else 0.0
