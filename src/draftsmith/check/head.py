"""The drafter as an engine sees it: its config unwrapped, the class that reads it, the method it is served with. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from draftsmith.check.subject import Subject
from draftsmith.check.vllm_config import written_config
from draftsmith.models.text_config import text_part

# speculators_model_type -> method, and model_type of the layer -> class, as vLLM maps them
SPECULATORS = {"eagle3": "eagle3", "peagle": "eagle3", "dflash": "dflash", "dflash2": "dflash", "dspark": "dspark"}
SPECULATORS_CLASSES = {
    ("eagle3", "llama"): "Eagle3LlamaForCausalLM",
    ("eagle3", "qwen3"): "Eagle3Qwen3ForCausalLM",
    ("peagle", "llama"): "PeagleLlamaForCausalLM",
    ("peagle", "qwen3"): "PeagleQwen3ForCausalLM",
    ("dflash", ""): "DFlashDraftModel",
    ("dflash2", ""): "DFlash2DraftModel",
    ("dspark", ""): "Qwen3DSparkModel",
}
SPECULATORS_OUTSIDE = (
    *("draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"),
    *("block_size", "mask_token_id", "eagle_aux_hidden_state_layer_ids", "quantization_config"),
)


@dataclass(frozen=True)
class Head:
    """A drafter's config, flat, and what the engine makes of it. `architecture` is the name that the engine looks up."""

    config: Mapping[str, Any]
    architecture: str
    method: str  # eagle, eagle3, dflash, dspark, or what the flags say in lower case; "" when nothing says
    layout: str | None  # key of drafter_keys.yaml's layouts
    speculators: str | None = None  # speculators_model_type

    @property
    def eagle_config(self) -> Mapping[str, Any]:
        return self.config.get("eagle_config") or {}

    @property
    def dflash_config(self) -> Mapping[str, Any]:
        return self.config.get("dflash_config") or {}


@cache
def keys_table() -> dict[str, Any]:
    """drafter_keys.yaml."""
    return yaml.safe_load(Path(__file__).with_name("drafter_keys.yaml").read_text())


def flag(subject: Subject, *names: str) -> Any:
    """The first of these flags that is given, None when none is."""
    return next((subject.flags[name] for name in names if subject.flags.get(name) is not None), None)


def speculative_config(subject: Subject) -> dict[str, Any]:
    """vLLM's speculative settings; {} when there are none or they are not JSON (which the rules about flags say)."""
    try:
        return written_config(subject.flags)
    except ValueError:
        return {}


def asked_method(subject: Subject) -> str:
    """What the flags ask for, in lower case; SGLang's NEXTN is EAGLE; "" when they say nothing."""
    if subject.family == "vllm":
        return str(speculative_config(subject).get("method") or "").lower()
    name = str(flag(subject, "speculative-algorithm", "speculative-algo") or "").lower()
    return "eagle" if name == "nextn" else name


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """A speculators config or vLLM's old `model` wrapper as one flat config; any other config with its text part on top."""
    if "speculators_model_type" in config:
        layer = dict(config.get("transformer_layer_config") or {})
        outside = {key: config[key] for key in SPECULATORS_OUTSIDE if config.get(key) is not None}
        if config["speculators_model_type"] == "eagle3":
            outside.setdefault("norm_before_residual", True)
        if ids := config.get("aux_hidden_state_layer_ids"):
            outside["eagle_aux_hidden_state_layer_ids"] = ids
        return {**layer, **outside}
    if isinstance(config.get("model"), Mapping):
        return {**config["model"], **{key: value for key, value in config.items() if key not in ("model", "model_type", "architectures")}}
    return text_part(config)


def vllm_name(name: str, method: str, model_type: str) -> str:
    """The class that vLLM looks up: it puts the method before an architecture that does not say it already."""
    if method == "eagle" and not name.startswith("Eagle"):
        return f"Eagle{name}"
    if method == "eagle3" and not (name.startswith(("Eagle3", "PEagle", "Peagle")) or name.endswith("Eagle3")):
        return f"Eagle3{name}"
    if method == "dflash" and not (name.startswith("DFlash") or name.endswith("DFlash") or name == "LiLiCorrDraftModel"):
        return f"DFlash{name}"
    return "Qwen3DSparkModel" if (name, model_type) == ("DSparkDraftModel", "qwen3") else name


def guess_method(config: Mapping[str, Any], name: str) -> str:
    """The method that a drafter is made for, from its class and keys."""
    for family in ("sglang", "vllm"):
        if row := keys_table()[family].get(name):
            return row["method"]
    if config.get("draft_vocab_size") is not None or config.get("eagle_config"):
        return "eagle3"
    return ""


def head_of(subject: Subject) -> Head | None:
    """The subject's drafter; None when it has none, or when it is an ordinary model (method draft_model, STANDALONE, NGRAM)."""
    if not subject.drafter:
        return None
    config = flatten(subject.drafter)
    kind = subject.drafter.get("speculators_model_type")
    asked = asked_method(subject)
    if kind in SPECULATORS:
        asked = asked or SPECULATORS[kind]
        layer = str(config.get("model_type") or "llama")
        name = SPECULATORS_CLASSES.get((kind, "")) or SPECULATORS_CLASSES.get((kind, layer), f"{kind} on {layer}")
        row = keys_table()["vllm"].get(name, {})
        return Head(config, name, asked, row.get("layout"), kind)
    names = subject.drafter.get("architectures") or config.get("architectures") or []
    name = str(names[0]) if names else ""
    method = asked or guess_method(config, name)
    if method not in ("eagle", "eagle3", "dflash", "dspark"):
        return None
    if subject.family == "vllm":
        name = vllm_name(name, method, str(config.get("model_type")))
    return Head(config, name, method, keys_table()[subject.family].get(name, {}).get("layout"))
