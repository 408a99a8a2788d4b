"""What a drafter reaches on rows whose features are known: the trainer's own figures, and those of the walk that an engine makes.

Suffixes: A supervised rows, K drafts, T tokens, F taps * H. Row i of a round: tokens 0..i + 1 are out, draft k is about token i + 2 + k.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftsmith.decode.chain import draft_matches
from draftsmith.job import Talk
from draftsmith.metrics import Acceptance, leading_run
from draftsmith.models.drafter import Drafter
from draftsmith.store import StoredSample


@dataclass(frozen=True)
class Round:
    """One round of an answer. place: answer tokens that were out when it began."""

    place: int
    accepted: int


@dataclass(frozen=True)
class Walked:
    """The rounds of one answer, in order."""

    id: str
    category: str
    prompt_tokens: int
    answer_tokens: int
    rounds: tuple[Round, ...]


@dataclass(frozen=True)
class Hits:
    """One sample. hit_AK: is draft k of a round that begins at this row the text's token? there_AK: has the text a supervised token there,
    and everywhere before?"""

    sample: StoredSample
    row_A: Tensor
    hit_AK: Tensor
    there_AK: Tensor


@dataclass(frozen=True)
class Figures:
    """Over all rows. top1: by depth, share of rows whose draft is the text's token, given the text before it. teacher_forced: every
    supervised row starts a round, as the trainer counts. walked: the rounds that greedy speculation runs on these answers."""

    top1: tuple[float, ...]
    teacher_forced: Acceptance
    walked: Acceptance

    def as_dict(self) -> dict[str, Any]:
        return {"top1": list(self.top1), "teacher_forced": self.teacher_forced.as_dict(), "walked": self.walked.as_dict()}


def supervised(loss_mask_T: Tensor) -> Tensor:
    """Rows i whose tokens i + 1 (bonus) and i + 2 (first draft) are both under the mask, as the trainer takes them: 1-D indices."""
    return (loss_mask_T[1:-1] & loss_mask_T[2:]).nonzero().flatten()


def trainers_arithmetic(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """The trainer computes in bfloat16 where it matters little, with float32 weights; on features of another dtype: plainly."""
    return torch.autocast("cpu", torch.bfloat16) if dtype == torch.bfloat16 else nullcontext()


@torch.inference_mode()
def hits_of(drafter: Drafter, sample: StoredSample, depth: int) -> Hits:
    """drafter: float32 or wider."""
    T = len(sample.token_ids_T)
    row_A = supervised(sample.loss_mask_T)
    at_AK = row_A[:, None] + 2 + torch.arange(depth)
    mask_T = torch.cat([sample.loss_mask_T, torch.zeros(depth, dtype=torch.bool)])
    there_AK = mask_T[at_AK].cumprod(1).bool()
    if len(row_A) == 0:
        return Hits(sample, row_A, torch.zeros(0, depth, dtype=torch.bool), there_AK)
    features_TF, first = sample.features_TF, int(row_A[0])
    if features_TF.dtype != torch.bfloat16:
        features_TF = features_TF.to(drafter.fc.weight.dtype)
    with trainers_arithmetic(features_TF.dtype):
        matches = draft_matches(drafter, features_TF, sample.token_ids_T, first + 1, depth)
    assert len(matches) == T - 2 - first, (len(matches), T, first)
    return Hits(sample, row_A, matches[row_A - first] & there_AK, there_AK)


def all_hits(drafter: Drafter, samples: Sequence[StoredSample], depth: int, talk: Talk) -> list[Hits]:
    """Of every sample, with progress."""
    tokens, done, started, found = sum(len(sample.token_ids_T) for sample in samples), 0, time.monotonic(), []
    for sample in samples:
        found.append(hits_of(drafter, sample, depth))
        done += len(sample.token_ids_T)
        rate = done / max(time.monotonic() - started, 1e-9)
        talk.progress("replay", done, tokens, started, f"{len(found)} of {len(samples)} samples, {rate:.0f} tokens/s")
    return found


def teacher_forced(hits: Sequence[Hits], depth: int) -> Acceptance:
    """Every supervised row starts a round; rows with fewer tokens left than `depth` drafts are left out, as in training."""
    rows: list[list[bool]] = []
    for one in hits:
        rows += one.hit_AK[one.there_AK[:, depth - 1], :depth].tolist()
    return Acceptance.from_matches(rows, depth)


def top1(hits: Sequence[Hits]) -> tuple[float, ...]:
    """By depth; nan where no row has a token so far on."""
    hit = torch.cat([one.hit_AK for one in hits]).sum(0).double()
    there = torch.cat([one.there_AK for one in hits]).sum(0).double()
    return tuple((hit / there).tolist())


def walked(one: Hits, category: str = "") -> Walked:
    """The walk over one sample's answer. Rounds at its end that have fewer tokens left than drafts are left out: how far they would have
    gone is not known. A text with several answers is walked through each of them."""
    rows, matches, whole = one.row_A.tolist(), one.hit_AK.tolist(), one.there_AK[:, -1].tolist()
    prompt = one.sample.num_prompt_tokens
    rounds, following = [], -1
    for row, run, full in zip(rows, matches, whole, strict=True):
        if row < following:
            continue
        accepted = leading_run(run)
        following = row + accepted + 1
        if full:
            rounds.append(Round(row + 2 - prompt, accepted))
    return Walked(one.sample.id, category, prompt, len(one.sample.token_ids_T) - prompt, tuple(rounds))


def counted(answers: Sequence[Walked], depth: int) -> Acceptance:
    """All rounds together."""
    return Acceptance.from_rounds((round_.accepted for answer in answers for round_ in answer.rounds), depth)


def figures(hits: Sequence[Hits], depth: int) -> Figures:
    return Figures(top1(hits), teacher_forced(hits, depth), counted([walked(one) for one in hits], depth))


def with_places(accepted: Sequence[int]) -> Iterator[Round]:
    """Rounds in order, the first behind the token that the prefill gave."""
    place = 1
    for drafts in accepted:
        yield Round(place, drafts)
        place += drafts + 1
