"""The cost model against published speed-ups and the first H200 tables: fits, held-out errors, tables for the docs, and the plot.

    python benchmarks/costmodel/reproduce.py                     print the tables
    python benchmarks/costmodel/reproduce.py --plot FILE.svg     and draw speed-up against concurrency

Published tables give ratios, not times. With the step of one request as unit (1, or the published milliseconds) the model has three terms
here: floor, row, and one draft term per round; accept_len and rows per request are taken from the source, not fitted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from draftsmith.measure.collectives import BF16_BYTES, AllReduce, bytes_moved
from draftsmith.measure.costmodel import fit_cost_model, folk_speedup, held_out
from draftsmith.measure.costmodel_terms import Cell, Shape
from draftsmith.measure.fitting import Fit, fit_log

HERE = Path(__file__).parent
Observation = tuple[str, int, float]  # ("step" ms | "speedup", concurrency, value)


# --- published speed-ups ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Published:
    """One table: what was published, and what the model needs beside it."""

    name: str
    rows: int
    accepted: float
    sharpness: float
    observations: tuple[Observation, ...]

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Published:
        steps = [("step", int(c), float(v)) for c, v in entry["decode_step_ms"].items()]
        speedups = [("speedup", int(c), float(v)) for c, v in entry["speedup"].items()]
        return cls(entry["name"], entry["rows_per_request"], entry["accept_len"], entry["sharpness"], (*steps, *speedups))

    @property
    def names(self) -> tuple[str, ...]:
        """floor is fitted where times are published; ratios do not see it."""
        return ("floor", "row", "draft") if any(kind == "step" for kind, _, _ in self.observations) else ("row", "draft")

    def values(self, parameters: np.ndarray, asked: Sequence[tuple[str, int]]) -> np.ndarray:
        """Model values of steps (ms) and speed-ups."""
        have = {"floor": 1.0, **dict(zip(self.names, parameters, strict=True))}

        def through(rows: int) -> float:
            return float((have["floor"] ** self.sharpness + (have["row"] * rows) ** self.sharpness) ** (1 / self.sharpness))

        def value(kind: str, c: int) -> float:
            step = through(c)
            return step if kind == "step" else self.accepted * step / (through(c * self.rows) + have["draft"])

        return np.array([value(kind, c) for kind, c in asked])

    def fit(self, without: Observation | None = None) -> Fit:
        kept = [one for one in self.observations if one != without]
        floor = min((value for kind, _, value in kept if kind == "step"), default=1.0)
        widest = max(c for _, c, _ in kept) * self.rows
        start = {"floor": floor, "row": 3 * floor / widest, "draft": 0.3 * floor}
        asked = [(kind, c) for kind, c, _ in kept]
        return fit_log(lambda p: self.values(p, asked), [value for _, _, value in kept], {name: start[name] for name in self.names})

    def entries(self) -> list[dict[str, Any]]:
        """Every observation with its value in the fit of all, and its prediction from the fit of all others."""
        whole, found = self.fit(), []
        for one in self.observations:
            kind, c, value = one
            [fitted] = self.values(whole.values, [(kind, c)])
            [predicted] = self.values(self.fit(one).values, [(kind, c)])
            found.append({"kind": kind, "concurrency": c, "published": value, "fitted": float(fitted), "left_out": float(predicted)})
        return found


def published_lines() -> list[str]:
    """The Markdown table."""
    lines = [
        "| table | what | C | published | fitted | left out | error when left out |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for entry in json.loads((HERE / "published.json").read_text()):
        table = Published.of(entry)
        for row in table.entries():
            what, digits = ("step, ms", 1) if row["kind"] == "step" else ("speed-up", 2)
            cells = [f"{row[key]:.{digits}f}" for key in ("published", "fitted", "left_out")]
            lines.append(
                f"| {table.name} | {what} | {row['concurrency']} | {' | '.join(cells)} | {row['left_out'] / row['published'] - 1:+.0%} |"
            )
    return lines


def folk_lines() -> list[str]:
    """The common formula on the Kimi table: the communication share that concurrency 1 asks for, and what it says elsewhere."""
    table = Published.of(json.loads((HERE / "published.json").read_text())[0])
    measured = {c: value for kind, c, value in table.observations if kind == "speedup"}
    share = (1 / measured[1] - 1 / table.accepted) / (1 - 1 / table.accepted)
    lines = ["| C | published | the model | common formula |", "| ---: | ---: | ---: | ---: |"]
    values = table.values(table.fit().values, [("speedup", c) for c in measured])
    for (c, value), own in zip(measured.items(), values, strict=True):
        lines.append(f"| {c} | {value:.2f} | {own:.2f} | {folk_speedup(1 - share, share, table.accepted):.2f} |")
    return [f"(communication share {share:.0%}, chosen so that it agrees at concurrency 1)", "", *lines]


def tok_s_lines() -> list[str]:
    """The Kimi table in the unit that it was published in."""
    entry = json.loads((HERE / "published.json").read_text())[0]
    found = {(row["kind"], row["concurrency"]): row for row in Published.of(entry).entries()}
    lines = ["| C | baseline tok/s | the model | EAGLE-3 tok/s | the model | left out |", "| ---: | ---: | ---: | ---: | ---: | ---: |"]
    for text, rate in entry["tok_s"].items():
        step, speedup = found["step", int(text)], found["speedup", int(text)]
        own = 1000 * int(text) / step["fitted"]
        told = [f"{own * speedup[key]:.1f}" for key in ("fitted", "left_out")]
        lines.append(f"| {text} | {rate} | {own:.1f} | {entry['speculative_tok_s'][text]} | {' | '.join(told)} |")
    return lines


def communication_lines() -> list[str]:
    """A worked example, not a measurement: communication alone. Compute takes 19 ms whatever the rows are and drafts are free, so
    A T_ar / T_round differs from the common formula by nothing but how all-reduces are charged."""
    slow = AllReduce.given(8, t0_s=150e-6, bandwidth_bytes_s=5e9)
    layers, hidden, depth, accepted, compute_s = 61, 7168, 3, 3.0, 19e-3
    knee = 150e-6 * 5e9 / float(bytes_moved(hidden * BF16_BYTES, 8))
    lines = ["| C | rows of a round | share of a step | speed-up | common formula | it is |", "| ---: | ---: | ---: | ---: | ---: | --- |"]
    for c in (1, 4, 8, 32, 64, 128):
        step_s, round_s = (2 * layers * slow.at(rows, hidden) for rows in (c, c * (depth + 1)))
        right = accepted * (compute_s + step_s) / (compute_s + round_s)
        common = folk_speedup(compute_s, step_s, accepted)
        way = "too pessimistic" if common < right else "too optimistic"
        share = step_s / (compute_s + step_s)
        lines.append(f"| {c} | {c * (depth + 1)} | {share:.0%} | {right:.2f} | {common:.2f} | {way} |")
    return [f"(knee at {knee:.0f} rows)", "", *lines]


# --- the first H200 tables -------------------------------------------------------------------------------------------


def cells_of(table: Mapping[str, Any]) -> list[Cell]:
    """Times of one slot in seconds, from milliseconds or from tok/s at a forced accept_len."""
    depth = table["depth"]
    if "tok_s" in table:
        cells = [Cell(int(c), 0, int(c) / rate) for c, rate in table["tok_s"].items()]
        forced = [(float(a), int(c), rate) for a, rates in table["forced_tok_s"].items() for c, rate in rates.items()]
        return cells + [Cell(c, depth, a * c / rate) for a, c, rate in forced]
    cells = [Cell(int(c), 0, value / 1000) for c, value in table["decode_step_ms"].items()]
    return cells + [Cell(int(c), depth, value / 1000) for c, values in table["round_ms"].items() for value in values]


def device_lines() -> list[str]:
    """Each (C, depth) predicted from the others."""
    lines = [
        "| table | terms | fitted: median, worst | left out inside: median, worst | left out at the ends: median, worst |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for table in json.loads((HERE / "device_tables.json").read_text())["tables"]:
        cells, shape = cells_of(table), Shape(num_experts=table.get("num_experts", 0), top_k=table.get("top_k", 0))
        model = fit_cost_model(cells, shape)
        places = sorted({(cell.concurrency, cell.depth) for cell in cells})
        entries = [e for place in places for e in held_out(cells, lambda cell, place=place: (cell.concurrency, cell.depth) != place, shape)]
        columns = [share_pair(model.fit.errors()["median"], model.fit.errors()["worst"])]
        for label in ("interpolated", "extrapolated"):
            errors = [abs(entry["error"]) for entry in entries if entry["label"] == label]
            columns.append(share_pair(median(errors), max(errors)))
        lines.append(f"| {table['name']} | {', '.join(model.form.terms)} | {' | '.join(columns)} |")
    return lines


DESIGNS: dict[str, Callable[[Cell], bool]] = {
    "C 1, 4, 16, 64 at depths 0, 1, 7": lambda cell: cell.concurrency in (1, 4, 16, 64) and cell.depth in (0, 1, 7),
    "C 1, 8, 64 at depths 0, 1, 7": lambda cell: cell.concurrency in (1, 8, 64) and cell.depth in (0, 1, 7),
    "C 1, 4, 16, 64, all depths": lambda cell: cell.concurrency in (1, 4, 16, 64),
    "C up to 32, all depths": lambda cell: cell.concurrency <= 32,
}


def h200_cells(table: Mapping[str, Any]) -> list[Cell]:
    """One cell for every launch."""
    return [Cell(int(c), int(k), v) for k, by in table["seconds"].items() for c, values in by.items() for v in values]


def h200_shape(table: Mapping[str, Any]) -> Shape:
    return Shape(table.get("num_experts", 0), table.get("top_k", 0), layers=table.get("layers", 0), hidden=table.get("hidden", 0))


def h200_lines() -> list[str]:
    """Cells that were held out of the fit, by what was kept in it; a design without a depth that the table asks for has no line."""
    lines = ["| table | fitted | predicted | median error | worst | inside the 95 % interval |", "| --- | --- | --- | ---: | ---: | ---: |"]
    for table in json.loads((HERE / "h200_cells.json").read_text())["tables"]:
        cells = h200_cells(table)
        for name, keep in DESIGNS.items():
            if len({cell.depth for cell in cells if keep(cell)}) < min(3, len({cell.depth for cell in cells})):
                continue  # a depth cannot be told from another one
            entries = held_out(cells, keep, h200_shape(table))
            errors = [abs(entry["error"]) for entry in entries]
            covered = sum(entry["low"] <= entry["measured"] <= entry["high"] for entry in entries)
            kinds = ", ".join(f"{sum(e['label'] == label for e in entries)} {label}" for label in sorted({e["label"] for e in entries}))
            lines.append(
                f"| {table['name']} | {name} ({sum(map(keep, cells))}) | {kinds} | {median(errors):.1%} | {max(errors):.1%}"
                f" | {covered} of {len(entries)} |"
            )
    return lines


def share_pair(middle: float, worst: float) -> str:
    return f"{middle:.1%}, {worst:.0%}"


# --- the plot --------------------------------------------------------------------------------------------------------


def plot(path: Path) -> None:
    """Speed-up against concurrency: published points, the model through them, the common formula on the first."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "cost-model", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    for number, entry in enumerate(json.loads((HERE / "published.json").read_text())):
        table, colour = Published.of(entry), f"C{number}"
        points = [(c, value) for kind, c, value in table.observations if kind == "speedup"]
        grid = np.unique(np.geomspace(1, max(c for c, _ in points), 60).round(2))
        parameters = table.fit().values
        ax.plot(grid, table.values(parameters, [("speedup", c) for c in grid]), color=colour, lw=1.6, label=table.name)
        ax.plot(*zip(*points, strict=True), "o", color=colour, ms=5)
        if number == 0:
            share = (1 / points[0][1] - 1 / table.accepted) / (1 - 1 / table.accepted)
            flat = folk_speedup(1 - share, share, table.accepted)
            ax.plot([1, points[-1][0]], [flat, flat], color=colour, lw=1.2, ls="--", label="the common formula for it")
    ax.axhline(1, color="0.6", lw=0.8)
    ax.set_xscale("log", base=2)
    ax.set_xticks([1, 2, 4, 8, 16, 32, 64, 128], ["1", "2", "4", "8", "16", "32", "64", "128"])
    ax.set_xlabel("concurrency")
    ax.set_ylabel("speed-up")
    ax.set_ylim(0)
    ax.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, help="where the SVG goes")
    arguments = parser.parse_args()
    for lines in (communication_lines(), tok_s_lines(), published_lines(), folk_lines(), h200_lines(), device_lines()):
        print("\n".join(lines), end="\n\n")
    if arguments.plot:
        plot(arguments.plot)


if __name__ == "__main__":
    main()
