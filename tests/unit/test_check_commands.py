"""check: real launch commands of others, where they are at hand. Those that work pass, those that fail are refused or warned about."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from draftsmith.check.command_line import parse_command
from draftsmith.check.inputs import Asked, make_subject
from draftsmith.check.rules import check_subject
from draftsmith.findings import Finding

DATA = Path(os.environ.get("DRAFTSMITH_SHARED_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data") / "configs"
FILE = DATA / "commands.jsonl"
COMMANDS = [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.is_file() else []
# commands without a version: the release that was new when they were written
TIMES = {"c29": "0.5.15", "c31": "0.4.1", "c32": "0.5.2", "c39": "0.10.2"}
CAUSES = {"c39": "DS204", "c40": "DS456", "c43": "DS360"}  # what was reported, as a finding
NEWEST = {"sglang": "0.5.17", "vllm": "0.33.0"}


def version_of(command: dict[str, Any]) -> str:
    """As it says (at least that one: the newest), else of its time."""
    said = command["version"] or ""
    return said if re.match(r"\d", said) else TIMES.get(command["id"], NEWEST[command["engine"]])


def config_of(folder: str, name: str | None) -> str | None:
    """The public config of a model that a command names."""
    for ending in (".json", ".partial.json"):
        path = DATA / folder / f"{(name or '').replace('/', '__')}{ending}"
        if name and path.is_file():
            return str(path)
    return None


def judged(command: dict[str, Any]) -> list[Finding]:
    text = command["command"]
    target = re.search(r"(?:--model(?:-path)?[ =]|vllm serve )(\S+)", text)
    drafter = re.search(r"(?:--speculative-draft(?:-model-path)?[ =]|\"model\": ?\"|--spec-model )([^\s\"]+)", text)
    asked = Asked(
        engine=f"{command['engine']}=={version_of(command)}",
        target=config_of("targets", target and target[1]),
        drafter=config_of("drafters", drafter and drafter[1]),
    )
    subject, noticed = make_subject(asked, parse_command([text]))
    return [*noticed, *check_subject(subject).findings]


@pytest.mark.skipif(not COMMANDS, reason="no public commands at hand")
@pytest.mark.parametrize("command", COMMANDS, ids=[command["id"] for command in COMMANDS])
def test_verdicts_on_public_commands(command: dict[str, Any]) -> None:
    found = judged(command)
    if command["outcome"] == "works":
        assert [finding for finding in found if finding.severity == "error"] == []
    if command["outcome"] == "fails":
        said = {finding.code for finding in found if finding.severity != "info"} - {"DS110"}
        assert said, command["note"]
        assert CAUSES.get(command["id"]) in {None, *said}, command["note"]
