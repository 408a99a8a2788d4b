"""Phases of a start on real logs, and hangs: a process tree that does nothing is told apart from one that works without a word."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from draftsmith.engines import process
from draftsmith.engines.protocol import Launch
from draftsmith.engines.server import Server, stop_all, wait_ready
from draftsmith.engines.startup import Startup, doing
from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Talk
from engine_fakes import PYTHON, FakeEngine, fake_launch

LOGS = Path(__file__).parents[1] / "data" / "logs"
QUIET = Talk(quiet=True)


def told_phases(engine: str, text: str, tmp_path: Path, chunk: int) -> list[str]:
    """What a start says, its log arriving in chunks."""
    log = tmp_path / "log"
    log.write_text("")
    startup = Startup(engine, log)
    said = [str(startup)]
    for begin in range(0, len(text), chunk):
        with log.open("a") as file:
            file.write(text[begin : begin + chunk])
        if startup.look():
            said.append(str(startup))
    assert not startup.look()
    return said


def test_phases_of_a_real_vllm_start(tmp_path: Path) -> None:
    text = (LOGS / "vllm-0.32.0" / "up.log").read_text()
    assert told_phases("vllm", text, tmp_path, 40) == [
        "start of the process",
        "engine process",
        "weights",
        "weights 0/1",
        "weights 1/1",
        "drafter weights",
        "drafter weights 0/1",
        "drafter weights 1/1",
        "KV pool",
        "warm-up",
        "HTTP server",
    ]


def test_phases_of_a_real_sglang_start(tmp_path: Path) -> None:
    text = (LOGS / "sglang-0.5.23" / "up.log").read_text()
    assert told_phases("sglang", text, tmp_path, 40) == [
        "start of the process",
        "arguments",
        "processes",
        "weights",
        "weights 0/1",
        "weights 1/1",
        "KV pool",
        "HTTP server",
        "warm-up",
    ]


GPU_LINES = (
    "(Worker pid=2) INFO 11-29 15:11:20 [gpu_model_runner.py:1] Starting to load model /m...\n"
    "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.0it/s]\r"
    "(Worker pid=2) INFO 11-29 15:11:20 [gpu_worker.py:1] Available KV cache memory: 60.1 GiB\n"
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  33%|###3      | 17/51 [00:01<00:02, 15.0it/s]\n"
)


def test_phases_that_only_a_gpu_has(tmp_path: Path) -> None:
    """Lines as vLLM's source writes them; not from a run."""
    assert told_phases("vllm", GPU_LINES, tmp_path, 1000)[-1] == "graph capture 17/51"


def server(tmp_path: Path, **flags: float) -> Server:
    return Server(FakeEngine(), PYTHON, fake_launch(**flags), tmp_path / "log")


def test_a_tree_that_stands_still_hangs(tmp_path: Path) -> None:
    hanging = server(tmp_path, ready_after=-1)
    try:
        while "loads" not in hanging.log.read_text():
            time.sleep(0.05)
        os.kill(hanging.pid, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(
            EnvironmentFailed, match=r"fake hangs in start of the process: no log line, .* for 3 s; .* is stopped"
        ) as caught:
            wait_ready([hanging], 60, QUIET, stall_s=3)
        assert time.monotonic() - begin < 30
        assert "last said: fake engine loads" in caught.value.hint
    finally:
        hanging.stop()


BUSY = {
    "computes": "while True: sum(range(10000))",
    "reads": "import os, time\nwhile True:\n    with open('/dev/zero', 'rb') as f: f.read(1 << 20)\n    time.sleep(0.2)",
    "talks": "import time\nwhile True:\n    print('still here', flush=True)\n    time.sleep(0.5)",
}


class Busy(FakeEngine):
    """Never ready, never still."""

    def argv(self, python: Path, launch: Launch, port: int) -> list[str]:
        return [str(python), "-c", BUSY[str(launch.flags["how"])]]


def test_trees_that_work_do_not_hang(tmp_path: Path) -> None:
    """Side by side: one that stood still would be named as hanging before the time is up."""
    busy = [Server(Busy(), PYTHON, Launch("baseline", Path("/nowhere"), {"how": how}), tmp_path / how) for how in BUSY]
    try:
        with pytest.raises(EnvironmentFailed, match="was not ready after"):
            wait_ready(busy, 4, QUIET, stall_s=2)
    finally:
        stop_all(busy)


def test_what_proc_tells(tmp_path: Path) -> None:
    me = os.getpid()
    assert process.start_ticks(me) == process.start_ticks(me) and process.cpu_s(me) > 0 and process.read_bytes(me) > 0
    gone = 2**22 + 1  # above the highest pid
    assert process.start_ticks(gone) is None and process.cpu_s(gone) == 0 and process.read_bytes(gone) == 0
    assert f"(pid {me}) runs" in doing([me]) and doing([gone]) == ""
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 3\n")
    assert process.oom_kills(tmp_path / "vmstat") == 3 and process.oom_kills(tmp_path / "gone") == 0


def test_a_kill_for_lack_of_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own count of such kills went up while the engine died of a signal."""
    died = server(tmp_path)
    monkeypatch.setattr(process, "oom_kills", lambda: died.process.killed_before + 1)
    os.kill(died.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFailed, match="the kernel killed 1 process of this machine for lack of memory") as caught:
        wait_ready([died], 20, QUIET)
    assert "lower the cache size" in caught.value.hint
    died.stop()
