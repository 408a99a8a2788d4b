"""A DFlash folder in the plain layout that z-lab, SGLang and vLLM load, as our reference computes it; or why it cannot be replayed.

Suffixes: W draft vocabulary, V target vocabulary, D drafter width.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from draftsmith.errors import CheckFailed
from draftsmith.models.checkpoint import WEIGHTS, same_tensors
from draftsmith.models.dflash import DFlashDrafter, DFlashShape, View
from draftsmith.models.target import Target
from draftsmith.verify.replay.folder import EMBEDDING, HEAD, Folder, check_fc, common_refusals, lent_embedding

DFLASH = "DFlashDraftModel"
DSPARK_CLASSES = ("Qwen3DSparkModel", "DSparkDraftModel", "Gemma4DSparkModel", "LingDSparkModel")
MASK_EMBEDDING = "mask_embedding.pt"  # of the mask token alone, trained by itself; vLLM reads it, SGLang does not
LENT = (EMBEDDING, HEAD, "d2t", "t2d")
KNOWN = {"mask_token_id", "target_layer_ids", "layer_ids", "block_size", "num_target_layers", "causal"}  # of dflash_config
NEUTRAL = {  # values that change nothing, of what else a config says; any other is another network
    "logit_scale": (1,),
    "output_multiplier": (1,),
    "input_embedding_scale": (1,),
    "final_logit_softcapping": (),
    "is_neox_style": (True,),
    "rope_is_neox_style": (True,),
    "add_swa_attention_sink_bias": (False,),
    "sample_from_anchor": (False,),
    "use_aux_hidden_state": (True,),
    "dflash_config.use_aux_hidden_state": (True,),
}


def block_size(folder: Path) -> int | None:
    """Slots of a block that a drafter's config.json names, in any layout; None when it is no block drafter, or does not say."""
    try:
        config = json.loads((folder / "config.json").read_text())
        size = config.get("block_size") or (config.get("dflash_config") or {}).get("block_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) and size > 1 else None


def block_refusals(folder: Folder, vocab_size: int) -> Iterator[str]:
    """Why our reference does not compute this network, one reason after the other. vocab_size: the target's."""
    config = folder.config
    inner = config.get("dflash_config") or {}
    said = {**config, **{f"dflash_config.{name}": value for name, value in inner.items() if name not in KNOWN}}
    for name, value in said.items():
        neutral = NEUTRAL.get(name, () if name.startswith("dflash_config.") else None)
        if neutral is not None and value not in (None, False, *neutral):
            yield f"{name} is {value!r}, which the reference does not compute"
    if said.get("is_neox_style") is False or said.get("rope_is_neox_style") is False:
        yield "its rotary embedding turns neighbours, not halves"
    if said.get("dflash_config.use_aux_hidden_state") is False or said.get("use_aux_hidden_state") is False:
        yield "it reads the last hidden state only (use_aux_hidden_state: false)"
    if (folder.path / MASK_EMBEDDING).is_file():
        yield f"the embedding of its mask token is its own ({MASK_EMBEDDING})"
    mask = inner.get("mask_token_id", config.get("mask_token_id"))
    if not isinstance(mask, int) or not 0 <= mask < vocab_size:
        yield f"mask_token_id is {mask}, no token of the target's {vocab_size}"
    layers, kinds = int(config.get("num_hidden_layers") or 0), config.get("layer_types")
    if kinds and len(kinds) != layers:
        yield f"layer_types names {len(kinds)} layers of {layers}"
    if "sliding_attention" in (kinds or ()) and not config.get("sliding_window"):
        yield "a sliding layer has no sliding_window"
    if HEAD not in folder.tensors and config.get("draft_vocab_size") not in (None, vocab_size):
        yield f"its vocabulary is reduced to {config['draft_vocab_size']} tokens, and it has no {HEAD}"
    yield from common_refusals(folder, vocab_size)


def views(config: Mapping[str, Any]) -> tuple[View, ...]:
    """What the slots see, layer by layer: full layers look both ways inside the block and sliding ones back, unless the config says
    otherwise. Source: vLLM 0.32.0, model_executor/models/qwen3_dflash.py; SGLang from 0.5.18."""
    layers = int(config["num_hidden_layers"])
    kinds = config.get("layer_types") or ["full_attention"] * layers
    causal = config.get("is_causal")
    causal = (config.get("dflash_config") or {}).get("causal") if causal is None else causal
    sliding = [kind == "sliding_attention" for kind in kinds]
    return tuple(View(slides if causal is None else bool(causal), config["sliding_window"] if slides else None) for slides in sliding)


def load_dflash(folder: Folder, target: Target, taps: Sequence[int], dtype: torch.dtype) -> DFlashDrafter:
    """The drafter; embedding and head are its own where it has them, else the target's. Raises CheckFailed, and KeyError for a field that
    the config lacks."""
    check_fc(folder, target, len(taps))
    shape = dflash_shape(folder.config, target, len(taps))
    drafter, where = DFlashDrafter(shape), folder.path / WEIGHTS
    tensors = {name: value for name, value in folder.tensors.items() if name not in LENT}
    same_tensors(drafter.state_dict(), tensors, where)
    drafter.load_state_dict(tensors, strict=True)
    V, D = shape.vocab_size, shape.hidden_size
    head_WD = folder.tensors.get(HEAD, target.head_VH)
    offsets_W = folder.tensors.get("d2t")
    rows = len(head_WD) if offsets_W is None else len(offsets_W)
    if tuple(head_WD.shape) != (rows, D) or (offsets_W is None and rows != V):
        whose = "its own" if HEAD in folder.tensors else "the target's"
        wanted = [V if offsets_W is None else rows, D]
        raise CheckFailed(f"{folder.path} needs a head of {wanted}, {whose} is {list(head_WD.shape)}", hint="is --target the right one?")
    ids_W = None if offsets_W is None else torch.arange(rows) + offsets_W
    if ids_W is not None and not 0 <= int(ids_W.min()) <= int(ids_W.max()) < V:
        raise CheckFailed(f"{where}: d2t leaves the target's vocabulary", hint="d2t holds offsets: target id - draft id")
    drafter.to(dtype)
    drafter.lend(lent_embedding(folder, target, (V, D)).to(dtype), head_WD.to(dtype), ids_W)
    return drafter.eval().requires_grad_(False)


def dflash_shape(config: Mapping[str, Any], target: Target, num_taps: int) -> DFlashShape:
    """From the config. Raises KeyError for a missing field."""
    heads, width = config["num_attention_heads"], config["hidden_size"]
    inner, rope = config.get("dflash_config") or {}, config.get("rope_parameters") or {}
    return DFlashShape(
        hidden_size=width,
        target_hidden_size=config.get("target_hidden_size") or target.config.hidden_size,
        intermediate_size=config["intermediate_size"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or width // heads,
        vocab_size=int(config.get("vocab_size") or target.config.vocab_size),
        num_taps=num_taps,
        rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else config["rope_theta"]),  # engines' defaults differ
        rms_norm_eps=config["rms_norm_eps"],
        max_position=max(config["max_position_embeddings"], target.config.max_position_embeddings),  # engines go on past the drafter's
        mask_token=int(inner["mask_token_id"] if "mask_token_id" in inner else config["mask_token_id"]),
        views=views(config),
    )
