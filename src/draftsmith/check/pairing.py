"""What kind of drafter a config describes, how wide its block is, and which algorithm or method it goes with. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftsmith.models.text_config import text_part

# an ending or a part of architectures[0] -> kind; the first that fits wins
NAMES = (
    ("Gemma4AssistantForCausalLM", "gemma4"),
    ("Gemma4UnifiedAssistantForCausalLM", "gemma4"),
    ("Eagle3", "eagle3"),
    ("PEagle", "eagle3"),
    ("Eagle", "eagle"),
    ("EAGLE", "eagle"),
    ("DFlash", "dflash"),
    ("MuseGlimmerAssistant", "dflash"),
    ("LiLiCorrDraft", "dflash"),
    ("DSpark", "dspark"),
    ("NextN", "mtp"),
    ("MTP", "mtp"),
    ("Medusa", "medusa"),
)
SPECULATORS = {"eagle3": "eagle3", "peagle": "eagle3", "eagle": "eagle", "dflash": "dflash", "dflash2": "dflash", "dspark": "dspark"}
BUNDLED_DSPARK = ("dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id", "dspark_target_layer_ids")
SAID = {
    "eagle3": "an EAGLE-3 head",
    "eagle": "an EAGLE-1/2 head",
    "dflash": "a DFlash drafter",
    "dspark": "a DSpark drafter",
    "mtp": "an MTP layer",
    "medusa": "a Medusa head",
    "gemma4": "a Gemma 4 assistant",
    "model": "a language model of its own",
}


def kind_of(config: Mapping[str, Any] | None) -> str | None:
    """A key of SAID, or None when the config does not say. "model" is a whole language model, no head."""
    if not config:
        return None
    named = SPECULATORS.get(str(config.get("speculators_model_type") or ""))
    if named:
        return named
    architecture = (config.get("architectures") or [""])[0]
    reduced = bool(config.get("draft_vocab_size") or config.get("truncated_vocab_size")) or "eagle_config" in config
    for part, kind in NAMES:
        if part in architecture:
            if kind == "mtp" and reduced:
                return "eagle3"
            return None if kind == "dspark" and config.get("markov_rank") == 0 else kind  # DFlash under DSpark's name
    if "dflash_config" in config:
        return "dflash"
    if reduced:
        return "eagle3"
    if str(config.get("model_type", "")).endswith("_mtp"):
        return "mtp"
    layers = text_part(config).get("num_hidden_layers")
    return (
        "model" if architecture.endswith(("ForCausalLM", "ForConditionalGeneration")) and isinstance(layers, int) and layers > 4 else None
    )


def block_size(config: Mapping[str, Any] | None) -> int | None:
    """Block of a DFlash drafter, gamma of a DSpark one; None when the config does not say."""
    config = config or {}
    nested = config.get("dflash_config") or {}
    for value in (config.get("dspark_block_size"), nested.get("block_size"), config.get("block_size")):
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def speculators_tokens(config: Mapping[str, Any] | None) -> int | None:
    """Tokens that a drafter in the speculators format says it proposes."""
    methods = ((config or {}).get("speculators_config") or {}).get("proposal_methods") or [{}]
    value = methods[0].get("speculative_tokens") if isinstance(methods[0], Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
