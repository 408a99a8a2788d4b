"""Folders and files of others, and raw lines that a disk or an editor has changed: one error that names the file, and nothing lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from failures import failed

from draftsmith.bench.rows import launch_rows, reply_rows
from draftsmith.breakeven.shapes import target_folder, write_drafter_config
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.manifest import atomic_folder, make_folder
from draftsmith.settings import DrafterSettings

DEEP = "[" * 100_000


# --- folders and files of others -------------------------------------------------------------------------------------

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 32, "vocab_size": 64}
CONFIG |= {"num_attention_heads": 4, "intermediate_size": 48, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048}


@pytest.mark.parametrize("wrong", [{"hidden_size": "32"}, {"num_hidden_layers": [8]}, {"text_config": []}, {"architectures": 3}])
@pytest.mark.parametrize("which", ["source", "target"])
def test_convert_reads_a_config_as_check_does(
    which: str, wrong: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**CONFIG, **(wrong if name == which else {})}))
    words = ("convert", str(tmp_path / "source"), "--to", "vllm", "-o", str(tmp_path / "out"), "--target", str(tmp_path / "target"))
    code, message, hint = failed(capsys, *words)
    assert (code, bool(hint)) == (4, True)
    assert f"{which}/config.json: {next(iter(wrong))} is" in message
    assert not (tmp_path / "out").exists()


INDEXES = ["{}", "[]", DEEP, '{"weight_map": {"a": 1}}', '{"weight_map": {"a": null}}', json.dumps({"weight_map": {"a": "b" * 300}})]


@pytest.mark.parametrize("number", range(len(INDEXES)))
def test_convert_of_an_index_that_is_none(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors.index.json").write_text(INDEXES[number])
    code, message, hint = failed(capsys, "convert", str(tmp_path), "--to", "vllm", "-o", str(tmp_path / "out"))
    assert (code, "is not an index of tensors" in message, bool(hint)) == (4, True, True), message


def test_a_link_to_nowhere_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    code, message, _ = failed(capsys, "convert", str(tmp_path), "--to", "vllm", "-o", str(tmp_path / "out"))
    assert (code, "exists already" in message) == (2, True)
    assert (tmp_path / "out").is_symlink()


@pytest.mark.parametrize("place", ["file/x", "a" * 300])
def test_a_folder_that_cannot_be_made(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(EnvironmentFailed, match="cannot make the folder"):
        make_folder(tmp_path / place, "--output")
    with pytest.raises(EnvironmentFailed, match="cannot make the folder"), atomic_folder(tmp_path / place):
        pass


def test_breakeven_removes_nothing_that_it_did_not_make(tmp_path: Path) -> None:
    mine = tmp_path / "models" / "target"
    mine.mkdir(parents=True)
    (mine / "config.json").write_text(json.dumps(CONFIG))
    assert target_folder(mine / "config.json", mine) == mine, "the user's own folder, named by the place where a copy would go"
    assert json.loads((mine / "config.json").read_text()) == CONFIG
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (mine / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(UsageError, match="holds weights"):
        target_folder(tmp_path / "config.json", mine)
    with pytest.raises(UsageError, match="holds weights"):
        write_drafter_config(tmp_path, DrafterSettings(), mine)
    assert (mine / "model.safetensors").read_bytes() == b"weights"


def test_breakeven_of_a_config_that_gives_no_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 32}))
    with pytest.raises(UsageError, match="lacks num_hidden_layers, num_attention_heads, vocab_size"):
        write_drafter_config(tmp_path, DrafterSettings(), tmp_path / "out")


# --- raw lines of a bench --------------------------------------------------------------------------------------------

CELL = {"label": "C=1", "usage_tokens": 10, "counter_tokens": 10, "acceptance": None, "tok_s": 5.0}
LAUNCH = {"launch": 0, "pair": 0, "arm": "baseline", "invalid": [], "cells": [CELL]}
REPLY = {"launch": 0, "phase": "cell", "cell": "C=1", "id": "a", "ok": True, "sent_s": 1.0}


@pytest.mark.parametrize(
    "change",
    [
        *({"launch": "0"}, {"pair": [0]}, {"arm": "other"}, {"invalid": 3}, {"cells": None}, {"cells": [{**CELL, "tok_s": None}]}),
        *({"cells": [{**CELL, "tok_s": float("nan")}]}, {"cells": [{**CELL, "acceptance": {"rounds": 1}}]}, {"gpu_set": {}}),
    ],
)
def test_a_launch_that_is_none(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "launches.jsonl"
    path.write_text(json.dumps(LAUNCH) + "\n" + json.dumps({**LAUNCH, **change}) + "\n")
    with pytest.raises(EnvironmentFailed, match=r"launches\.jsonl") as caught:
        launch_rows(path)
    assert "line 2 is no launch" in caught.value.hint


def test_a_launch_that_failed_has_no_speed(tmp_path: Path) -> None:
    row = {**LAUNCH, "invalid": ["requests failed"], "cells": [{key: value for key, value in CELL.items() if key != "tok_s"}]}
    (tmp_path / "launches.jsonl").write_text(json.dumps(row) + "\n")
    assert launch_rows(tmp_path / "launches.jsonl") == [row]


@pytest.mark.parametrize(
    "change", [{"sent_s": []}, {"sent_s": float("inf")}, {"ok": 1}, {"category": []}, {"reached": ["x"]}, {"launch": []}]
)
def test_a_reply_that_is_none(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps(REPLY) + "\n")
    assert [place for place, _ in reply_rows(path)] == [(0, "C=1")]
    path.write_text(json.dumps(REPLY) + "\n" + json.dumps({**REPLY, **change}) + "\n")
    with pytest.raises(EnvironmentFailed, match=r"requests\.jsonl is malformed") as caught:
        reply_rows(path)
    assert "line 2 is no reply" in caught.value.hint


def test_a_bench_is_not_compared_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "launches.jsonl").write_text("")
    code, message, _ = failed(capsys, "compare", str(tmp_path), str(tmp_path))
    assert (code, "are the same bench" in message) == (2, True)
