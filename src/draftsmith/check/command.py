"""`draftsmith check` of a launch command: words in, (document, text, exit code) out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from draftsmith.check.inputs import Asked, make_subject
from draftsmith.check.rules import check_subject, worst_first
from draftsmith.check.show import document, text
from draftsmith.errors import CheckFailed, UsageError
from draftsmith.findings import errors

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
    resolution = dataclasses.replace(resolution, findings=worst_first([*noticed, *resolution.findings]))
    failed = bool(errors(resolution.findings))
    return document(subject, resolution), text(subject, resolution), CheckFailed.exit_code if failed else 0
