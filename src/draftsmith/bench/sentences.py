"""The verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftsmith.bench.settings import BenchSettings


def figures(cell: dict[str, Any]) -> str:
    """1.45x (95 % interval 1.40-1.51, 3 pairs, accept_len 1.95)."""
    speedup = cell["speedup"]
    accepted = f", accept_len {cell['acceptance']['accept_len']:.2f}" if cell["acceptance"] else ""
    interval = f"{100 * speedup['confidence']:.0f} % interval {speedup['low']:.2f}-{speedup['high']:.2f}"
    return f"{speedup['ratio']:.2f}x ({interval}, {speedup['pairs']} pairs{accepted})"


def verdict_sentence(cells: Sequence[dict[str, Any]], depth: int) -> str:
    """One sentence over all concurrencies."""
    subject = f"EAGLE-3 with {depth} draft{'s' if depth > 1 else ''}"
    parts = []
    for cell in cells:
        where = f"at concurrency {cell['concurrency']}"
        start = where if parts else subject
        if cell["speedup"] is None:
            parts.append(f"{start}{'' if parts else ' ' + where} has too few valid launches for a verdict")
        elif cell["verdict"] == "pays":
            parts.append(f"{where} it pays: {figures(cell)}" if parts else f"{subject} pays {where}: {figures(cell)}")
        elif cell["verdict"] == "does not pay":
            parts.append(f"{where} it does not: {figures(cell)}" if parts else f"{subject} does not pay {where}: {figures(cell)}")
        else:
            parts.append(f"{where} it is inconclusive: {figures(cell)}" if parts else f"{subject} is inconclusive {where}: {figures(cell)}")
    return "; ".join(parts)


def gate_reason(settings: BenchSettings, cells: Sequence[dict[str, Any]], num_invalid: int, result: str) -> str:
    """Why the gate says what it says."""
    [cell] = [cell for cell in cells if cell["concurrency"] == settings.gate_concurrency]
    where = f"concurrency {settings.gate_concurrency}"
    if cell["speedup"] is None:
        return f"fewer than two valid launches of each arm at {where}"
    bound = f"at {where} the interval {cell['speedup']['low']:.3f}-{cell['speedup']['high']:.3f}"
    if num_invalid:
        return f"{num_invalid} launch{'es are' if num_invalid > 1 else ' is'} invalid ({bound} comes from the others)"
    relation = {"passed": "lies above", "failed": "lies below", "inconclusive": "contains"}[result]
    return f"{bound} {relation} {settings.min_speedup:g}"
