"""Plots of the measured speed: cells of the report -> SVG text. Pure functions; what is None is not drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from draftsmith.report.svg import (
    BASELINE,
    COMMAS,
    HEIGHT,
    INK,
    MUTED,
    NOTE,
    PATCH,
    PREDICTED,
    SPECULATIVE,
    SURFACE,
    VERDICT,
    WIDTH,
    cut,
    draw,
    legend_above,
)

Cell = dict[str, Any]
ARM = {"baseline": BASELINE, "speculative": SPECULATIVE}
MARKER = {"pays": "o", "does not pay": "v", "inconclusive": "s"}  # the verdict is not told by colour alone
TALL = 300  # the first row of plots
LONGEST = 18  # characters of a load's name
REACH = 1.4  # of the largest mean: an interval that is wider runs out of the plot, and is told in the table
CROWDED = 4  # more loads than this leave no room beside a mark


def slots(ax: Axes, cells: Sequence[Cell]) -> None:
    """One slot per load, evenly spaced: bare concurrencies where all loops are closed, else the labels of the loads."""
    closed = all(is_closed(cell) and cell["label"] == f"C={cell['concurrency']}" for cell in cells)
    labels = [str(cell["concurrency"]) if closed else cut(cell["label"], LONGEST) for cell in cells]
    ax.set_xticks(range(len(cells)), labels)
    if max(map(len, labels)) * 6.4 > (WIDTH - 50) / len(cells):
        ax.tick_params(axis="x", labelrotation=30)
        for label in ax.get_xticklabels():
            label.set_horizontalalignment("right")
            label.set_rotation_mode("anchor")
    ax.set_xlim(-0.6, len(cells) - 0.4)
    ax.set_xlabel("concurrency (requests in flight)" if closed else "load")


def is_closed(cell: Cell) -> bool:
    """A fixed number of requests in flight?"""
    return cell["concurrency"] is not None and (cell["load"] is None or cell["load"]["kind"] == "closed")


def pareto_points(cells: Sequence[Cell], arm: str) -> list[tuple[Cell, dict[str, Any], dict[str, Any]]]:
    """(cell, tok/s per user, tok/s) of one arm, where both were measured."""
    found = []
    for cell in cells:
        user = (cell["per_user_tok_s"] or {}).get(arm)
        if user and user["mean"] is not None and cell[f"{arm}_tok_s"]["mean"] is not None:
            found.append((cell, user, cell[f"{arm}_tok_s"]))
    return found


def pareto(cells: Sequence[Cell]) -> str:
    """Throughput of the server against the speed that one user sees: a point per load, with the intervals of both and a band between loads.

    A thin line joins the arms at the same load: the way that speculation moves it.
    """
    points = {arm: pareto_points(cells, arm) for arm in ARM}

    def plot(ax: Axes) -> None:
        moved = {cell["label"]: (user["mean"], total["mean"]) for cell, user, total in points["baseline"]}
        for cell, user, total in points["speculative"]:
            if cell["label"] in moved:
                x, y = moved[cell["label"]]
                ax.plot([x, user["mean"]], [y, total["mean"]], color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
        named: list[tuple[str, Cell, dict[str, Any], dict[str, Any]]] = []
        for arm, colour in ARM.items():
            lines = [[p for p in points[arm] if is_closed(p[0])], [p for p in points[arm] if not is_closed(p[0])]]
            for number, line in enumerate(filter(None, lines)):
                draw_arm(ax, line, colour, arm if number == 0 else None)
                named += [(arm, *one) for one in line]
        all_points = [point for arm in ARM for point in points[arm]]
        ax.set_xlim(0, min(ax.get_xlim()[1], REACH * max(user["mean"] for _, user, _ in all_points)) * 1.12)
        ax.set_ylim(0, min(ax.get_ylim()[1], REACH * max(total["mean"] for _, _, total in all_points)) * 1.06)
        name_points(ax, named)
        ax.grid(True, axis="x")
        ax.set_xlabel("tok/s per user")
        ax.yaxis.set_major_formatter(COMMAS)
        ax.set_ylabel("output tok/s, all users")
        legend_above(ax)

    said = "; ".join(
        f"{arm}, {cell['label']}: {total['mean']:.1f} at {user['mean']:.1f} per user" for arm in ARM for cell, user, total in points[arm]
    )
    return draw("pareto", "Output tokens per second of the server against tokens per second of one user", said, plot, height=TALL)


def name_points(ax: Axes, points: Sequence[tuple[str, Cell, dict[str, Any], dict[str, Any]]]) -> None:
    """The load beside each point of an arm, except where the name before it is too near."""
    last: dict[str, tuple[float, float]] = {}
    for arm, cell, user, total in points:
        place = (user["mean"] / ax.get_xlim()[1], total["mean"] / ax.get_ylim()[1])
        if arm in last and abs(place[0] - last[arm][0]) < 0.06 and abs(place[1] - last[arm][1]) < 0.05:
            continue
        label = cell["label"] if arm not in last or not is_closed(cell) else cell["label"].removeprefix("C=")
        last[arm] = place
        side = {"ha": "left", "va": "bottom"} if arm == "speculative" else {"ha": "right", "va": "top"}
        shift = (6, 3) if arm == "speculative" else (-6, -3)
        ax.annotate(cut(label, LONGEST), (user["mean"], total["mean"]), shift, **{**NOTE, **side, "fontsize": 9.5, "color": colour_of(arm)})


def colour_of(arm: str) -> str:
    """Of text beside an arm's marks."""
    return SPECULATIVE if arm == "speculative" else MUTED


def draw_arm(ax: Axes, line: Sequence[tuple[Cell, dict[str, Any], dict[str, Any]]], colour: str, label: str | None) -> None:
    """Points, the line through them, each point's two intervals, and the band between the lower and the upper bounds of both."""
    xs, ys = [user["mean"] for _, user, _ in line], [total["mean"] for _, _, total in line]
    banded = [(user, total) for _, user, total in line if None not in (user["low"], user["high"], total["low"], total["high"])]
    if len(banded) > 1:
        corners = [(user["low"], total["low"]) for user, total in banded] + [
            (user["high"], total["high"]) for user, total in reversed(banded)
        ]
        ax.fill(*zip(*corners, strict=True), color=colour, alpha=0.16, linewidth=0)
    for user, total in banded:
        thick: dict[str, Any] = {"color": colour, "linewidth": 4, "alpha": 0.35, "solid_capstyle": "butt"}
        ax.plot([user["low"], user["high"]], [total["mean"]] * 2, **thick)
        ax.plot([user["mean"]] * 2, [total["low"], total["high"]], **thick)
    ax.plot(xs, ys, "o-", color=colour, markersize=5.5, label=label)


def throughput(cells: Sequence[Cell], height: float = HEIGHT) -> str:
    """Output tokens per second of both arms: a bar for the mean, a line for its interval, a ring for each launch."""

    def plot(ax: Axes) -> None:
        labels = {arm: arm for arm in ARM}
        means = [cell[f"{arm}_tok_s"]["mean"] for cell in cells for arm in ARM]
        top = REACH * max(mean for mean in means if mean is not None)
        for offset, (arm, colour) in zip((-0.2, 0.2), ARM.items(), strict=True):
            for slot, cell in enumerate(cells):
                rate = cell[f"{arm}_tok_s"]
                if rate["mean"] is None:
                    continue
                x, single = slot + offset, [value for value in rate["launches"] if value is not None]
                ax.bar(x, rate["mean"], width=0.34, color=colour, label=labels.pop(arm, None))
                if rate["low"] is not None and rate["high"] is not None:
                    ax.plot([x, x], [rate["low"], rate["high"]], color=INK, linewidth=1.2)
                places = [x + 0.05 * (i - (len(single) - 1) / 2) for i in range(len(single))]
                ax.scatter(places, single, s=20 if len(cells) <= CROWDED else 8, facecolors=SURFACE, edgecolors=INK, linewidths=1, zorder=3)
                if len(cells) <= CROWDED:
                    ax.annotate(f"{rate['mean']:,.1f}", (x, min(max([rate["mean"], *single, rate["high"] or 0]), top)), (0, 6), **NOTE)
        slots(ax, cells)
        ax.set_ylim(0, min(ax.get_ylim()[1], top) * 1.08)
        ax.yaxis.set_major_formatter(COMMAS)
        ax.set_ylabel("output tok/s")
        legend_above(ax)

    means = [(cell["label"], arm, cell[f"{arm}_tok_s"]["mean"]) for cell in cells for arm in ARM]
    said = "; ".join(f"{label}, {arm}: {'absent' if mean is None else f'{mean:.1f}'}" for label, arm, mean in means)
    return draw("throughput", "Output tokens per second of both arms", said, plot, height=height)


def speedup(cells: Sequence[Cell]) -> str:
    """Speed-up with its interval at each load and the line at 1; under it, where breakeven was measured, the accept_len that is needed
    beside the one that was served: the same story told by its cause."""
    with_need = any(cell["break_even_accept_len"] for cell in cells)

    def plot(above: Axes, below: Axes | None = None) -> None:
        draw_ratios(above, cells)
        last = above
        if below is not None:
            draw_need(below, cells)
            last = below
        slots(last, cells)
        legend_above(above)

    ratios = [(c["label"], f"{c['speedup']['ratio']:.2f}" if c["speedup"] else "absent", c["verdict"]) for c in cells]
    said = "; ".join(f"{label}: {ratio}, {verdict}" for label, ratio, verdict in ratios)
    return draw("speedup", "Speed-up of the speculative arm with its interval", said, plot, (1.7, 1) if with_need else (1,), TALL)


def draw_ratios(ax: Axes, cells: Sequence[Cell]) -> None:
    """The marks of `speedup`."""
    crowded = len(cells) > CROWDED
    ax.axhline(1, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    far = [abs(cell["speedup"]["ratio"] - 1) if cell["speedup"] else 0 for cell in (cells[0], cells[-1])]
    x, shift, side = (0, 2, "left") if far[0] > far[1] else (1, -2, "right")  # the end with more room
    said = {**NOTE, "ha": side, "color": MUTED, "fontsize": 9.5}
    ax.annotate("1: as fast as without", (x, 1), (shift, 3), xycoords=("axes fraction", "data"), **said)
    for slot, cell in enumerate(cells):
        ratio, colour = cell["speedup"], VERDICT[cell["verdict"]]
        if ratio is not None:
            ax.plot([slot, slot], [ratio["low"], ratio["high"]], color=colour, linewidth=7, alpha=0.3, solid_capstyle="round")
            ax.plot(slot, ratio["ratio"], MARKER[cell["verdict"]], color=colour, markersize=8 if not crowded else 6)
            if crowded:
                top = (slot, min(ratio["high"], REACH * ratio["ratio"]))
                ax.annotate(f"{ratio['ratio']:.2f}", top, (0, 6), **{**NOTE, "fontsize": 10}, bbox=PATCH)
            else:
                beside = {**NOTE, "ha": "right", "va": "center", "fontsize": 12.5, "bbox": PATCH}  # the line at 1 may run through it
                ax.annotate(f"{ratio['ratio']:.2f}×", (slot, ratio["ratio"]), (-13, 0), **beside)
        if cell["predicted_speedup"] is not None:
            label = None if ax.get_legend_handles_labels()[0] else "predicted by the cost model"
            ax.plot(slot + 0.18, cell["predicted_speedup"], "D", markerfacecolor="none", color=PREDICTED, markersize=6, label=label)
    ratios = [cell["speedup"]["ratio"] for cell in cells if cell["speedup"]]
    low, high = ax.get_ylim()[0], min(ax.get_ylim()[1], REACH * max(ratios, default=1.0))
    ax.set_ylim(max(0, min(low, 0.8) - 0.05), max(high, 1.2) + 0.12 * (max(high, 1.2) - min(low, 0.8)))
    ax.set_ylabel("speed-up (×)")


def draw_need(ax: Axes, cells: Sequence[Cell]) -> None:
    """accept_len needed (with interval) and served, per load."""
    for slot, cell in enumerate(cells):
        need = cell["break_even_accept_len"]
        if need is not None:
            if None not in (need["low"], need["high"]):
                ax.plot([slot, slot], [need["low"], need["high"]], color=INK, linewidth=7, alpha=0.2, solid_capstyle="round")
            ax.plot(slot, need["value"], "_", color=INK, markersize=18 if len(cells) <= CROWDED else 12, markeredgewidth=1.8)
            if len(cells) <= CROWDED:
                beside = {**NOTE, "ha": "left", "va": "center", "fontsize": 9.5, "color": MUTED}
                ax.annotate(f"{need['value']:.2f}", (slot, need["value"]), (12, 0), **beside)
        if cell["acceptance"] is not None:
            served = cell["acceptance"]["accept_len"]
            ax.plot(slot, served, "o", color=SPECULATIVE, markersize=6)
            if len(cells) <= CROWDED:
                ax.annotate(
                    f"{served:.2f}",
                    (slot, served),
                    (-9, 0),
                    **{**NOTE, "ha": "right", "va": "center", "fontsize": 9.5, "color": SPECULATIVE},
                )
    ax.set_ylim(1, ax.get_ylim()[1] + 0.15)
    ax.set_title("accept_len: ● served, — needed to pay", loc="left", fontsize=10, color=MUTED, pad=4)
