"""Drafter folders as their own tools leave them, with random weights: written by hand from the public layouts, not by the converter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

H, INNER, HEADS, KV, E, V, W, N = 32, 48, 4, 2, 8, 64, 16, 12  # widths, heads, vocabulary, draft vocabulary, target layers
IDS = torch.tensor([0, 1, 2, 5, 8, 9, 13, 20, 21, 30, 31, 40, 50, 55, 62, 63])
TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": N,
    "hidden_size": H,
    "vocab_size": V,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
SIZES: dict[str, Any] = {
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": E,
    "vocab_size": V,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "attention_bias": False,
}
KEY = "eagle_aux_hidden_state_layer_ids"


def layer(prefix: str, width_in: int = 2 * H, first: bool = True, qk_norm: bool = False) -> dict[str, list[int]]:
    """Shapes of one decoder layer."""
    shapes = {
        "input_layernorm.weight": [H],
        "post_attention_layernorm.weight": [H],
        "self_attn.q_proj.weight": [HEADS * E, width_in],
        "self_attn.k_proj.weight": [KV * E, width_in],
        "self_attn.v_proj.weight": [KV * E, width_in],
        "self_attn.o_proj.weight": [H, HEADS * E],
        "mlp.gate_proj.weight": [INNER, H],
        "mlp.up_proj.weight": [INNER, H],
        "mlp.down_proj.weight": [H, INNER],
    }
    if first:
        shapes["hidden_norm.weight"] = [H]
    if qk_norm:
        shapes |= {"self_attn.q_norm.weight": [E], "self_attn.k_norm.weight": [E]}
    return {prefix + name: shape for name, shape in shapes.items()}


def eagle3_shapes(prefix: str = "midlayer.", taps: int = 3, rows: int = W) -> dict[str, list[int]]:
    return {"fc.weight": [H, taps * H], **layer(prefix), "norm.weight": [H], "lm_head.weight": [rows, H]}


def block_shapes(layers: int, taps: int) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {"fc.weight": [H, taps * H], "hidden_norm.weight": [H], "norm.weight": [H]}
    for number in range(layers):
        shapes |= layer(f"layers.{number}.", H, first=False, qk_norm=True)
    return shapes


def tables(ids: Tensor = IDS, size: int = V) -> dict[str, Tensor]:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": mask}


def write(
    folder: Path, config: dict[str, Any], shapes: dict[str, list[int]], extra: dict[str, Tensor] | None = None, seed: int = 0
) -> Path:
    """A folder with random bfloat16 weights."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in shapes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({**tensors, **(extra or {})}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def write_target(folder: Path, **changes: Any) -> Path:
    """A target's config.json; no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**TARGET, **changes}))
    return folder


# --- the formats -----------------------------------------------------------------------------------------------------


def sglang_eagle3(folder: Path, **changes: Any) -> Path:
    """SpecForge's: nested layer outputs, midlayer."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **SIZES,
        "num_hidden_layers": 1,
        "draft_vocab_size": W,
        "rope_theta": 1000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eagle_config": {KEY: [2, 5, 10], "use_aux_hidden_state": True},
        **changes,
    }
    return write(folder, config, eagle3_shapes(), tables())


def vllm_eagle3(folder: Path, **changes: Any) -> Path:
    """vLLM's: boundaries at the top."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **SIZES,
        "num_hidden_layers": 1,
        "draft_vocab_size": W,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        KEY: [3, 6, 11],
        **changes,
    }
    return write(folder, config, eagle3_shapes(), tables())


def proposal(algorithm: str, depth: int) -> dict[str, Any]:
    method = {"proposal_type": "greedy", "speculative_tokens": depth, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    verifier = {"name_or_path": None, "architectures": ["LlamaForCausalLM"]}
    return {"algorithm": algorithm, "default_proposal_method": "greedy", "proposal_methods": [method], "verifier": verifier}


def speculators_eagle3(folder: Path, **changes: Any) -> Path:
    """As speculators 0.9.0 saves it."""
    config = {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": W,
        "dtype": "bfloat16",
        KEY: [3, 6, 11],
        "embed_requires_grad": False,
        "fc_norm": False,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "norm_output": False,
        "speculators_config": proposal("eagle3", 4),
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            "model_type": "llama",
            **SIZES,
            "num_hidden_layers": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
            "tie_word_embeddings": False,
        },
        **changes,
    }
    return write(folder, config, eagle3_shapes("layers.0."), tables())


def zlab_dflash(folder: Path, layers: int = 2, **changes: Any) -> Path:
    """z-lab's: layer outputs, no embedding, no head."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **SIZES,
        "num_hidden_layers": layers,
        "num_target_layers": N,
        "block_size": 8,
        "layer_types": ["full_attention"] * layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "rope_theta": 1000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "dflash_config": {"mask_token_id": 7, "target_layer_ids": [1, 5, 9]},
        **changes,
    }
    return write(folder, config, block_shapes(layers, 3))


def speculators_dflash(folder: Path, layers: int = 2, **changes: Any) -> Path:
    """As speculators 0.9.0 saves a full-vocabulary DFlash."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "aux_hidden_state_layer_ids": [2, 6, 10],
        "block_size": 8,
        "draft_vocab_size": V,
        "dtype": "bfloat16",
        "mask_token_id": 7,
        "sample_from_anchor": False,
        "sliding_window_non_causal": True,
        "speculators_config": proposal("dflash", 7),
        "speculators_model_type": "dflash",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            "model_type": "qwen3",
            **SIZES,
            "num_hidden_layers": layers,
            "layer_types": ["full_attention"] * layers,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
        **changes,
    }
    return write(folder, config, block_shapes(layers, 3))


def dspark(folder: Path, **changes: Any) -> Path:
    """DeepSpec's: top-level ids, a Markov and a confidence head, an embedding and a head of its own."""
    config = {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        **SIZES,
        "num_hidden_layers": 2,
        "num_target_layers": N,
        "block_size": 7,
        "layer_types": ["full_attention"] * 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "mask_token_id": 7,
        "target_layer_ids": [1, 5, 9],
        "num_anchors": 512,
        "markov_rank": 4,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        **changes,
    }
    shapes = block_shapes(2, 3) | {
        "embed_tokens.weight": [V, H],
        "lm_head.weight": [V, H],
        "markov_head.markov_w1.weight": [V, 4],
        "markov_head.markov_w2.weight": [V, 4],
        "confidence_head.proj.weight": [1, H + 4],
        "confidence_head.proj.bias": [1],
    }
    return write(folder, config, shapes)


# --- variants of EAGLE-3 ----------------------------------------------------------------------------------------------


def vary(folder: Path, tensors: dict[str, list[int]] | None = None, drop: tuple[str, ...] = (), dtype: Any = None, **config: Any) -> None:
    """More tensors (midlayer's by the folder's own prefix), fewer, of another type; fields of the layer's config."""
    old, held = read(folder)
    prefix = "midlayer." if "midlayer.input_layernorm.weight" in held else "layers.0."
    generator = torch.Generator().manual_seed(1)
    held |= {name.replace("midlayer.", prefix): torch.randn(shape, generator=generator) for name, shape in (tensors or {}).items()}
    held = {name: value for name, value in held.items() if name not in drop}
    if dtype is not None:
        held = {name: value.to(dtype) if value.is_floating_point() else value for name, value in held.items()}
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    outer = {name: value for name, value in config.items() if name in old or name.startswith(("norm_", "fc_"))}
    inner = old.get("transformer_layer_config", old)
    inner |= {name: value for name, value in config.items() if name not in outer}
    (folder / "config.json").write_text(json.dumps({**old, **outer}))


NORMS = {f"fc_norm.{number}.weight": [H] for number in range(3)}
BIASES = {f"midlayer.self_attn.{name}_proj.bias": [rows * E] for name, rows in (("q", HEADS), ("k", KV), ("v", KV))}
# what is changed, and whether SGLang's network can say it
VARIANTS: dict[str, tuple[dict[str, Any], bool]] = {
    "plain": ({}, True),
    "float32": ({"dtype": torch.float32}, True),
    "full": ({"tensors": {"lm_head.weight": [V, H]}, "drop": ("d2t", "t2d"), "draft_vocab_size": V}, True),
    "norms": ({"tensors": NORMS, "fc_norm": True, "norm_output": True}, True),
    "before_fc": ({"tensors": {"input_norm.weight": [3 * H]}, "norm_before_fc": True}, True),
    "residual": ({"norm_before_residual": True}, False),
    "biases": ({"tensors": BIASES, "attention_bias": True}, False),
    "qk": ({"tensors": {f"midlayer.self_attn.{n}_norm.weight": [E] for n in "qk"}, "model_type": "qwen3"}, False),
    "two_layers": ({"tensors": layer("layers.1.", H, first=False), "num_hidden_layers": 2}, True),
}
