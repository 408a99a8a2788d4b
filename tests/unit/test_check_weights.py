"""check: what can be wrong with the weights of a folder."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from check_folders import LARGE, codes, job_for, target

from draftsmith.check import stage
from draftsmith.check.command import Asked, check_launch
from draftsmith.check.settings import CheckSettings
from draftsmith.check.weights import BadHeader, read_header, weight_findings
from draftsmith.findings import errors
from draftsmith.settings import EngineSettings

__all__ = ["target"]


# --- weights ---------------------------------------------------------------------------------------------------------


def test_a_whole_file_has_no_findings(target: Path) -> None:
    assert weight_findings(target) == []
    assert set(read_header(target / "model.safetensors")) == {"a", "b"}


@pytest.mark.parametrize("cut", [1, 40, 71])
def test_a_truncated_file_is_found(target: Path, cut: int) -> None:
    path = target / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-cut])
    found = weight_findings(target)
    assert codes(found) == ["DS104"]
    assert "truncated" in found[0].evidence and f"{path.stat().st_size:,} bytes" in found[0].evidence


def test_a_file_cut_inside_its_header_is_found(target: Path) -> None:
    path = target / "model.safetensors"
    path.write_bytes(path.read_bytes()[:30])
    assert "inside its header" in weight_findings(target)[0].evidence


@pytest.mark.parametrize(
    "content", [b"", b"abc", b"\xff" * 64, (5).to_bytes(8, "little") + b"[1,2]", (7).to_bytes(8, "little") + b'{"a":1}']
)
def test_what_is_not_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadHeader):
        read_header(path)


def test_spare_bytes_are_found(target: Path) -> None:
    path = target / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"xx")
    assert "longer than its header says" in weight_findings(target)[0].evidence


def test_a_sparse_file_of_a_terabyte_is_read_in_under_a_second(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    size = 2**40
    header = json.dumps({"w": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    started = time.perf_counter()
    assert weight_findings(tmp_path) == []
    assert time.perf_counter() - started < 1


def write_index(target: Path, weight_map: dict[str, str]) -> None:
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_the_index_is_held_against_the_shards(target: Path) -> None:
    write_index(target, {"a": "model.safetensors", "b": "model.safetensors"})
    assert weight_findings(target) == []
    write_index(target, {"a": "model.safetensors", "b": "model-2.safetensors"})
    assert codes(weight_findings(target)) == ["DS103"]
    write_index(target, {"a": "model.safetensors", "c": "model.safetensors"})
    assert codes(weight_findings(target)) == ["DS106"]
    (target / "model.safetensors.index.json").write_text("[]")
    assert codes(weight_findings(target)) == ["DS105"]


def test_no_weights_is_an_error_and_bin_weights_a_warning(target: Path) -> None:
    (target / "model.safetensors").unlink()
    assert codes(errors(weight_findings(target))) == ["DS102"]
    (target / "pytorch_model.bin").write_bytes(b"x")
    assert codes(weight_findings(target)) == ["DS109"] and not errors(weight_findings(target))


def test_a_broken_target_is_said_once(target: Path) -> None:
    """By a recipe's check and by that of a launch command, which share their rules."""
    shard = target / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4])
    found = stage.check(CheckSettings(), job_for(target, EngineSettings(name="vllm==0.32.0")), [], LARGE)
    assert [finding.code for finding in found].count("DS104") == 1
    asked = Asked(engine="vllm==0.32.0", target=str(target), drafter=None)
    document, _, code = check_launch(asked, ["vllm", "serve", str(target)])
    assert code == 4 and [finding["code"] for finding in document["findings"]].count("DS104") == 1
