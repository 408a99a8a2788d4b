"""Plots of acceptance: by position and by category of the prompts; what it takes to pay. Data -> SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from draftsmith.report.svg import (
    BASELINE,
    HEIGHT,
    INK,
    MUTED,
    NOTE,
    PATCH,
    PREDICTED,
    SPECULATIVE,
    SURFACE,
    TRAINING,
    cut,
    draw,
    legend_above,
    spread,
)

Row = dict[str, Any]
COLOUR = {"training": TRAINING, "predicted": PREDICTED, "served": BASELINE, "measured": SPECULATIVE}
DASH = {"training": (0, (1, 1.5)), "predicted": (0, (4, 2)), "served": "-", "measured": "-"}  # foretold is dashed, served is not
MARKER = {"training": "^", "predicted": "D", "served": "s", "measured": "o"}
LABEL_GAP_PT = 11.5


def by_position(series: Sequence[Row], key: str) -> str:
    """Survival (at least so many drafts accepted) or conditional acceptance (of the rounds that got that far) by position, per source.

    key: "survival" or "conditional". Labels stand at the end of their lines; all loads of bench share one.
    """
    lines = [(one, [(i + 1, share) for i, share in enumerate(one[key]) if share is not None]) for one in series]
    lines = [(one, points) for one, points in lines if points]
    depth = max((len(one[key]) for one in series), default=1)

    def plot(ax: Axes) -> None:
        measured = [points[-1][1] for one, points in lines if one["kind"] == "measured"]
        ends: list[tuple[str, str, float]] = []
        for one, points in lines:
            colour = COLOUR[one["kind"]]
            xs, ys = zip(*points, strict=True)
            hollow: dict[str, Any] = {"markerfacecolor": SURFACE} if one["kind"] in ("training", "predicted") else {}
            ax.plot(xs, ys, MARKER[one["kind"]], linestyle=DASH[one["kind"]], color=colour, markersize=5, linewidth=1.6, **hollow)
            if one["kind"] != "measured":
                ends.append((one["short"], colour, ys[-1]))
        if measured:
            ends.append(("bench" if len(measured) == 1 else f"bench, {len(measured)} loads", SPECULATIVE, sum(measured) / len(measured)))
        top = min(1.0, max((y for _, points in lines for _, y in points), default=1.0) * 1.12)
        ax.set_ylim(0, top)
        ax.set_xlim(0.8, depth + 0.25)
        ax.set_xticks(range(1, depth + 1))
        ax.set_xlabel("position of the draft" if key == "conditional" else "accepted drafts, at least")
        ax.set_ylabel("share of rounds" if key == "survival" else "share of those that got there")
        places = spread([y for _, _, y in ends], LABEL_GAP_PT * top / (240 if key == "survival" else 165))
        for (text, colour, y), place in zip(ends, places, strict=True):
            shown = MUTED if colour == BASELINE else colour
            arrow = {"arrowstyle": "-", "color": shown, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
            ax.annotate(
                text, (depth, y), (depth + 0.27, place), color=shown, fontsize=10, va="center", annotation_clip=False, arrowprops=arrow
            )

    said = "; ".join(f"{one['name']}: " + ", ".join(f"{y:.2f}" for _, y in points) for one, points in lines)
    titles = {
        "survival": "Share of rounds that accepted at least 1, 2, ... drafts",
        "conditional": "Acceptance of each draft, given those before it",
    }
    return draw(f"acceptance-{key}", titles[key], said, plot, height=300 if key == "survival" else HEIGHT)


def by_category(rows: Sequence[Row], overall: float | None) -> str:
    """accept_len of each category, largest first; a thin line spans the loads, the dashed line is the mean over all prompts.

    rows: {"category", "accept_len", "low", "high"}.
    """

    def plot(ax: Axes) -> None:
        if overall is not None:
            ax.axvline(overall, color=INK, linewidth=1, linestyle=(0, (4, 3)))
            ax.annotate(
                f"all {overall:.2f}", (overall, 1), (0, 2), xycoords=("data", "axes fraction"), **{**NOTE, "fontsize": 9.5, "color": MUTED}
            )
        for slot, row in enumerate(rows):
            ax.plot([1, row["accept_len"]], [slot, slot], color=SPECULATIVE, linewidth=1, alpha=0.35)
            if row["low"] is not None:
                ax.plot([row["low"], row["high"]], [slot, slot], color=SPECULATIVE, linewidth=5, alpha=0.3, solid_capstyle="round")
            ax.plot(row["accept_len"], slot, "o", color=SPECULATIVE, markersize=7)
            ax.annotate(f"{row['accept_len']:.2f}", (row["accept_len"], slot), (8, 0), **{**NOTE, "ha": "left", "va": "center"}, bbox=PATCH)
        names = [cut(row["category"], 22) for row in rows]
        ax.set_yticks(range(len(rows)), names)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_xlim(1, max([row["accept_len"] for row in rows] + [row["high"] or 1 for row in rows]) * 1.14)
        ax.set_xlabel("accept_len (tokens per round)")
        ax.grid(False)

    said = "; ".join(f"{row['category']}: {row['accept_len']:.2f}" for row in rows)
    return draw("category", "accept_len by category of the prompts", said, plot, height=max(130, 62 + 24 * len(rows)))


def break_even(rows: Sequence[Row]) -> str:
    """accept_len that is needed and accept_len that was measured, per concurrency, up to the ceiling depth + 1."""

    def plot(ax: Axes) -> None:
        for slot, row in enumerate(rows):
            first = slot == 0
            ax.plot([1, row["ceiling"]], [slot, slot], color=MUTED, linewidth=1, zorder=1)
            if row["low"] is not None and row["high"] is not None:
                ax.plot([row["low"], row["high"]], [slot, slot], color=INK, linewidth=5, alpha=0.25, solid_capstyle="butt")
            ax.plot(row["ceiling"], slot, "|", color=MUTED, markersize=11, label="ceiling" if first else None)
            needed: dict[str, Any] = {"markerfacecolor": SURFACE, "color": INK, "markersize": 8, "markeredgewidth": 1.5}
            ax.plot(row["accept_len"], slot, "D", label="needed" if first else None, **needed)
            ax.annotate(f"{row['accept_len']:.2f}", (row["accept_len"], slot), (0, 8), **NOTE)
            if row["measured"] is not None:
                ax.plot(row["measured"], slot, "o", color=SPECULATIVE, markersize=8, label="measured" if first else None)
                ax.annotate(f"{row['measured']:.2f}", (row["measured"], slot), (0, -18), **{**NOTE, "color": SPECULATIVE})
        ax.set_yticks(range(len(rows)), [f"C = {row['concurrency']}\ndepth {row['depth']}" for row in rows])
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_xlim(0.9, max(max(row["ceiling"], row["accept_len"]) for row in rows) + 0.2)
        ax.set_xlabel("accept_len (tokens per round)")
        ax.grid(False)
        legend_above(ax)

    said = "; ".join(f"concurrency {r['concurrency']}, depth {r['depth']}: {r['accept_len']:.2f} needed" for r in rows)
    return draw("break-even", "accept_len needed to pay", said, plot, height=max(224, 70 + 42 * len(rows)))
