"""All rules on one subject: flags resolved by the engine's own rules, then what they mean for drafter and deployment.

A new rule is a function Subject -> findings, entered in RULES.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from draftsmith.check.context import context_findings
from draftsmith.check.deployment import deployment_findings
from draftsmith.check.flag_names import canonical
from draftsmith.check.ledger import ledger_findings
from draftsmith.check.memory import memory_findings
from draftsmith.check.pairing_rules import pairing_findings
from draftsmith.check.resolution import Resolution, Rule
from draftsmith.check.sglang_resolve import resolve_sglang
from draftsmith.check.since import nearest, was_read
from draftsmith.check.subject import Subject
from draftsmith.check.switches import environment_findings, quantization_findings
from draftsmith.check.tapping import tap_findings
from draftsmith.check.vllm_resolve import resolve_vllm
from draftsmith.findings import Finding

RESOLVERS = {"sglang": resolve_sglang, "vllm": resolve_vllm}
RULES: tuple[Rule, ...] = (ledger_findings, tap_findings, context_findings, memory_findings)
# names that are judged by a table: in a version that was not read, such an error is only likely
BY_TABLE = frozenset({"DS415", "DS430", "DS431", "DS432", "DS435", "DS450", "DS453", "DS458", "DS459"})
# the engine has resolved its arguments when it stops on these, unless a resolver said otherwise
AFTER = frozenset({"DS204", "DS360", "DS425"})
ORDER = {"error": 0, "warning": 1, "info": 2}


def resolve(subject: Subject) -> Resolution:
    """Requested and effective settings, and every finding about the flags, the worst first."""
    subject, names = canonical(subject)
    resolution = RESOLVERS[subject.family](subject)
    effective = resolution.effective or {}
    findings = names + deployment_findings(subject, effective) + resolution.findings
    findings += environment_findings(subject) + quantization_findings(subject, effective)
    guessed_wrong = any(finding.code == "DS452" and finding.severity == "error" for finding in findings)
    if resolution.effective is not None and not guessed_wrong:
        method = effective.get("speculative_algorithm") or effective.get("method")
        findings += pairing_findings(subject.family, method, subject.drafter)
    if not was_read(subject.family, subject.version):
        findings = [assumed_finding(subject), *(less_sure(finding) for finding in findings)]
    return concluded(resolution, findings)


def check_subject(subject: Subject) -> Resolution:
    """`resolve` and the rules about drafter, taps, context and memory."""
    resolution = resolve(subject)
    named, _ = canonical(subject)
    return concluded(resolution, [*resolution.findings, *(finding for rule in RULES for finding in rule(named))])


def concluded(resolution: Resolution, findings: Iterable[Finding]) -> Resolution:
    """With these findings; nothing takes effect where the engine stops before its arguments are resolved."""
    ordered = by_severity(findings)
    stops = any(finding.severity == "error" and finding.raises and finding.code not in AFTER for finding in ordered)
    return dataclasses.replace(resolution, effective=None if stops else resolution.effective, findings=ordered)


def assumed_finding(subject: Subject) -> Finding:
    """The version is not among those whose source was read."""
    near = nearest(subject.family, subject.version)
    evidence = f"{subject.family} {subject.version} is not in the tables; the rules of {near} are applied"
    older = subject.version < near
    return Finding(
        "DS208",
        "warning" if older else "info",
        evidence,
        "what changed between the two is not known here" + (": older versions have other flags and other limits" if older else ""),
        f"ask the engine itself: draftsmith engine probe {subject.family}=={subject.version}",
    )


def less_sure(finding: Finding) -> Finding:
    """An error that rests on a table of another version is a warning."""
    if finding.severity != "error" or finding.code not in BY_TABLE:
        return finding
    return dataclasses.replace(finding, severity="warning", evidence=f"{finding.evidence} (assumed: not read in this version)")


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Without repeats, the worst first; among errors what the argument parser stops on, in the parser's order, then the order given."""
    return sorted(dict.fromkeys(findings), key=lambda finding: (ORDER[finding.severity], met(finding.raises)))


def met(raises: str) -> int:
    """How early the engine meets an error: first the beginnings of several flags, then values, then words that it cannot place."""
    early = ("SystemExit: ambiguous", "SystemExit: argument", "SystemExit")
    return next((number for number, text in enumerate(early) if raises.startswith(text)), len(early))
