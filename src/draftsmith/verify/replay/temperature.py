"""What sampling does to acceptance: the engine's rejection rule on held-out rows, beside greedy decoding on the same rows.

An engine drafts greedily (vLLM's and SGLang's default), so that the draft d is accepted with the target's own probability p_T(d): the rule
min(1, p / q) with q = 1, the same as drawing the target's token and accepting when it is d. On text that was sampled, the walk
over that text is therefore exact at any temperature, and needs nothing of this file. Here the text is greedy: the first draft's
probability is exact, and later drafts' as long as the drafts before them are the text's; beyond, there are bounds.
Source: Leviathan et al. (arXiv 2211.17192), section 2.3. Suffixes: A rows, K drafts, T tokens, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftsmith.job import Talk
from draftsmith.models.drafter import Drafter
from draftsmith.models.target import Target
from draftsmith.store import StoredSample
from draftsmith.verify.replay.bootstrap import Counts, Difference, compare
from draftsmith.verify.replay.figures import supervised, trainers_arithmetic


@dataclass(frozen=True)
class Sampled:
    """Expected acceptance at a temperature. first_draft: share of rows in which it is right greedily, and its mean probability."""

    temperature: float
    first_draft: tuple[float, float]
    accept_len: tuple[float, float, float]  # greedily; at the temperature at least and at most
    difference: Difference  # of the first draft, over prompts

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        """Empty when the difference may be chance."""
        if not self.difference.low > 0:
            return ""
        greedy, low, high = self.accept_len
        taken = f"at temperature {self.temperature:g} the target takes draft 1 with probability {self.first_draft[1]:.2f}"
        beside = f"greedy decoding takes it in {100 * self.first_draft[0]:.0f} % of the rows"
        return f"{taken}, {beside}: accept_len {greedy:.2f} becomes {low:.2f} to {high:.2f}"


def expected_accepted(probability_AK: Tensor, on_path_AK: Tensor) -> tuple[Tensor, Tensor]:
    """Least and most expected accepted drafts of each row, [A] each.

    probability_AK: p_T of draft k given the text before it. on_path_AK: the drafts before k are the text's, so that this is the
    probability that the engine would use; where it is false nothing is known but that it lies in 0..1.
    """
    known_AK = torch.where(on_path_AK, probability_AK, torch.zeros_like(probability_AK)).cumprod(1)
    unknown_AK = torch.where(on_path_AK, probability_AK, torch.ones_like(probability_AK)).cumprod(1)
    return known_AK.sum(1), unknown_AK.sum(1)


@torch.inference_mode()
def draft_probabilities(drafter: Drafter, target: Target, sample: StoredSample, depth: int, temperature: float) -> tuple[Tensor, Tensor]:
    """(p_T of each draft, whether it is the text's token), [A, K] each, of the rows that have `depth` more tokens."""
    T = len(sample.token_ids_T)
    row_A = supervised(sample.loss_mask_T)
    row_A = row_A[row_A + 1 + depth < T]
    if len(row_A) == 0:
        return torch.zeros(0, depth), torch.zeros(0, depth, dtype=torch.bool)
    features_TF = sample.features_TF
    if features_TF.dtype != torch.bfloat16:
        features_TF = features_TF.to(drafter.fc.weight.dtype)
    with trainers_arithmetic(features_TF.dtype):
        draft_AK = drafter.proposed(features_TF, sample.token_ids_T, row_A, depth)
    before_AK = row_A[:, None] + 1 + torch.arange(depth)  # the token whose state says what comes next
    states_TH = sample.last_TH.to(target.head_VH.dtype)
    probability_TV = (target.logits(states_TH[None])[0].float() / temperature).softmax(-1)
    return probability_TV[before_AK, draft_AK], draft_AK == sample.token_ids_T[before_AK + 1]


def sampled(
    drafter: Drafter, target: Target, samples: Sequence[StoredSample], depth: int, temperature: float, talk: Talk
) -> Sampled | None:
    """Over all held-out rows; None when there are none."""
    started = time.monotonic()
    rows, first_greedy, first_sampled, greedy, least, most = [], [], [], [], [], []
    for sample in samples:
        probability_AK, hit_AK = draft_probabilities(drafter, target, sample, depth, temperature)
        before_AK = torch.cat([torch.ones(len(hit_AK), 1, dtype=torch.bool), hit_AK.cumprod(1).bool()[:, :-1]], 1)
        low_A, high_A = expected_accepted(probability_AK, before_AK)
        rows.append(len(hit_AK))
        first_greedy.append(float(hit_AK[:, 0].sum()))
        first_sampled.append(float(probability_AK[:, 0].sum()))
        greedy.append(float(hit_AK.cumprod(1).sum()))
        least.append(float(low_A.sum()))
        most.append(float(high_A.sum()))
        talk.progress("replay: at the temperature", len(rows), len(samples), started)
    count = sum(rows)
    if not count:
        return None
    rounds = np.array(rows, float)
    difference = compare(Counts(rounds, np.array(first_greedy)), Counts(rounds, np.array(first_sampled)))
    shares = (sum(first_greedy) / count, sum(first_sampled) / count)
    return Sampled(temperature, shares, (1 + sum(greedy) / count, 1 + sum(least) / count, 1 + sum(most) / count), difference)
