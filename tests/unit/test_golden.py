"""The committed answers of the real engines: well formed, about configs and cases that exist. The rules have to reproduce them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FILES = sorted(GOLDEN.glob("*.json"))


def test_enough_versions() -> None:
    names = [path.stem.rsplit("-", 1)[0] for path in FILES]
    assert names.count("sglang") >= 5 and names.count("vllm") >= 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_answers_every_case_of_its_family(path: Path) -> None:
    document = json.loads(path.read_text())
    assert path.stem == f"{document['engine']}-{document['version']}"
    assert document["made"] in ("ran", "read") and {document["engine"], "torch", "transformers"} <= set(document["tools"])
    asked = yaml.safe_load((GOLDEN / f"{document['engine']}.yaml").read_text())
    assert [case["name"] for case in document["cases"]] == [case["name"] for case in asked["cases"] if is_due(case, document["version"])]
    for case in document["cases"]:
        problems = malformed(case, frozenset(asked["kept"].split()))
        assert problems == [], case["name"]


def is_due(case: dict[str, Any], version: str) -> bool:
    """Was this version asked the case?"""
    return Version(case.get("since", "0")) <= Version(version) and version in case.get("versions", [version])


def malformed(case: dict[str, Any], kept: frozenset[str]) -> list[str]:
    """What is wrong with a case."""
    found = [name for name in (case["target"], case["drafter"]) if name and not (GOLDEN / "configs" / name / "config.json").exists()]
    outcome = case["outcome"]
    if ("error" in outcome) == ("effective" in outcome):
        found.append("neither or both of error and effective")
    if "error" in outcome and set(outcome["error"]) != {"type", "message"}:
        found.append("an error is a type and a message")
    if outcome.get("error", {}).get("type") in ("Died", "ModuleNotFoundError", "ImportError", "NameError"):
        found.append(f"a fault of the asking, not an answer: {outcome['error']}")
    if "failed to be inspected" in outcome.get("error", {}).get("message", ""):
        found.append("vLLM could not import the model's class there")
    found += [name for name in outcome.get("effective", {}) if name not in kept]
    text = json.dumps(case)
    return found + [word for word in ("/root", "/tmp", "/home") if word in text]


def test_configs_are_small_and_name_their_class() -> None:
    for path in sorted((GOLDEN / "configs").iterdir()):
        text = (path / "config.json").read_text()
        assert len(text) < 4500, path.name
        assert json.loads(text)["architectures"], path.name
