"""convert: weights in several files, and pickled ones."""

from __future__ import annotations

import json
from pathlib import Path

import convert_folders as folders
import torch
from convert_folders import KEY, read
from safetensors.torch import load_file, save_file
from test_convert import converted, ledger_of, run


def test_shards_become_one_file(tmp_path: Path) -> None:
    source = folders.sglang_eagle3(tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    names = sorted(tensors)
    (source / "model.safetensors").unlink()
    for shard, part in (("a.safetensors", names[:7]), ("b.safetensors", names[7:])):
        save_file({name: tensors[name] for name in part}, source / shard)
    index = {name: "a.safetensors" if name in names[:7] else "b.safetensors" for name in names}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    _, written = read(converted(source, "vllm", "result"))
    assert written.keys() == tensors.keys() and all(torch.equal(written[name], tensors[name]) for name in names)


def test_old_pickled_weights_are_read(tmp_path: Path) -> None:
    """EAGLE's own layout: pytorch_model.bin, a plain Llama class, no ids."""
    source = folders.sglang_eagle3(tmp_path / "source", architectures=["LlamaForCausalLM"], eagle_config={})
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    torch.save(tensors, source / "pytorch_model.bin")
    config, written = read(converted(source, "vllm", "result"))
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and KEY not in config
    assert all(torch.equal(written[name], value) for name, value in tensors.items())


def test_pickled_shards_become_one_file(tmp_path: Path) -> None:
    source = folders.sglang_eagle3(tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"pytorch_model-00001-of-00002.bin": names[:7], "pytorch_model-00002-of-00002.bin": names[7:]}
    for file, part in parts.items():
        torch.save({name: tensors[name] for name in part}, source / file)
    index = {name: file for file, part in parts.items() for name in part}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    result = converted(source, "vllm", "result")
    _, written = read(result)
    assert written.keys() == tensors.keys() and all(torch.equal(written[name], tensors[name]) for name in names)
    assert not [entry for entry in ledger_of(result) if entry["kind"] == "file" and str(entry["source"]).endswith(".bin")]
    (source / "pytorch_model-00002-of-00002.bin").unlink()
    assert run(source, "--to", "vllm", "-o", tmp_path / "again") == 4
