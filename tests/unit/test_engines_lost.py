"""A process of an engine ends while the engine above it still stands: noticed within a second, named, with how it ended."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from draftsmith.engines import registry, supervisor
from draftsmith.engines.death import CRASHED, KILLED, why
from draftsmith.engines.process import Ended, EngineProcess, lost_worker, tree
from draftsmith.engines.server import Server, start, wait_ready
from draftsmith.engines.startup import title
from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Talk
from draftsmith.serve import records, service, state
from draftsmith.serve.service import Plan
from draftsmith.serving import status_lines
from engine_fakes import PYTHON, FakeEngine, fake_launch

QUIET = Talk(quiet=True)
LOOKED_S = 2.5  # by then the supervisor has seen a process twice
NOTICED_S = 3.0  # some tenths of a second, and the rest for a machine that has other work; without our looking it is five and more
NEVER_ZOMBIE = 2


def worker_of(root: int) -> int:
    """The fake engine's worker, once it has its title."""
    deadline = time.monotonic() + 10
    while not (found := [pid for pid in tree(root) if title(pid) == "fake::worker"]):
        assert time.monotonic() < deadline
    time.sleep(LOOKED_S)
    return found[0]


@pytest.mark.parametrize("kind", [1, NEVER_ZOMBIE])
def test_a_lost_worker_is_noticed_although_the_server_holds_the_connection_open(kind: int, tmp_path: Path) -> None:
    """Also when its parent has collected it, if the kernel tells how such a process ended."""
    with start(FakeEngine(), PYTHON, fake_launch(worker=kind), tmp_path / "log", 20) as server:
        worker = worker_of(server.pid)
        assert server.process.lost("^fake::") is None
        os.kill(worker, signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(EnvironmentFailed, match=r"fake has lost a process in .*: fake::worker") as caught:
            while time.monotonic() - killed < NOTICED_S:  # the first may be answered before the worker is gone
                server.get("/health")
        assert time.monotonic() - killed < NOTICED_S
        assert server.process.poll() is None
        assert f"(pid {worker}) ended by signal 9 (SIGKILL)" in caught.value.message or (
            kind == NEVER_ZOMBIE and kernel() < (6, 15) and "only its parent knows" in caught.value.message
        )
        assert KILLED in caught.value.hint
    assert not (tmp_path / "log.workers").exists()  # once the server is stopped, how its processes end says nothing


def kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


def test_a_start_that_loses_a_worker_does_not_wait_for_its_timeout(tmp_path: Path) -> None:
    server = Server(FakeEngine(), PYTHON, fake_launch(worker=1, ready_after=-1), tmp_path / "log")
    try:
        os.kill(worker_of(server.pid), signal.SIGSEGV)
        killed = time.monotonic()
        with pytest.raises(
            EnvironmentFailed, match=r"lost a process in start of the process: fake::worker .* by signal 11 \(SIGSEGV\)"
        ) as caught:
            wait_ready([server], 60, QUIET)
        assert time.monotonic() - killed < NOTICED_S and CRASHED in caught.value.hint
    finally:
        server.stop()


def test_a_process_that_takes_long_to_end_is_noted_once_and_with_its_signal(tmp_path: Path) -> None:
    """Two gigabytes of memory take a moment to give back: it is seen on its way out, and again when it has ended."""
    child = "import time; b = bytearray(2 << 30); b[:: 4096] = bytes([1]) * (len(b) // 4096); print('full', flush=True); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait(); import time; time.sleep(600)"
    process = EngineProcess([str(PYTHON), "-c", parent], {}, tmp_path / "log")
    try:
        while "full" not in (tmp_path / "log").read_text():
            time.sleep(0.05)
        time.sleep(LOOKED_S)
        [pid] = [pid for pid in process.pids() if pid != process.pid]
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while not (found := process.lost(".")):
            assert time.monotonic() < deadline
        assert (found.pid, found.status) == (pid, -9)
        while Path("/proc", str(pid)).exists():
            assert time.monotonic() < deadline
        time.sleep(0.5)
        assert len((tmp_path / "log.workers").read_text().splitlines()) == 1
    finally:
        process.stop()


def test_a_kernel_without_pidfds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then processes are looked for, one by one."""

    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(supervisor.os, "pidfd_open", refuse)
    monkeypatch.setattr(supervisor, "LOOK_S", 0.0)
    monkeypatch.setattr(supervisor, "POLL_S", 0.0)
    workers = supervisor.Workers(engine=0, log=str(tmp_path / "log"), poll=select.poll())
    with subprocess.Popen(["/bin/sleep", "600"]) as child:
        for _ in range(2):
            workers.look()
        child.kill()
        deadline = time.monotonic() + 5
        while child.pid in workers.titles:  # noted while it ends, forgotten when it has ended
            assert time.monotonic() < deadline
            workers.look()
    found = lost_worker(tmp_path / "log", "sleep")
    assert found and (found.pid, found.status) == (child.pid, -9)


def test_a_start_that_is_lost_is_given_up_although_the_engine_goes_on(tmp_path: Path) -> None:
    server = Server(FakeEngine(), PYTHON, fake_launch(ready_after=-1, lost_port=1), tmp_path / "log")
    try:
        with pytest.raises(EnvironmentFailed, match=r"fake cannot go on in start of the process: .*address already in use") as caught:
            wait_ready([server], 20, QUIET)
        assert server.process.poll() is None and "another process took the port" in caught.value.hint
    finally:
        server.stop()


def test_status_says_failing_and_then_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTSMITH_HOME", str(tmp_path))
    monkeypatch.setitem(registry.ENGINES, "fake", FakeEngine)  # type: ignore[arg-type]
    launch = fake_launch(worker=1, follow_after=4)
    record = service.start(Plan("one", "fake==1", FakeEngine(), PYTHON, launch, Path("/r.yaml"), 20), QUIET)
    try:
        told = state.status(record)
        assert told["state"] == "healthy"
        worker = worker_of(told["processes"][0]["pid"])
        os.kill(worker, signal.SIGKILL)
        killed = time.monotonic()
        while (told := state.status(record))["state"] == "healthy":
            assert time.monotonic() - killed < NOTICED_S
        assert time.monotonic() - killed < NOTICED_S and told["state"] == "failing"
        assert told["cause"] == told["first_to_end"] == f"fake::worker (pid {worker}) ended by signal 9 (SIGKILL)"
        assert "failing" in status_lines(told) and str(worker) in status_lines(told) and KILLED in status_lines(told)
        while (told := state.status(record))["state"] == "failing":
            assert time.monotonic() - killed < 10
            time.sleep(0.05)
        assert told["state"] == "died" and told["exit_status"] == 5
        assert told["cause"] == told["first_to_end"] and str(worker) in told["cause"]
    finally:
        service.stop("one")
    assert records.all_records() == []


def note(log: Path, *rows: tuple[int, str, int | None]) -> None:
    lines = [json.dumps({"pid": pid, "title": title, "status": status, "at": 1.0}) + "\n" for pid, title, status in rows]
    Path(f"{log}.workers").write_text("".join(lines) + '{"pid": 9, "title": "half a li')


def test_only_a_worker_that_failed_is_a_loss(tmp_path: Path) -> None:
    """Not a compiler that was killed, not a worker that was let go; and the first of several is the one that counts."""
    log = tmp_path / "log"
    assert lost_worker(log, "^VLLM::") is None
    note(log, (1, "/usr/bin/nvcc", -9), (2, "VLLM::Worker_TP1", 0))
    assert lost_worker(log, "^VLLM::") is None
    note(log, (3, "VLLM::Worker_TP0", -6), (4, "VLLM::EngineCore", 1))
    found = lost_worker(log, "^VLLM::")
    assert found is not None and str(found) == "VLLM::Worker_TP0 (pid 3) ended by signal 6 (SIGABRT)"


def test_what_the_log_says_comes_before_how_a_process_ended() -> None:
    """An engine kills its processes after one of them has said why. While it still stands both are told: the log may speak of a request."""
    engine, lost = FakeEngine(), Ended(7, "fake::worker", -9, 1.0)
    said = "Traceback (most recent call last):\nValueError: no such layer\n"
    assert why(engine, said, lost, 1)[0] == "ValueError: no such layer"
    assert why(engine, said, lost, None)[0] == f"{lost}; ValueError: no such layer"
    assert why(engine, "loading\n", lost, 1) == (str(lost), KILLED)
    assert why(engine, "loading\n", None, 137) == ("loading", KILLED)
    assert why(engine, "loading\n", None, 1) == ("loading", "see the log")
    assert why(engine, "loading\n", Ended(7, "fake::worker", 1, 1.0), 1)[0].endswith("ended with exit status 1")
    assert "only its parent knows" in str(Ended(7, "fake::worker", None, 1.0))
