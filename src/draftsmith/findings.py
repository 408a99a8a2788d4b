"""A finding with a stable code: what `check` and `verify` say. Rules are pure functions that return lists of findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """One thing found. Codes: DS1xx target folder, DS2xx engine, DS3xx drafter shape, DS4xx engine flags,
    DS5xx disk and memory, DS6xx the exported drafter, DS7xx greedy equality, DS8xx acceptance as predicted."""

    code: str
    severity: Severity
    evidence: str  # what was found, with the numbers
    consequence: str  # what would happen
    fix: str  # what to change
    raises: str = ""  # "ValueError: message", as the engine prints it when this stops it; " ..." where the message goes on

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """One line for the terminal."""
        raises = f" ({' '.join(self.raises.split())})" if self.raises else ""
        return f"{self.code} {self.severity}: {self.evidence}; {self.consequence}{raises}"


def errors(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that stop the flow."""
    return [finding for finding in findings if finding.severity == "error"]


def worst_first(findings: Sequence[Finding], shown: int = 3) -> str:
    """The first errors, one a line, and how many more there are."""
    wrong = errors(findings)
    more = f"\n  and {len(wrong) - shown} more" if len(wrong) > shown else ""
    return f"{len(wrong)} error{'s' if len(wrong) != 1 else ''}:\n  " + "\n  ".join(finding.line() for finding in wrong[:shown]) + more
