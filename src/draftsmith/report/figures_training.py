"""Plots of training: data -> SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from draftsmith.report.svg import NOTE, SPECULATIVE, TRAINING, draw, legend_above


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

    said = f"{len(steps)} steps, from {steps[0]['loss']:.2f} to {steps[-1]['loss']:.2f}"
    return draw("loss", "Training loss over time", said, plot)


def heldout_accept_len(evaluations: Sequence[dict[str, Any]], measured: float | None) -> str:
    """Held-out accept_len (teacher-forced) over training time, and the level that bench measured."""

    def plot(ax: Axes) -> None:
        times = [row["elapsed_s"] / 60 for row in evaluations]
        values = [row["acceptance"]["accept_len"] for row in evaluations]
        ax.plot(times, values, "o-", color=TRAINING, markersize=4, label="held out, teacher-forced")
        ax.annotate(f"{values[-1]:.2f}", (times[-1], values[-1]), (0, 6), **NOTE)
        if measured is not None:
            ax.axhline(measured, color=SPECULATIVE, linewidth=1.4, linestyle=(0, (4, 3)), label="measured in bench")
        ax.set_ylim(1, max([*values, measured or 1.0]) * 1.06)
        ax.set_xlabel("minutes of training")
        ax.set_ylabel("accept_len")
        ax.yaxis.set_major_locator(MaxNLocator(6))
        legend_above(ax, columns=2)

    last = evaluations[-1]["acceptance"]["accept_len"]
    said = f"{len(evaluations)} evaluations; {last:.2f} at the last"
    return draw("heldout", "Held-out accept_len over training time", said, plot)


def running_mean(values: Sequence[float], radius: int) -> list[float]:
    """Mean over a window of 2 radius + 1 values, narrower at the ends."""
    windows = [values[max(0, i - radius) : i + radius + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]
