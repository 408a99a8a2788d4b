"""How many parameters a config describes, and how many bytes they and one token of KV cache take. Arithmetic on config.json. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftsmith.models.config_keys import differs_by_layer
from draftsmith.models.text_config import num_experts, text_part

# bits of the scales that go with every group of quantised weights: quant method -> (bits of a weight, bits of a scale, group)
FIXED = {"mxfp4": (4, 8, 32), "fp8": (8, 0, 1), "fbgemm_fp8": (8, 0, 1)}
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Part:
    """Weights of one kind: a name as the checkpoint would have it, and how many there are in all layers."""

    name: str
    count: int


# Keys of models whose layers differ from one another in ways that this arithmetic does not describe.
NOT_DESCRIBED = (
    *("block_configs", "hybrid_override_pattern", "hybrid_layer_pattern", "linear_attn_config", "routed_expert_hidden_size"),
    "compress_ratios",
)
LATENT = ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
LINEAR = ("linear_num_value_heads", "linear_value_head_dim", "linear_num_key_heads", "linear_key_head_dim")


def describable(config: Mapping[str, Any]) -> bool:
    """Whether the arithmetic here holds for this config."""
    text = text_part(config)
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    if text.get("kv_lora_rank"):
        needed += LATENT
    if text.get("linear_num_value_heads") or "linear_attention" in (text.get("layer_types") or []):
        needed += LINEAR
    return all(text.get(key) for key in needed) and not differs_by_layer(text) and not any(text.get(key) for key in NOT_DESCRIBED)


def attention(config: Mapping[str, Any]) -> int:
    """Weights of one full attention: grouped, or latent when kv_lora_rank is set."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if rank := config.get("kv_lora_rank"):
        nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
        q_rank = config.get("q_lora_rank")
        query = hidden * q_rank + q_rank * heads * (nope + rope) if q_rank else hidden * heads * (nope + rope)
        return query + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    size = config.get("head_dim") or hidden // heads
    kv = config.get("num_key_value_heads") or heads
    gate = heads * size * hidden if config.get("attn_output_gate") or "linear_num_value_heads" in config else 0
    return hidden * size * (heads + 2 * kv) + heads * size * hidden + gate


def linear_attention(config: Mapping[str, Any]) -> int:
    """Weights of one gated-delta layer (Qwen3-Next, Qwen3.5)."""
    hidden = config["hidden_size"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    heads = config["linear_num_value_heads"]
    values = heads * config["linear_value_head_dim"]
    kernel = config.get("linear_conv_kernel_dim", 4)
    return hidden * (2 * keys + 2 * values) + 2 * hidden * heads + kernel * (2 * keys + values) + values * hidden


def layer_kinds(config: Mapping[str, Any]) -> dict[str, int]:
    """How many layers have full, sliding or linear attention."""
    layers = config["num_hidden_layers"]
    kinds = list(config.get("layer_types") or [])[:layers]
    if kinds:
        linear = sum("linear" in kind for kind in kinds)
        sliding = sum("sliding" in kind or "chunked" in kind for kind in kinds)
        return {"linear": linear, "sliding": sliding, "full": layers - linear - sliding}
    interval = config.get("full_attention_interval")
    if interval and "linear_num_value_heads" in config:
        return {"linear": layers - layers // interval, "sliding": 0, "full": layers // interval}
    return {"linear": 0, "sliding": 0, "full": layers}


def moe_layers(config: Mapping[str, Any]) -> int:
    """Layers whose MLP is a mixture of experts."""
    layers = config["num_hidden_layers"]
    if not num_experts(config):
        return 0
    if isinstance(config.get("moe_layers"), list):
        return len(config["moe_layers"])
    if isinstance(config.get("moe_layer_freq"), list):
        return sum(bool(flag) for flag in config["moe_layer_freq"])
    dense = set(range(config.get("first_k_dense_replace") or 0)) | set(config.get("mlp_only_layers") or [])
    step = config.get("interleave_moe_layer_step") or config.get("decoder_sparse_step") or 1
    return sum(index not in dense and (index + 1) % step == 0 for index in range(layers))


def parts(config: Mapping[str, Any]) -> list[Part]:
    """All weights of the language model, by kind. Without norms, vision towers and multi-token-prediction layers."""
    config = text_part(config)
    hidden, layers, vocabulary = config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]
    kinds, sparse, experts = layer_kinds(config), moe_layers(config), num_experts(config)
    inner = config.get("intermediate_size") or 0
    expert_inner = config.get("moe_intermediate_size") or inner
    dense_inner = config.get("intermediate_size_mlp") or inner
    num_shared = config.get("n_shared_experts") or config.get("num_shared_experts") or 0
    shared = config.get("shared_expert_intermediate_size") or expert_inner * num_shared
    if config.get("model_type") == "llama4_text":
        shared = inner
    found = [
        Part("model.embed_tokens", vocabulary * hidden),
        Part("lm_head", 0 if config.get("tie_word_embeddings") else vocabulary * hidden),
        Part("model.layers.1.self_attn.q_proj", (kinds["full"] + kinds["sliding"]) * attention(config)),
        Part("model.layers.0.mlp.gate_proj", (layers - sparse) * 3 * hidden * dense_inner),
        Part("model.layers.1.mlp.experts.0.gate_proj", sparse * experts * 3 * hidden * expert_inner),
        Part("model.layers.1.mlp.shared_experts.gate_proj", sparse * 3 * hidden * shared),
        Part("model.layers.1.mlp.gate", sparse * hidden * experts),
    ]
    if kinds["linear"]:
        found.append(Part("model.layers.0.linear_attn.in_proj_qkvz", kinds["linear"] * linear_attention(config)))
    return [part for part in found if part.count]


def num_parameters(config: Mapping[str, Any]) -> int:
    """Parameters of the language model that a config describes."""
    return sum(part.count for part in parts(config))


# --- bytes -----------------------------------------------------------------------------------------------------------


def ignored(name: str, quantization: Mapping[str, Any]) -> bool:
    """Whether a quantisation leaves the weight `name` in the model's own type."""
    if name in ("model.embed_tokens", "model.layers.1.mlp.gate"):
        return True
    patterns = [pattern for key in ("ignore", "modules_to_not_convert", "exclude_modules") for pattern in quantization.get(key) or []]
    bare = name.removeprefix("model.")
    for pattern in patterns:
        text = str(pattern)
        if text.startswith("re:"):
            if re.match(text[3:], name) or re.match(text[3:], f"language_model.{name}"):
                return True
        elif re.fullmatch(".*" + re.escape(text).replace(r"\*", ".*"), name) or f".{bare}.".startswith(f".{text}.") or text in (name, bare):
            return True
    return name == "lm_head" and not patterns


def quantised_bits(quantization: Mapping[str, Any]) -> float | None:
    """Bits per quantised weight with its scales; None for a method that is not known."""
    method = quantization.get("quant_method")
    if method in FIXED:
        bits, scale, group = FIXED[method]
        return bits + scale / group
    if "NVFP4" in str(quantization.get("quant_algo", "")).upper():
        return 4 + 8 / 16
    if str(quantization.get("quant_algo", "")).upper().startswith("FP8"):
        return 8
    for settings in (quantization.get("config_groups") or {}).values():
        weights = settings.get("weights") or {}
        if bits := weights.get("num_bits"):
            return bits + 16 / weights["group_size"] if weights.get("group_size") and bits < 8 else bits
    if bits := quantization.get("bits") or quantization.get("w_bit"):
        return bits + 20 / (quantization.get("group_size") or 128)
    return None


def weight_bytes_of(config: Mapping[str, Any]) -> int:
    """Bytes of the language model's weights, from the config alone."""
    text = text_part(config)
    quantization = text.get("quantization_config") or config.get("quantization_config") or {}
    plain = DTYPE_BYTES.get(str(text.get("dtype") or text.get("torch_dtype") or "bfloat16"), 2)
    bits = quantised_bits(quantization) if quantization else None
    total = 0.0
    for part in parts(config):
        if bits is None or ignored(part.name, quantization):
            total += part.count * plain
        else:
            total += part.count * bits / 8
    return int(total)


@dataclass(frozen=True)
class Cache:
    """KV cache of one model: bytes per token and per request on ONE GPU."""

    per_token: float  # layers that keep every token
    per_window: float  # bytes per token of layers that keep only `window` tokens
    window: int
    per_request: float  # state of linear attention

    def bytes(self, requests: int, tokens: int) -> float:
        """For `requests` sequences of `tokens` tokens."""
        return requests * (self.per_token * tokens + self.per_window * min(tokens, self.window) + self.per_request)


def cache_of(config: Mapping[str, Any], shards: int, element_bytes: float) -> Cache:
    """The cache that a config needs, split over `shards` GPUs. Latent attention is kept whole on each."""
    config = text_part(config)
    kinds = layer_kinds(config)
    if rank := config.get("kv_lora_rank"):
        per_layer = (rank + config["qk_rope_head_dim"]) * element_bytes
    else:
        heads = config["num_attention_heads"]
        size = config.get("head_dim") or config["hidden_size"] // heads
        kv = config.get("num_key_value_heads") or heads
        per_layer = 2 * max(1, -(-kv // shards)) * size * element_bytes
    state = 0.0
    if kinds["linear"] and "linear_num_value_heads" in config:
        values, keys = config["linear_value_head_dim"], config["linear_key_head_dim"]
        state = kinds["linear"] * config["linear_num_value_heads"] * values * keys * 4 / shards
    return Cache(kinds["full"] * per_layer, kinds["sliding"] * per_layer, int(config.get("sliding_window") or 0), state)
