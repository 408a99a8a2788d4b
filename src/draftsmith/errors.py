"""Errors that a user can meet. Each says what was found, what was expected, and (hint) what to change.

Exit codes: 0 done or gate passed, 1 gate failed, 2 usage or recipe, 3 inconclusive or invalid measurement,
4 check or environment failed, 130 interrupted.
"""

from __future__ import annotations


class DraftsmithError(Exception):
    """Root of every error shown to a user without a traceback."""

    exit_code = 4

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(DraftsmithError):
    """A recipe or a command line that cannot be meant."""

    exit_code = 2


class InvalidMeasurement(DraftsmithError):
    """A measurement that proves nothing: errors, early ends, missing counters."""

    exit_code = 3


class EnvironmentFailed(DraftsmithError):
    """Something outside the recipe is missing or broken: engine, model, disk, port."""

    exit_code = 4


class CheckFailed(DraftsmithError):
    """`check` or `verify` found an error in target, drafter, engine or flags."""

    exit_code = 4
