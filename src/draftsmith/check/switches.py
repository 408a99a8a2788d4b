"""Environment switches by version, and quantisation that the drafter inherits or does not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from draftsmith.check.args import Args, switched
from draftsmith.check.deployment import speculating
from draftsmith.check.since import table
from draftsmith.check.subject import Subject
from draftsmith.findings import Finding
from draftsmith.models.text_config import text_part

OPT_OUT = "speculative-draft-model-quantization"


def environment_findings(subject: Subject) -> list[Finding]:
    """Switches that this version no longer reads, and the one that lets contexts outgrow what was trained."""
    findings = []
    for name, row in table(subject.family)["environment"].items():
        if name in subject.env and subject.version >= Version(row["until"]):
            severity = "warning" if switched(subject.env, name) is False else "info"
            evidence = f"{name}={subject.env[name]} with {subject.family} {subject.version}"
            findings.append(Finding("DS437", severity, evidence, "it is not read any more and has no effect", row["instead"]))
    other = {"vllm": "SGLANG_", "sglang": "VLLM_"}[subject.family]
    findings += [
        Finding(
            "DS437", "info", f"{name} is set", f"it is a switch of the other engine; {subject.family} does not read it", f"remove {name}"
        )
        for name in subject.env
        if name.startswith(other) and not name.startswith("SGLANG_USE_CPU")
    ]
    return findings


def quantization_findings(subject: Subject, effective: Mapping[str, Any]) -> list[Finding]:
    """SGLang hands the target's --quantization on to the drafter; vLLM never does."""
    args = Args(subject.flags)
    asked = args.text("quantization")
    if not speculating(effective) or asked is None:
        return []
    own = "quantization_config" in text_part(subject.drafter or {})
    separate = drafter_is_separate(subject, effective)
    if subject.family == "sglang" and separate and not own and not args.has(OPT_OUT) and asked != "unquant":
        evidence = f"--quantization {asked} without --{OPT_OUT}"
        why = f"SGLang quantises the drafter with {asked} too: it may not load, or accept less"
        fix = f"--{OPT_OUT} unquant" if subject.version >= Version("0.5.9") else "SGLang 0.5.9 or newer has --" + OPT_OUT
        return [Finding("DS407", "warning", evidence, why, fix)]
    if subject.family == "vllm" and separate and not own and not str(subject.flags.get("speculative-config", "")).count("quantization"):
        evidence = f"--quantization {asked}, and the drafter has no quantisation of its own"
        why = "vLLM does not hand it on: the drafter runs unquantised, which is right for a head trained that way"
        return [Finding("DS461", "info", evidence, why, 'nothing; "quantization" in --speculative-config quantises the drafter')]
    return []


def drafter_is_separate(subject: Subject, effective: Mapping[str, Any]) -> bool:
    """Does the drafter lie in a folder of its own (not the target's MTP layer, not n-grams)?"""
    args, path = Args(subject.flags), effective.get("speculative_draft_model_path") or effective.get("model")
    return path is not None and path not in ("the target", args.text("model-path"), args.text("model"))
