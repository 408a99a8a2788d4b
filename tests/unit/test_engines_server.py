"""Servers: readiness, death with its cause, ports, and trees that always end. The engine is a fake one; its processes are real."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from draftsmith.engines.process import EngineProcess
from draftsmith.engines.protocol import Launch
from draftsmith.engines.readback import environment_of
from draftsmith.engines.server import start, start_many
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.job import Talk
from engine_fakes import PYTHON, FakeEngine, fake_launch, marked, wait_until_gone


def with_mark(launch: Launch) -> tuple[Launch, str]:
    mark = uuid.uuid4().hex
    return launch.with_(env={"DRAFTSMITH_TEST_MARK": mark}), mark


def test_ready_when_healthy(tmp_path: Path) -> None:
    launch, mark = with_mark(fake_launch(ready_after=0.5))
    with start(FakeEngine(), PYTHON, launch, tmp_path / "log", 20) as server:
        assert 0.5 <= server.ready_s < 15
        assert server.get_json("/v1/models") == {"path": "/v1/models"}
        assert server.generation_tokens() == 7
        acceptance = server.acceptance(1)
        assert acceptance is not None and acceptance.accept_len == 1.75
        assert server.pid in marked(mark)
        assert server.rss_bytes() > 4_000_000
        with pytest.raises(EnvironmentFailed, match="400"):
            server.post_json("/v1/completions", {})
    assert marked(mark) == []


def test_a_server_of_a_stage_wants_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is asked without one: the caller's is for servers that stay. So it is open, which is said where others can reach it."""
    monkeypatch.setenv("VLLM_API_KEY", "sk-of-the-caller")
    monkeypatch.setenv("VLLM_OTHER", "kept")
    with start(FakeEngine(), PYTHON, fake_launch().with_(flags={"host": "0.0.0.0"}), tmp_path / "log", 20, Talk()) as server:
        found = environment_of(server.pid)
    assert found is not None and "VLLM_API_KEY" not in found and found["VLLM_OTHER"] == "kept"
    assert "without an API key" in capsys.readouterr().err


def test_death_while_loading_is_noticed_with_its_cause(tmp_path: Path) -> None:
    launch, mark = with_mark(fake_launch(ready_after=-1, die_after=0.3, grandchildren=2))
    with (
        pytest.raises(EnvironmentFailed, match="ValueError: the fake engine dies on purpose") as caught,
        start(FakeEngine(), PYTHON, launch, tmp_path / "log", 60),
    ):
        pytest.fail("a dead engine became ready")
    assert "exit status 3" in caught.value.message
    assert str(tmp_path / "log") in caught.value.hint
    assert marked(mark) == []


def test_death_is_noticed_within_a_second(tmp_path: Path) -> None:
    with start(FakeEngine(), PYTHON, fake_launch(), tmp_path / "log", 20) as server:
        server.check_alive()
        os.kill(server.pid, signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(EnvironmentFailed, match="died"):
            while True:
                server.check_alive()
                assert time.monotonic() - killed < 1
                time.sleep(0.01)
        with pytest.raises(EnvironmentFailed, match="signal 9"):
            server.metrics_text()


def test_not_ready_in_time(tmp_path: Path) -> None:
    launch, mark = with_mark(fake_launch(ready_after=-1))
    with (
        pytest.raises(EnvironmentFailed, match=r"not ready after .* last said: fake engine loads") as caught,
        start(FakeEngine(), PYTHON, launch, tmp_path / "log", 4),
    ):
        pytest.fail("became ready")
    assert "ready_timeout_s" in caught.value.hint
    assert marked(mark) == []


def test_stop_ends_the_whole_tree_quickly(tmp_path: Path) -> None:
    launch, mark = with_mark(fake_launch(grandchildren=3))
    with start(FakeEngine(), PYTHON, launch, tmp_path / "log", 20) as server:
        assert len(marked(mark)) == 5  # supervisor, engine, and three grandchildren of which one was orphaned
        begin = time.monotonic()
        server.stop()
        assert time.monotonic() - begin < 3
        assert marked(mark) == []
        server.stop()  # again does no harm


# every generation forks the next and ends at once, so a walk through /proc soon misses it; the last one stays and ignores SIGTERM
HOPPER = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end = time.monotonic() + 1
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
time.sleep(60)
"""


def test_a_process_that_hides_from_a_walk_through_proc_ends_too(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    process = EngineProcess([sys.executable, "-c", HOPPER], {"DRAFTSMITH_TEST_MARK": mark}, tmp_path / "log")
    time.sleep(0.3)
    process.stop()
    time.sleep(1)  # by now a survivor would stand still
    assert marked(mark) == []


def test_the_engine_has_a_temporary_folder_that_goes_with_it(tmp_path: Path) -> None:
    launch = fake_launch().with_(env={"TMPDIR": str(tmp_path)})
    with start(FakeEngine(), PYTHON, launch, tmp_path / "log", 20) as server:
        environ = Path("/proc", str(server.pid), "environ").read_text().split("\0")
        [scratch] = [Path(value.removeprefix("TMPDIR=")) for value in environ if value.startswith("TMPDIR=")]
        assert scratch.parent == tmp_path and scratch.is_dir()
        (scratch / "socket").write_text("left behind")
    assert not scratch.exists()


def test_an_exception_inside_the_block_ends_the_tree(tmp_path: Path) -> None:
    launch, mark = with_mark(fake_launch(grandchildren=3))
    with pytest.raises(ZeroDivisionError), start(FakeEngine(), PYTHON, launch, tmp_path / "log", 20):
        raise ZeroDivisionError
    assert marked(mark) == []


# the forked child keeps the pipe's write end open: the end of the parent must be noticed without it
PARENT = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background inherits an ignored SIGINT
from engine_fakes import FakeEngine, PYTHON, fake_launch
from draftsmith.engines.server import start
launch = fake_launch(grandchildren=3).with_(env={"DRAFTSMITH_TEST_MARK": sys.argv[1]})
with start(FakeEngine(), PYTHON, launch, Path(sys.argv[2]), 20) as server:
    if os.fork() == 0:
        time.sleep(10)
        os._exit(0)
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_tree_ends_with_its_parent(number: signal.Signals, tmp_path: Path, child_env: dict[str, str]) -> None:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-c", PARENT, mark, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=child_env) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        assert len(marked(mark)) == 5
        parent.send_signal(number)
        assert wait_until_gone(mark, 5) == []
        parent.wait(10)


def test_the_tree_ends_with_its_supervisor(tmp_path: Path) -> None:
    launch, mark = with_mark(fake_launch())
    with start(FakeEngine(), PYTHON, launch, tmp_path / "log", 20) as server:
        os.kill(server.process.supervisor.pid, signal.SIGKILL)
        assert wait_until_gone(mark, 5) == []
        with pytest.raises(EnvironmentFailed, match="died"):
            server.check_alive()


def test_a_second_parent_keeps_its_server(tmp_path: Path) -> None:
    """The pipe's write end must not leak into the next supervisor: the first server ends although the second runs."""
    with (
        start(FakeEngine(), PYTHON, fake_launch(), tmp_path / "a", 20) as first,
        start(FakeEngine(), PYTHON, fake_launch(), tmp_path / "b", 20) as second,
    ):
        begin = time.monotonic()
        first.stop()
        assert time.monotonic() - begin < 3
        assert second.is_ready()


def test_side_by_side_and_all_stop_when_one_dies(tmp_path: Path) -> None:
    good, good_mark = with_mark(fake_launch())
    with start_many(FakeEngine(), PYTHON, [good, good], [tmp_path / "a", tmp_path / "b"], 20) as servers:
        assert len({server.port for server in servers}) == 2
        assert all(server.is_ready() for server in servers)
    assert marked(good_mark) == []
    bad = fake_launch(ready_after=-1, die_after=0.2)
    with (
        pytest.raises(EnvironmentFailed, match="on purpose"),
        start_many(FakeEngine(), PYTHON, [good, bad], [tmp_path / "a", tmp_path / "b"], 20),
    ):
        pytest.fail("a dead engine became ready")
    assert marked(good_mark) == []


def test_a_taken_port_is_one_clear_error(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(EnvironmentFailed, match=f"127.0.0.1:{port}") as caught,
            start(FakeEngine(), PYTHON, fake_launch(port=port), tmp_path / "log", 20),
        ):
            pytest.fail("started on a taken port")
        assert "port" in caught.value.hint
    with start(FakeEngine(), PYTHON, fake_launch(port=port), tmp_path / "log", 20) as server:
        assert server.url == f"http://127.0.0.1:{port}"


def test_port_that_is_no_port(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 to 65535"), start(FakeEngine(), PYTHON, fake_launch(port=0), tmp_path / "log", 20):
        pytest.fail("started")


def test_an_interpreter_that_does_not_exist(tmp_path: Path) -> None:
    with (
        pytest.raises(EnvironmentFailed, match="No such file"),
        start(FakeEngine(), tmp_path / "no-python", fake_launch(), tmp_path / "log", 20),
    ):
        pytest.fail("started")


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(EnvironmentFailed, match="log"),
        start(FakeEngine(), PYTHON, fake_launch(), tmp_path / "file" / "log", 20),
    ):
        pytest.fail("started")


def test_the_toolkits_import_path_is_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/toolkit")
    with start(FakeEngine(), PYTHON, fake_launch(), tmp_path / "log", 20) as server:
        assert b"PYTHONPATH" not in Path("/proc", str(server.pid), "environ").read_bytes()
