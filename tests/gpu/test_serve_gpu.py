"""Long-lived servers on a GPU engine: they start as planned, their settings and variables are read back, their deaths are explained.

Two servers, started side by side, do for everything that works; the starts that must fail run side by side too. An engine takes up to six
minutes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from gpu_engine import DEPTH, KINDS, TARGET, VARIABLE, Machine, version_of, why_not

from draftsmith.engines.protocol import Launch
from draftsmith.engines.readback import environment_of
from draftsmith.engines.registry import engine_for
from draftsmith.engines.server import Server, wait_ready
from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Talk
from draftsmith.serve import records, state
from draftsmith.settings import EngineSettings
from engine_fakes import alive

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=sorted(KINDS))
def engine_name(request: pytest.FixtureRequest) -> str:
    if reason := why_not(request.param):
        pytest.skip(reason)
    return request.param


@pytest.fixture(scope="module")
def machine(engine_name: str, tmp_path_factory: pytest.TempPathFactory, child_env: dict[str, str]) -> Iterator[Machine]:
    """Two running servers: "drafted" with a random drafter, "plain" without. A failed start is shown with what it said."""
    from draftsmith.models.checkpoint import write_random_drafter
    from draftsmith.settings import DrafterSettings

    folder = tmp_path_factory.mktemp(engine_name)
    drafter = write_random_drafter(Path(os.environ[TARGET]), DrafterSettings(depth=DEPTH), folder / "drafter", seed=0)
    inherited = {"PYTHONPATH": os.pathsep.join(filter(None, [child_env["PYTHONPATH"], os.environ.get("PYTHONPATH")]))}
    found = Machine(engine_name, folder, drafter, {**child_env, **inherited})
    begin = time.monotonic()
    try:
        ran = found.start_all(
            {
                "drafted": (found.recipe("drafted", {}, {}), ("--drafter", str(drafter), "--trace-dir", str(folder / "traces"))),
                "plain": (found.recipe("plain", found.kind.plain, {}), ("--arm", "baseline")),
            }
        )
        found.note("two starts side by side", time.monotonic() - begin)
        assert all(done.returncode == 0 for done in ran.values()), [done.stderr for done in ran.values()]
        yield found
    finally:
        found("stop", "--all")
        for log in (found.home / "servers").glob("*.log"):
            found.keep(log)


def test_the_settings_that_took_effect_are_read_back(machine: Machine) -> None:
    drafted, plain = machine.status("drafted"), machine.status("plain")
    assert drafted["state"] == plain["state"] == "healthy", (drafted, plain)
    effective = drafted["effective"]
    assert effective["depth"] == str(DEPTH) and effective["drafter"] == str(machine.drafter)
    assert effective["drafting_method"].lower() == "eagle3"
    assert {name: effective.get(name) for name in machine.kind.effective} == machine.kind.effective
    assert plain["effective"].get("depth", "None") == "None"
    told = set(drafted["planned"]) & set(effective)
    assert {"target", "drafter", "depth", "dtype"} <= told  # what was asked for is compared with what is, not only recorded


def test_variables_arrive_in_every_process(machine: Machine) -> None:
    name, value = VARIABLE
    processes = machine.status("drafted")["processes"]
    assert any(process["title"].startswith(machine.kind.worker) for process in processes)
    for process in processes:
        found = environment_of(process["pid"])
        assert (found is not None and found.get(name) == value) or not alive(process["pid"]), process


def test_a_port_in_use_is_refused_at_once(machine: Machine) -> None:
    port = int(machine.status("plain")["url"].rpartition(":")[2])
    begin = time.monotonic()
    done = machine.start("second", machine.recipe("second", {"port": port}, {}), "--arm", "baseline")
    machine.note("a port in use refused", time.monotonic() - begin)
    assert done.returncode == 4 and f"cannot use 127.0.0.1:{port}" in done.stderr and time.monotonic() - begin < 5


def test_a_port_that_is_taken_after_the_check(machine: Machine, tmp_path: Path) -> None:
    """The engine itself finds it out, and its log says so."""
    settings = EngineSettings(name=f"{machine.engine}=={version_of(machine.engine)}", python=sys.executable)
    engine, python = engine_for(settings)
    launch = Launch("baseline", machine.target, {**machine.kind.flags, **machine.kind.plain}, machine.launch_env)
    log = tmp_path / "port_taken.log"
    server = Server(engine, python, launch, log)
    try:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", server.port))
            taken.listen()
            with pytest.raises(EnvironmentFailed, match=r"(?i)already in use") as caught:
                wait_ready([server], 300, Talk(quiet=True))
    finally:
        server.stop()
        machine.keep(log)
    assert "another process" in caught.value.hint


def test_a_round_is_split_on_the_device(machine: Machine) -> None:
    done = machine("profile", "drafted", "--requests", "4", "--output-tokens", "64")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["tokens_per_round"] == pytest.approx(1.0, abs=0.6) and told["round_ms"] > 0
    if machine.kind.named:
        assert told["split"] and told["traced"]["on_gpu"] and min(told["split"].values()) > 0, told
    else:
        assert told["split"] is None and "VLLM_USE_V2_MODEL_RUNNER=0" in told["no_split"], told
    machine.note("round_ms", told["round_ms"])


@pytest.fixture(scope="module")
def refused(machine: Machine) -> dict[str, CompletedProcess[str]]:
    """Starts that cannot work, side by side."""
    import torch

    cases = {name: case for name, case in machine.kind.failures.items() if case.gpus <= torch.cuda.device_count()}
    starts = {name: (machine.recipe(name, case.flags, case.env, case.target), ("--arm", "baseline")) for name, case in cases.items()}
    return machine.start_all(starts)


@pytest.mark.parametrize("case", sorted({name for kind in KINDS.values() for name in kind.failures}))
def test_a_start_that_cannot_work_says_why(machine: Machine, refused: dict[str, CompletedProcess[str]], case: str) -> None:
    """Out of memory with the numbers of CUDA's own error, no GPU, NCCL without an interface."""
    if case not in machine.kind.failures:
        pytest.skip(f"{machine.engine} has no such case")
    if case not in refused:
        pytest.skip(f"needs {machine.kind.failures[case].gpus} GPUs")
    done, expected = refused[case], machine.kind.failures[case]
    assert done.returncode == 4, done.stderr
    message, _, hint = done.stderr.rpartition("error: ")[2].partition("\n  hint: ")
    assert re.search(expected.says, message) and expected.hint in hint, done.stderr
    assert "killed from outside" not in hint  # SGLang ends itself with SIGKILL after it has said why


def test_a_killed_worker_is_told_within_a_second(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Last of all: first its own death, while the engine above it still stands, and then the engine's."""
    monkeypatch.setenv("DRAFTSMITH_HOME", str(machine.home))
    record = records.read("drafted")
    assert record is not None
    processes = state.status(record)["processes"]
    [worker] = [process for process in processes if process["title"].startswith(machine.kind.worker)]
    os.kill(worker["pid"], signal.SIGKILL)
    killed = time.monotonic()
    while (told := state.status(record))["state"] not in ("failing", "died"):
        assert time.monotonic() - killed < 5, told
    machine.note("a killed worker is told", time.monotonic() - killed)
    assert time.monotonic() - killed < 1, told
    assert f"{worker['title']} (pid {worker['pid']}) ended" in told["first_to_end"]
    assert "signal 9" in told["first_to_end"] or "only its parent knows" in told["first_to_end"]  # an old kernel
    while (told := state.status(record))["state"] != "died":
        assert time.monotonic() - killed < 60, told
        time.sleep(0.1)
    machine.note("the engine of a killed worker is gone", time.monotonic() - killed)
    assert worker["title"] in told["cause"] or "exit code" in told["cause"], told
    assert not any(alive(process["pid"]) for process in processes)
    assert "had already ended: died" in machine("stop", "drafted").stdout
