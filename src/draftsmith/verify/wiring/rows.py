"""Single rows that hold another state than the rest: a median over all rows forgives what happens in the few rows of an answer. Pure.

Suffixes as in wiring.py: T rows, K taps, J candidates, H target width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from draftsmith.findings import Finding

if TYPE_CHECKING:
    from draftsmith.verify.wiring.features import Rows

FAR = 3.0  # so many times the limit is no rounding
NEARER = 3.0  # so many times nearer to another state than to its own: a row that holds that one
SHARE = 0.02  # of the rows; fewer that fit nothing may be near-ties of a router that chose another expert
Move = tuple[int, int]  # (tokens, layers) from what the row should hold to what it holds
MOVES: tuple[Move, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))


@dataclass(frozen=True)
class Strays:
    """Rows that do not hold the trained states of their token. shift, layers: what they hold instead; both None: nothing that was tried."""

    number: int
    rows: int  # that were looked at
    behind_prompt: int | None  # of `number`; None: where prompts end is not known
    request: int  # of the first one, from 0
    row: int
    shift: int | None
    layers: int | None


def strays_of(requests: Sequence[Rows], trained: Sequence[int], limit: float) -> tuple[Strays, ...]:
    """Strays by what they hold, for features whose medians are right. limit: the largest error that may be rounding."""
    found: list[tuple[Move | None, int, int]] = []
    total = 0
    for number, request in enumerate(requests):
        served_TKH = request.features_TF.float().unflatten(-1, (len(trained), -1))
        total += len(served_TKH)
        apart_T = apart(served_TKH, request.candidates_TJH, trained, (0, 0))
        rest = (apart_T > limit).nonzero().flatten().tolist()
        moved = {move: apart(served_TKH, request.candidates_TJH, trained, move) for move in MOVES} if rest else {}
        for row in rest:
            best = min(MOVES, key=lambda move: float(moved[move][row]))
            if float(moved[best][row]) <= min(FAR * limit, float(apart_T[row]) / NEARER):
                found.append((best, number, row))
            elif float(apart_T[row]) > FAR * limit:
                found.append((None, number, row))
    count = Counter(move for move, _, _ in found)
    kinds = [move for move, of in count.most_common() if move is not None or of > SHARE * total]
    return tuple(group(requests, [place for place in found if place[0] == move], total) for move in kinds)


def group(requests: Sequence[Rows], places: Sequence[tuple[Move | None, int, int]], total: int) -> Strays:
    move, request, row = places[0]
    ends = [requests[number].num_prompt for _, number, _ in places]
    behind = None if None in ends else sum(row >= (end or 0) for (_, _, row), end in zip(places, ends, strict=True))
    return Strays(len(places), total, behind, request, row, None if move is None else move[0], None if move is None else move[1])


def apart(served_TKH: Tensor, candidates_TJH: Tensor, trained: Sequence[int], move: Move) -> Tensor:
    """[T]: the largest relative error of a row's taps against the states that are `move` away; inf where there are none."""
    shift, layers = move
    wanted = [boundary + layers for boundary in trained]
    count, last = len(served_TKH), candidates_TJH.shape[1] - 2
    apart_T = torch.full((count,), torch.inf)
    first, end = max(0, -shift), min(count, len(candidates_TJH) - shift)
    if min(wanted) < 0 or max(wanted) > last or first >= end:
        return apart_T
    wanted_TKH = candidates_TJH[first + shift : end + shift, wanted].float()
    error_TK = (served_TKH[first:end] - wanted_TKH).norm(dim=-1) / wanted_TKH.norm(dim=-1).clamp_min(1e-20)
    apart_T[first:end] = error_TK.nan_to_num(nan=torch.inf).max(1).values
    return apart_T


def stray_findings(strays: Sequence[Strays], who: str, silent: str) -> list[Finding]:
    """DS906 rows with another token's feature, DS901 with another layer's, DS905 with values of nowhere."""
    fix = "use another engine version or other flags, and report it to the engine with this finding"
    return [Finding(code_of(stray), "error", f"{who}: {in_words(stray)}", silent, fix) for stray in strays]


def code_of(stray: Strays) -> str:
    return "DS906" if stray.shift else "DS901" if stray.layers else "DS905"


def in_words(stray: Strays) -> str:
    """ "in 12 of 91 rows, all behind the prompt (the first: row 35 of request 1), the feature of token p -1 in the place of token p's"."""
    where = f"in {stray.number} of {stray.rows} rows"
    if stray.behind_prompt is not None:
        kinds = {0: "all of the prompt", stray.number: "all behind the prompt"}
        where += f", {kinds.get(stray.behind_prompt, f'{stray.behind_prompt} of them behind the prompt')}"
    where += f" (the first: row {stray.row} of request {stray.request + 1}),"
    if stray.shift:
        return f"{where} the feature of token p {stray.shift:+d} is in the place of token p's"
    if stray.layers:
        return f"{where} every tap is one layer {'late' if stray.layers > 0 else 'early'}; in the others it is right"
    return f"{where} the values are no state of their token; in the others they are right"
