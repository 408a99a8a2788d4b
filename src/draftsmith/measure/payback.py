"""When does a drafter earn back what it cost to train? Traffic by concurrency band, speed-ups with intervals and prices in, days out.

    saved GPU-hours a day = G * (1 - sum_b share_b / S_b)          G: GPU-hours a day that serve without it; share_b: of that GPU time
    days = cost / (saved * price)

A band that loses counts as it is; what switching speculation off there would give is told beside it. Saved hours are worth money only
where the capacity is released or filled with other work. Intervals: the speed-ups' own, taken as log-normal and independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftsmith.errors import UsageError

DRAWS, SEED, Z95 = 20_000, 0, 1.959964
HOUR_S = 3600.0


@dataclass(frozen=True)
class Band:
    """A share of the traffic at one concurrency. share: of GPU time, or of tokens where tok_s (of one GPU, baseline) is given."""

    concurrency: int
    share: float
    speedup: float
    low: float
    high: float
    tok_s: float | None = None


@dataclass(frozen=True)
class Costs:
    """training_gpu_hours at training_price, and fixed_cost in money once; serving at price for one GPU-hour."""

    training_gpu_hours: float
    price: float
    training_price: float
    fixed_cost: float = 0.0

    @property
    def once(self) -> float:
        return self.training_gpu_hours * self.training_price + self.fixed_cost


def gpu_hours_per_day(bands: Sequence[Band], tokens_per_day: float) -> tuple[float, list[Band]]:
    """(GPU-hours a day without the drafter, bands with shares of that time) from shares of tokens. Raises UsageError without rates."""
    if missing := [band.concurrency for band in bands if not band.tok_s]:
        raise UsageError(
            f"no baseline rate for concurrency {missing[0]}", hint="--tok-s 1:26.3,8:208.9: output tokens per second of one GPU"
        )
    hours = [tokens_per_day * band.share / (band.tok_s or 1.0) / HOUR_S for band in bands]
    total = sum(hours)
    return total, [Band(b.concurrency, part / total, b.speedup, b.low, b.high, b.tok_s) for b, part in zip(bands, hours, strict=True)]


def check(bands: Sequence[Band], costs: Costs) -> None:
    """Raise UsageError for shares that do not make a whole, or numbers that cannot be."""
    whole = sum(band.share for band in bands)
    if abs(whole - 1) > 0.005:
        raise UsageError(f"the traffic adds up to {whole:.1%}", hint="shares of all bands must make 100 %")
    for band in bands:
        if not (0 < band.low <= band.speedup <= band.high < math.inf and band.share >= 0):
            raise UsageError(
                f"concurrency {band.concurrency}: {band.low} <= {band.speedup} <= {band.high} must hold, all positive",
                hint="--speedup CONCURRENCY:VALUE:LOW:HIGH, for example 1:1.6:1.5:1.7",
            )
    paid = (costs.training_gpu_hours, costs.training_price, costs.fixed_cost)
    if not (0 < costs.price < math.inf and all(0 <= number < math.inf for number in paid)):
        raise UsageError("prices and costs must be positive numbers", hint="--gpu-hour 2.5 --training-gpu-hours 40")


def saved_share(bands: Sequence[Band], speedups: np.ndarray, off_where_it_loses: bool) -> np.ndarray:
    """Share of the GPU time that is saved. speedups: [draws, bands]. Bands whose estimate is below 1 go without, if told so."""
    keep = np.array([band.speedup > 1 or not off_where_it_loses for band in bands])
    used = np.where(keep, speedups, 1.0)
    return 1 - (np.array([band.share for band in bands]) / used).sum(axis=1)


def outcome(bands: Sequence[Band], gpu_hours: float, costs: Costs, off_where_it_loses: bool) -> dict[str, Any]:
    """Saved share and days, each with its 95 % interval. Infinite days (None in the document) mean never."""
    middle = np.log([band.speedup for band in bands])
    spread = np.array([math.log(band.high / band.low) / (2 * Z95) for band in bands])
    draws = np.exp(middle + spread * np.random.default_rng(SEED).standard_normal((DRAWS, len(bands))))
    saved = saved_share(bands, draws, off_where_it_loses)
    low, high = (float(value) for value in np.quantile(saved, [0.025, 0.975]))
    estimate = float(saved_share(bands, np.exp(middle)[None], off_where_it_loses)[0])

    def days(share: float) -> float | None:
        return costs.once / (share * gpu_hours * costs.price) if share > 1e-12 else None

    return {
        "saved_share": {"value": estimate, "low": low, "high": high},
        "saved_per_day": estimate * gpu_hours * costs.price,
        "days": {"value": days(estimate), "low": days(high), "high": days(low)},
        "chance_of_never": float((saved <= 1e-12).mean()),
        "off": [band.concurrency for band in bands if off_where_it_loses and band.speedup <= 1],
    }


def payback(bands: Sequence[Band], gpu_hours: float, costs: Costs) -> dict[str, Any]:
    """The document: as it is, and with speculation off in the bands that lose. gpu_hours: a day, without the drafter. open: bands that
    lose by the estimate and may gain by the interval."""
    check(bands, costs)
    if not 0 < gpu_hours < math.inf:
        raise UsageError("no GPU-hours are served", hint="--gpu-hours-per-day, or --tokens-per-day with --tok-s")
    everywhere = outcome(bands, gpu_hours, costs, off_where_it_loses=False)
    document: dict[str, Any] = {"cost": costs.once, "gpu_hours_per_day": gpu_hours, "everywhere": everywhere}
    document["where_it_pays"] = outcome(bands, gpu_hours, costs, off_where_it_loses=True)
    document["open"] = [band.concurrency for band in bands if band.speedup <= 1 < band.high and band.share > 0]
    document["verdict"] = sentence(document)
    return document


def sentence(document: Mapping[str, Any]) -> str:
    """The verdict in words: never is said as never."""
    best = document["where_it_pays"]
    switched = f", with speculation off at concurrency {', '.join(map(str, best['off']))}" if best["off"] else ""
    if best["days"]["value"] is None and document["open"]:
        where = ", ".join(map(str, document["open"]))
        return f"not shown to pay back: no band gains by its estimate, the interval at concurrency {where} allows it; measure more launches"
    if best["days"]["value"] is None:
        return "never: no band of this traffic gains from speculation"
    lines = f"paid back after {span(best['days'])}{switched}; it saves {best['saved_share']['value']:.1%} of the GPU time"
    if best["chance_of_never"] > 0.025:
        lines += f"; the intervals allow that it never pays ({best['chance_of_never']:.0%})"
    if best["off"]:
        days = document["everywhere"]["days"]["value"]
        lines += "; left on everywhere it never pays back" if days is None else f"; left on everywhere after {days:.1f} days"
    return lines


def span(days: Mapping[str, float | None]) -> str:
    """12.3 days (9.8 to 17.0), or (9.8 to never)."""
    low, high = (f"{value:.1f}" if value is not None else "never" for value in (days["low"], days["high"]))
    return f"{days['value']:.1f} days ({low} to {high})"
