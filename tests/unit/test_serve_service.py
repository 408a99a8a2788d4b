"""serve start, status, logs, stop with a fake engine: its processes, its supervisor and its records are real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from draftsmith import cli
from draftsmith.engines import registry
from draftsmith.engines.protocol import Launch
from draftsmith.errors import CheckFailed, EnvironmentFailed, UsageError
from draftsmith.job import Talk
from draftsmith.serve import records, service, state
from draftsmith.serve.service import Plan
from engine_fakes import PYTHON, FakeEngine, alive, fake_launch

QUIET = Talk(quiet=True)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Records in a folder of the test's own; whatever a test leaves running ends with it."""
    monkeypatch.setenv("DRAFTSMITH_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(registry.ENGINES, "fake", FakeEngine)  # type: ignore[arg-type]
    yield
    for record in records.all_records():
        service.stop(record.name)


def plan(
    name: str = "one", launch: Launch | None = None, secrets: Mapping[str, str] | None = None, engine: FakeEngine | None = None
) -> Plan:
    return Plan(name, "fake==1", engine or FakeEngine(), PYTHON, launch or fake_launch(), Path("/r.yaml"), 20, secrets or {})


STARTER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background inherits an ignored SIGINT
from pathlib import Path
from draftsmith.engines import registry
from draftsmith.errors import DraftsmithError
from draftsmith.job import Talk
from draftsmith.serve import service
from engine_fakes import PYTHON, FakeEngine, fake_launch
launch = fake_launch(ready_after=float(sys.argv[2]), grandchildren=3)
try:
    service.start(service.Plan(sys.argv[1], "fake==1", FakeEngine(), PYTHON, launch, Path("/r.yaml"), 20), Talk(quiet=True))
except DraftsmithError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def starter(env: Mapping[str, str], name: str, ready_after_s: float = 0.1) -> subprocess.Popen[str]:
    """`serve start` in a process of its own."""
    words = [sys.executable, "-c", STARTER, name, str(ready_after_s)]
    environment = {**env, "DRAFTSMITH_HOME": os.environ["DRAFTSMITH_HOME"]}
    return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_a_server_outlives_the_command_that_started_it(child_env: dict[str, str]) -> None:
    assert starter(child_env, "one").wait(20) == 0
    [record] = records.all_records()
    told = state.status(record)
    assert told["state"] == "healthy" and told["health"] == 200 and told["ready_s"] > 0
    assert len(told["processes"]) == 5 and told["rss_bytes"] > 10e6  # supervisor, engine, three grandchildren of which one was orphaned
    pids = [process["pid"] for process in told["processes"]]
    begin = time.monotonic()
    assert service.stop("one")["said"] == "one: stopped, 5 processes ended"
    assert time.monotonic() - begin < 4 and not any(map(alive, pids))
    assert service.stop("one") == {"name": "one", "stopped": 0, "runs": False, "said": "no server one is known: nothing to stop"}


def test_two_that_start_the_same_name_at_once(child_env: dict[str, str]) -> None:
    first, second = starter(child_env, "one", 2), starter(child_env, "one", 2)
    codes = {first.wait(20), second.wait(20)}
    assert codes == {0, 1}
    said = (first if first.returncode else second).communicate()[1]
    assert "UsageError: another command is starting or stopping the server one" in said
    assert len(records.all_records()) == 1
    with pytest.raises(UsageError, match="already runs at http"):
        service.start(plan(), QUIET)


def test_a_start_that_is_interrupted_leaves_nothing(child_env: dict[str, str]) -> None:
    process = starter(child_env, "one", 60)
    deadline = time.monotonic() + 10
    while not records.all_records():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    [record] = records.all_records()
    assert state.status(record)["state"] == "starting"
    process.send_signal(signal.SIGINT)
    assert process.wait(10) != 0
    assert records.marked(record.mark) == [] and records.all_records() == []


def test_a_start_that_fails_leaves_nothing_and_says_why() -> None:
    with pytest.raises(EnvironmentFailed, match="ValueError: the fake engine dies on purpose"):
        service.start(plan(launch=fake_launch(ready_after=-1, die_after=0.2, grandchildren=2)), QUIET)
    assert records.all_records() == []


def test_a_server_that_died_is_told_with_its_cause() -> None:
    record = service.start(plan(launch=fake_launch(die_after=1.0)), QUIET)
    deadline = time.monotonic() + 10
    while (told := state.status(record))["state"] != "died":
        assert time.monotonic() < deadline, told
        time.sleep(0.05)
    assert told["exit_status"] == 3 and told["cause"] == "ValueError: the fake engine dies on purpose"
    assert service.stop("one")["said"] == "one had already ended: died: ValueError: the fake engine dies on purpose"
    assert records.all_records() == []


def test_a_pid_that_another_process_has_now_is_not_ours() -> None:
    """A record from before a reboot, or whose pid was given away: the process that has the number now is not touched."""
    record = service.start(plan(), QUIET)
    service.stop("one")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        for changes in ({"start_ticks": 1}, {"boot": "another"}):
            records.write(record.with_(**{"pid": stranger.pid, "start_ticks": record.start_ticks, **changes}))
            [found] = records.all_records()
            assert not found.alive() and state.status(found)["state"] == "stopped"
            assert service.stop("one")["stopped"] == 0 and alive(stranger.pid)
        stranger.kill()


def test_a_damaged_record_keeps_no_other_server_running(capsys: pytest.CaptureFixture[str]) -> None:
    record = service.start(plan(), QUIET)
    records.record_path("broken").write_text("{")
    assert cli.main(["serve", "stop", "--all"]) == 4
    told = capsys.readouterr().err
    assert "broken.json" in told and "one: stopped" in told and not record.alive()
    assert cli.main(["serve", "stop", "one"]) == 0  # another one's record is not read
    records.record_path("broken").unlink()


def test_stop_finds_what_a_killed_supervisor_left_behind() -> None:
    record = service.start(plan(launch=fake_launch(grandchildren=3)), QUIET)
    assert record.pid is not None
    os.kill(record.pid, signal.SIGKILL)
    while record.alive():
        time.sleep(0.01)
    left = records.marked(record.mark)
    assert len(left) >= 3
    said = service.stop("one")
    assert "its supervisor was gone" in said["said"] and not any(map(alive, left))


def test_logs_and_their_end(tmp_path: Path) -> None:
    record = service.start(plan(launch=fake_launch(die_after=1.0)), QUIET)
    text = "".join(service.follow(record))  # ends with the server
    assert text.startswith("fake engine loads") and "dies on purpose" in text
    with pytest.raises(UsageError, match="no server 'two'"):
        records.named("two")


def test_secrets_reach_the_engine_and_no_record() -> None:
    secret = "hf_0123456789"
    record = service.start(plan(secrets={"HF_TOKEN": secret}), QUIET)
    engine = state.status(record)["processes"][1]["pid"]
    assert f"HF_TOKEN={secret}".encode() in Path("/proc", str(engine), "environ").read_bytes()
    path = records.record_path("one")
    assert secret not in path.read_text() and json.loads(path.read_text())["env"]["HF_TOKEN"] == "(hidden)"
    assert path.stat().st_mode & 0o077 == 0
    assert secret not in json.dumps(state.status(record))
    with pytest.raises(UsageError, match="'api-key' would put a secret on the command line"):
        service.start(plan("two", fake_launch().with_(flags={"api-key": secret})), QUIET)


def test_the_callers_key_is_handed_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-of-the-caller")
    record = service.start(plan(launch=fake_launch().with_(flags={"host": "0.0.0.0"})), Talk())
    engine = state.status(record)["processes"][1]["pid"]
    assert b"VLLM_API_KEY=sk-of-the-caller" in Path("/proc", str(engine), "environ").read_bytes()
    assert "sk-of" not in records.record_path("one").read_text() and "WARNING" not in capsys.readouterr().err
    service.start(plan("two", secrets={"VLLM_API_KEY": "sk-of-the-file"}), QUIET)
    [row] = [state.status(record) for record in records.named("two")]
    assert b"VLLM_API_KEY=sk-of-the-file" in Path("/proc", str(row["processes"][1]["pid"]), "environ").read_bytes()


def test_open_to_the_network_without_a_key_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(EnvironmentFailed):
        service.start(plan(launch=fake_launch(die_after=0.1, ready_after=-1).with_(flags={"host": "0.0.0.0"})), Talk())
    assert "WARNING: the server listens on 0.0.0.0 without an API key" in capsys.readouterr().err
    with pytest.raises(EnvironmentFailed):
        service.start(plan(launch=fake_launch(die_after=0.1, ready_after=-1)), Talk())
    assert "WARNING" not in capsys.readouterr().err


class Wrapped(FakeEngine):
    """An engine whose start script changes a variable."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def argv(self, python: Path, launch: Launch, port: int) -> list[str]:
        return ["/usr/bin/env", *self.words, *super().argv(python, launch, port)]


@pytest.mark.parametrize(("words", "has"), [(("NCCL_P2P_LEVEL=LOC",), "has 'LOC'"), (("-u", "NCCL_P2P_LEVEL"), "lacks it")])
def test_a_variable_that_does_not_arrive_is_an_error(words: tuple[str, ...], has: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = fake_launch().with_(env={"NCCL_P2P_LEVEL": "SYS"})
    with pytest.raises(CheckFailed, match=rf"NCCL_P2P_LEVEL: 'SYS' was set, .*{has}"):
        service.start(plan(launch=launch, engine=Wrapped(*words)), QUIET)
    assert records.all_records() == []
    monkeypatch.setenv("NCCL_P2P_LEVEL", "SYS")  # from the caller's environment: the same
    with pytest.raises(CheckFailed, match="NCCL_P2P_LEVEL"):
        service.start(plan(engine=Wrapped(*words)), QUIET)


class Capped(FakeEngine):
    """An engine that was asked for more than it does."""

    def requested(self, launch: Launch) -> dict[str, str]:
        return {"depth": "15", "dtype": "bfloat16"}

    def effective(self, log_text: str, pages: Mapping[str, str]) -> dict[str, str]:
        return {"depth": "1", "dtype": "torch.bfloat16"}


def test_a_setting_that_was_changed_is_an_error() -> None:
    with pytest.raises(CheckFailed, match=r"changed what it was asked for: depth: 15 was asked for, 1 is in effect\n"):
        service.start(plan(engine=Capped()), QUIET)
    assert records.all_records() == []


def test_names_that_are_no_names() -> None:
    for name in ("", "../x", "a b", "-x", "x" * 101):
        with pytest.raises(UsageError, match="is not a name"):
            service.start(plan(name), QUIET)


class Drifting(FakeEngine):
    """An engine whose settings change while it runs (an operator, an update of its weights)."""

    def effective(self, log_text: str, pages: Mapping[str, str]) -> dict[str, str]:
        return {"depth": "3"}


def test_status_sees_what_has_changed_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.ENGINES, "fake", Drifting)  # type: ignore[arg-type]
    record = service.start(plan(engine=Drifting()), QUIET)
    assert state.status(record)["state"] == "healthy"
    told = state.status(record.with_(planned={"depth": "5"}, env={"NCCL_ALGO": "Ring", "HF_TOKEN": "(hidden)"}))
    assert told["state"] == "changed" and told["changed"][0] == "depth: 5 was asked for, 3 is in effect"
    assert told["changed"][1].startswith("NCCL_ALGO: 'Ring' was set, ") and not any("HF_TOKEN" in line for line in told["changed"])
