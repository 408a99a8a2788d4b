"""Two finished benches side by side: is the second one faster than the first? Refuses when something else than the question differs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from draftsmith.bench.context import Context, differ, named, read_context
from draftsmith.bench.runs import Runs
from draftsmith.bench.sentences import place
from draftsmith.bench.summary import summarise
from draftsmith.errors import InvalidMeasurement, UsageError
from draftsmith.measure.protocol import LAUNCHES
from draftsmith.measure.statistics import Interval, quotient_interval, quotient_of

Quantity = Literal["speedup", "tok_s"]
WHAT = {"speedup": "speed-up over its own baseline", "tok_s": "output tok/s of the speculative arm"}


def bench_folder(given: Path) -> Path:
    """A bench folder, or the one inside a run folder. Raises UsageError."""
    for folder in (given, given / "bench"):
        if (folder / LAUNCHES).exists():
            return folder
    raise UsageError(f"no bench in {given}", hint="give a run folder, or a folder that holds launches.jsonl")


def compare(first: Path, second: Path, quantity: Quantity = "speedup", allowed: Sequence[str] = ()) -> dict[str, Any]:
    """Ratio of the second run to the first, cell by cell, with its interval.

    allowed: keys of conditions that may differ because they are the question ("engine"). Raises InvalidMeasurement when others differ
    that matter, or when the runs share no cell that both measured.
    """
    folders = [bench_folder(first), bench_folder(second)]
    if folders[0].resolve() == folders[1].resolve():
        raise UsageError(f"{first} and {second} are the same bench", hint="name two that were measured")
    contexts = [read_context(folder) for folder in folders]
    differences = differences_between(*contexts, allowed=allowed)
    refuse(differences, first, second)
    summaries = [summarise(folder, context) for folder, context in zip(folders, contexts, strict=True)]
    cells = []
    for cell in summaries[0]["cells"]:
        other = next((row for row in summaries[1]["cells"] if row["label"] == cell["label"]), None)
        found = None if other is None else ratio_of(quantity, (cell, other), folders)
        if found is not None:
            cells.append(entry(cell, found))
    if not cells:
        raise InvalidMeasurement(
            f"{first} and {second} have no cell that both measured with two valid launches of each arm",
            hint="`draftsmith bench --summarise DIR` shows the cells of each, and why launches are invalid",
        )
    invalid = [len({row["launch"] for row in summary["invalid"]}) for summary in summaries]
    return {
        "first": str(first),
        "second": str(second),
        "quantity": quantity,
        "cells": cells,
        "differences": differences,
        "drafters": [dict(context.drafter) for context in contexts],
        "invalid_launches": invalid,
        "verdict_sentence": sentence(cells, quantity, first, second),
    }


def differences_between(a: Context, b: Context, allowed: Sequence[str]) -> list[dict[str, Any]]:
    """Everything that differs; `matters` is False for what may: drafters, and what was allowed. Raises UsageError for an unknown key."""
    known = a.conditions.keys() | b.conditions.keys()
    unknown = [key for key in allowed if key not in known]
    if unknown:
        raise UsageError(f"no condition is called {unknown[0]!r}", hint=f"known: {', '.join(sorted(known))}")
    names = ("first", "second")
    found = differ(a.conditions, b.conditions, names) + differ({"unit": a.unit}, {"unit": b.unit}, names)
    rows = [row | {"matters": row["matters"] and row["key"] not in allowed} for row in found]
    drafters = differ(a.drafter, b.drafter, names)
    return rows + [row | {"key": f"drafter {row['key']}", "matters": False} for row in drafters]


def refuse(differences: Sequence[dict[str, Any]], first: Path, second: Path) -> None:
    """Raise InvalidMeasurement, naming what differs and matters."""
    wrong = [row for row in differences if row["matters"]]
    if wrong:
        options = " ".join(f"--allow {shlex.quote(row['key'])}" for row in wrong)
        raise InvalidMeasurement(
            f"{first} and {second} cannot be compared; they differ in {named(wrong)}",
            hint=f"measure both alike, or, if that is the question: {options}",
        )


def ratio_of(quantity: Quantity, cells: tuple[dict[str, Any], dict[str, Any]], folders: Sequence[Path]) -> Interval | None:
    """Second over first; None when one of them has too few launches."""
    a, b = (cell["speedup"] for cell in cells)
    if a is None or b is None:
        return None
    if quantity == "speedup":
        intervals = [Interval(row["ratio"], row["low"], row["high"], row["df"], row["nominal_confidence"]) for row in (a, b)]
        return quotient_of(intervals[1], intervals[0])
    rates = [
        [rate.rate for rate in Runs(folder, with_replies=False).rates(cell["label"]) if rate.arm == "speculative"]
        for folder, cell in zip(folders, cells, strict=True)
    ]
    return quotient_interval(rates[1], rates[0])


def entry(cell: dict[str, Any], found: Interval) -> dict[str, Any]:
    """One cell of the comparison."""
    verdict = "second is faster" if found.low > 1 else "first is faster" if found.high < 1 else "inconclusive"
    row = {key: cell[key] for key in ("concurrency", "label", "load")}
    return row | {"ratio": found.value, "low": found.low, "high": found.high, "df": found.df, "verdict": verdict}


def sentence(cells: Sequence[dict[str, Any]], quantity: Quantity, first: Path, second: Path) -> str:
    """at concurrency 4 B is 1.08x A (95 % interval 1.03-1.13): ..."""
    parts = []
    for cell in cells:
        shown = f"{cell['ratio']:.3f}x (95 % interval {cell['low']:.3f}-{cell['high']:.3f})"
        parts.append(f"{place(cell)} {second} has {shown} of {first}: {cell['verdict']}")
    return f"{WHAT[quantity]}: {'; '.join(parts)}"
