"""bench/summary.json and bench/launches.jsonl -> the verdict of the report. Summaries of every version are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftsmith.engines.secrets import masked, masked_argv
from draftsmith.manifest import Manifest, read_jsonl
from draftsmith.report.bench_parts import Verdict, without_nan
from draftsmith.report.files import shaping

SUMMARY, LAUNCHES, CONDITIONS = "summary.json", "launches.jsonl", "conditions.json"


def bench_section(folder: Path, manifest: Manifest | None) -> dict[str, Any]:
    """What bench left in `folder`. The gate is in the summary, or in the manifest of version 1.

    Raises EnvironmentFailed when a file is missing or of another shape.
    """
    path = folder / SUMMARY
    with shaping(path):
        summary = without_nan(json.loads(path.read_text()))
    with shaping(folder / LAUNCHES):
        if not (folder / LAUNCHES).is_file():
            raise FileNotFoundError
        rows = [launch_row(row) for row in without_nan(read_jsonl(folder / LAUNCHES))]
    with shaping(path):
        gate = summary.get("gate") or (manifest.summary.get("gate") if manifest else None)
        settings = manifest.config.get("settings", {}) if manifest else {}
        section = {
            **summary,
            "sentence": str(summary["verdict_sentence"]),
            "gate": gate,
            "gate_concurrency": settings.get("gate_concurrency"),
            "findings": summary.get("findings") or [],
            "canary": summary.get("canary") or [],
            "launches": rows,
            "arms": safe_arms(summary.get("arms")),
            "conditions": read_conditions(folder),
        }
        found = Verdict.model_validate(section).model_dump(mode="json")
        there = {row["launch"] for row in rows}
        if lost := [row["launch"] for row in found["timeline"] if row["launch"] not in there]:
            raise ValueError(f"it tells of launch {lost[0]}, which {LAUNCHES} has not; `draftsmith bench --summarise` computes it anew")
        bands = [cell[name] for cell in found["cells"] for name in ("speedup_over_prompts", "speedup_bootstrap") if cell[name]]
        if any(not isinstance(band[key], int | float) for band in bands for key in ("ratio", "low", "high")):
            raise ValueError("a speed-up is no number")
        return found


def launch_row(row: dict[str, Any]) -> dict[str, Any]:
    """A launch without its secrets."""
    return {**row, "argv": masked_argv(row.get("argv") or []), "env": masked(row.get("env") or {}), "cells": row.get("cells") or []}


def read_conditions(folder: Path) -> dict[str, Any] | None:
    """What bench wrote down as necessary for a comparison; None before it did."""
    path = folder / CONDITIONS
    if not path.is_file():
        return None
    with shaping(path):
        return dict(json.loads(path.read_text())["conditions"])


def safe_arms(arms: dict[str, Any] | None) -> dict[str, Any] | None:
    """Command and environment of each arm, without their secrets."""
    if arms is None:
        return None
    safe = {arm: launch_row(told or {}) for arm, told in arms.items()}
    return {arm: {"argv": row["argv"], "env": row["env"]} if row["argv"] else None for arm, row in safe.items()}
