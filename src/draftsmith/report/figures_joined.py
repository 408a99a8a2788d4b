"""Speed-ups of several runs at one load: data -> SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from draftsmith.report.figures_bench import MARKER
from draftsmith.report.svg import INK, MUTED, NOTE, PATCH, VERDICT, cut, draw

LONGEST_NAME = 46


def forest(rows: Sequence[dict[str, Any]], name: str, label: str | None) -> str:
    """A line per run under its name: speed-up with interval, and the line at 1.

    name: unique on the page; label: of the load, if it is one.
    """
    at = f" at {label}" if label else ""
    shown = [row for row in rows if row["speedup"]]

    def plot(ax: Axes) -> None:
        ax.axvline(1, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        for slot, row in enumerate(shown):
            found, colour = row["speedup"], VERDICT[row["verdict"]]
            ax.plot([found["low"], found["high"]], [slot, slot], color=colour, linewidth=7, alpha=0.3, solid_capstyle="round")
            ax.plot(found["ratio"], slot, MARKER[row["verdict"]], color=colour, markersize=7)
            ax.annotate(f"{found['ratio']:.2f}×", (found["high"], slot), (8, 0), **{**NOTE, "ha": "left", "va": "center"})
            above = {**NOTE, "ha": "left", "color": MUTED, "fontsize": 10}
            ax.annotate(cut(row["run"], LONGEST_NAME), (0, slot), (2, 8), xycoords=("axes fraction", "data"), bbox=PATCH, **above)
        ax.set_yticks([])
        ax.set_ylim(len(shown) - 0.5, -0.9)
        low, high = min(1.0, *(r["speedup"]["low"] for r in shown)), max(1.0, *(r["speedup"]["high"] for r in shown))
        ax.set_xlim(low - 0.08 * (high - low) - 0.02, high + 0.22 * (high - low) + 0.02)
        ax.set_xlabel(f"speed-up{at} (×), with its interval")
        ax.grid(True, axis="x")
        ax.grid(False, axis="y")

    said = "; ".join(f"{r['run']}: {r['speedup']['ratio']:.2f} ({r['speedup']['low']:.2f} to {r['speedup']['high']:.2f})" for r in shown)
    return draw(name, f"Speed-up{at}", said, plot, height=58 + 46 * len(shown))
