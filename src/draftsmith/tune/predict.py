"""Which candidates are worth a launch: the cost model times the drafter's acceptance (pure).

S(C) = A / (T_round / T_ar). T_round / T_ar comes from the cost model (measure/costmodel.py). A comes from the drafter's acceptance curve:
1 + s_1 + ... + s_depth for a chain, exact because its drafts do not depend on its depth; the same for a block, which is not exact (the
positions of a block see each other). A tree holds a chain of its own depth and more: A lies between that chain's and that of a chain
whose every draft had top-k independent tries; their geometric mean is the prediction, and both ends belong to its interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from draftsmith.errors import InvalidMeasurement, UsageError
from draftsmith.measure.costmodel import CostModel, Label, Prediction, fit_cost_model, gradient
from draftsmith.measure.costmodel_terms import Cell, Points, Shape
from draftsmith.metrics import Acceptance
from draftsmith.tune.candidates import Candidate

Z95 = 1.959964
Place = tuple[str, int]  # name of a candidate, concurrency


@dataclass(frozen=True)
class Knowledge:
    """What predictions rest on. measured: T_round / T_ar of a place that breakeven measured and the model cannot fit (trees).

    model None: nothing is predicted, `why` says why. sources: of the costs and of the acceptance, for readers.
    """

    accepted: Acceptance | None
    model: CostModel | None
    measured: Mapping[Place, Prediction]
    sources: Mapping[str, str]
    why: str = ""


@dataclass(frozen=True)
class Fate:
    """What becomes of a candidate at a concurrency."""

    candidate: Candidate
    concurrency: int
    predicted: Prediction | None
    state: Literal["measured", "pruned"]
    reason: str

    def as_dict(self) -> dict[str, Any]:
        predicted = self.predicted.as_dict() if self.predicted else None
        return self.candidate.as_dict() | {
            "concurrency": self.concurrency,
            "predicted": predicted,
            "state": self.state,
            "reason": self.reason,
        }


# --- what is known ---------------------------------------------------------------------------------------------------


def fitted(cells: Sequence[Cell], shape: Shape) -> tuple[CostModel | None, str]:
    """(model, "") or (None, why there is none)."""
    if all(cell.depth for cell in cells):
        return None, "no valid decode step of the baseline"
    try:
        return fit_cost_model(cells, shape), ""
    except InvalidMeasurement as error:
        return None, error.message


def costs_of(break_even: Sequence[Mapping[str, Any]]) -> tuple[list[Cell], dict[Place, Prediction]]:
    """Entries of a break-even table -> cells that the cost model fits (chains or blocks), and the ratios of its trees."""
    steps: dict[int, float] = {}
    rounds, trees = [], {}
    for entry in break_even:
        concurrency, depth = entry["concurrency"], entry["depth"]
        name = entry.get("name", f"depth {depth}")
        if "round_s" not in entry:
            continue
        steps[concurrency] = entry["decode_step_s"]
        if name.startswith("tree"):
            bounds = (entry["accept_len"], entry["accept_len_low"], entry["accept_len_high"])
            trees[name, concurrency] = Prediction(*bounds, "measured")
        else:
            rounds.append(Cell(concurrency, depth, entry["round_s"]))
    return [*(Cell(c, 0, step) for c, step in sorted(steps.items())), *rounds], trees


# --- acceptance ------------------------------------------------------------------------------------------------------


def accept_len_interval(counted: Acceptance) -> tuple[float, float, float]:
    """(A, low, high) at 95 %, rounds taken as independent; the variance follows from the survival counts."""
    mean = counted.accept_len - 1
    square = sum((2 * i + 1) * share for i, share in enumerate(counted.survival))
    half = Z95 * math.sqrt(max(square - mean**2, 0.0) / counted.rounds)
    return counted.accept_len, max(1.0, counted.accept_len - half), counted.accept_len + half


def accepted_by(candidate: Candidate, counted: Acceptance) -> tuple[float, float, float]:
    """(A, low, high) of a candidate. Raises UsageError beyond the depth that was counted."""
    if candidate.depth > counted.depth:
        raise UsageError(
            f"acceptance is known for {counted.depth} drafts, {candidate.name} has {candidate.depth}", hint="tune.depths: none deeper"
        )
    value, low, high = accept_len_interval(counted.at_depth(candidate.depth))
    if candidate.kind != "tree":
        return value, low, high
    survival, best = 1.0, 1.0
    for share in counted.at_depth(candidate.depth).conditional:
        survival *= 1 - (1 - (0.0 if math.isnan(share) else share)) ** candidate.top_k
        best += survival
    return math.sqrt(value * best), low, max(high, best)


# --- speed-up --------------------------------------------------------------------------------------------------------


def tree_cost(model: CostModel, candidate: Candidate, concurrency: int) -> Prediction:
    """T_round / T_ar of a tree: as many rows as it has tokens, as many drafting steps as it is deep. What its drafts cost beyond a
    chain's is not in it, so it is extrapolated."""
    batch = model.form.shape.padded(np.array([float(concurrency)]))
    context = np.array([model.cells[0].context])
    at = Points(batch, np.array([float(candidate.depth)]), context, batch * candidate.rows, np.zeros(1))
    step = model.time(concurrency, 0)

    def seconds(values: np.ndarray) -> float:
        return float(model.form.seconds(values, at)[0])

    slope = gradient(seconds, model.fit.values)
    variance = float(slope @ model.fit.covariance @ slope) + 2 * model.fit.scatter**2
    found = model.fit.of(math.log(seconds(model.fit.values) / step.value), variance)
    return Prediction(found.value, found.low, found.high, "extrapolated")


def predict(known: Knowledge, candidate: Candidate, concurrency: int) -> Prediction | None:
    """The speed-up with its interval; None without a model. What is uncertain about costs and about acceptance adds in quadrature."""
    if known.accepted is None or known.model is None:
        return None
    cost = known.measured.get((candidate.name, concurrency))
    if cost is None:
        cost = tree_cost(known.model, candidate, concurrency) if candidate.kind == "tree" else known_cost(known, candidate, concurrency)
    if cost is None:
        return None
    value, low, high = accepted_by(candidate, known.accepted)
    down = math.hypot(math.log(value / low), math.log(cost.high / cost.value))
    up = math.hypot(math.log(high / value), math.log(cost.value / cost.low))
    speedup = value / cost.value
    label: Label = "extrapolated" if candidate.kind == "tree" else cost.label
    return Prediction(speedup, speedup * math.exp(-down), speedup * math.exp(up), label)


def known_cost(known: Knowledge, candidate: Candidate, concurrency: int) -> Prediction | None:
    """Break-even of a chain or block; None when the model cannot tell it (one depth only)."""
    assert known.model is not None
    try:
        return known.model.break_even(concurrency, candidate.depth)
    except UsageError:
        return None


# --- pruning ---------------------------------------------------------------------------------------------------------


def prune(candidates: Sequence[Candidate], concurrency: Sequence[int], known: Knowledge, keep: int) -> list[Fate]:
    """Every candidate at every concurrency, in that order. At each concurrency the best prediction is measured whatever it is."""
    fates = []
    for c in concurrency:
        predicted = {candidate: predict(known, candidate, c) for candidate in candidates}
        fates += prune_at(c, predicted, keep, known.why)
    return fates


def prune_at(concurrency: int, predicted: Mapping[Candidate, Prediction | None], keep: int, why: str) -> list[Fate]:
    """The fates at one concurrency. What cannot be predicted is measured. An extrapolation ranks a candidate, but neither its interval nor
    that of a better one is believed so far that it excludes by itself."""
    told = {candidate: value for candidate, value in predicted.items() if value is not None}
    ranking = sorted(told, key=lambda candidate: (-told[candidate].value, candidate.complexity))
    believed = {candidate: value for candidate, value in told.items() if value.label != "extrapolated"}
    surest = max(believed, key=lambda candidate: believed[candidate].low, default=None)
    fates = []
    for candidate, value in predicted.items():
        if value is None:
            reason = f"no prediction: {why or 'its cost is not known'}"
            fates.append(Fate(candidate, concurrency, None, "measured", reason))
            continue
        place = ranking.index(candidate)
        reason = ""
        if place and candidate in believed and value.high < 1:
            reason = f"cannot pay: at most {value.high:.2f}x"
        elif place and candidate in believed and surest is not None and value.high < believed[surest].low:
            reason = f"cannot be the best: at most {value.high:.2f}x, {surest.name} has at least {believed[surest].low:.2f}x"
        elif place >= keep:
            reason = f"place {place + 1} of {len(ranking)} by prediction, tune.keep={keep}"
        note = "best by prediction" if place == 0 else f"place {place + 1} by prediction"
        fates.append(Fate(candidate, concurrency, value, "pruned" if reason else "measured", reason or note))
    return fates
