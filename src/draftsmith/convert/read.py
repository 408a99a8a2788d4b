"""From a folder's config and tensor names to a drafter without a format. Each path becomes one named field; two paths must agree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from draftsmith.convert.detect import Found, detect
from draftsmith.convert.drafter import CARRIED, WRAPPERS, Asked, Drafter, Field, flatten
from draftsmith.convert.ledger import Ledger
from draftsmith.convert.source import Source
from draftsmith.convert.tapping import read_taps

TAP_KEY = "eagle_aux_hidden_state_layer_ids"
TAP_PATHS = (
    TAP_KEY,
    f"eagle_config.{TAP_KEY}",
    "eagle_config.layer_ids",
    "dflash_config.layer_ids",
    "dflash_config.target_layer_ids",
    "dspark_target_layer_ids",
    "target_layer_ids",
    "aux_hidden_state_layer_ids",
    "draftsmith.tap_boundaries",
)
DSPARK = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
# path -> field, where they differ. Every other path is a field of its own name.
PLAIN = {
    "truncated_vocab_size": "draft_vocab_size",
    "eagle_config.norm_before_fc": "norm_before_fc",
    "use_aux_norm": "fc_norm",
    "num_aux_hidden_states": "num_taps",
    "num_aux_layers": "num_taps",
    "dflash_config.mask_token_id": "mask_token_id",
    "dflash_config.block_size": "block_size",
    "dflash_config.num_target_layers": "num_target_layers",
    "dflash_config.sample_from_anchor": "sample_from_anchor",
    "dflash_config.causal": "causal",
    **{f"dflash_config.{name}": name for name in DSPARK},
    "is_causal": "causal",
    "draftsmith.target_model_type": "target_model_type",
}
# fields that a speculators config has outside transformer_layer_config and that say something about the network
OUTSIDE = (
    *("draft_vocab_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "target_hidden_size"),
    *("block_size", "mask_token_id", "sample_from_anchor", "sliding_window_non_causal"),
    *DSPARK,
)
DROPPED_TENSORS = {
    r".*rotary_emb\.(inv_freq|cos_cached|sin_cached)$": "computed from the config by every engine",
    r"verifier_(norm|lm_head)\.": "a copy of the target's weights that no engine reads",
}
RENAMED_TENSORS = {
    "midlayer.": "layers.0.",
    "aux_norm_low.": "fc_norm.0.",
    "aux_norm_mid.": "fc_norm.1.",
    "aux_norm_high.": "fc_norm.2.",
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
}


def read_drafter(source: Source, asked: Asked, ledger: Ledger) -> Drafter:
    """The drafter of an opened folder. What contradicts itself is entered as impossible."""
    found = detect(source)
    flat = flatten(source.config)
    fields = merge(flat, found, ledger)
    tensors = canonical_tensors(source, ledger)
    drop_null_width(fields, ledger)
    taps = read_taps({path: value for path, value in flat.items() if path in TAP_PATHS and value}, found, fields, asked, ledger)
    if found.layout == "eagle3":
        layer = "qwen3" if "layers.0.self_attn.q_norm.weight" in tensors else "llama"
    else:
        layer = "mla" if found.layout == "eagle3_mla" else "qwen3"
    return Drafter(found.layout, layer, found.text, fields, tensors, taps)


def field_name(path: str, value: Any, found: Found) -> str:
    """The field that a path sets."""
    if path.startswith(CARRIED):
        return path.removeprefix(CARRIED)
    if not found.speculators or path.startswith("draftsmith."):
        return PLAIN.get(path, path)
    if path.startswith("transformer_layer_config."):
        inner = path.removeprefix("transformer_layer_config.")
        if inner == "architectures" or (inner == "tie_word_embeddings" and value and found.layout == "eagle3"):
            return f"speculators.layer.{inner}"  # the target's: speculators never ties the head
        return PLAIN.get(inner, inner)
    return path if path in OUTSIDE else f"speculators.{path}"


def merge(flat: Mapping[str, Any], found: Found, ledger: Ledger) -> dict[str, Field]:
    """Fields by name; tap ids are left to read_taps."""
    fields: dict[str, Field] = {}
    for path, value in flat.items():
        if path in TAP_PATHS:
            if not value:
                ledger.add("config", "dropped", path, None, "empty: the default taps")
            continue
        if path in WRAPPERS:
            ledger.add("config", "dropped", path, None, "empty")
            continue
        if path == "auto_map" and not found.speculators:
            ledger.add("config", "dropped", path, None, "it names Python code that comes with the folder; engines have their own class")
            continue
        name = field_name(path, value, found)
        if name not in fields:
            fields[name] = Field(value, (path,))
        elif fields[name].value == value:
            fields[name] = Field(value, (*fields[name].sources, path))
        else:
            first = fields[name]
            ledger.impossible(
                "config", path, f"{path} is {value!r}, {first.sources[0]} is {first.value!r}: they mean the same; make them equal"
            )
    if found.speculators and "norm_before_residual" not in fields and found.layout == "eagle3":
        ledger.impossible(
            "config", "norm_before_residual", "it is absent: vLLM takes true, speculators false; write the one it was trained with"
        )
    return fields


def drop_null_width(fields: dict[str, Field], ledger: Ledger) -> None:
    """target_hidden_size: null means the drafter's own width; SGLang multiplies it and fails, so that it is not carried."""
    if "target_hidden_size" in fields and fields["target_hidden_size"].value is None:
        for path in fields.pop("target_hidden_size").sources:
            ledger.add("config", "dropped", path, None, "null: the target's width is the drafter's")


def canonical_tensors(source: Source, ledger: Ledger) -> dict[str, str]:
    """Canonical name -> name in the source: no `model.` prefix, `layers.0.` for `midlayer.`, `fc_norm.N.` for EAGLE-3.1's old names."""
    tensors: dict[str, str] = {}
    for name in source.places:
        reason = next((reason for pattern, reason in DROPPED_TENSORS.items() if re.match(pattern, name.removeprefix("model."))), None)
        if reason:
            ledger.add("tensor", "dropped", name, None, reason)
            continue
        canonical = name.removeprefix("model.")
        for old, new in RENAMED_TENSORS.items():
            if canonical.startswith(old):
                canonical = new + canonical.removeprefix(old)
        if canonical in tensors:
            ledger.impossible("tensor", name, f"{tensors[canonical]} is the same tensor under another name")
        tensors[canonical] = name
    return tensors
