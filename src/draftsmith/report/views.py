"""From the content of the report to what its tables and plots show: choices and sums of counts, no new statistics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

Cell = dict[str, Any]
LATENCIES = {
    "ttft_s": ("TTFT", "first token"),
    "ttfo_s": ("TTFO", "first token of the answer"),
    "tpot_s": ("TPOT", "per token after the first chunk"),
    "inter_chunk_s": ("inter-chunk", "between chunks: steps, not tokens"),
    "e2e_s": ("e2e", "whole request"),
}
ARMS = ("baseline", "speculative")
FEW = 3  # loads that are told one by one in the headline and as cards


def headline(verdict: dict[str, Any] | None) -> str:
    """The verdict in one sentence: bench's own, or, over many loads, neighbours of equal verdict taken together."""
    if verdict is None:
        return ""
    cells = verdict["cells"]
    if len(cells) <= FEW:
        return verdict["sentence"]
    closed = all(cell["label"] == f"C={cell['concurrency']}" for cell in cells)
    parts = []
    for word, group in groupby(cells, key=lambda cell: cell["verdict"]):
        same = list(group)
        names = [str(cell["concurrency"]) if closed else cell["label"] for cell in same]
        parts.append(f"{told(word, same)} at {'concurrency ' if closed and not parts else ''}{listed(names, closed)}{ratios(same)}")
    return "; ".join(parts)[:1].upper() + "; ".join(parts)[1:]


def told(word: str, cells: Sequence[Cell]) -> str:
    """Without any speed-up there is nothing to be sure or unsure of."""
    return "no verdict" if all(cell["speedup"] is None for cell in cells) else word


def listed(names: Sequence[str], ordered: bool) -> str:
    """1; 1 and 2; 1 to 8."""
    if len(names) == 1:
        return names[0]
    if ordered and len(names) > 2:
        return f"{names[0]} to {names[-1]}"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def ratios(cells: Sequence[Cell]) -> str:
    """The speed-ups of neighbours: (1.65×) or (1.65× to 1.10×)."""
    found = [f"{cell['speedup']['ratio']:.2f}×" for cell in cells if cell["speedup"]]
    if not found:
        return ""
    return f" ({found[0]})" if len(found) == 1 else f" ({found[0]} to {found[-1]})"


def tone_of(verdict: dict[str, Any] | None) -> str:
    """Which word colours the verdict: that of the loads when they agree, unless the gate doubts it; none when they do not agree."""
    words = {cell["verdict"] for cell in verdict["cells"]} if verdict else set()
    if len(words) != 1 or verdict is None:
        return "none"
    return verdict["gate"] if verdict["gate"] in ("failed", "inconclusive") else words.pop()


def categories(verdict: dict[str, Any] | None) -> list[dict[str, Any]]:
    """accept_len by category over all loads (tokens over rounds), with the lowest and highest load; largest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in verdict["cells"] if verdict else []:
        for category, counted in (cell["acceptance_by_category"] or {}).items():
            if counted["rounds"] and counted["accept_len"] is not None:
                found.setdefault(category, []).append(counted)
    rows = []
    for category, counted in found.items():
        rounds = sum(one["rounds"] for one in counted)
        mean = sum(one["rounds"] * one["accept_len"] for one in counted) / rounds
        values = [one["accept_len"] for one in counted]
        spread = (min(values), max(values)) if len(values) > 1 else (None, None)
        survival = counted[0]["survival"] if len(counted) == 1 else None
        rows.append({"category": category, "rounds": rounds, "accept_len": mean, "low": spread[0], "high": spread[1], "survival": survival})
    if not rows and verdict:  # version 1 told accept_len over all loads only
        told_once = {category: value for category, value in (verdict["accept_len_by_source"] or {}).items() if value is not None}
        rows = [{"category": c, "rounds": None, "accept_len": v, "low": None, "high": None, "survival": None} for c, v in told_once.items()]
    rows = [{**row, "category": row["category"] or "without a category"} for row in rows]
    return sorted(rows, key=lambda row: (-row["accept_len"], row["category"]))


def overall_accept_len(verdict: dict[str, Any] | None) -> float | None:
    """Tokens per round over all loads."""
    counted = [cell["acceptance"] for cell in verdict["cells"] if cell["acceptance"]] if verdict else []
    rounds = sum(one["rounds"] for one in counted)
    return 1 + sum(sum(one["reached"]) for one in counted) / rounds if rounds else None


def latency_rows(cell: Cell) -> list[dict[str, Any]]:
    """One row per metric and arm that was measured at this load."""
    return [
        {"metric": name, "meaning": meaning, "arm": arm, **found}
        for key, (name, meaning) in LATENCIES.items()
        for arm in ARMS
        if (found := ((cell["latency"] or {}).get(arm) or {}).get(key))
    ]


def estimates(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """The speed-up by other estimators than the verdict's, where bench computed them."""
    return [cell for cell in verdict["cells"] if cell["speedup"] and (cell["speedup_over_prompts"] or cell["speedup_bootstrap"])]


def units(verdict: dict[str, Any]) -> str:
    """What is replicated, in the plural."""
    return "blocks" if verdict["unit"] == "block" else "launches"


def present(verdict: dict[str, Any], key: str) -> bool:
    """Does any load have this?"""
    return any(cell[key] for cell in verdict["cells"])


def noise_share(verdict: dict[str, Any]) -> float | None:
    """The largest deviation from 1 that equal arms showed, as a share; None where no A/A comparison was made."""
    floor = verdict["noise_floor"]
    return None if floor is None or floor["max_abs_log_ratio"] is None else math.expm1(abs(floor["max_abs_log_ratio"]))


def num_invalid(verdict: dict[str, Any]) -> int:
    """Launches that prove nothing."""
    out = {row["launch"] for row in verdict["invalid"]} | {
        row["launch"] for row in verdict["timeline"] if row["invalid"] or row["excluded"]
    }
    return len(out)


def machine(hardware: dict[str, Any]) -> str:
    """2 × NVIDIA H200, 32 cores; without a GPU the processor. A GPU's memory and driver stand in the provenance."""
    counts = Counter(gpu.split(",")[0].strip() for gpu in hardware["gpus"])
    gpus = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in counts.items())
    cores = f", {hardware['cores']} cores" if "cores" in hardware else ""
    return f"{gpus or hardware['cpu']}{cores}"


def other_tools(origin: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """What stages say of their tools that the last one does not: ("git 306c1c37b203", its stages)."""
    found: dict[str, list[str]] = {}
    for stage, tools in origin["stages_with_other_tools"].items():
        for name, version in tools.items():
            if version != origin["tools"].get(name):
                found.setdefault(f"{name} {version}", []).append(stage)
    return list(found.items())
