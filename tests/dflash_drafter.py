"""DFlash drafters for tests, in the layout that vLLM and SGLang load: of random weights for any target (worthless guesses, real input), and
taught on the target's own texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from draftsmith.breakeven.shapes import write_drafter_config
from draftsmith.models.dflash import DFlashDrafter, DFlashShape, View
from draftsmith.models.target import Target
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


def dflash_for(target: Target, views: Sequence[View] = (View(), View()), std: float = 0.02) -> DFlashDrafter:
    """Random matrices of this deviation in the target's dtype, of the target's width; the mask is the last token of the vocabulary."""
    config: Any = target.config
    shape = DFlashShape(
        hidden_size=config.hidden_size,
        target_hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_size=config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        num_taps=len(target.taps),
        rope_theta=1000.0,
        rms_norm_eps=config.rms_norm_eps,
        max_position=config.max_position_embeddings,
        mask_token=config.vocab_size - 1,
        views=tuple(views),
    )
    drafter, generator = DFlashDrafter(shape).to(target.embedding_VH.dtype), torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=std, generator=generator)
    drafter.lend(target.embedding_VH, target.head_VH)
    return drafter.eval()


def without_layers(drafter: DFlashDrafter) -> DFlashDrafter:
    """Its layers add nothing: every slot keeps the mask's embedding, and the head alone says what is drafted."""
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
    return drafter.requires_grad_(False)


def teach_dflash(drafter: DFlashDrafter, texts: Sequence[tuple[Tensor, Tensor, int]], depth: int, steps: int) -> DFlashDrafter:
    """A few steps towards the texts' own tokens, every row a round. texts: (features [T, F], tokens [T], tokens of the prompt)."""
    optimizer = torch.optim.Adam(drafter.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        for features_TF, tokens_T, prompt in texts:
            rows = torch.arange(prompt - 1, len(tokens_T) - 1 - depth)
            if len(rows) == 0:
                continue
            logits_AKW = drafter.block(drafter.context(features_TF.clone()), tokens_T[rows + 1], rows, depth)
            wanted_AK = tokens_T[rows[:, None] + 2 + torch.arange(depth)]
            (torch.nn.functional.cross_entropy(logits_AKW.flatten(0, 1), wanted_AK.flatten()) / len(texts)).backward()
        optimizer.step()
    return drafter.requires_grad_(False)


def write_dflash(folder: Path, drafter: DFlashDrafter, taps: Sequence[int], num_layers: int, block: int, dtype: torch.dtype) -> Path:
    """As z-lab writes one: no embedding, no head, ids of layers whose outputs are tapped."""
    shape, kinds = drafter.shape, ["full_attention" if view.window is None else "sliding_attention" for view in drafter.shape.views]
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": block,
        "num_target_layers": num_layers,
        "dflash_config": {"mask_token_id": shape.mask_token, "target_layer_ids": [tap - 1 for tap in taps]},
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": len(shape.views),
        "layer_types": kinds,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_position,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: value.to(dtype).contiguous() for name, value in drafter.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
