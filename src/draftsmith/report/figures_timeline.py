"""The launches in the order in which they ran: canary, clocks, temperature, load of the host. Data -> SVG text."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from draftsmith.report.svg import BASELINE, INK, MUTED, RULE, SPECULATIVE, VERDICT, draw, legend_above

Moment = dict[str, Any]
ARM = {"baseline": BASELINE, "speculative": SPECULATIVE}
SHAPE = {"baseline": "s", "speculative": "o"}
Reading = Callable[[Moment], tuple[float, float, float] | None]  # low, middle, high


def canary_shares(timeline: Sequence[Moment]) -> list[float | None]:
    """Each launch's canary as a deviation from the median of its arm's valid launches: both arms on one scale, drift in sight."""
    centre = {}
    for arm in {row["arm"] for row in timeline}:
        rates = [row["canary_tok_s"] for row in timeline if row["arm"] == arm and row["canary_tok_s"] and not is_out(row)]
        rates = rates or [row["canary_tok_s"] for row in timeline if row["arm"] == arm and row["canary_tok_s"]]
        centre[arm] = statistics.median(rates) if rates else None
    return [row["canary_tok_s"] / centre[row["arm"]] - 1 if row["canary_tok_s"] else None for row in timeline]


def is_out(row: Moment) -> bool:
    """Left out of every number?"""
    return bool(row["invalid"]) if row["excluded"] is None else row["excluded"]


def of_gpus(key: str) -> Reading:
    """Over all GPUs of a launch: the lowest, the mean, the highest."""

    def read(row: Moment) -> tuple[float, float, float] | None:
        found = [gpu[key] for gpu in (row["sensors"] or {}).get("gpus") or [] if gpu.get(key)]
        found = [one if isinstance(one, dict) else {"min": one, "mean": one, "max": one} for one in found]
        found = [one for one in found if None not in (one.get("min"), one.get("mean"), one.get("max"))]
        if not found:
            return None
        return min(o["min"] for o in found), statistics.fmean(o["mean"] for o in found), max(o["max"] for o in found)

    return read


def host_load(row: Moment) -> tuple[float, float, float] | None:
    """Load of the host: a number, or {"min", "mean", "max"}."""
    load = (row["sensors"] or {}).get("host_load")
    if isinstance(load, dict):
        return None if load.get("mean") is None else (load.get("min", load["mean"]), load["mean"], load.get("max", load["mean"]))
    return None if load is None else (load, load, load)


STRIPS: tuple[tuple[str, Reading], ...] = (
    ("GPU clock, MHz", of_gpus("clock_mhz")),
    ("GPU temperature, °C", of_gpus("temperature_c")),
    ("GPU power, W", of_gpus("power_w")),
    ("load of the host", host_load),
)


def timeline(moments: Sequence[Moment], noise: float | None) -> str:
    """A strip per sensor that said something, launches from left to right; invalid launches are crossed.

    noise: what equal arms differ by (a share), drawn as a band around the canary.
    """
    shares = canary_shares(moments)
    strips = [(label, [read(row) for row in moments]) for label, read in STRIPS]
    strips = [(label, values) for label, values in strips if any(values)]

    def plot(top: Axes, *below: Axes) -> None:
        if noise is not None:
            top.axhspan(-100 * noise, 100 * noise, color=MUTED, alpha=0.14, linewidth=0, label="A/A noise")
        top.axhline(0, color=RULE, linewidth=1)
        for slot, (row, share) in enumerate(zip(moments, shares, strict=True)):
            if share is not None:
                if row["canary_end_tok_s"]:  # the same request again when the launch had been measured
                    end = (1 + share) * row["canary_end_tok_s"] / row["canary_tok_s"] - 1
                    top.plot(slot, 100 * end, "_", color=ARM.get(row["arm"], INK), markersize=9)
                top.plot([slot, slot], [0, 100 * share], color=ARM.get(row["arm"], INK), linewidth=1.5, alpha=0.5)
        for arm, colour in ARM.items():
            points = [(slot, 100 * share) for slot, share in enumerate(shares) if share is not None and moments[slot]["arm"] == arm]
            if points:
                top.plot(*zip(*points, strict=True), SHAPE[arm], color=colour, markersize=6, label=arm)
        crossed = [(slot, 100 * (shares[slot] or 0)) for slot, row in enumerate(moments) if is_out(row)]
        if crossed:
            top.plot(*zip(*crossed, strict=True), "x", color=VERDICT["does not pay"], markersize=12, markeredgewidth=2, label="invalid")
        low, high = top.get_ylim()
        reach = max(abs(low), abs(high), 2.0)
        top.set_ylim(-reach * 1.1, reach * 1.1)
        strip_title(top, "canary, % off its arm's median")
        for ax, (label, values) in zip(below, strips, strict=True):
            draw_strip(ax, label, values, moments)
        last = below[-1] if below else top
        last.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        last.set_xlim(-0.6, len(moments) - 0.4)
        last.set_xlabel("launch, in the order they ran")
        legend_above(top, columns=4)

    words = [f"{row['arm']} {'absent' if row['canary_tok_s'] is None else format(row['canary_tok_s'], '.1f')}" for row in moments]
    said = ", ".join(word + (" invalid" if is_out(row) else "") for word, row in zip(words, moments, strict=True))
    panels = (1.8, *[1.0] * len(strips))
    return draw(
        "timeline", "The canary, one fixed request, at every launch in order", f"tok/s: {said}", plot, panels, 190 + 74 * len(strips)
    )


def draw_strip(ax: Axes, label: str, values: Sequence[tuple[float, float, float] | None], moments: Sequence[Moment]) -> None:
    """Range and mean of one sensor per launch."""
    for slot, value in enumerate(values):
        if value is not None:
            colour = ARM.get(moments[slot]["arm"], INK)
            ax.plot([slot, slot], [value[0], value[2]], color=colour, linewidth=5, alpha=0.3, solid_capstyle="round")
            ax.plot(slot, value[1], SHAPE.get(moments[slot]["arm"], "o"), color=colour, markersize=4)
    low, high = ax.get_ylim()
    room = max(high - low, 0.06 * abs(high), 0.5) - (high - low)
    ax.set_ylim(low - room / 2, high + room / 2)
    ax.yaxis.set_major_locator(MaxNLocator(3))
    strip_title(ax, label)


def strip_title(ax: Axes, text: str) -> None:
    """What a strip shows, over its left edge."""
    ax.set_title(text, loc="left", fontsize=10, color=MUTED, pad=3)
