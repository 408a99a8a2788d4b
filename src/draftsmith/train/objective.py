"""The training objective: training-time test with soft cross-entropy against the target's own distribution.

Shapes: B batch, T tokens, A answer rows, H target width, F taps * H, V target vocabulary, W draft vocabulary.
Source: EAGLE-3 (arXiv 2503.01840), section 3.2; the alignment is that of `models/eagle3.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftsmith.metrics import Acceptance
from draftsmith.models.eagle3 import Eagle3Drafter, Rollout, pick


@dataclass(frozen=True)
class Batch:
    """Padded sequences and the rows that are supervised.

    row_BA holds, per sequence, the rows i whose tokens i + 1 and i + 2 are both under the loss mask: the bonus token and the first
    draft. Padding repeats the last row and is masked by valid_BA.
    """

    features_BTF: Tensor
    last_BTH: Tensor  # boundary N, before the final norm
    token_ids_BT: Tensor  # `steps` more columns than features
    mask_BT: Tensor  # loss mask, bool, as wide as token_ids_BT
    row_BA: Tensor
    valid_BA: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))


class Teacher(nn.Module):
    """The target's final norm and output head, restricted to the draft vocabulary."""

    def __init__(self, final_norm: nn.Module, head_VH: Tensor, target_ids_W: Tensor) -> None:
        super().__init__()
        self.final_norm = final_norm
        self.head_WH = head_VH[target_ids_W.to(head_VH.device)].contiguous()

    @torch.no_grad()
    def probabilities(self, last_BAH: Tensor, candidates_S: Tensor | None = None) -> Tensor:
        """Next-token distribution over the draft vocabulary, or over some of it, renormalised: [B, A, W or S] float32."""
        normed = self.final_norm(last_BAH.to(self.head_WH.dtype))
        return F.linear(normed, self.head_WH if candidates_S is None else self.head_WH[candidates_S]).float().softmax(-1)


@dataclass(frozen=True)
class Step:
    """One rollout step of one batch: loss rows and matches."""

    loss_sum: Tensor  # scalar
    weight_sum: Tensor  # scalar
    match_BA: Tensor  # the draft's argmax is the text's token, and the row is supervised
    exists_BA: Tensor  # the text has a token at this step


def target_index(drafter: Eagle3Drafter) -> Tensor:
    """Draft id of each target id, -1 where it has none: [V], on the drafter's device."""
    device = drafter.d2t.device
    index = torch.full((drafter.shape.vocab_size,), -1, dtype=torch.int64, device=device)
    index[drafter.target_ids_W] = torch.arange(drafter.shape.draft_vocab_size, device=device)
    return index


@dataclass(frozen=True)
class Shortcut:
    """What training may leave out to be faster; evaluation leaves out nothing.

    off_path_share: an engine comes to step k only when every draft before it was right. Of the rows where one was wrong, this share
    (drawn at random) goes on all the same. frequent_F: draft ids that every batch scores; beside them it scores the tokens of its own
    text, not the whole draft vocabulary. None: the whole vocabulary.
    """

    off_path_share: float = 1.0
    frequent_F: Tensor | None = None

    def candidates(self, wanted: Tensor) -> Tensor | None:
        """Draft ids to score, given the ids that the text wants (-1 where it has none): sorted, [S]."""
        return None if self.frequent_F is None else torch.cat([self.frequent_F, wanted[wanted >= 0].flatten()]).unique()


def rollout_steps(
    drafter: Eagle3Drafter, teacher: Teacher, batch: Batch, steps: int, index_V: Tensor, shortcut: Shortcut | None = None
) -> list[Step]:
    """Loss and matches of every rollout step. Rows whose next token is outside the draft vocabulary carry no loss and never match."""
    shortcut = shortcut or Shortcut()
    T, longest = batch.features_BTF.shape[1], batch.last_BTH.shape[1] - 1
    rollout = Rollout(drafter, batch.features_BTF, batch.token_ids_BT[:, 1 : T + 1], batch.row_BA)
    candidates_S = shortcut.candidates(index_V[batch.token_ids_BT[batch.mask_BT]])
    result = []
    row_BA, exists_BA = batch.row_BA, batch.valid_BA
    for k in range(steps):
        logits_BAS = drafter.head(rollout.step(batch.token_ids_BT.gather(1, row_BA + 1 + k)), candidates_S)
        wanted_BA = index_V[batch.token_ids_BT.gather(1, row_BA + 2 + k)]
        exists_BA = exists_BA & batch.mask_BT.gather(1, row_BA + 2 + k)
        supervised_BA = exists_BA & (wanted_BA >= 0)
        teacher_BAS = teacher.probabilities(pick(batch.last_BTH, (row_BA + 1 + k).clamp(max=longest)), candidates_S)
        loss_BA = -(teacher_BAS * logits_BAS.float().log_softmax(-1)).sum(-1)
        drafted_BA = logits_BAS.detach().argmax(-1)
        match_BA = supervised_BA & ((drafted_BA if candidates_S is None else candidates_S[drafted_BA]) == wanted_BA)
        result.append(Step((loss_BA * supervised_BA).sum(), supervised_BA.sum(), match_BA, exists_BA))
        if shortcut.off_path_share < 1 and k + 1 < steps:
            drawn_BA = torch.rand(match_BA.shape).to(match_BA.device)  # on the CPU, whose random state a checkpoint keeps
            going_on_BA = exists_BA & (match_BA | (drawn_BA < shortcut.off_path_share))
            index_BA = going_on_BA.byte().argsort(dim=1, descending=True, stable=True)[:, : int(going_on_BA.sum(1).max().clamp(min=1))]
            rollout.narrow(index_BA)
            row_BA, exists_BA = rollout.row_BA, going_on_BA.gather(1, index_BA)
    return result


def total_loss(steps: list[Step], decay: float) -> Tensor:
    """Sum over steps of decay^k times the mean loss of that step's supervised rows."""
    return torch.stack([decay**k * step.loss_sum / step.weight_sum.clamp(min=1) for k, step in enumerate(steps)]).sum()


def acceptance(steps: list[Step]) -> Acceptance:
    """Teacher-forced acceptance: every supervised row is the start of a round; rows near the end that have fewer tokens left than
    drafts are left out."""
    full = steps[-1].exists_BA
    matches = torch.stack([step.match_BA[full] for step in steps], -1)
    return Acceptance.from_matches(matches.tolist(), len(steps))
