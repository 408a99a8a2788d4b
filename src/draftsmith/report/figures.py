"""The report's plots: data -> SVG text. Pure functions; what is None is not drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, MultipleLocator

from draftsmith.report.svg import (
    BASELINE,
    INK,
    MUTED,
    PREDICTED,
    SPECULATIVE,
    SURFACE,
    TRAINING,
    VERDICT,
    draw,
    legend_above,
)

ARM = {"baseline": BASELINE, "speculative": SPECULATIVE}
SERIES = {"training": TRAINING, "predicted": PREDICTED, "served": BASELINE, "measured": SPECULATIVE}


def concurrency_axis(ax: Axes, concurrencies: Sequence[int]) -> None:
    """One slot per concurrency, evenly spaced."""
    ax.set_xticks(range(len(concurrencies)), [str(c) for c in concurrencies])
    ax.set_xlim(-0.6, len(concurrencies) - 0.4)
    ax.set_xlabel("concurrency (requests in flight)")


def throughput(cells: Sequence[dict[str, Any]]) -> str:
    """Output tokens per second of both arms: a bar for the mean, a ring for each launch."""

    def plot(ax: Axes) -> None:
        labels = {arm: arm for arm in ARM}
        for offset, (arm, colour) in zip((-0.2, 0.2), ARM.items(), strict=True):
            for slot, cell in enumerate(cells):
                rate = cell[f"{arm}_tok_s"]
                if rate["mean"] is None:
                    continue
                x = slot + offset
                ax.bar(x, rate["mean"], width=0.34, color=colour, label=labels.pop(arm, None))
                spread = [x + 0.05 * (i - (len(rate["launches"]) - 1) / 2) for i in range(len(rate["launches"]))]
                ax.scatter(spread, rate["launches"], s=20, facecolors=SURFACE, edgecolors=INK, linewidths=1, zorder=3)
                ax.annotate(f"{rate['mean']:.1f}", (x, max([rate["mean"], *rate["launches"]])), (0, 6), **ABOVE)
        concurrency_axis(ax, [cell["concurrency"] for cell in cells])
        ax.set_ylim(0, ax.get_ylim()[1] * 1.08)
        ax.set_ylabel("output tok/s")
        legend_above(ax)

    means = [(cell["concurrency"], arm, cell[f"{arm}_tok_s"]["mean"]) for cell in cells for arm in ARM]
    said = "; ".join(f"concurrency {c}, {arm}: {'absent' if mean is None else f'{mean:.1f}'}" for c, arm, mean in means)
    return draw("throughput", f"Output tokens per second. {said}", plot)


ABOVE: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": 10.5, "color": INK}


def speedup(cells: Sequence[dict[str, Any]]) -> str:
    """Speed-up with its interval at each concurrency, the line at 1 where speculation breaks even, and what the cost model predicted."""

    def plot(ax: Axes) -> None:
        ax.axhline(1, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        ax.annotate("break-even", (1, 1), (-2, 4), xycoords=("axes fraction", "data"), **{**ABOVE, "ha": "right", "color": MUTED})
        for slot, cell in enumerate(cells):
            ratio = cell["speedup"]
            colour = VERDICT[cell["verdict"]]
            beside = {**ABOVE, "ha": "right", "va": "center", "fontsize": 12.5}
            if ratio is not None:
                ax.plot([slot, slot], [ratio["low"], ratio["high"]], color=colour, linewidth=7, alpha=0.3, solid_capstyle="round")
                ax.plot(slot, ratio["ratio"], "o", color=colour, markersize=8)
                ax.annotate(f"{ratio['ratio']:.2f}×", (slot, ratio["ratio"]), (-12, 0), **beside)
            if cell["predicted_speedup"] is not None:
                label = None if ax.get_legend_handles_labels()[0] else "predicted by the cost model"
                ax.plot(slot + 0.16, cell["predicted_speedup"], "D", markerfacecolor="none", color=PREDICTED, markersize=7, label=label)
        concurrency_axis(ax, [cell["concurrency"] for cell in cells])
        low, high = ax.get_ylim()
        ax.set_ylim(max(0, min(low, 0.8) - 0.05), max(high, 1.2) + 0.08)
        ax.set_ylabel("speed-up (×)")
        legend_above(ax)

    ratios = [(c["concurrency"], f"{c['speedup']['ratio']:.2f}" if c["speedup"] else "absent", c["verdict"]) for c in cells]
    said = "; ".join(f"concurrency {concurrency}: {ratio}, {verdict}" for concurrency, ratio, verdict in ratios)
    return draw("speedup", f"Speed-up of the speculative arm. {said}", plot)


def acceptance(series: Sequence[dict[str, Any]]) -> str:
    """Survival by position: the share of rounds that accepted at least that many drafts, for each source side by side."""
    width = 0.8 / len(series)

    def plot(ax: Axes) -> None:
        measured = [one["name"] for one in series if one["kind"] == "measured"]
        for number, one in enumerate(series):
            xs = [i + 1 + width * (number - (len(series) - 1) / 2) for i in range(len(one["survival"]))]
            style: dict[str, Any] = {"facecolor": "none", "edgecolor": SERIES[one["kind"]], "linewidth": 1.5}
            if one["kind"] in ("served", "measured"):
                style = {"color": SERIES[one["kind"]]}
            if one["name"] in measured:
                style["alpha"] = 1 - 0.55 * measured.index(one["name"]) / max(1, len(measured) - 1)
            ax.bar(xs, one["survival"], width=width * 0.82, label=one["short"], **style)
            if len(series) <= 2:
                for x, share in zip(xs, one["survival"], strict=True):
                    ax.annotate(f"{share:.2f}", (x, share), (0, 2), **ABOVE)
        depth = max(len(one["survival"]) for one in series)
        ax.set_xticks(range(1, depth + 1))
        ax.set_xlabel("accepted drafts, at least")
        ax.set_ylabel("share of rounds")
        ax.set_ylim(0, max(0.01, *(s for one in series for s in one["survival"])) * 1.14)
        legend_above(ax)

    said = "; ".join(f"{one['name']}: " + ", ".join(f"{share:.2f}" for share in one["survival"]) for one in series)
    return draw("acceptance", f"Share of rounds that accepted at least 1, 2, ... drafts. {said}", plot)


def break_even(rows: Sequence[dict[str, Any]]) -> str:
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
            ax.annotate(f"{row['accept_len']:.2f}", (row["accept_len"], slot), (0, 8), **ABOVE)
            if row["measured"] is not None:
                ax.plot(row["measured"], slot, "o", color=SPECULATIVE, markersize=8, label="measured" if first else None)
                ax.annotate(f"{row['measured']:.2f}", (row["measured"], slot), (0, -18), **{**ABOVE, "color": SPECULATIVE})
        ax.set_yticks(range(len(rows)), [f"C = {row['concurrency']}\ndepth {row['depth']}" for row in rows])
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_xlim(0.9, max(max(row["ceiling"], row["accept_len"]) for row in rows) + 0.2)
        ax.set_xlabel("accept_len (tokens per round)")
        ax.grid(False)
        legend_above(ax)

    said = "; ".join(f"concurrency {r['concurrency']}, depth {r['depth']}: {r['accept_len']:.2f} needed" for r in rows)
    return draw("break-even", f"accept_len needed to pay. {said}", plot)


def training_loss(steps: Sequence[dict[str, Any]], evaluations: Sequence[dict[str, Any]]) -> str:
    """Training loss over time (every step thin, running mean bold) and the held-out loss."""

    def plot(ax: Axes) -> None:
        times = [row["elapsed_s"] / 60 for row in steps]
        losses = [row["loss"] for row in steps]
        ax.plot(times, losses, color=TRAINING, linewidth=0.8, alpha=0.35)
        ax.plot(times, running_mean(losses, max(1, len(losses) // 40)), color=TRAINING, label="training")
        held = [(row["elapsed_s"] / 60, row["loss"]) for row in evaluations if row["loss"] is not None]
        if held:
            ax.plot(*zip(*held, strict=True), "o-", color=SPECULATIVE, markersize=4, label="held out")
        ax.set_xlabel("minutes of training")
        ax.set_ylabel("loss")
        legend_above(ax)

    return draw("loss", f"Training loss over {len(steps)} steps, from {steps[0]['loss']:.2f} to {steps[-1]['loss']:.2f}", plot)


def heldout_accept_len(evaluations: Sequence[dict[str, Any]], measured: float | None) -> str:
    """Held-out accept_len (teacher-forced) over training time, and the level that bench measured."""

    def plot(ax: Axes) -> None:
        times = [row["elapsed_s"] / 60 for row in evaluations]
        values = [row["acceptance"]["accept_len"] for row in evaluations]
        ax.plot(times, values, "o-", color=TRAINING, markersize=4, label="held out, teacher-forced")
        ax.annotate(f"{values[-1]:.2f}", (times[-1], values[-1]), (0, 6), **ABOVE)
        if measured is not None:
            ax.axhline(measured, color=SPECULATIVE, linewidth=1.4, linestyle=(0, (4, 3)), label="measured in bench")
        ax.set_ylim(1, max([*values, measured or 1.0]) * 1.06)
        ax.set_xlabel("minutes of training")
        ax.set_ylabel("accept_len")
        ax.yaxis.set_major_locator(MaxNLocator(6))
        legend_above(ax, columns=2)

    last = evaluations[-1]["acceptance"]["accept_len"]
    return draw("heldout", f"Held-out accept_len at {len(evaluations)} evaluations; {last:.2f} at the last", plot)


def launches(canary: Sequence[dict[str, Any]], invalid: Sequence[dict[str, Any]]) -> str:
    """The canary (one fixed request) at every launch in order: drift of the machine shows here. Invalid launches are crossed out."""
    bad = {row["launch"] for row in invalid}

    def plot(ax: Axes) -> None:
        for arm, colour in ARM.items():
            rows = [row for row in canary if row["arm"] == arm]
            xs, ys = [row["launch"] for row in rows], [row["tok_s"] for row in rows]
            ax.plot(xs, ys, "o-", color=colour, markersize=6, linewidth=1.2, label=arm)
        crossed = [row for row in canary if row["launch"] in bad]
        if crossed:
            xs, ys = [row["launch"] for row in crossed], [row["tok_s"] for row in crossed]
            ax.plot(xs, ys, "x", color=VERDICT["does not pay"], markersize=12, label="invalid")
        ax.set_ylim(0, max(row["tok_s"] for row in canary) * 1.15)
        ax.xaxis.set_major_locator(MultipleLocator(max(1, len(canary) // 10)))
        ax.set_xlabel("launch, in the order they ran")
        ax.set_ylabel("canary tok/s")
        legend_above(ax)

    return draw("launches", "Canary speed of each launch in order: " + ", ".join(f"{r['arm']} {r['tok_s']:.1f}" for r in canary), plot)


def running_mean(values: Sequence[float], radius: int) -> list[float]:
    """Mean over a window of 2 radius + 1 values, narrower at the ends."""
    windows = [values[max(0, i - radius) : i + radius + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]
