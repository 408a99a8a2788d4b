"""Where the numbers come from: time per stage, versions, machine, hashes, the command to repeat."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from draftsmith.job import Job
from draftsmith.manifest import Manifest
from draftsmith.report.files import Finished
from draftsmith.report.recipe_text import RECIPE, recipe_text
from draftsmith.report.settings import ReportSettings


def times_section(done: Finished, stages: Sequence[str]) -> dict[str, Any]:
    """Work and wall seconds per stage; None for a stage that has not finished."""
    rows = []
    for stage in stages:
        manifest = done.manifests.get(stage)
        wall_s = None if manifest is None else manifest.finished - manifest.started
        rows.append({"stage": stage, "active_s": None if manifest is None else manifest.active_s, "wall_s": wall_s})
    return {"rows": rows, "active_s": sum(row["active_s"] for row in rows if row["active_s"] is not None)}


Data = dict[str, Any]


def provenance_section(manifests: Sequence[Manifest], engine: Data | None, drafter: Data | None, target: str | None) -> Data:
    """Versions and machine (with the stages that say something else), engine, configs, hashes of every output."""
    last = manifests[-1] if manifests else None
    tools = last.provenance["tools"] if last else None
    hardware = last.provenance["hardware"] if last else None
    others = {m.stage: m.provenance["tools"] for m in manifests if m.provenance["tools"] != tools}
    extra = {m.stage: {key: value for key, value in m.provenance.items() if key not in ("tools", "hardware")} for m in manifests}
    digests = (m.config["target"]["files"] for m in manifests if "target" in m.config)
    return {
        "finished": iso(last.finished) if last else None,
        "tools": tools,
        "hardware": hardware,
        "stages_with_other_tools": others,
        "stages_on_other_hardware": [m.stage for m in manifests if m.provenance["hardware"] != hardware],
        "engine": engine,
        "drafter": drafter,
        "target": {"folder": target, "sha256": next(digests, None)},
        "recorded_by_stages": {stage: found for stage, found in extra.items() if found},
        "configs": {m.stage: m.config for m in manifests},
        "outputs": {m.stage: m.outputs for m in manifests},
        "results": {m.stage: m.identity for m in manifests},
    }


def iso(unix_s: float) -> str:
    """2026-01-31 12:00 UTC."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def command(settings: ReportSettings, job: Job) -> dict[str, str]:
    """The command that makes the run again beside this one, and the recipe that it names."""
    folder = f"{job.run.parent.name}/{job.run.name}"
    return {"line": f"draftsmith run {folder}/report/{RECIPE} --run-folder {folder}-again", "recipe": recipe_text(settings, job)}
