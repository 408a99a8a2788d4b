"""Long-lived servers with the real vLLM CPU engine: start, status, logs, profile, a killed worker, and starts that cannot work.

One server does for everything that needs one; the starts that fail take seconds each.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_engine_real import ENV, FLAGS, NAME, READY_TIMEOUT_S, random_eagle3

from draftsmith.engines import environments
from draftsmith.engines.protocol import Drafting, Engine, Launch
from draftsmith.engines.readback import environment_of
from draftsmith.engines.registry import engine_for
from draftsmith.engines.server import start
from draftsmith.engines.vllm.engine import VLLM
from draftsmith.errors import EnvironmentFailed
from draftsmith.serve import records, state
from draftsmith.settings import EngineSettings
from engine_fakes import alive

pytestmark = pytest.mark.engine
SECRET = "sk-not-to-be-seen"


@pytest.fixture(scope="module")
def target() -> Path:
    return environments.target_folder("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of our own with the engines and models of the real one: records and logs of others are not touched."""
    folder = tmp_path_factory.mktemp("home")
    for name in ("engines", "models"):
        (folder / name).symlink_to(environments.home() / name)
    return folder


class Commands:
    """`draftsmith serve ...` in processes of their own, as a user types it."""

    def __init__(self, env: dict[str, str], recipe: Path) -> None:
        self.env = env
        self.recipe = recipe

    def __call__(self, *words: str, code: int = 0) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "draftsmith", "serve", *words, "--json"], env=self.env, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == code, done.stderr
        assert SECRET not in done.stdout + done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def serve(home: Path, target: Path, child_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """One running server with a random drafter: it drafts, and nothing is accepted. Everything of it ends with the module."""
    folder = tmp_path_factory.mktemp("serve")
    random_eagle3(folder / "drafter", target)
    secrets = folder / "secrets.env"
    secrets.write_text(f"VLLM_API_KEY={SECRET}\n")
    secrets.chmod(0o600)
    engine = {"name": NAME, "flags": FLAGS, "env": ENV, "ready_timeout_s": READY_TIMEOUT_S}
    recipe = folder / "recipe.yaml"
    recipe.write_text(json.dumps({"name": "real", "target": {"model": str(target)}, "engine": engine, "drafter": {"depth": 2}}))
    env = {**child_env, "DRAFTSMITH_HOME": str(home), "NCCL_P2P_LEVEL": "SYS", "VLLM_API_KEY": SECRET}
    commands = Commands(env, recipe)
    words = ["--drafter", str(folder / "drafter"), "--env-file", str(secrets), "--trace-dir", str(folder / "traces")]
    commands("start", str(recipe), "engine.env.VLLM_SERVER_DEV_MODE=1", *words)
    yield commands
    commands("stop", "--all")


def test_status_of_a_server_that_another_command_started(serve: Commands) -> None:
    [told] = serve("status")["servers"]
    assert told["state"] == "healthy" and told["name"] == "real" and 1e9 < told["rss_bytes"] < 12e9
    titles = " ".join(process["title"] for process in told["processes"])
    assert "VLLM::EngineCore" in titles and "VLLM::Worker" in titles
    effective = told["effective"]
    assert effective["depth"] == "2" and effective["drafting_method"] == "eagle3" and effective["max_num_seqs"] == "4"
    assert told["planned"]["max_num_seqs"] == "4" and SECRET not in json.dumps(told)
    serve("start", str(serve.recipe), "--arm", "baseline", "--name", "real", code=2)  # the name is taken


def test_variables_arrive_in_every_process(serve: Commands) -> None:
    """Also in those that change their titles: without SPT_NOENV the beginning of their environment would be gone."""
    [told] = serve("status", "real")["servers"]
    for process in told["processes"][1:]:
        found = environment_of(process["pid"])
        assert found is not None, process
        assert found["NCCL_P2P_LEVEL"] == "SYS" and found["VLLM_CPU_KVCACHE_SPACE"] == "1" and found["VLLM_API_KEY"] == SECRET


def test_logs_by_phase(serve: Commands) -> None:
    lines = serve("logs", "real", "--phase")["lines"]
    phases = [line[:18].strip() for line in lines]
    assert phases == ["engine process", "weights", "drafter weights", "KV pool", "warm-up", "HTTP server"]
    assert len(serve("logs", "-n", "5")["lines"]) == 5


def test_a_round_is_split_into_draft_verify_and_host(serve: Commands) -> None:
    told = serve("profile", "real", "--requests", "2", "--output-tokens", "24")
    assert told["rounds"] == 2 * 23 and told["tokens_per_round"] == 1.0  # the random drafter is never right
    parts = told["split"]
    assert abs(sum(parts.values()) - told["round_ms"]) < 0.01
    assert parts["verify_ms"] > parts["draft_ms"] > 0 and parts["host_ms"] > 0  # 30 layers against two passes of one
    assert told["traced"]["rounds"] >= 15 and not told["traced"]["on_gpu"]


def test_a_killed_worker_is_told_within_a_second_and_nothing_is_left(serve: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Last of those that use the server. The engine's core is killed; the API server above it stands for a moment."""
    monkeypatch.setenv("DRAFTSMITH_HOME", serve.env["DRAFTSMITH_HOME"])
    [record] = records.named("real")
    processes = state.status(record)["processes"]
    [core] = [process["pid"] for process in processes if process["title"] == "VLLM::EngineCore"]
    os.kill(core, signal.SIGKILL)
    killed = time.monotonic()
    while (told := state.status(record))["state"] not in ("failing", "died"):
        assert time.monotonic() - killed < 1, told
    assert time.monotonic() - killed < 1
    assert told["first_to_end"] == f"VLLM::EngineCore (pid {core}) ended by signal 9 (SIGKILL)"
    while (told := state.status(record))["state"] != "died":
        assert time.monotonic() - killed < 60, told
        time.sleep(0.1)
    assert f"VLLM::EngineCore (pid {core}) ended by signal 9 (SIGKILL)" in (told["cause"], told["first_to_end"])
    assert "killed from outside" in told["hint"]
    assert not any(alive(process["pid"]) for process in processes)
    assert "had already ended: died" in serve("stop", "real")["servers"][0]["said"]


# --- starts that cannot work -----------------------------------------------------------------------------------------


class Limited(VLLM):
    """vLLM under a limit of address space."""

    def argv(self, python: Path, launch: Launch, port: int) -> list[str]:
        return [str(shutil.which("prlimit")), f"--as={3 << 30}", *super().argv(python, launch, port)]


def without_weights(target: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in target.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).symlink_to(path)
    return folder


CASES = ("a bad flag", "a missing drafter", "too large a cache", "missing weights", "out of memory by a limit")


@pytest.fixture(scope="module")
def failures(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, EnvironmentFailed]:
    """What each start failed with. Two at a time: most of a start is imports, on one core."""
    folder = tmp_path_factory.mktemp("failures")
    engine, python = engine_for(EngineSettings(name=NAME))
    fine = Launch("baseline", target, FLAGS, ENV)
    launches: dict[str, tuple[Engine, Launch]] = {
        "a bad flag": (engine, fine.with_(flags={"no-such-flag": 1})),
        "a missing drafter": (engine, Launch("speculative", target, FLAGS, ENV, Drafting("eagle3", folder / "missing", 3))),
        "too large a cache": (engine, fine.with_(env={"VLLM_CPU_KVCACHE_SPACE": "900000"})),
        "missing weights": (engine, fine.with_(target=without_weights(target, folder / "target"))),
        "out of memory by a limit": (Limited(), fine),
    }

    def failure(case: str) -> EnvironmentFailed:
        kind, launch = launches[case]
        with pytest.raises(EnvironmentFailed) as caught, start(kind, python, launch, folder / f"{case}.log", READY_TIMEOUT_S):
            pytest.fail(f"{case}: started")
        return caught.value

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(failure, CASES), strict=True))


@pytest.mark.parametrize(
    ("case", "cause", "hint"),
    [
        ("a bad flag", "unrecognized arguments: --no-such-flag", "engine.flags"),
        ("a missing drafter", "/missing", ""),
        ("too large a cache", "is less than requested memory for kv (900000.0 GiB)", "VLLM_CPU_KVCACHE_SPACE"),
        ("missing weights", "Cannot find any model weights with `", "no weight files"),
        ("out of memory by a limit", "can't allocate memory: you tried to allocate 10", "ulimit"),
    ],
)
def test_a_start_that_fails_says_why(case: str, cause: str, hint: str, failures: dict[str, EnvironmentFailed]) -> None:
    assert cause in failures[case].message and hint in failures[case].hint
