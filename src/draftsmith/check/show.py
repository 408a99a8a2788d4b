"""What a check found, for people and as JSON."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from draftsmith.check.resolution import Resolution
from draftsmith.check.since import was_read
from draftsmith.check.subject import Subject
from draftsmith.findings import Finding

SEVERITIES = ("error", "warning", "info")
LABEL = {"evidence": "", "consequence": "then", "fix": "fix"}


def document(subject: Subject, resolution: Resolution) -> dict[str, Any]:
    """The JSON of `draftsmith check`."""
    return {
        "engine": subject.engine,
        "version": str(subject.version),
        "findings": [finding.as_dict() for finding in resolution.findings],
        "requested": plain(resolution.requested),
        "effective": plain(resolution.effective),
        "assumed": not was_read(subject.family, subject.version),
    }


def plain(value: Any) -> Any:
    """A setting as JSON can hold it: NaN and Infinity, which Python and the engines read in a flag, as words."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def text(subject: Subject, resolution: Resolution) -> str:
    """Findings, the worst first; requested beside effective; the verdict as the last line."""
    width = min(max(shutil.get_terminal_size((110, 24)).columns, 60), 140)
    parts = [block(finding, width) for finding in resolution.findings]
    table = settings(resolution)
    if table:
        parts.append(table)
    return "\n\n".join([*parts, verdict(subject, resolution.findings)])


def block(finding: Finding, width: int) -> str:
    """One finding: code, severity and evidence, then what would happen and what to change."""
    lines = wrapped(f"{finding.severity} {finding.code}: {finding.evidence}", "", width)
    lines += wrapped(finding.consequence, "  then: ", width)
    if finding.raises:
        lines += wrapped(" ".join(finding.raises.split()), "  raises: ", width)
    if finding.fix != "nothing":
        lines += wrapped(finding.fix, "  fix:  ", width)
    return "\n".join(lines)


def wrapped(sentence: str, label: str, width: int) -> list[str]:
    indent = " " * (len(label) or 4)
    return textwrap.wrap(label + sentence, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def settings(resolution: Resolution) -> str:
    """requested | effective, one setting a line; empty when there is no speculation at all."""
    effective = resolution.effective
    names: list[str] = list(dict.fromkeys([*resolution.requested, *(effective or {})]))
    if not resolution.requested and not any((effective or {}).values()):
        return ""
    rows = [
        (name, cell(resolution.requested, name, "-"), cell(effective, name, "-") if effective is not None else "does not start")
        for name in names
    ]
    rows.insert(0, ("setting", "requested", "effective"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}".rstrip() for row in rows)


def cell(values: Mapping[str, Any] | None, name: str, absent: str) -> str:
    """A value as a flag would write it."""
    value = (values or {}).get(name)
    if value is None or value is True or value is False:
        return {None: absent, True: "on", False: "off"}[value]
    shown = str(value)
    return shown if len(shown) <= 60 else f"...{shown[-57:]}"


def verdict(subject: Subject, findings: Sequence[Finding]) -> str:
    """One line: refused or not, and how much was found."""
    counts = {severity: sum(finding.severity == severity for finding in findings) for severity in SEVERITIES}
    said = ", ".join(
        f"{number} {severity if severity == 'info' or number == 1 else severity + 's'}" for severity, number in counts.items() if number
    )
    engine = f"{subject.family} {subject.version}"
    if counts["error"]:
        first = next(finding.code for finding in findings if finding.severity == "error")
        return f"refused for {engine}: {said}. More about one: draftsmith check --explain {first}"
    return f"nothing stands against it in {engine}" + (f": {said}" if said else "")
