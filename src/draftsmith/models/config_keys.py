"""What the keys of a config.json must hold, so that no rule meets a word for a number. Keys that no rule reads are not judged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LARGEST = 2**40
MOST_LAYERS = 10_000
LAYER_COUNTS = ("num_hidden_layers", "first_k_dense_replace", "full_attention_interval", "num_aux_hidden_states", "num_aux_layers")
# a list stands for a value of each layer; of no other size does any model have one
PER_LAYER = ("intermediate_size", "num_key_value_heads", "head_dim", "num_experts", "sliding_window")
ABOVE_ZERO = """
hidden_size num_attention_heads vocab_size num_hidden_layers num_key_value_heads head_dim max_position_embeddings block_size
linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim decoder_sparse_step
dspark_block_size interleave_moe_layer_step num_aux_hidden_states num_aux_layers group_size num_target_layers
"""
WHOLE = """
intermediate_size intermediate_size_mlp moe_intermediate_size shared_expert_intermediate_size n_routed_experts num_experts
num_local_experts n_shared_experts num_shared_experts first_k_dense_replace kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim
v_head_dim draft_vocab_size target_hidden_size sliding_window mask_token_id markov_rank n_predict original_max_position_embeddings
full_attention_interval num_nextn_predict_layers seq_length max_sequence_length max_seq_len model_max_length bits w_bit num_bits
"""
NESTED = """
text_config quantization_config rope_scaling rope_parameters eagle_config dflash_config transformer_layer_config speculators_config
verifier config_groups weights draftsmith
"""
SIZES, COUNTS, MAPPINGS = (frozenset(names.split()) for names in (ABOVE_ZERO, WHOLE, NESTED))
NUMBERS = frozenset({"factor"})
WORDS = frozenset(
    {"model_type", "speculators_model_type", "quant_method", "quant_algo", "rope_type", "dtype", "torch_dtype", "name_or_path"}
)
LISTS = {
    "architectures": str,
    "layer_types": str,
    "target_layer_ids": int,
    "layer_ids": int,
    "eagle_aux_hidden_state_layer_ids": int,
    "aux_hidden_state_layer_ids": int,
    "dspark_target_layer_ids": int,
    "tap_boundaries": int,
    "mlp_only_layers": int,
    "ignore": str,
    "modules_to_not_convert": str,
    "exclude_modules": str,
    "proposal_methods": dict,
}
WANTED = {str: "words", int: "whole numbers", dict: "mappings"}


def read_config_file(path: Path) -> dict[str, Any]:
    """A config.json as it stands. Raises OSError, and ValueError for what no engine can use: no JSON, no mapping, words for numbers."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds {type(config).__name__}, not a mapping")
    if wrong := list(problems(config)):
        raise ValueError(f"{path}: {'; '.join(wrong[:3])}")
    return config


def problems(config: Mapping[str, Any], outer: str = "") -> Iterator[str]:
    """Sentences about keys whose value no engine can use. null stands for a key that is not given, a list for a value per layer."""
    for key, value in config.items():
        if value is None:
            continue
        if wanted := wrong(key, value):
            yield f"{outer}{key} is {shown(value)}, expected {wanted}"
        elif isinstance(value, dict):
            yield from problems(value, f"{outer}{key}.")


def wrong(key: str, value: Any) -> str:
    """What the key should hold; empty when it does, or when the key is not known."""
    if key in MAPPINGS:
        inside = key != "config_groups" or (isinstance(value, dict) and all(isinstance(group, dict) for group in value.values()))
        return "" if isinstance(value, dict) and inside else "a mapping"
    if key in LISTS:
        kind = LISTS[key]
        whole = isinstance(value, list) and all(isinstance(entry, kind) and not isinstance(entry, bool) for entry in value)
        return "" if whole else f"a list of {WANTED[kind]}"
    if key in WORDS:
        return "" if isinstance(value, str) else "a word"
    if key in NUMBERS:
        return "" if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LARGEST else "a number above 0"
    if key not in SIZES | COUNTS:
        return ""
    lowest = 1 if key in SIZES else -1
    most = MOST_LAYERS if key in LAYER_COUNTS else LARGEST
    values = value if key in PER_LAYER and isinstance(value, list) and value else [value]
    fits = all(isinstance(entry, int) and not isinstance(entry, bool) and lowest <= entry <= most for entry in values)
    return "" if fits else "a whole number" + (" above 0" if lowest > 0 else "") + (" or a list of them" if key in PER_LAYER else "")


def differs_by_layer(config: Mapping[str, Any]) -> bool:
    """Is a size of the config a list, one value for each layer?"""
    return any(isinstance(config.get(key), list) for key in PER_LAYER)


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
