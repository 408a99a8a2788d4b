"""The model card says which versions read the ids of its taps rightly, and for which one they were written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftsmith.export.settings import ExportSettings
from draftsmith.export.stage import write_model_card
from draftsmith.job import Job, Talk
from draftsmith.metrics import Acceptance
from draftsmith.models.checkpoint import drafter_config
from draftsmith.models.eagle3 import Eagle3Shape
from draftsmith.models.taps import sglang_versions
from draftsmith.settings import DrafterSettings, EngineSettings

SHAPE = Eagle3Shape(
    hidden_size=8,
    target_hidden_size=8,
    intermediate_size=16,
    num_heads=2,
    num_kv_heads=1,
    head_size=4,
    vocab_size=32,
    draft_vocab_size=16,
    num_taps=3,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    max_position=64,
)
TAPS = (3, 30, 58)
KIMI = SimpleNamespace(num_hidden_layers=61, model_type="kimi_k2")


def card(folder: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], str]:
    """config.json and README.md of a drafter for a Kimi target."""
    config = drafter_config(SHAPE, TAPS, KIMI, "bfloat16", engine)
    train = {"supervised_tokens": 1000, "steps": 10, "epochs": 1.0, "heldout": Acceptance(10, (5, 2, 1)).as_dict()}
    monkeypatch.setattr(Job, "summary", lambda self, name: train)
    job = Job(folder, Path("/models/kimi"), EngineSettings(name=engine), DrafterSettings(), Talk(quiet=True))
    ids = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    write_model_card(folder, ExportSettings(), job, config, 1234, sglang_versions(ids, TAPS, 61, "kimi_k2"))
    return config, (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("engine", "ids", "said"),
    [
        ("sglang==0.5.12", [2, 29, 57], "SGLang 0.5.3 to before 0.5.13 |"),
        ("sglang==0.5.17", [3, 30, 58], "SGLang 0.5.13 to 0.5.23 |"),
        ("vllm==0.26.0", [3, 30, 58], "written for 0.5.23"),  # the newest that was read, since no SGLang was named
    ],
)
def test_ids_are_written_for_the_engine_of_the_recipe(
    engine: str, ids: list[int], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, text = card(tmp_path, engine, monkeypatch)
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == ids
    assert config["eagle_aux_hidden_state_layer_ids"] == list(TAPS)
    assert said in text and f"| {ids} | SGLang" in text and "vLLM 0.14.1 to 0.33.0" in text
