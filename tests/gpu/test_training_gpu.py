"""Capture and training on a GPU give what they give on the CPU, and a run that was stopped goes on there as well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_capture_store import SETTINGS as CAPTURE  # pyright: ignore[reportMissingImports]
from test_capture_store import make_job  # pyright: ignore[reportMissingImports]
from test_train import SETTINGS as TRAIN  # pyright: ignore[reportMissingImports]

from draftsmith.capture import stage as capture
from draftsmith.job import Job
from draftsmith.manifest import read_jsonl
from draftsmith.models.checkpoint import load_trained
from draftsmith.models.target import load_target
from draftsmith.store import read_store
from draftsmith.train import stage as train

pytestmark = pytest.mark.gpu


def on(device: str, folder: Path, epochs: int = 4) -> Job:
    """A job whose capture and train stages ran on that device."""
    job = make_job(folder, train=24)
    capture.run(CAPTURE.model_copy(update={"device": device}), job)
    train.run(TRAIN.model_copy(update={"device": device, "epochs": epochs}), job)
    return job


def test_the_store_holds_the_same_states(tmp_path: Path) -> None:
    jobs = {device: make_job(tmp_path / device) for device in ("cpu", "cuda")}
    for device, job in jobs.items():
        capture.run(CAPTURE.model_copy(update={"device": device}), job)
    stores = [{sample.id: sample for sample in read_store(job.folder("capture"), "train")} for job in jobs.values()]
    for name, sample in stores[0].items():
        other = stores[1][name]
        assert sample.token_ids_T.tolist() == other.token_ids_T.tolist()
        torch.testing.assert_close(sample.features_TF, other.features_TF, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(sample.last_TH, other.last_TH, rtol=1e-3, atol=1e-3)


def test_the_same_batches_give_the_same_losses_and_vocabulary(tmp_path: Path) -> None:
    jobs = [on(device, tmp_path / device) for device in ("cpu", "cuda")]
    losses = [[row["loss"] for row in read_jsonl(job.folder("train") / "metrics.jsonl") if "loss" in row] for job in jobs]
    assert len(losses[0]) == len(losses[1]) > 4
    assert losses[0][0] == pytest.approx(losses[1][0], rel=0.02)  # bfloat16 arithmetic of two machines
    assert losses[0][-1] == pytest.approx(losses[1][-1], rel=0.1) and losses[1][-1] < losses[1][0]
    target = load_target(jobs[0].target, (1, 3, 5))
    one, other = (load_trained(job.folder("train"), target) for job in jobs)
    assert one.target_ids_W.tolist() == other.target_ids_W.tolist()


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    job = on("cuda", tmp_path, epochs=2)
    before = read_jsonl(job.folder("train") / "metrics.jsonl")
    train.run(TRAIN.model_copy(update={"device": "cuda", "epochs": 4}), replace(job))
    after = read_jsonl(job.folder("train") / "metrics.jsonl")
    steps = [row["step"] for row in after if "loss" in row]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > len([row for row in before if "loss" in row])
