"""A DFlash drafter of random weights for any target, in the layout that vLLM and SGLang load: worthless guesses, real input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from draftsmith.breakeven.shapes import write_drafter_config
from draftsmith.settings import DrafterSettings


def write_random_dflash(target: Path, folder: Path, taps: Sequence[int], block: int = 8, layers: int = 2) -> Path:
    """`taps`: boundaries; the ids written are one lower, as both engines want them."""
    write_drafter_config(target, DrafterSettings(), folder, method="dflash", block=block)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": layers, "layer_types": ["full_attention"] * layers}
    config["dflash_config"]["target_layer_ids"] = [boundary - 1 for boundary in taps]
    (folder / "config.json").write_text(json.dumps(config))
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"fc": (hidden, len(taps) * hidden)}
    for layer in range(layers):
        shapes |= {f"layers.{layer}.self_attn.{name}_proj": (rows, hidden) for name, rows in (("q", queries), ("k", keys), ("v", keys))}
        shapes |= {f"layers.{layer}.self_attn.o_proj": (hidden, queries)}
        shapes |= {f"layers.{layer}.mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
        shapes |= {f"layers.{layer}.mlp.down_proj": (hidden, inner)}
        shapes |= {f"layers.{layer}.{name}_layernorm": (hidden,) for name in ("input", "post_attention")}
        shapes |= {f"layers.{layer}.self_attn.{name}_norm": (head,) for name in ("q", "k")}
    shapes |= {"hidden_norm": (hidden,), "norm": (hidden,)}
    generator = torch.Generator().manual_seed(11)
    tensors = {
        f"{name}.weight": torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.02
        for name, shape in shapes.items()
    }
    save_file(
        {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    return folder
