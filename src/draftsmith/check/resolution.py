"""What an engine makes of the asked settings: the nouns that the rules of both engines share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from draftsmith.check.args import Args
from draftsmith.check.raises import raised
from draftsmith.check.since import nearest
from draftsmith.check.subject import Subject
from draftsmith.findings import Finding, Severity


@dataclass(frozen=True)
class Resolution:
    """requested: the speculative settings as written. effective: what the engine runs with, by the engine's own names; None when it
    stops while it resolves its arguments."""

    effective: dict[str, Any] | None
    requested: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


Rule = Callable[[Subject], list[Finding]]


@dataclass
class Case:
    """One resolution in the making: the rules of an algorithm add to it in the engine's order."""

    subject: Subject
    args: Args
    effective: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    stopped: bool = False

    @property
    def version(self) -> Version:
        """The version whose rules apply: the nearest one that was read."""
        return nearest(self.subject.family, self.subject.version)

    def say(self, code: str, severity: Severity, evidence: str, consequence: str, fix: str, raises: str = "") -> None:
        self.findings.append(Finding(code, severity, evidence, consequence, fix, raises))

    def stop(self, code: str, evidence: str, consequence: str, fix: str, raises: str = "") -> None:
        """An error on which the engine stops while it resolves its arguments."""
        self.say(code, "error", evidence, consequence, fix, raises)
        self.stopped = True

    def raised(self, name: str, /, **values: object) -> str:
        """The engine's error by its name in raises.yaml."""
        return raised(self.subject.family, self.version, name, **values)

    def done(self, requested: dict[str, Any]) -> Resolution:
        return Resolution(None if self.stopped else self.effective, requested, self.findings)
