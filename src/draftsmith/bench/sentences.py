"""The verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def interval_text(speedup: dict[str, Any]) -> str:
    """1.45x (95 % interval 1.40-1.51, 3 pairs)."""
    interval = f"{100 * speedup['confidence']:.0f} % interval {speedup['low']:.2f}-{speedup['high']:.2f}"
    return f"{speedup['ratio']:.2f}x ({interval}, {speedup['pairs']} pairs)"


def figures(cell: dict[str, Any]) -> str:
    """1.45x (95 % interval 1.40-1.51, 3 pairs, accept_len 1.95)."""
    accepted = f", accept_len {cell['acceptance']['accept_len']:.2f}" if cell["acceptance"] else ""
    if cell["speedup"] is None:
        return cell["verdict_reason"]
    return f"{interval_text(cell['speedup'])[:-1]}{accepted})"


def place(cell: dict[str, Any]) -> str:
    """at concurrency 4, at concurrency 4, 1024 tokens, or at 2 req/s."""
    return f"at concurrency {cell['label'].removeprefix('C=')}" if cell["load"]["kind"] == "closed" else f"at {cell['label']}"


def subject_of(algorithm: str, depth: int) -> str:
    """EAGLE-3 with 3 drafts."""
    return f"{algorithm} with {depth} draft{'s' if depth > 1 else ''}" if depth else algorithm


def verdict_sentence(cells: Sequence[dict[str, Any]], subject: str) -> str:
    """One sentence over all cells."""
    parts = []
    for cell in cells:
        where = place(cell)
        start = where if parts else subject
        if cell["speedup"] is None and not cell.get("verdict_reason"):
            parts.append(f"{start}{'' if parts else ' ' + where} has too few valid launches for a verdict")
        elif cell["verdict"] == "pays":
            parts.append(f"{where} it pays: {figures(cell)}" if parts else f"{subject} pays {where}: {figures(cell)}")
        elif cell["verdict"] == "does not pay":
            parts.append(f"{where} it does not: {figures(cell)}" if parts else f"{subject} does not pay {where}: {figures(cell)}")
        else:
            parts.append(f"{where} it is inconclusive: {figures(cell)}" if parts else f"{subject} is inconclusive {where}: {figures(cell)}")
    return "; ".join(parts)
