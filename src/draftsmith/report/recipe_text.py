"""The recipe as it ran: every setting of every finished stage, overrides included, so that one command makes the numbers again."""

from __future__ import annotations

from typing import Any

import yaml

from draftsmith.engines.environments import home
from draftsmith.job import Job
from draftsmith.manifest import Manifest
from draftsmith.report.settings import ReportSettings

RECIPE = "recipe.yaml"
HEADER = "# Written by the report stage: the settings of this run, overrides included.\n"
STAGES = ("check", "breakeven", "data", "capture", "train", "export", "verify", "serve", "bench")


def recipe_text(settings: ReportSettings, job: Job) -> str:
    """YAML that `draftsmith run` accepts. A stage that has not finished is left out."""
    recipe: dict[str, Any] = {
        "name": job.run.name,
        "target": {"model": target_name(job), "trust_remote_code": job.trust_remote_code},
        "engine": job.engine.model_dump(mode="json"),
        "drafter": job.drafter.model_dump(mode="json"),
    }
    for stage in STAGES:
        manifest = Manifest.read(job.folder(stage))
        if manifest is not None:
            recipe[stage] = manifest.config["settings"]
    recipe["report"] = settings.model_dump(mode="json")
    return HEADER + yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=120)


def target_name(job: Job) -> str:
    """The name of a fetched model, else its folder."""
    return job.target.name if job.target.parent == home() / "models" else str(job.target)
