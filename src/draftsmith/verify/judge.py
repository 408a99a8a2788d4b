"""What divergences and replays mean: findings and the reports in verify.json. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftsmith.findings import Finding
from draftsmith.verify.replay.rounds import Replay
from draftsmith.verify.sequences import Answer, Divergence
from draftsmith.verify.servers import Served


def lossless_report(expected: Sequence[Answer], served: Served, parted: Sequence[Divergence], num_tokens: int) -> dict[str, Any]:
    """One dtype's entry under "lossless". `equal`: token-identical; `lossless`: identical except at near-ties."""
    record = served.record
    return {
        "prompts": len(expected),
        "tokens": sum(min(len(answer.tokens), num_tokens) for answer in served.answers),
        "identical": len(expected) - len(parted),
        "equal": not parted,
        "lossless": all(d.explained for d in parted),
        "divergences": [d.as_dict() for d in parted],
        "acceptance": record["acceptance"],
        "ready_s": record["ready_s"],
        "answer_s": record["answer_s"],
    }


def equality_findings(dtype: str, parted: Sequence[Divergence], prompts: int, largest: float) -> list[Finding]:
    """An error for divergences that no near-tie explains; information on the others."""
    findings = []
    faults = [d for d in parted if not d.explained]
    if faults:
        worst = max(faults, key=lambda d: d.logit_gap)
        evidence = (
            f"{dtype}: {len(faults)} of {prompts} answers part from the baseline's without a near-tie, worst {worst.id} at output token "
            f"{worst.position}: {worst.reference} became {worst.served}, logit gap {worst.logit_gap:.3g} (near-tie: below {largest:g})"
        )
        fix = "use another engine version or attention backend, and report it to the engine with the raw replies in verify/"
        findings.append(Finding("DS701", "error", evidence, "speculation changes the answers", fix))
    if len(parted) > len(faults):
        gap = max(d.logit_gap for d in parted if d.explained)
        evidence = (
            f"{dtype}: {len(parted) - len(faults)} of {prompts} answers part from the baseline's at a near-tie, largest logit gap {gap:.3g}"
        )
        consequence = "rounding depends on the shape of the batch; both answers are the target's"
        findings.append(Finding("DS702", "info", evidence, consequence, "nothing, or serve in float32 to see equality"))
    return findings


def replay_findings(dtype: str, replay: Replay, largest: float) -> list[Finding]:
    """Is served acceptance what the exported drafter reaches on the same tokens?"""
    predicted, served = replay.predicted, replay.served
    if not served.rounds:
        evidence = f"{dtype}: the server counted no round over {replay.prompts} prompts"
        return [Finding("DS803", "error", evidence, "it did not speculate", "read the server's log in verify/")]
    if not served.accepted:
        evidence = f"{dtype}: {served.rounds} rounds and not one draft accepted (accept_len 1.00)"
        fix = "compare taps, vocabulary map and algorithm of the launch with the export; or train longer"
        return [Finding("DS803", "error", evidence, "speculation can only cost time", fix)]
    findings = []
    if abs(replay.gap) > largest:
        evidence = (
            f"{dtype}: accept_len predicted {predicted.accept_len:.3f}, served {served.accept_len:.3f} "
            f"({100 * replay.gap:+.1f} %, allowed {100 * largest:g} %), rounds {predicted.rounds} and {served.rounds}"
        )
        consequence = "the engine feeds the drafter something else than training did (taps, positions, embedding, norm)"
        findings.append(Finding("DS801", "error", evidence, consequence, "compare the position gaps in verify.json; check the taps first"))
    for position, gap in enumerate(replay.position_gaps, start=1):
        if abs(gap) > largest:
            evidence = f"{dtype}: draft {position}: predicted minus served share of rounds is {100 * gap:+.1f} points"
            findings.append(Finding("DS802", "warning", evidence, "prediction and serving differ at this position", "see DS801"))
    return findings
