"""check: files that are broken in every way that disks, editors and people break them. A finding that names the file, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drafter_folders import HEAD, TARGET, eagle3_specs, safetensors, write_drafter

from draftsmith import cli
from draftsmith.check.weights import BadHeader, read_header, read_index
from draftsmith.models.config_keys import problems

LAUNCH = "sglang serve --model-path {0}/target --speculative-algorithm EAGLE3 --speculative-draft-model-path {0}/drafter"
LAUNCH += " --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
DEEP = "[" * 100_000


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A target and a drafter that fit."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text(json.dumps(TARGET))
    (tmp_path / "target" / "model.safetensors").write_bytes(safetensors({"a": ("BF16", [4])}))
    write_drafter(tmp_path / "drafter")
    return tmp_path


def errors(folder: Path, capsys: pytest.CaptureFixture[str], engine: str = "sglang==0.5.17") -> list[tuple[str, str]]:
    """(code, evidence) of the errors; the exit code goes with them."""
    code = cli.main(["check", "--engine", engine, "--json", "--", LAUNCH.format(folder)])
    found = [finding for finding in json.loads(capsys.readouterr().out)["findings"] if finding["severity"] == "error"]
    assert code == (4 if found else 0)
    return [(finding["code"], finding["evidence"]) for finding in found]


def test_nothing_is_wrong_with_what_is_not_broken(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert errors(models, capsys) == []


CONFIGS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not JSON"),
    "a comment": (b'{"model_type": "llama", // mine\n"hidden_size": 32}', "is not JSON"),
    "a comma too many": (b'{"model_type": "llama",}', "is not JSON"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "is not JSON"),
    "UTF-16": ('{"model_type": "llama"}'.encode("utf-16"), "is not JSON"),
    "binary": (bytes(range(256)), "is not JSON"),
    "nesting": (DEEP.encode(), "is not JSON"),
    "a number of 5000 digits": (b'{"vocab_size": ' + b"1" * 5000 + b"}", "is not JSON"),
    "a list": (b"[1, 2]", "holds list, not a mapping"),
    "null": (b"null", "holds NoneType, not a mapping"),
    "a word for a number": (json.dumps({**TARGET, "hidden_size": "4096"}).encode(), "hidden_size is '4096', expected a whole number"),
    "NaN": (b'{"architectures": ["LlamaForCausalLM"], "hidden_size": NaN}', "hidden_size is nan, expected a whole number above 0"),
    "a number without end": (json.dumps({**TARGET, "num_hidden_layers": 10**30}).encode(), "num_hidden_layers is 1000"),
    "a word for a list": (json.dumps({**TARGET, "architectures": "LlamaForCausalLM"}).encode(), "expected a list of words"),
    "a list for a mapping": (json.dumps({**TARGET, "text_config": []}).encode(), "text_config is [], expected a mapping"),
    "inside": (json.dumps({**TARGET, "rope_scaling": {"factor": "8"}}).encode(), "rope_scaling.factor is '8', expected a number above 0"),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("model", "code"), [("target", "DS101"), ("drafter", "DS310")])
def test_a_config_that_no_engine_can_use(name: str, model: str, code: str, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, said = CONFIGS[name]
    (models / model / "config.json").write_bytes(content)
    found = errors(models, capsys)
    assert [evidence for found_code, evidence in found if found_code == code and said in evidence and "config.json" in evidence], found


def test_a_config_that_is_named_and_broken_is_a_finding_and_no_mistake_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{")
    words = ["check", "--engine", "vllm==0.32.0", "--target", str(tmp_path / "config.json"), "--", "vllm", "serve", "X"]
    assert cli.main(words) == 4
    assert capsys.readouterr().out.startswith("error DS101: the target")


def break_link(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(name)  # to itself


def make_folder(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()


SPECS = eagle3_specs()
Break = Callable[[Path], Any]


def entries(**changes: Any) -> bytes:
    """A file of two tensors of which the second has these changes."""
    header = {"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}, "b": {"dtype": "BF16", "shape": [2], "data_offsets": [4, 8]}}
    header["b"] = {key: value for key, value in {**header["b"], **changes}.items() if value is not ...}
    return framed(json.dumps(header).encode(), bytes(8))


def framed(header: bytes, body: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + body


TWICE = b'{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}'
SHARDS: dict[str, tuple[bytes, str]] = {
    "no byte": (b"", "is not a safetensors file"),
    "seven bytes": (b"1234567", "is not a safetensors file"),
    "a length without end": (b"\xff" * 16, "is not a safetensors file"),
    "a header that ends too soon": (framed(b"{}" + b" " * 100)[:50], "is truncated inside its header"),
    "a header of blanks": (framed(b" " * 1000), "is not safetensors JSON"),
    "nesting": (framed(DEEP.encode()), "is not safetensors JSON"),
    "a list": (framed(b"[1]"), "is not safetensors JSON"),
    "a name twice": (framed(TWICE, bytes(2)), "'a' stands in it twice"),
    "no shape": (entries(shape=...), "is not safetensors JSON"),
    "a type that is a number": (entries(dtype=3), "type 3"),
    "offsets of words": (entries(data_offsets=["4", "8"]), "bytes 4 to 8"),
    "one offset": (entries(data_offsets=[4]), "is not safetensors JSON"),
    "a negative shape": (entries(shape=[-2]), "shape [-2]"),
    "bytes of another shape": (entries(shape=[3]), "of shape [3] and type BF16 has 4 bytes"),
    "an overlap": (entries(data_offsets=[0, 4]), "b begins at byte 0 of the data, expected 4: it overlaps"),
    "a gap": (entries(data_offsets=[6, 10]), "b begins at byte 6 of the data, expected 4: it leaves a gap"),
    "bytes to spare": (entries() + b"1", "is longer than its header says"),
    "bytes that are missing": (entries()[:-1], "is truncated"),
}


@pytest.mark.parametrize("name", SHARDS)
def test_a_file_that_the_safetensors_library_refuses(name: str, tmp_path: Path) -> None:
    content, said = SHARDS[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadHeader, match=r"model\.safetensors") as caught:
        read_header(path)
    assert said in str(caught.value)


def test_types_that_are_new_are_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(entries(dtype="F6_E2M3"))
    assert set(read_header(path)) == {"a", "b"}


def test_a_header_of_100_mb_takes_no_second(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((10**8).to_bytes(8, "little"))
    os.truncate(path, 10**8 + 8)
    begin = time.process_time()
    with pytest.raises(BadHeader, match="not safetensors JSON"):
        read_header(path)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("content", ['{"weight_map": {"a": 1}}', '{"weight_map": ["a"]}', '{"weight_map": {}}', "{}", "[]", "", DEEP])
def test_an_index_that_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(BadHeader, match="is not an index of tensors"):
        read_index(tmp_path)


@pytest.mark.parametrize("model", ["target", "drafter"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("how", [break_link, make_folder])
def test_what_is_no_file(model: str, name: str, how: Callable[[Path, str], None], models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how(models / model, name)
    assert errors(models, capsys)


def test_a_folder_that_only_others_may_read(models: Path, child_env: dict[str, str]) -> None:
    """The engine may run as another user: no error. root may read everything, so the command is started without that right."""
    without = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    for model in ("target", "drafter"):
        (models / model).chmod(0)
    try:
        words = ["check", "--engine", "sglang==0.5.17", "--json", "--", LAUNCH.format(models)]
        done = subprocess.run([*without, sys.executable, "-m", "draftsmith", *words], env=child_env, capture_output=True, text=True)
    finally:
        for model in ("target", "drafter"):
            (models / model).chmod(0o700)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["findings"]
    assert not [finding for finding in found if finding["severity"] == "error"]
    assert sum("nothing that can be read: Permission denied" in finding["evidence"] for finding in found) == 2


def test_values_that_are_not_given_and_values_for_each_layer_are_no_problem() -> None:
    assert list(problems({**TARGET, **HEAD, "sliding_window": None, "intermediate_size": [1, 2], "draft_vocab_size": None})) == []
