"""`draftsmith check` of a launch command: words in, (document, text, exit code) out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from draftsmith.check.inputs import Asked, make_subject
from draftsmith.check.pins import broken_pins
from draftsmith.check.rules import by_severity, check_subject
from draftsmith.check.show import document, text
from draftsmith.check.subject import Subject
from draftsmith.check.weights import INDEX, weight_findings
from draftsmith.errors import CheckFailed, EnvironmentFailed, UsageError
from draftsmith.findings import Finding, errors

__all__ = ["Asked", "check_launch"]


def check_launch(asked: Asked, words: Sequence[str]) -> tuple[dict[str, Any], str, int]:
    """Every rule on one launch. Exit code 4 when there is an error among the findings, else 0."""
    if not words and asked.config is None:
        raise UsageError(
            "nothing to check: no recipe and no launch command",
            hint="draftsmith check RECIPE, or draftsmith check --engine sglang==0.5.17 -- sglang serve --model-path ...",
        )
    subject, noticed = make_subject(asked, words)
    resolution = check_subject(subject)
    around = [*noticed, *target_findings(subject), *installed_pins(subject)]
    resolution = dataclasses.replace(resolution, findings=by_severity([*around, *resolution.findings]))
    failed = bool(errors(resolution.findings))
    return document(subject, resolution), text(subject, resolution), CheckFailed.exit_code if failed else 0


def installed_pins(subject: Subject) -> list[Finding]:
    """Broken requirements of that engine's own environment, when it was added here."""
    from draftsmith.engines import environments  # needed by this rule only

    try:
        python = environments.python_of(f"{subject.engine}=={subject.version}")
    except EnvironmentFailed:
        return []
    return broken_pins(python, subject.family)


def target_findings(subject: Subject) -> list[Finding]:
    """Shards of the target that are missing or truncated, when it has weights at all (here a lone config.json is enough)."""
    folder = subject.target_folder
    if folder is None or not any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", INDEX)):
        return []
    return weight_findings(folder)
