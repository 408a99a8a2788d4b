"""Replay: the acceptance that the drafter must have reached on the very tokens that a server emitted.

How vLLM counts (0.32.0, v1/core/sched/scheduler.py, update_from_output), and SGLang with each reply (0.5.17,
scheduler_components/batch_result_processor.py): the first output token comes from the prefill and is no
round. Every later step that verified drafts is one round, and its accepted drafts are counted BEFORE the answer is cut at
max_tokens or at the end-of-turn token. So the last round of an answer counts drafts past the cut, as far as the target
would have gone on that way. The replay does the same: it walks over the answer continued by `depth` greedy tokens and
drops the rounds that begin after the cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftsmith.decode.chain import walk
from draftsmith.metrics import Acceptance, relative_gap
from draftsmith.models.drafter import Drafter
from draftsmith.models.target import Target
from draftsmith.verify.reference import continued, features
from draftsmith.verify.sequences import Answer


def counted_rounds(accepted: Sequence[int], num_served: int) -> list[int]:
    """The rounds that an engine ran for an answer of `num_served` tokens, from the accepted drafts of a walk that goes on further.

    The prefill emits one token, each round accepted + 1; a round that begins when all served tokens are out never runs.
    """
    emitted, kept = 1, []
    for drafts in accepted:
        if emitted >= num_served:
            return kept
        kept.append(drafts)
        emitted += drafts + 1
    assert emitted >= num_served, (emitted, num_served)
    return kept


@torch.inference_mode()
def predict(drafter: Drafter, target: Target, answers: Sequence[Answer], known: Sequence[Sequence[int]], depth: int) -> Acceptance:
    """Acceptance of the real walk over `answers`, counted as the engine counts.

    known: per answer, greedy tokens that are known to follow it (may be short or empty; the target supplies the rest).
    """
    rows = continued(target, [[*answer.prompt, *answer.tokens] for answer in answers], known, depth)
    found = rounds_of(drafter, answers, rows, features(target, rows), depth)
    return Acceptance.from_rounds((drafts for accepted in found for drafts in accepted), depth)


@torch.inference_mode()
def rounds_of(
    drafter: Drafter, answers: Sequence[Answer], rows: Sequence[Sequence[int]], features_of: Sequence[Tensor], depth: int
) -> list[list[int]]:
    """Accepted drafts of every round that an engine ran for each answer.

    rows: prompt, answer and at least `depth` tokens after it. features_of: [T, F] of each row, in the drafter's dtype.
    """
    found = []
    for answer, row, features_TF in zip(answers, rows, features_of, strict=True):
        accepted = walk(drafter, features_TF, torch.tensor(row), len(answer.prompt), depth)
        found.append(counted_rounds(accepted, len(answer.tokens)))
    return found


@dataclass(frozen=True)
class Replay:
    """Predicted beside served, on the same prompts and tokens."""

    predicted: Acceptance
    served: Acceptance
    prompts: int

    @property
    def gap(self) -> float:
        """(predicted - served) / served accept_len."""
        return relative_gap(self.predicted.accept_len, self.served.accept_len)

    @property
    def position_gaps(self) -> list[float]:
        """predicted - served share of rounds, per draft position."""
        return [p - s for p, s in zip(self.predicted.survival, self.served.survival, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        return {
            "predicted": self.predicted.as_dict(),
            "served": self.served.as_dict(),
            "gap": self.gap,
            "position_gaps": self.position_gaps,
            "prompts": self.prompts,
        }
