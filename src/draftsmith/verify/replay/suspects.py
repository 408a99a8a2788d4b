"""A gap between replay and server on the same tokens: which mistake in the wiring would give what was served? Each is replayed.

Needs no look into the engine, so it works for any. Suffixes: T tokens, J boundaries, H target width, F taps * H.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from draftsmith.job import Talk
from draftsmith.metrics import Acceptance
from draftsmith.models.dflash import DFlashDrafter, View
from draftsmith.models.drafter import Drafter
from draftsmith.models.target import Target
from draftsmith.verify.reference import ROWS_PER_BATCH, features
from draftsmith.verify.replay.rounds import rounds_of
from draftsmith.verify.sequences import Answer

MOST_PERMUTED = 3  # taps of which every order is tried
NEAR = 0.02  # largest gap of a survival that rounding leaves on the same tokens (bfloat16 flips a draft now and then)


@dataclass(frozen=True)
class Suspect:
    """One mistake: the boundaries that the engine passes instead, the feature of another token, or what slots of a block see."""

    says: str
    taps: tuple[int, ...]
    shift: int = 0  # row p holds the feature of token p + shift
    causal: bool | None = None  # slots look back only, or both ways; None: as they should

    def features(self, states_TJH: Tensor, place: Mapping[int, int]) -> Tensor:
        """[T, F] as the engine would pass them. place: where each boundary is among J."""
        return states_TJH[:, [place[tap] for tap in self.taps]].flatten(1).roll(-self.shift, 0)


@dataclass(frozen=True)
class Fit:
    """What a suspect would give, and how far that is from what was served: the largest gap of a survival."""

    suspect: Suspect
    predicted: Acceptance
    distance: float

    def as_dict(self) -> dict[str, Any]:
        suspect = self.suspect
        found = {"says": suspect.says, "taps": list(suspect.taps), "shift": suspect.shift}
        found |= {"causal": suspect.causal} if suspect.causal is not None else {}
        return found | {"predicted": self.predicted.as_dict(), "distance": self.distance}


def suspects(taps: Sequence[int], num_layers: int, views: Sequence[View] = ()) -> Iterator[Suspect]:
    """Everything that has gone wrong in public: numbering by one, lists slid by one entry, orders, the feature of a neighbour.

    views: of a block drafter's layers. Its ids name outputs of layers, so that no list slides over the embedding, and the feature of the
    last token is not there when its block is filled; but slots may look both ways where they should not, or not where they should.
    """
    right, seen = tuple(taps), {tuple(taps)}

    def fits(tried: tuple[int, ...]) -> bool:
        return min(tried) >= 0 and max(tried) <= num_layers and tried not in seen

    ways: list[tuple[str, tuple[int, ...]]] = [
        ("every tap is one layer late", tuple(tap + 1 for tap in right)),
        ("every tap is one layer early", tuple(tap - 1 for tap in right)),
    ]
    if not views:
        ways += [
            ("the embedding output is put in front and the last tap falls away", (0, *right[:-1])),
            ("the first tap falls away and the last layer is put behind", (*right[1:], num_layers)),
        ]
    for place in range(len(right)):
        for by, word in ((1, "late"), (-1, "early")):
            ways.append((f"tap {place + 1} is one layer {word}", (*right[:place], right[place] + by, *right[place + 1 :])))
    if len(right) <= MOST_PERMUTED:
        ways += [(f"the taps come in the order {list(order)}", order) for order in permutations(right)]
    for says, tried in ways:
        if fits(tried):
            seen.add(tried)
            yield Suspect(says, tried)
    yield Suspect("each row holds the feature of the token before it", right, -1)
    if not views:
        yield Suspect("each row holds the feature of the token after it", right, 1)
    if not all(view.causal for view in views):
        yield Suspect("the slots of a block look back only", right, causal=True)
    if any(view.causal for view in views):
        yield Suspect("the slots of a block look both ways", right, causal=False)


def distance(predicted: Acceptance, served: Acceptance) -> float:
    """Largest gap of a survival, in shares of rounds."""
    return max(abs(a - b) for a, b in zip(predicted.survival, served.survival, strict=True))


@torch.inference_mode()
def accuse(
    drafter: Drafter, target: Target, answers: Sequence[Answer], rows: Sequence[Sequence[int]], served: Acceptance, talk: Talk
) -> list[Fit]:
    """Every suspect replayed, nearest first, the straight wiring among them. target: of the drafter's taps; rows: see `rounds_of`."""
    num_layers, dtype = len(target.layers), drafter.fc.weight.dtype
    views = drafter.shape.views if isinstance(drafter, DFlashDrafter) else ()
    tried = [Suspect("as trained", target.taps), *suspects(target.taps, num_layers, views)]
    ways: dict[bool | None, Drafter] = {None: drafter}
    if isinstance(drafter, DFlashDrafter):
        ways |= {suspect.causal: drafter.seeing(suspect.causal) for suspect in tried if suspect.causal is not None}
    needed = sorted({tap for suspect in tried for tap in suspect.taps})
    wide, place = Target(target.model, needed), {tap: number for number, tap in enumerate(needed)}
    rounds: list[list[int]] = [[] for _ in tried]
    started = time.monotonic()
    for start in range(0, len(rows), ROWS_PER_BATCH):
        part = slice(start, start + ROWS_PER_BATCH)
        states = [row_TF.unflatten(-1, (len(needed), -1)) for row_TF in features(wide, rows[part])]
        for number, suspect in enumerate(tried):
            passed = [suspect.features(state_TJH, place).to(dtype) for state_TJH in states]
            for accepted in rounds_of(ways[suspect.causal], answers[part], rows[part], passed, served.depth):
                rounds[number] += accepted
        talk.progress("replay: other wirings", min(start + ROWS_PER_BATCH, len(rows)), len(rows), started)
    found = [Acceptance.from_rounds(accepted, served.depth) for accepted in rounds]
    fits = [Fit(suspect, predicted, distance(predicted, served)) for suspect, predicted in zip(tried, found, strict=True)]
    return sorted(fits, key=lambda fit: fit.distance)


def fitting(fits: Sequence[Fit]) -> list[Fit]:
    """The suspects that give what was served, nearest first; none when the straight wiring is not clearly off."""
    return [fit for fit in fits if fit.distance <= NEAR] if straight(fits).distance > 2 * NEAR else []


def straight(fits: Sequence[Fit]) -> Fit:
    """The wiring that training had."""
    return next(fit for fit in fits if fit.suspect.says == "as trained")
