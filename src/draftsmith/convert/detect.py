"""Which format is this folder in? From config keys and tensor names only; a guess is never made silently."""

from __future__ import annotations

import re
from dataclasses import dataclass

from draftsmith.convert.drafter import Layout
from draftsmith.convert.source import Source
from draftsmith.errors import CheckFailed, UsageError

SPECULATORS: dict[str, Layout] = {"eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark"}
EAGLE3_CLASSES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM", "Qwen3Eagle3Model")
MLA_CLASSES = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")
DSPARK_CLASSES = ("Qwen3DSparkModel", "DSparkDraftModel", "Gemma4DSparkModel", "LingDSparkModel")
KNOWN = "EAGLE-3 (SGLang/SpecForge, vLLM, AQ-MedAI, lightseek MLA, DeepSpec), speculators (eagle3, dflash, dspark), z-lab DFlash, DSpark"
NOT_YET = {
    "peagle": "P-EAGLE (parallel drafting)",
    "dflash2": "DFlash 2 (convolutions and a candidate selector)",
    "mtp": "a multi-token-prediction module",
    "xpress": "XPress",
}


@dataclass(frozen=True)
class Found:
    """What a folder is. `text`: format and evidence, for people."""

    layout: Layout
    speculators: bool
    text: str


def detect(source: Source) -> Found:
    """The format. Raises UsageError for a target's folder and for formats that are not known, CheckFailed for those not converted."""
    config = source.config
    names = [name.removeprefix("model.") for name in source.places]
    architecture = str((config.get("architectures") or [""])[0])
    if kind := config.get("speculators_model_type"):
        if kind not in SPECULATORS:
            raise not_yet(NOT_YET.get(str(kind), f"speculators_model_type {kind!r}"))
        version = config.get("speculators_version") or "version not said"
        return Found(SPECULATORS[kind], True, f"speculators {kind} ({version})")
    if any("candidate_selector." in name or "_conv." in name for name in names) or "DFlash2" in architecture:
        raise not_yet(NOT_YET["dflash2"])
    if any(name.startswith(("prefix_gru.", "embed_proj.")) for name in names):
        raise not_yet("Domino (a DFlash with a recurrent projector)")
    if "mask_hidden" in names or config.get("parallel_drafting"):
        raise not_yet(NOT_YET["peagle"])
    if architecture in DSPARK_CLASSES:
        return Found("dspark", False, f"DSpark / DeepSpec ({architecture})")
    if architecture == "DFlashDraftModel" or ("hidden_norm.weight" in names and "dflash_config" in config):
        return Found("dflash", False, f"z-lab DFlash ({architecture or 'no architectures'})")
    if architecture in MLA_CLASSES or any(name.endswith("kv_a_proj_with_mqa.weight") and "fc.weight" in names for name in names):
        return Found("eagle3_mla", False, f"EAGLE-3 with latent attention ({architecture})")
    if "fc.weight" in names and any(name.endswith(".hidden_norm.weight") for name in names):
        return Found("eagle3", False, f"EAGLE-3, {flavour(source, architecture)}")
    raise unknown(source, architecture, names)


def flavour(source: Source, architecture: str) -> str:
    """Whose spelling an EAGLE-3 folder is in."""
    config = source.config
    if isinstance(config.get("draftsmith"), dict):
        return f"Draftsmith's ({architecture})"
    if architecture == "Qwen3Eagle3Model":
        return "DeepSpec's (Qwen3Eagle3Model)"
    if isinstance(config.get("eagle_config"), dict) or architecture == "LlamaForCausalLMEagle3":
        both = "eagle_aux_hidden_state_layer_ids" in config
        return f"SGLang/SpecForge{' and vLLM' if both else ''} ({architecture})"
    if architecture in EAGLE3_CLASSES or "eagle_aux_hidden_state_layer_ids" in config:
        return f"vLLM plain ({architecture})"
    return f"plain, by its tensors ({architecture or 'no architectures'})"


def unknown(source: Source, architecture: str, names: list[str]) -> CheckFailed | UsageError:
    """A target, an EAGLE-1 head, or something else."""
    layers = {match[1] for name in names if (match := re.match(r"(?:language_model\.)?(?:model\.)?layers\.(\d+)\.", name))}
    if len(layers) > 1 and "fc.weight" not in names and any(name.endswith("embed_tokens.weight") for name in names):
        return UsageError(
            f"{source.folder} is a whole language model ({architecture}, {len(layers)} layers), not a drafter",
            hint="SRC is the drafter's folder; the target goes to --target",
        )
    if "fc.weight" in names:
        shape = list(source.shapes[next(name for name in source.places if name.removeprefix("model.") == "fc.weight")])
        return not_yet(f"an EAGLE-1/2 head (fc.weight {shape}, no hidden_norm)")
    return UsageError(
        f"{source.folder}: unknown drafter format ({architecture or 'no architectures'}, {len(names)} tensors)", hint=f"known: {KNOWN}"
    )


def not_yet(what: str) -> CheckFailed:
    return CheckFailed(f"the drafter is {what}, which is not converted", hint=f"known: {KNOWN}")
