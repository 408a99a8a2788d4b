"""A GPU that is asked for and is not there; what it computes where there is one is in tests/gpu/test_training_gpu.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_capture_store import SETTINGS, make_job

from draftsmith.capture import stage as capture
from draftsmith.errors import EnvironmentFailed
from draftsmith.models.device import usable
from draftsmith.models.target import load_target
from draftsmith.train import stage as train
from draftsmith.train.settings import TrainSettings


def test_the_cpu_is_always_there(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    assert load_target(job.target, (1, 3, 5), device=usable("cpu", "capture.device")).device == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said_by_the_setting(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    with pytest.raises(EnvironmentFailed, match=r"capture\.device is cuda, but torch .* (finds no GPU|without CUDA)"):
        capture.run(SETTINGS.model_copy(update={"device": "cuda"}), job)
    capture.run(SETTINGS, job)
    with pytest.raises(EnvironmentFailed, match=r"train\.device is cuda") as raised:
        train.run(TrainSettings(device="cuda"), job)
    assert "train.device=cpu" in raised.value.hint
