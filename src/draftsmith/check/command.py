"""`draftsmith check` of a launch command: words in, (document, text, exit code) out. And the same before a server is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftsmith.check.command_line import Pasted, parse_argv, parse_command
from draftsmith.check.inputs import Asked, make_subject
from draftsmith.check.pins import broken_pins
from draftsmith.check.resolution import Resolution
from draftsmith.check.rules import by_severity, check_subject
from draftsmith.check.show import document, text
from draftsmith.check.subject import Subject
from draftsmith.check.weights import INDEX, weight_findings
from draftsmith.errors import CheckFailed, EnvironmentFailed, UsageError
from draftsmith.findings import Finding, errors, worst_first

__all__ = ["Asked", "check_launch", "refuse"]


def check_launch(asked: Asked, words: Sequence[str]) -> tuple[dict[str, Any], str, int]:
    """Every rule on one launch. Exit code 4 when there is an error among the findings, else 0."""
    if not words and asked.config is None:
        raise UsageError(
            "nothing to check: no recipe and no launch command",
            hint="draftsmith check RECIPE, or draftsmith check --engine sglang==0.5.17 -- sglang serve --model-path ...",
        )
    subject, resolution = judged(asked, parse_command(words) if words else Pasted(None))
    failed = bool(errors(resolution.findings))
    return document(subject, resolution), text(subject, resolution), CheckFailed.exit_code if failed else 0


def refuse(engine: str, python: Path, argv: Sequence[str], env: Mapping[str, str]) -> list[Finding]:
    """Every rule on the very words and variables that a server is about to get; the findings that it may start with.

    engine: NAME==VERSION. Raises CheckFailed naming the first errors.
    """
    _, resolution = judged(Asked(engine=engine), parse_argv(argv, env), python)
    wrong = errors(resolution.findings)
    if wrong:
        hint = f"{wrong[0].code}: {wrong[0].fix} (draftsmith check --explain {wrong[0].code}; --no-check starts it all the same)"
        raise CheckFailed(f"check refuses the launch: {worst_first(resolution.findings)}", hint=hint)
    return resolution.findings


def judged(asked: Asked, pasted: Pasted, python: Path | None = None) -> tuple[Subject, Resolution]:
    """The subject, and every finding about it. python: the engine's interpreter, when it is not the one of `engine add`."""
    subject, noticed = make_subject(asked, pasted)
    resolution = check_subject(subject)
    pins = broken_pins(python, subject.family) if python else installed_pins(subject)
    around = [*noticed, *target_findings(subject), *pins]
    return subject, dataclasses.replace(resolution, findings=by_severity([*around, *resolution.findings]))


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
