"""The config of a speculators folder, as release 0.9.0 saves it and vLLM reads it: the layer's config inside, the method's outside."""

from __future__ import annotations

from typing import Any

from draftsmith.convert.drafter import CARRIED, Asked, Drafter
from draftsmith.convert.heads import Vocab
from draftsmith.convert.limits import SLIDING, causality, layer_kinds
from draftsmith.convert.source import Source
from draftsmith.convert.write_plain import count_taps, settle, stored_dtype
from draftsmith.convert.writing import Config

LAYER = "transformer_layer_config."
VERSION = "0.9.0"  # the release whose layout is written
CLASSES = {"eagle3": "Eagle3DraftModel", "dflash": "DFlashDraftModel", "dspark": "DSparkDraftModel"}
LAYER_KINDS = {"eagle3": ("llama", "qwen3"), "dflash": ("qwen3", "llama"), "dspark": ("qwen3", "llama")}
EAGLE3_SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def finish_speculators(drafter: Drafter, source: Source, asked: Asked, config: Config, vocab: Vocab) -> None:
    """What the format says that the source may not: names, version, verifier, depth, every switch."""
    layout = drafter.layout
    if "architectures" in drafter.fields:
        if "architectures" in config.flat:
            config.drop(drafter.fields["architectures"].sources, "the class of a plain folder; the folder it was made from had its own")
        else:
            settle(drafter, config, "architectures", "architectures", [CLASSES.get(layout, "")], "the class that reads this layout")
    config.ensure("architectures", [CLASSES.get(layout, "")], "the class that reads this layout")
    config.ensure("speculators_model_type", layout, "the method")
    config.ensure("speculators_version", VERSION, "the release whose layout this is")
    finish_layer(drafter, source, config, vocab)
    if "num_hidden_layers" not in drafter.fields:
        config.ensure(f"{LAYER}num_hidden_layers", 1, "one decoder layer")
    config.ensure("target_hidden_size", None, "null: the drafter's own width")
    settle(drafter, config, "draft_vocab_size", "draft_vocab_size", vocab.draft_size, "rows of the head")
    if layout == "eagle3":
        for switch in EAGLE3_SWITCHES:
            config.ensure(switch, False, "the source does not have it; readers differ in what its absence means")
        count_taps(drafter, source, config, LAYER)
    else:
        finish_block(drafter, source, config)
    depth = asked.depth or (3 if layout == "eagle3" else block_depth(config))
    named = "what vLLM serves it with; change with --depth and --verifier"
    unnamed = "no --verifier: vLLM does not mind, speculators cannot load an EAGLE-3 head whose target it does not know"
    config.ensure("speculators_config", proposal(layout, depth, asked), named if asked.verifier else unnamed)
    if (dtype := stored_dtype(source)) and not {"dtype", "torch_dtype"} & {path.rpartition(".")[2] for path in config.flat}:
        config.ensure("dtype", dtype, "the type of the weights")


def finish_layer(drafter: Drafter, source: Source, config: Config, vocab: Vocab) -> None:
    """transformer_layer_config: the kind of layer, sizes that its class would otherwise guess, rope in one dictionary."""
    kinds = LAYER_KINDS.get(drafter.layout, ("",))
    said = drafter.value("model_type")
    wanted = drafter.layer if drafter.layout == "eagle3" else said if said in kinds else kinds[0]
    settle(drafter, config, "model_type", f"{LAYER}model_type", wanted, "the kind of layer")
    config.ensure(f"{LAYER}vocab_size", vocab.vocab_size, "rows of the target's vocabulary")
    if tie := drafter.fields.get("tie_word_embeddings"):
        value = tie.value if drafter.layout != "eagle3" else False
        settle(drafter, config, "tie_word_embeddings", f"{LAYER}tie_word_embeddings", value, "speculators never ties the head")
    heads, width = drafter.value("num_attention_heads"), drafter.value("hidden_size")
    if drafter.value("head_dim") is None and heads and width and f"{LAYER}head_dim" not in config.flat:
        norm = drafter.tensors.get("layers.0.self_attn.q_norm.weight")
        config.ensure(f"{LAYER}head_dim", source.shapes[norm][0] if norm else int(width) // int(heads), "else the layer's class guesses")
    if (
        drafter.value("rope_parameters") is None
        and drafter.value("rope_theta") is not None
        and f"{LAYER}rope_parameters" not in config.flat
    ):
        scaling = dict(drafter.value("rope_scaling") or {})
        kind = scaling.pop("rope_type", None) or scaling.pop("type", None) or "default"
        scaling.pop("type", None)
        rope = {"rope_type": kind, "rope_theta": drafter.value("rope_theta"), **scaling}
        config.ensure(f"{LAYER}rope_parameters", rope, "from rope_theta and rope_scaling, as transformers 5 reads them")


def finish_block(drafter: Drafter, source: Source, config: Config) -> None:
    """DFlash and DSpark: slots and causality; DSpark's heads."""
    ledger = config.ledger
    for name in ("block_size", "mask_token_id"):
        if drafter.value(name) is None:
            ledger.impossible("config", name, "it is absent, and speculators has no default that fits")
    anchor = drafter.layout == "dspark"
    settle(
        drafter, config, "sample_from_anchor", "sample_from_anchor", bool(drafter.value("sample_from_anchor", anchor)), "this layout's rule"
    )
    _, sliding = causality(drafter)
    value = SLIDING not in layer_kinds(drafter) or not sliding
    field = drafter.fields.get("sliding_window_non_causal")
    reason = (
        "vLLM reads false as: every layer is causal, full ones too"
        if SLIDING not in layer_kinds(drafter)
        else "whether slots see later slots"
    )
    config.put("sliding_window_non_causal", value, field.sources if field else (), reason, same=field is not None and field.value == value)
    if causal := drafter.fields.get("causal"):
        config.put(f"{CARRIED}causal", causal.value, causal.sources, "said by sliding_window_non_causal here")
    if SLIDING in layer_kinds(drafter):
        config.ensure(f"{LAYER}use_sliding_window", True, "else the layer's class forgets sliding_window")
    if drafter.layout == "dspark":
        rank = source.shapes[drafter.tensors["markov_head.markov_w1.weight"]][1] if "markov_head.markov_w1.weight" in drafter.tensors else 0
        config.ensure("markov_rank", rank, "columns of markov_head.markov_w1")
        config.ensure("enable_confidence_head", any(name.startswith("confidence_head.") for name in drafter.tensors), "whether it has one")
        config.ensure("confidence_head_with_markov", False, "absent in the source")


def block_depth(config: Config) -> int:
    size = int(config.flat.get("block_size") or 1)
    return size if config.flat.get("sample_from_anchor") else max(1, size - 1)


def proposal(layout: str, depth: int, asked: Asked) -> dict[str, Any]:
    """speculators_config: how many tokens, and of which target."""
    method = {"proposal_type": "greedy", "speculative_tokens": depth, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    verifier = {"name_or_path": asked.verifier, "architectures": list(asked.target.get("architectures") or [])}
    return {"algorithm": layout, "default_proposal_method": "greedy", "proposal_methods": [method], "verifier": verifier}
