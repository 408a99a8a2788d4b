"""Between the measured cells, and a little beyond: the cost model, fitted to a break-even measurement (measure/costmodel.py).

Every launch is one observation of every cell that it measured. Trees are left out: the model's rounds verify depth + 1 rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from draftsmith.breakeven.intervals import Key, Timed
from draftsmith.breakeven.settings import GIVEN, probe_file
from draftsmith.engines.flags import spelled
from draftsmith.errors import InvalidMeasurement, UsageError
from draftsmith.measure.collectives import AllReduce
from draftsmith.measure.costmodel import CostModel, fit_cost_model
from draftsmith.measure.costmodel_terms import Cell, Shape

RANKS = ("tp", "tp-size", "tensor-parallel-size")
MOST_ROWS = 8  # of the table: deeper than this only what was measured, and the middle between


def observations(cells: Mapping[Key, Timed], depths: Mapping[str, int]) -> list[Cell]:
    """One Cell for each launch of each (kind, concurrency). depths: of the baseline (0) and of the chains or blocks, by kind."""
    return [
        Cell(concurrency, depths[name], second)
        for (name, concurrency), cell in sorted(cells.items(), key=lambda item: (item[0][1], depths.get(item[0][0], -1)))
        if name in depths
        for second in cell.launches
    ]


def between(cells: Sequence[Cell], shape: Shape, all_reduce: AllReduce | None = None, extra: Sequence[int] = ()) -> dict[str, Any]:
    """The fitted terms with intervals, and A* with its interval and its label at every concurrency (powers of two up to twice the
    highest, and `extra`) and depth. {"why": reason} alone when the cells cannot decide the terms.
    """
    try:
        model = fit_cost_model(cells, shape, all_reduce)
    except InvalidMeasurement as error:
        return {"why": error.message}
    known = sorted({cell.concurrency for cell in cells})
    concurrency = sorted({*known, *extra, *(2**i for i in range((2 * known[-1]).bit_length()) if known[0] <= 2**i <= 2 * known[-1])})
    entries = [entry for c in concurrency for depth in depths_between(cells) if (entry := predicted(model, c, depth)) is not None]
    return {"why": "", **model.as_dict(), "collectives": all_reduce is not None, "break_even": entries}


def depths_between(cells: Sequence[Cell]) -> list[int]:
    """Depths of the table: all up to the deepest, or, when those are many, the measured ones and the middles between."""
    measured = sorted({cell.depth for cell in cells} - {0})
    if measured[-1] <= MOST_ROWS:
        return list(range(1, measured[-1] + 1))
    return sorted({*measured, *((a + b) // 2 for a, b in pairwise(measured))})


def predicted(model: CostModel, concurrency: int, depth: int) -> dict[str, Any] | None:
    """One entry, in the words of the break-even table; None where the model refuses (one depth tells nothing of another)."""
    try:
        found = model.break_even(concurrency, depth)
    except UsageError:
        return None
    bounds = {"accept_len": found.value, "accept_len_low": found.low, "accept_len_high": found.high}
    return {"concurrency": concurrency, "depth": depth, "ceiling": depth + 1, **bounds, "label": found.label}


def all_reduce_of(text: str | None, flags: Mapping[str, Any]) -> AllReduce | None:
    """The all-reduce that the settings name, for as many GPUs as the engine's flags split the target over. Raises UsageError."""
    if text is None:
        return None
    ranks = next((int(value) for name, value in flags.items() if spelled(name) in RANKS), 1)
    if ranks < 2:
        raise UsageError("collectives on one GPU", hint="the engine's flags split the target: tp-size, tensor-parallel-size")
    if given := GIVEN.fullmatch(text):
        latency_us, bandwidth_gb_s = map(float, given.groups())
        return AllReduce.given(ranks, latency_us / 1e6, bandwidth_gb_s * 1e9)
    found = probe_file(text)
    assert found is not None, text
    path, arm = found
    try:
        entry = next(one for one in json.loads(path.read_text())["arms"] if one["name"] == arm and one["points"])
        all_reduce = AllReduce.from_probe(entry, "graph" if any("graph" in point for point in entry["points"]) else "eager")
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise UsageError(f"{path}: no all-reduce of arm {arm!r} ({error!r})", hint="draftsmith collectives --ranks N --out DIR") from error
    if all_reduce.ranks != ranks:
        raise UsageError(f"{path} was measured on {all_reduce.ranks} GPUs, the engine is split over {ranks}", hint="--ranks of the probe")
    return all_reduce
