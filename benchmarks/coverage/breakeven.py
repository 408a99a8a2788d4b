"""Does the interval of break-even hold? Simulated launches with a known truth, the interval as `breakeven` computes it, beside two others.

    python benchmarks/coverage/breakeven.py               print the table
    python benchmarks/coverage/breakeven.py --out FILE    and write it as JSON

A launch has luck: a factor that all of its cells share, and one of its own for each cell. Scatter may differ by concurrency and by kind.
Four kinds (baseline and three depths), four concurrencies, two waves a cell; every interval of A* is looked at, and the least and the
greatest share over concurrencies is told.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.breakeven.intervals import Key, Timed, break_even, scatter, scatter_at
from draftsmith.measure.statistics import Interval, Scatter, quotient_interval

KINDS, CONCURRENCY, WAVES = ("baseline", "depth 1", "depth 3", "depth 5"), (1, 4, 16, 64), 2
EXPERIMENTS = 1000
Cells = Mapping[Key, Timed]


@dataclass(frozen=True)
class World:
    """Standard deviations on the log scale. factors: of the scatter, by concurrency; baseline: of the baseline's."""

    name: str
    launches: int = 2
    shared: float = 0.02
    own: float = 0.0
    wave: float = 0.003
    factors: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    baseline: float = 1.0

    def draw(self, source: np.random.Generator) -> dict[Key, Timed]:
        """Times of one experiment; the truth is 1 everywhere."""
        cells = {}
        for kind in KINDS:
            scale = self.baseline if kind == "baseline" else 1.0
            luck = source.normal(0, self.shared, self.launches)
            for concurrency, factor in zip(CONCURRENCY, self.factors, strict=True):
                cell = scale * factor * (luck + source.normal(0, self.own, self.launches))
                waves = cell[:, None] + source.normal(0, self.wave, (self.launches, WAVES))
                cells[kind, concurrency] = Timed(tuple(np.exp(waves.mean(axis=1))), tuple(np.exp(waves).ravel()))
        return cells


WORLDS = (
    World("launches share their luck"),
    World("every cell has its own", shared=0.0, own=0.02),
    World("both", shared=0.014, own=0.014),
    World("four times the scatter at 64", factors=(1, 1, 2, 4)),
    World("four times the scatter at 1", factors=(4, 2, 1, 1)),
    World("the baseline scatters half as much", baseline=0.5),
    World("the baseline scatters twice as much", baseline=2.0),
    World("three launches of each", launches=3, shared=0.014, own=0.014),
    World("one launch of each", launches=1),
)


def ours(cells: Cells, kind: str, concurrency: int) -> Interval:
    """As breakeven does it: scatter pooled over kinds, at each concurrency."""
    return break_even(cells[kind, concurrency], cells["baseline", concurrency], scatter_at(cells, concurrency))


def pooled(cells: Cells, kind: str, concurrency: int) -> Interval:
    """Scatter pooled over concurrencies, too, with the same degrees of freedom."""
    spread = scatter(cells)
    return break_even(cells[kind, concurrency], cells["baseline", concurrency], Scatter(spread.sd, spread.df))


def welch(cells: Cells, kind: str, concurrency: int) -> Interval | None:
    """Each pair of kinds for itself."""
    top, bottom = cells[kind, concurrency].launches, cells["baseline", concurrency].launches
    return quotient_interval(top, bottom) if len(top) > 1 else None


WAYS: dict[str, Callable[[Cells, str, int], Interval | None]] = {"ours": ours, "pooled": pooled, "welch": welch}


def covered(world: World, experiments: int, seed: int = 0) -> dict[str, Any]:
    """Share of intervals that hold the truth, at the best and at the worst concurrency, and their median half width, by way."""
    source = np.random.default_rng(seed)
    found: dict[str, dict[int, list[tuple[bool, float]]]] = {way: {c: [] for c in CONCURRENCY} for way in WAYS}
    for _ in range(experiments):
        cells = world.draw(source)
        for way, interval_of in WAYS.items():
            for kind in KINDS[1:]:
                for concurrency in CONCURRENCY:
                    interval = interval_of(cells, kind, concurrency)
                    if interval is not None:
                        half = math.log(interval.high / interval.low) / 2
                        found[way][concurrency].append((interval.low <= 1 <= interval.high, half))
    return {way: summary(by) for way, by in found.items() if by[CONCURRENCY[0]]}


def summary(by: Mapping[int, list[tuple[bool, float]]]) -> dict[str, float]:
    shares = [float(np.mean([hit for hit, _ in seen])) for seen in by.values()]
    return {"least": min(shares), "most": max(shares), "half_width": float(np.median([half for seen in by.values() for _, half in seen]))}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown."""
    lines = [
        "| simulated | ours | half width | pooled over concurrencies | each pair alone, its half width |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        one, all_of, alone = (row["ways"].get(way) for way in WAYS)
        last = f"{span(alone)}, {alone['half_width']:.1%}" if alone else ""
        lines.append(f"| {row['world']['name']} | {span(one)} | {one['half_width']:.1%} | {span(all_of)} | {last} |")
    return lines


def span(found: Mapping[str, float]) -> str:
    """94.1 to 95.3 %"""
    return f"{100 * found['least']:.1f} to {100 * found['most']:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--experiments", type=int, default=EXPERIMENTS)
    arguments = parser.parse_args()
    rows = [{"world": asdict(world), "ways": covered(world, arguments.experiments)} for world in WORLDS]
    print("\n".join(table(rows)))
    if arguments.out:
        arguments.out.write_text(json.dumps({"experiments": arguments.experiments, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
