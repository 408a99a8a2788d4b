"""What the local, unmodified target says about token sequences. Suffixes: B batch, T tokens, F taps * hidden, H hidden, V vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from draftsmith.models.target import Target, TargetStates

ROWS_PER_BATCH = 8

Tokens = Sequence[int]


def batches(rows: Sequence[Tokens]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """(places, ids_BT, mask_BT): rows of similar length together, padded on the right."""
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
    for start in range(0, len(order), ROWS_PER_BATCH):
        places = order[start : start + ROWS_PER_BATCH]
        width = max(len(rows[place]) for place in places)
        ids_BT = torch.zeros(len(places), width, dtype=torch.long)
        mask_BT = torch.zeros(len(places), width, dtype=torch.long)
        for i, place in enumerate(places):
            ids_BT[i, : len(rows[place])] = torch.tensor(rows[place])
            mask_BT[i, : len(rows[place])] = 1
        yield places, ids_BT, mask_BT


def last_logits(target: Target, rows: Sequence[Tokens]) -> Tensor:
    """float32 next-token logits [rows, V] after each whole row."""
    found: list[Tensor] = [torch.empty(0)] * len(rows)
    for places, ids_BT, mask_BT in batches(rows):
        states: TargetStates = target.states(ids_BT, mask_BT)
        last_B1H = states.last_BTH[torch.arange(len(places)), mask_BT.sum(1) - 1][:, None]
        for place, logits_V in zip(places, target.logits(last_B1H)[:, 0].float(), strict=True):
            found[place] = logits_V
    return torch.stack(found)


def logit_gap(logits_V: Tensor, *tokens: int | None) -> float:
    """Best logit minus the worst logit among `tokens`; inf when one of them is None, because no near-tie explains a missing token."""
    if any(token is None for token in tokens):
        return float("inf")
    return float(logits_V.max() - torch.stack([logits_V[token] for token in tokens]).min())


def continued(target: Target, rows: Sequence[Tokens], known: Sequence[Tokens], count: int) -> list[list[int]]:
    """Each row with `count` greedy tokens after it: the known ones first, the rest from the target. Returns the longer rows."""
    longer = [[*row, *more[:count]] for row, more in zip(rows, known, strict=True)]
    while missing := [place for place, row in enumerate(rows) if len(longer[place]) < len(row) + count]:
        for place, logits_V in zip(missing, last_logits(target, [longer[place] for place in missing]), strict=True):
            longer[place].append(int(logits_V.argmax()))
    return longer


def features(target: Target, rows: Sequence[Tokens]) -> list[Tensor]:
    """Tapped features [T, F] of each row."""
    found: list[Tensor] = [torch.empty(0)] * len(rows)
    for places, ids_BT, mask_BT in batches(rows):
        features_BTF = target.states(ids_BT, mask_BT).features_BTF
        for i, place in enumerate(places):
            found[place] = features_BTF[i, : len(rows[place])].clone()
    return found
