"""Intervals for a speed-up whose two arms cannot run at the same time.

The unit of replication is the launch: caches, memory layout and thread placement are drawn once per process, so requests inside
one launch say nothing about the next. A launch of an arm at a concurrency gives one number y = log(output tok/s). With n pairs
there are n launches per arm in the order A B B A A B ... and the model is

    y = mean + arm * log(speed-up) + noise                              2 pairs: t interval with 2n - 2 = 2 degrees of freedom
    y = mean + arm * log(speed-up) + launch number * drift + noise      3 pairs or more: 2n - 3 degrees of freedom

With two sets of GPUs that the arms swap, one more term from 3 pairs on: set * difference, one degree of freedom less.
Fitted by least squares; the interval is exp(estimate -+ t(confidence, df) * standard error).

Why not the t interval over the pairs' log ratios? It is right too, but has n - 1 degrees of freedom: with two pairs t = 12.7 and
the interval is about three times as wide as it need be (t = 4.30 when the launches of both arms share one noise estimate; 3 pairs
with drift fitted: t = 3.18 against 4.30). What is paid for it is the assumption that launches of both arms scatter alike on the log scale.
Linear drift: in A B B A it cancels in the estimate and only widens the interval (it stays in the scatter), so 2 pairs err on the wide
side when the machine drifts. From 3 pairs on it is fitted, because A B B A A B does not cancel it by itself.

What 2 pairs can say: with 1 % scatter between launches about +-4 %; a clear gain or loss, not a small one. They cannot show a
drift that is not linear, nor that one arm scatters more than the other. `tests/unit/test_measure_statistics.py` simulates the coverage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

Arm = Literal["baseline", "speculative"]
Verdict = Literal["pays", "does not pay", "inconclusive"]
ARM, SETS = 1, 3  # columns of the design


@dataclass(frozen=True)
class Interval:
    """An estimate with its two-sided interval."""

    value: float
    low: float
    high: float
    df: int
    confidence: float = 0.95

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Scatter:
    """Standard deviation of launches of one kind on the log scale; df 0: nothing was launched twice, and sd is nan."""

    sd: float
    df: int


@dataclass(frozen=True)
class Measured:
    """One launch: its place in the order of launches, its arm, a rate (output tok/s), and which set of GPUs it had."""

    order: int
    arm: Arm
    rate: float
    gpu_set: int = 0


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log)). Values must be positive and at least one."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


def t_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean of independent values with the Student t interval mean -+ t(n - 1) * s / sqrt(n). Needs two values or more."""
    n = len(values)
    assert n >= 2, n
    mean = float(np.mean(values))
    half = float(stats.t.ppf(0.5 + confidence / 2, n - 1)) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n - 1, confidence)


def log_interval(estimate: float, error: float, df: float, confidence: float = 0.95) -> Interval:
    """Of a positive quantity, from the estimate of its logarithm and that estimate's standard error: exp of the t interval."""
    half = float(stats.t.ppf(0.5 + confidence / 2, df)) * error
    return Interval(math.exp(estimate), math.exp(estimate - half), math.exp(estimate + half), int(df), confidence)


def pooled_scatter(groups: Iterable[Sequence[float] | np.ndarray]) -> Scatter:
    """Of logarithms, pooled over groups with a mean each; a group of one adds nothing."""
    squares, df = 0.0, 0
    for group in groups:
        squares += float(np.var(group)) * len(group)
        df += len(group) - 1
    return Scatter(math.sqrt(squares / df), df) if df else Scatter(math.nan, 0)


def ratio_interval(log_ratios: Sequence[float], confidence: float = 0.95) -> Interval:
    """Geometric mean of ratios given as logarithms, with the t interval taken on the log scale."""
    inside = t_interval(log_ratios, confidence)
    return Interval(math.exp(inside.value), math.exp(inside.low), math.exp(inside.high), inside.df, confidence)


def quotient_interval(numerator: Sequence[float], denominator: Sequence[float], confidence: float = 0.95) -> Interval:
    """Quotient of two quantities that were measured apart: Welch's t interval on the logarithms. Two positive values or more of each."""
    top, bottom = np.log(numerator), np.log(denominator)
    parts = [float(np.var(part, ddof=1)) / len(part) for part in (top, bottom)]
    total = sum(parts)
    # Welch-Satterthwaite; without any scatter the smaller sample decides
    spread = sum(part**2 / (n - 1) for part, n in zip(parts, (len(top), len(bottom)), strict=True))
    df = total**2 / spread if spread > 0 else min(len(top), len(bottom)) - 1
    return log_interval(float(top.mean() - bottom.mean()), math.sqrt(total), df, confidence)


def num_pairs(launches: Sequence[Measured]) -> int:
    """Launches of the rarer arm."""
    speculative = sum(launch.arm == "speculative" for launch in launches)
    return min(speculative, len(launches) - speculative)


def fits_drift(launches: Sequence[Measured]) -> bool:
    """Is a linear drift part of the model? Decided by the number of pairs alone, never by looking at the rates."""
    return num_pairs(launches) >= 3


def fits_sets(launches: Sequence[Measured]) -> bool:
    """Is the difference between two sets of GPUs part of the model?"""
    return fits_drift(launches) and len({launch.gpu_set for launch in launches}) > 1


def design_matrix(launches: Sequence[Measured]) -> np.ndarray:
    """Columns of the model, one row a launch: mean, arm, and from three pairs on launch number and set of GPUs (if there are two)."""
    columns = [np.ones(len(launches)), np.array([launch.arm == "speculative" for launch in launches], float)]
    if fits_drift(launches):
        order = np.array([launch.order for launch in launches], float)
        columns.append(order - order.mean())
    if fits_sets(launches):
        sets = np.array([launch.gpu_set for launch in launches], float)
        columns.append(sets - sets.mean())
    return np.stack(columns, axis=1)


def fit_arm(log_rates_EL: np.ndarray, design_LK: np.ndarray, column: int = ARM) -> tuple[np.ndarray, np.ndarray, int]:
    """(log speed-up, its standard error, degrees of freedom) of E experiments with the same design; least squares.

    E experiments, L launches, K columns. column: whose effect is asked for, by default the arm's.
    """
    coefficients_KE = np.linalg.lstsq(design_LK, log_rates_EL.T, rcond=None)[0]
    df = design_LK.shape[0] - design_LK.shape[1]
    variance_E = ((log_rates_EL.T - design_LK @ coefficients_KE) ** 2).sum(axis=0) / df
    return coefficients_KE[column], np.sqrt(variance_E * np.linalg.inv(design_LK.T @ design_LK)[column, column]), df


def speedup_interval(launches: Sequence[Measured], confidence: float = 0.95) -> Interval:
    """Speed-up (speculative over baseline) with its interval over launches; the model is in this module's docstring.

    launches: at least two of each arm; invalid ones left out, so the arms need not be equally many.
    """
    assert num_pairs(launches) >= 2, [launch.arm for launch in launches]
    estimates, errors, df = fit_arm(np.log([[launch.rate for launch in launches]]), design_matrix(launches))
    return log_interval(float(estimates[0]), float(errors[0]), df, confidence)


def sets_interval(launches: Sequence[Measured], confidence: float = 0.95) -> Interval | None:
    """Rate on the second set of GPUs over that on the first, with its interval; None where the model does not have it."""
    if not fits_sets(launches):
        return None
    estimates, errors, df = fit_arm(np.log([[launch.rate for launch in launches]]), design_matrix(launches), SETS)
    return log_interval(float(estimates[0]), float(errors[0]), df, confidence)


def quotient_of(top: Interval, bottom: Interval, confidence: float = 0.95) -> Interval:
    """Quotient of two positive quantities with t intervals on the log scale that were measured apart; Welch-Satterthwaite."""
    errors = [(math.log(i.high) - math.log(i.low)) / 2 / float(stats.t.ppf(0.5 + i.confidence / 2, i.df)) for i in (top, bottom)]
    total = sum(error**2 for error in errors)
    spread = sum(error**4 / i.df for error, i in zip(errors, (top, bottom), strict=True))
    df = total**2 / spread if spread > 0 else min(top.df, bottom.df)
    return log_interval(math.log(top.value / bottom.value), math.sqrt(total), df, confidence)


def method_name(launches: Sequence[Measured]) -> str:
    """How `speedup_interval` got there, for reports."""
    drift = ", linear drift fitted" if fits_drift(launches) else ""
    sets = ", difference between the sets of GPUs fitted" if fits_sets(launches) else ""
    return f"t interval on log tok/s over launches, scatter pooled over both arms{drift}{sets}"


def verdict(speedup: Interval) -> Verdict:
    """Does speculation pay? Inconclusive when the interval contains 1."""
    if speedup.low > 1:
        return "pays"
    return "does not pay" if speedup.high < 1 else "inconclusive"
