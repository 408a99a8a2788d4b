"""Drafter folders that check is tested on, written by hand: not by the exporter, not from the tables under test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from packaging.version import Version

from draftsmith.check.subject import Family, Subject
from draftsmith.findings import Finding

H, INNER, HEADS, KV, V, W = 32, 48, 4, 2, 64, 16  # width, inner width, heads, key-value heads, vocabulary, draft vocabulary
TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "vocab_size": V,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
HEAD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "vocab_size": V,
    "draft_vocab_size": W,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
IDS = np.array([0, 1, 2, 5, 8, 9, 13, 20, 21, 30, 31, 40, 50, 55, 62, 63])
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "I32": 4, "BOOL": 1}
Spec = tuple[str, list[int]]


def eagle3_specs(layer: str = "midlayer.", taps: int = 3) -> dict[str, Spec]:
    """Name -> (type, shape) of a one-layer EAGLE-3 head with a reduced vocabulary."""
    q, k = H, KV * (H // HEADS)
    shapes = {
        "fc.weight": [H, taps * H],
        "norm.weight": [H],
        "lm_head.weight": [W, H],
        f"{layer}input_layernorm.weight": [H],
        f"{layer}hidden_norm.weight": [H],
        f"{layer}post_attention_layernorm.weight": [H],
        f"{layer}self_attn.q_proj.weight": [q, 2 * H],
        f"{layer}self_attn.k_proj.weight": [k, 2 * H],
        f"{layer}self_attn.v_proj.weight": [k, 2 * H],
        f"{layer}self_attn.o_proj.weight": [H, q],
        f"{layer}mlp.gate_proj.weight": [INNER, H],
        f"{layer}mlp.up_proj.weight": [INNER, H],
        f"{layer}mlp.down_proj.weight": [H, INNER],
    }
    return {**{name: ("BF16", shape) for name, shape in shapes.items()}, "d2t": ("I64", [W]), "t2d": ("BOOL", [V])}


def tables(ids: np.ndarray = IDS) -> dict[str, bytes]:
    """Content of d2t and t2d for these target ids."""
    mask = np.zeros(V, bool)
    mask[ids] = True
    return {"d2t": (ids - np.arange(len(ids))).astype("<i8").tobytes(), "t2d": mask.tobytes()}


def safetensors(specs: dict[str, Spec], content: dict[str, bytes] | None = None) -> bytes:
    """A whole file: zeros, except for the tensors with content."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, (dtype, shape) in specs.items():
        size = SIZES[dtype] * int(np.prod(shape))
        data = (content or {}).get(name, bytes(size))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def write_drafter(folder: Path, specs: dict[str, Spec] | None = None, content: dict[str, bytes] | None = None, **config: Any) -> Path:
    """A drafter folder; `config` changes HEAD, a value of ... removes the key."""
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors(specs or eagle3_specs(), content or tables()))
    (folder / "config.json").write_text(json.dumps(changed(HEAD, config)))
    return folder


def changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**config, **changes}.items() if value is not ...}


def subject_for(engine: str, drafter: Path | dict[str, Any] | None = None, **fields: Any) -> Subject:
    """A subject from "sglang==0.5.17" or "vllm==0.32.0" and a drafter folder or config; flags ask for EAGLE-3 unless given."""
    name, _, version = engine.partition("==")
    family: Family = "sglang" if name == "sglang" else "vllm"
    asked = {"speculative-algorithm": "EAGLE3"} if family == "sglang" else {"speculative-config": '{"method": "eagle3"}'}
    folder = drafter if isinstance(drafter, Path) else None
    config = json.loads((drafter / "config.json").read_text()) if isinstance(drafter, Path) else drafter
    given = {"flags": asked, "target": TARGET, "drafter_folder": folder, **fields}
    return Subject(family, Version(version), drafter=config, **given)


def found(findings: list[Finding]) -> list[tuple[str, str]]:
    """Code and severity of everything above info."""
    return [(finding.code, finding.severity) for finding in findings if finding.severity != "info"]
