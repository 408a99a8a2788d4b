"""What a format or its engine cannot compute. Each rule is a fact about the network; what depends on the engine's version is check's."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from draftsmith.convert.drafter import Asked, Drafter
from draftsmith.convert.ledger import Ledger

IS_CAUSAL_SINCE = Version("0.5.18")  # SGLang's DFlash: before, full layers look both ways and sliding layers back, whatever the config says
IS_CAUSAL_OF_FULL = Version("0.5.17")  # but this one already reads it for the full layers of a config that has layer_types
ANCHOR_SINCE = Version("0.5.19")  # SGLang's DSpark: before, the anchor is always sampled
SLIDING = "sliding_attention"
# what SpecForge notes about a DSpark and no engine needs to be told
NEUTRAL = {
    "dflash_config.projector_type": ("dspark",),
    "dflash_config.attention_mode": ("gqa",),
    "dflash_config.confidence_head_alpha": (1, 0.5),
}


def enter_limits(drafter: Drafter, asked: Asked, ledger: Ledger) -> None:
    """Everything that the asked format cannot say, as impossible entries."""
    rules = {"eagle3": eagle3_limits, "eagle3_mla": mla_limits, "dflash": block_limits, "dspark": block_limits}
    for name, reason in rules[drafter.layout](drafter, asked):
        ledger.impossible("drafter", name, reason)


def has(drafter: Drafter, ending: str) -> bool:
    return any(name.endswith(ending) for name in drafter.tensors)


def eagle3_limits(drafter: Drafter, asked: Asked) -> Iterator[tuple[str, str]]:
    if asked.format == "zlab":
        yield "eagle3", "z-lab's format is DFlash's: a block drafter, another network than EAGLE-3"
    if drafter.value("architectures") == ["Qwen3Eagle3Model"] and drafter.num_layers > 1:
        yield "num_hidden_layers", "DeepSpec joins the embedding in every layer; engines do so in the first only"
    if asked.format == "sglang":
        if drafter.layer == "qwen3":
            yield "q_norm, k_norm", "SGLang's EAGLE-3 layer is Llama's: it has no norm of queries and keys and would drop these weights"
        if has(drafter, "self_attn.q_proj.bias"):
            yield "attention_bias", "SGLang's EAGLE-3 layer has no bias in q, k and v"
        if SLIDING in (drafter.value("layer_types") or ()):
            yield "layer_types", "SGLang's EAGLE-3 layers see the whole context; a window is only set by a flag for all of them"
    elif "fc.bias" in drafter.tensors:
        yield "fc.bias", f"fc has no bias in {'vLLM' if asked.format == 'vllm' else 'speculators'}"
    if asked.format == "speculators":
        yield from speculators_limits(drafter)


def speculators_limits(drafter: Drafter) -> Iterator[tuple[str, str]]:
    width, target = drafter.value("hidden_size"), drafter.value("target_hidden_size")
    if target is not None and target != width:
        yield "target_hidden_size", f"speculators builds fc for the drafter's width {width}, the target's is {target}"
    if drafter.value("norm_before_fc") and drafter.value("fc_norm"):
        yield "norm_before_fc, fc_norm", "speculators takes one of the two, not both"
    if drafter.value("eagle_config.use_aux_hidden_state") is False:
        yield "eagle_config.use_aux_hidden_state", "speculators always taps the target's layers"
    if drafter.value("model_type") == "llama4_text":
        yield "model_type", "speculators has no llama4_text layer"


def mla_limits(drafter: Drafter, asked: Asked) -> Iterator[tuple[str, str]]:
    if asked.format == "zlab":
        yield "eagle3", "z-lab's format is DFlash's: a block drafter, another network than EAGLE-3"
    if asked.format == "speculators":
        yield "latent attention", "speculators has EAGLE-3 layers of Llama and Qwen3 only"


def block_limits(drafter: Drafter, asked: Asked) -> Iterator[tuple[str, str]]:
    if drafter.layout == "dspark" and asked.format == "zlab":
        yield "dspark", "z-lab's DFlash fills the slots after the anchor, DSpark the anchor's too, and it has no Markov or confidence head"
    anchor = drafter.value("sample_from_anchor")
    if drafter.layout == "dflash" and anchor:
        yield "sample_from_anchor", "a DFlash that samples from the anchor is not supported by SGLang, vLLM or z-lab's code"
    if drafter.layout == "dspark" and anchor is False and asked.format == "sglang" and asked.version < ANCHOR_SINCE:
        yield "sample_from_anchor", f"SGLang {asked.version} always samples from the anchor; {ANCHOR_SINCE} reads the switch"
    if drafter.value("dflash_config.use_swa"):
        yield "dflash_config.use_swa", "write it as layer_types, sliding_window and is_causal, which all formats have"
    if asked.format == "speculators":
        for name, field in drafter.fields.items():
            if name.startswith("dflash_config.") and field.value not in (None, False, *NEUTRAL.get(name, ())):
                yield name, "speculators has no place for it, and it changes what is computed"
    full, sliding = causality(drafter)
    kinds = layer_kinds(drafter)
    wanted = {full if kind != SLIDING else sliding for kind in kinds}
    if asked.format == "speculators":
        if full and kinds != {SLIDING}:
            yield "is_causal", "speculators' full-attention layers always look both ways inside the block"
        elif len(wanted) == 2:
            yield (
                "layer_types",
                "vLLM reads one causality for all layers of a speculators folder; these full layers look both ways, the sliding ones back",
            )
    elif asked.format == "sglang" and (full, sliding) != (False, True) and asked.version < IS_CAUSAL_SINCE:
        unread = full and not (asked.version >= IS_CAUSAL_OF_FULL and drafter.value("layer_types"))
        if any((kind == SLIDING and not sliding) or (kind != SLIDING and unread) for kind in kinds):
            yield "is_causal", f"SGLang {asked.version} does not read it there; {IS_CAUSAL_SINCE} does"
    elif len(wanted) == 2 and (full, sliding) != (False, True):
        yield "is_causal", "one value for all layers is all that the format can say"


def layer_kinds(drafter: Drafter) -> set[str]:
    return set(drafter.value("layer_types") or ["full_attention"])


def causality(drafter: Drafter) -> tuple[bool, bool]:
    """Whether slots of a block see later slots: (full layers are causal, sliding layers are causal)."""
    if "sliding_window_non_causal" in drafter.fields:
        return False, not drafter.value("sliding_window_non_causal")
    if drafter.value("causal") is not None:
        return bool(drafter.value("causal")), bool(drafter.value("causal"))
    return False, True
