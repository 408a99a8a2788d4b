"""What a decode step and a round cost, from a few measured cells: fitted, then asked for cells that were not measured.

    T_ar(C)       = pass(C, C)
    T_round(C, k) = pass(C, C (k + 1)) + k draft + C k draft_slot + round + C round_slot
    pass(C, R)    = max_p(floor + expert u(R), row R) + (2 L + 1) allreduce(R) + gather(R) + C slot + C context kv

C requests in flight, depth k, R rows in one pass of the target. max_p(a, b) = (a^p + b^p)^(1/p): a memory-bound floor (weights read
once, launches, host) that gives way to compute; u(R) = 1 - (1 - top_k / E)^R is the share of the experts that R rows touch. An all-reduce
is known, from `collectives`, not fitted: a pass has the same number of them whatever R is. The logits are gathered; the drafter has its own
of both. Times are those of one slot, in seconds.

floor, row and draft are always there; which other terms and which p (1, 2 or 4) the data ask for is decided by how well a form predicts
cells that are left out. Intervals are those of the chosen form. docs/concepts/cost-model.md: derivation, and what the model does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from draftsmith.errors import InvalidMeasurement, UsageError
from draftsmith.measure.collectives import AllReduce
from draftsmith.measure.costmodel_terms import Cell, Form, Points, Shape, forms, starting
from draftsmith.measure.fitting import Fit, fit_log

Label = Literal["measured", "interpolated", "extrapolated"]
LABELS: tuple[Label, ...] = ("measured", "interpolated", "extrapolated")  # from the surest to the least sure
DIVIDED = frozenset(("row", "expert", "kv", "slot", "draft_slot", "round_slot"))  # among the GPUs; two H200 say so of the slots
WORTH_IT = 0.9  # a form with more terms must lower the error on left-out cells to this share


@dataclass(frozen=True)
class Prediction:
    """A value with the 95 % interval of a new measurement, and how it is known."""

    value: float
    low: float
    high: float
    label: Label

    def as_dict(self) -> dict[str, Any]:
        return {"value": self.value, "low": self.low, "high": self.high, "label": self.label}


def accept_len(survival: Sequence[float], depth: int) -> float:
    """A(k) = 1 + s_1 + ... + s_k. survival[i]: share of rounds that accept at least i + 1 drafts. Raises UsageError beyond them."""
    if depth > len(survival):
        raise UsageError(f"survival is known for {len(survival)} drafts, asked for depth {depth}", hint="measure or predict deeper drafts")
    return 1 + float(sum(survival[:depth]))


def folk_speedup(compute_s: float, comm_s: float, accepted: float) -> float:
    """(Tc + Tm) / (Tc / A + Tm): the common formula, which charges communication per token. For comparison only."""
    return (compute_s + comm_s) / (compute_s / accepted + comm_s)


@dataclass(frozen=True)
class CostModel:
    """A fitted table. Ask `time`, `break_even` and `speedup`; `parts` says where the time goes."""

    form: Form
    fit: Fit
    cells: tuple[Cell, ...]
    all_reduce: AllReduce | None = None
    scaled: bool = False  # derived for another number of GPUs: nothing is measured there

    def points(self, concurrency: float, depth: float, context: float | None = None) -> Points:
        if context is None:
            context = self.cells[0].context
        return Points.of([(concurrency, depth, context)], self.form.shape, self.all_reduce)

    def label(self, concurrency: float, depth: float, context: float | None = None) -> Label:
        """How a time at this cell is known."""
        at = self.cells[0].context if context is None else context
        if self.scaled:
            return "extrapolated"
        if self.measured(concurrency, depth, at):
            return "measured"
        same = [cell for cell in self.cells if (cell.depth > 0) == (depth > 0)]
        axes = [("concurrency", concurrency), ("depth", depth), ("context", at)]
        inside = all(min(getattr(c, name) for c in same) <= value <= max(getattr(c, name) for c in same) for name, value in axes)
        return "interpolated" if same and inside else "extrapolated"

    def measured(self, concurrency: float, depth: float, context: float) -> list[float]:
        """The table's own values for a cell."""
        wanted = (concurrency, depth, context)
        return [cell.second for cell in self.cells if (cell.concurrency, cell.depth, cell.context) == wanted]

    def parts(self, concurrency: float, depth: float, context: float | None = None) -> dict[str, float]:
        """Fitted seconds of the target's pass, the collectives, the drafter and the host."""
        return {name: float(value[0]) for name, value in self.form.parts(self.fit.values, self.points(concurrency, depth, context)).items()}

    def time(self, concurrency: float, depth: int, context: float | None = None) -> Prediction:
        """T_ar (depth 0) or T_round. Raises UsageError for another depth than the only one that was measured."""
        return self._combine([(1.0, concurrency, depth)], 1.0, context)

    def break_even(self, concurrency: float, depth: int, context: float | None = None) -> Prediction:
        """A* = T_round / T_ar."""
        return self._combine([(1.0, concurrency, depth), (-1.0, concurrency, 0)], 1.0, context)

    def speedup(self, concurrency: float, depth: int, survival: Sequence[float], context: float | None = None) -> Prediction:
        """S = A(k) T_ar / T_round. The interval is that of the times; what is uncertain about survival is not in it."""
        return self._combine([(-1.0, concurrency, depth), (1.0, concurrency, 0)], accept_len(survival, depth), context)

    def best_depth(self, concurrency: float, survival: Sequence[float], deepest: int) -> tuple[int, Prediction | None]:
        """(depth, speed-up) of the best chain; (0, None) when plain decoding is best."""
        found = [(depth, self.speedup(concurrency, depth, survival)) for depth in range(1, deepest + 1)]
        depth, best = max(found, key=lambda entry: entry[1].value)
        return (depth, best) if best.value > 1 else (0, None)

    def _combine(self, factors: Sequence[tuple[float, float, float]], scale: float, context: float | None) -> Prediction:
        """scale * product of time(C, k)^power, with its interval on the log scale. factors: (power, concurrency, depth)."""
        logs, slope, noise = math.log(scale), np.zeros(len(self.fit.values)), 0.0
        labels = []
        known = {cell.depth for cell in self.cells} - {0}
        if unknown := [depth for _, _, depth in factors if depth and len(known) < 2 and depth not in known]:
            raise UsageError(
                f"depth {unknown[0]:g} cannot be told from depth {', '.join(map(str, known)) or '0'} alone", hint="measure a second depth"
            )
        for power, concurrency, depth in factors:
            at = self.points(concurrency, depth, context)
            own = [] if self.scaled else self.measured(concurrency, depth, float(at.context[0]))
            labels.append(self.label(concurrency, depth, context))
            if own:
                logs += power * float(np.mean(np.log(own)))
                noise += self.fit.scatter**2 / len(own)
            else:
                logs += power * math.log(float(self.form.seconds(self.fit.values, at)[0]))
                slope += power * gradient(lambda values, at=at: float(self.form.seconds(values, at)[0]), self.fit.values)
                noise += self.fit.scatter**2
        inside = self.fit.of(logs, float(slope @ self.fit.covariance @ slope) + noise)
        return Prediction(inside.value, inside.low, inside.high, max(labels, key=LABELS.index))

    def on_gpus(
        self,
        ranks: int,
        all_reduce: AllReduce,
        weights_s: float,
        drafter_weights_s: float = 0.0,
        host: Sequence[str] = (),
    ) -> CostModel:
        """The same target split over `ranks` GPUs, from a fit on one: what rows, requests and experts add is divided, and the reading of
        weights; what a pass, a draft or a round costs once beside that (launches, host) is not.

        weights_s, drafter_weights_s: what reading the weights (without experts) takes on one GPU: their bytes over its memory bandwidth.
        host: terms of DIVIDED that are the host's work, and stay; a fit on one GPU cannot tell.
        Raises UsageError when they take longer than the fitted floor.
        """
        values = dict(zip(self.fit.names, self.fit.values, strict=True))
        for name, part in (("floor", weights_s), ("draft", drafter_weights_s)):
            if part > values.get(name, math.inf):
                raise UsageError(f"reading weights takes {part:.2e} s, the fitted {name} is {values[name]:.2e} s", hint="check bandwidth")
        less = 1 - 1 / ranks
        values["floor"] -= less * weights_s
        if "draft" in values:
            values["draft"] -= less * drafter_weights_s
        for name in (DIVIDED - set(host)) & set(values):
            values[name] /= ranks
        fit = replace(self.fit, values=np.array([values[name] for name in self.fit.names]))
        return replace(self, fit=fit, all_reduce=all_reduce, scaled=True)

    def folk(self, concurrency: float, depth: int, survival: Sequence[float]) -> float:
        """The common formula on this model's own T_ar, split into communication and the rest."""
        comm = self.parts(concurrency, 0)["collectives"]
        return folk_speedup(self.time(concurrency, 0).value - comm, comm, accept_len(survival, depth))

    def as_dict(self) -> dict[str, Any]:
        return {
            "terms": list(self.form.terms),
            "sharpness": self.form.sharpness,
            "parameters": self.fit.as_dict(),
            "cells": len(self.cells),
        }


def gradient(time: Callable[[np.ndarray], float], values: np.ndarray) -> np.ndarray:
    """d log time / d log value, by central differences."""
    step, slope = 1e-4, np.zeros(len(values))
    for i in range(len(values)):
        up, down = values.copy(), values.copy()
        up[i] *= math.exp(step)
        down[i] *= math.exp(-step)
        slope[i] = (math.log(time(up)) - math.log(time(down))) / (2 * step)
    return slope


def fit_cost_model(
    cells: Sequence[Cell], shape: Shape | None = None, all_reduce: AllReduce | None = None, form: Form | None = None
) -> CostModel:
    """Fit every form that the cells can decide and keep the one that predicts left-out cells best (PRESS); `form` fits that one alone.

    Raises InvalidMeasurement for too few cells, or a time that is not positive.
    """
    shape = shape or Shape()
    if wrong := [cell for cell in cells if not cell.second > 0]:
        raise InvalidMeasurement(f"a time must be positive: {wrong[0]}")
    at = Points.of([(cell.concurrency, cell.depth, cell.context) for cell in cells], shape, all_reduce)
    measured = [cell.second for cell in cells]
    candidates: list[CostModel] = []
    for one in [form] if form else forms(cells, shape):
        fit = fit_log(lambda values, one=one: one.seconds(values, at), measured, starting(one.terms, cells))
        candidates.append(CostModel(one, fit, tuple(cells), all_reduce))
    return simplest_good(candidates)


def simplest_good(models: Sequence[CostModel]) -> CostModel:
    """The model that predicts left-out cells best; a term more must be worth it."""
    best: CostModel | None = None
    for number in sorted({len(model.form.terms) for model in models}):
        one = min((model for model in models if len(model.form.terms) == number), key=lambda model: model.fit.left_out())
        if best is None or one.fit.left_out() < WORTH_IT * best.fit.left_out():
            best = one
    assert best is not None
    return best


def held_out(
    cells: Sequence[Cell], keep: Callable[[Cell], bool], shape: Shape | None = None, all_reduce: AllReduce | None = None
) -> list[dict[str, Any]]:
    """Fit the cells that `keep` takes and predict the others: one entry each, with the relative error."""
    model = fit_cost_model([cell for cell in cells if keep(cell)], shape, all_reduce)
    entries = []
    for cell in cells:
        if not keep(cell):
            predicted = model.time(cell.concurrency, cell.depth, cell.context)
            error = predicted.value / cell.second - 1
            entries.append(
                {"concurrency": cell.concurrency, "depth": cell.depth, "measured": cell.second, **predicted.as_dict(), "error": error}
            )
    return entries
