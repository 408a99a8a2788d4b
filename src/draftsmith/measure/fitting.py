"""Least squares on the log scale, with intervals: for times that span decades and scatter by a share of themselves.

log y = log f(x; exp(theta)) + noise. All parameters are positive, so they are fitted as logarithms; intervals come from the
covariance s^2 (J'J)^-1 with Student's t, so that lack of fit widens them. A parameter that the data do not determine gets an
interval over decades, not an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats

from draftsmith.measure.statistics import Interval

Model = Callable[[np.ndarray], np.ndarray]  # parameters (natural scale) -> one value per observation
FLAT = 1e-10  # curvature below this share of the largest: the data say nothing about that direction
WIDEST = 12.0  # natural logarithms: a factor of 160,000 either way stands for "not determined"


@dataclass(frozen=True)
class Fit:
    """names[i] has values[i] (natural scale). covariance: of the logarithms. residuals: log(measured / fitted).

    leverage: how much of its own fitted value each observation decides, 0..1.
    """

    names: tuple[str, ...]
    values: np.ndarray
    covariance: np.ndarray
    residuals: np.ndarray
    leverage: np.ndarray
    df: int

    def __getitem__(self, name: str) -> float:
        return float(self.values[self.names.index(name)])

    def interval(self, name: str, confidence: float = 0.95) -> Interval:
        """Two-sided, on the log scale."""
        i = self.names.index(name)
        return self.of(math.log(self.values[i]), float(self.covariance[i, i]), confidence)

    def of(self, log_value: float, variance: float, confidence: float = 0.95) -> Interval:
        """The interval of something whose logarithm has this value and variance under the fit."""
        half = min(quantile(confidence, self.df) * math.sqrt(max(variance, 0.0)), WIDEST)
        return Interval(math.exp(log_value), math.exp(log_value - half), math.exp(log_value + half), self.df, confidence)

    @property
    def scatter(self) -> float:
        """Standard deviation of the residuals: about the relative error of one observation."""
        return math.sqrt(float(self.residuals @ self.residuals) / max(self.df, 1))

    def errors(self) -> dict[str, float]:
        """Median and worst |fitted / measured - 1| over the observations."""
        gaps = np.abs(np.expm1(-self.residuals))
        return {"median": float(np.median(gaps)), "worst": float(gaps.max())}

    def left_out(self) -> float:
        """Mean square of what each residual would be, had its observation been left out (PRESS, linearised): compares forms of a model."""
        return float(np.mean((self.residuals / np.maximum(1 - self.leverage, 1e-3)) ** 2))

    def as_dict(self) -> dict[str, Any]:
        return {name: self.interval(name).as_dict() for name in self.names} | {"errors": self.errors(), "df": self.df}


def quantile(confidence: float, df: int) -> float:
    """Student's t; without a degree of freedom nothing can be said."""
    return float(stats.t.ppf(0.5 + confidence / 2, df)) if df > 0 else math.inf


def fit_log(model: Model, measured: Sequence[float], start: dict[str, float], weights: Sequence[float] | None = None) -> Fit:
    """Fit positive parameters from `start`. measured: positive, one per value of the model; weights: 1 / relative error (default equal)."""
    names = tuple(start)
    log_y = np.log(np.asarray(measured, float))
    scale = np.ones(len(log_y)) if weights is None else np.asarray(weights, float) / np.mean(weights)

    def misfit(theta: np.ndarray) -> np.ndarray:
        return scale * (log_y - np.log(model(np.exp(theta))))

    begin = np.log([start[name] for name in names])
    found = optimize.least_squares(misfit, begin, bounds=(begin - WIDEST - 1, begin + WIDEST + 1), x_scale="jac")
    residuals = log_y - np.log(model(np.exp(found.x)))
    df = len(log_y) - len(names)
    variance = float(found.fun @ found.fun) / df if df > 0 else math.inf
    leverage = np.einsum("ij,jk,ik->i", found.jac, np.linalg.pinv(found.jac.T @ found.jac, rcond=FLAT), found.jac)
    return Fit(names, np.exp(found.x), covariance(found.jac, variance), residuals, leverage, df)


def covariance(jacobian: np.ndarray, variance: float) -> np.ndarray:
    """variance * (J'J)^-1; a direction that the data do not see gets the widest interval instead of a division by zero."""
    values, vectors = np.linalg.eigh(jacobian.T @ jacobian)
    seen = values > FLAT * max(values.max(), 1e-300)
    spread = np.where(seen, min(variance, 1e6) / np.where(seen, values, 1.0), WIDEST**2)
    return (vectors * np.minimum(spread, WIDEST**2)) @ vectors.T
