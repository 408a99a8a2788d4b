"""The report stage: what the finished stages left -> report.html, report.md, report.json, model_card.md and the recipe as it ran."""

from __future__ import annotations

from typing import Any

from draftsmith.job import Job, Plan
from draftsmith.manifest import atomic_write_text
from draftsmith.report.context import NO_VERDICT, build
from draftsmith.report.recipe_text import RECIPE, recipe_text
from draftsmith.report.settings import ReportSettings
from draftsmith.report.write import write_report

NAME = "report"
INPUTS = ("check", "breakeven", "data", "capture", "train", "export", "verify", "serve", "bench")


def plan(settings: ReportSettings, job: Job) -> Plan:
    """Reads files, starts nothing."""
    return Plan(seconds=5.0, note="report.html, report.md, report.json, model_card.md")


def run(settings: ReportSettings, job: Job) -> dict[str, Any]:
    """Write the report into job.folder("report"). Raises EnvironmentFailed when a finished stage left a file that cannot be read."""
    content = build(settings, job)
    folder = job.folder(NAME)
    atomic_write_text(folder / RECIPE, recipe_text(settings, job))
    write_report(folder, content)
    job.talk.say(f"report: {folder / 'report.html'}")
    verdict = content["verdict"]
    cells = [] if verdict is None else verdict["cells"]
    return {
        "verdict": NO_VERDICT if verdict is None else verdict["sentence"],
        "cells": [{"concurrency": cell["concurrency"], "verdict": cell["verdict"]} for cell in cells],
        "absent": content["absent"],
    }
