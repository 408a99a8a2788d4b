"""The drafter's kind against SGLang's algorithm or vLLM's method. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from draftsmith.check.head import keys_table, vllm_name
from draftsmith.check.pairing import SAID, kind_of
from draftsmith.check.raises import raised
from draftsmith.check.subject import Family
from draftsmith.findings import Finding

SGLANG = {
    "EAGLE": {"eagle", "mtp", "gemma4", "model"},  # a whole target may hold its MTP layer
    "EAGLE3": {"eagle3"},
    "DFLASH": {"dflash"},
    "DSPARK": {"dspark"},
    "STANDALONE": {"model"},
    "FROZEN_KV_MTP": {"gemma4"},
}
VLLM = {
    "eagle": {"eagle"},
    "eagle3": {"eagle3"},
    "dflash": {"dflash"},
    "dspark": {"dspark"},
    "mtp": {"mtp", "gemma4", "model"},  # vLLM rewrites a whole target's config into its MTP layer
    "medusa": {"medusa"},
    "draft_model": {"model"},
}
RIGHT = {"sglang": SGLANG, "vllm": VLLM}
HEADS = re.compile("Eagle|DFlash|DSpark")
FLAG = {"sglang": "--speculative-algorithm", "vllm": "method"}
SILENT = {  # (family, algorithm, kind): it starts, and this is what comes of it
    (
        "sglang",
        "EAGLE",
        "eagle3",
    ): "it starts without an error: one hidden state reaches the head instead of three, fc is skipped, the target's "
    "head replaces the draft head and d2t is ignored; accept_len stays near 1",
    (
        "sglang",
        "EAGLE3",
        "eagle",
    ): "the target hands over three hidden states, the head was built for one: a shape error at the first request",
}


def pairing_findings(family: Family, algorithm: str | None, drafter: Mapping[str, Any] | None) -> list[Finding]:
    """An error when the drafter is known to be of another kind. A config that does not say its kind is not judged."""
    kind = kind_of(drafter)
    right = RIGHT[family].get(algorithm or "")
    if kind is None or right is None or kind in right:
        return []
    evidence = f"{FLAG[family]} {algorithm} with {SAID[kind]} ({described(drafter)})"
    otherwise = "the engine builds another class than the weights are for: it fails while loading, or drafts noise"
    consequence = SILENT.get((family, str(algorithm), kind), otherwise)
    name = next((name for name, kinds in RIGHT[family].items() if kind in kinds), None)
    fix = f"{FLAG[family]} {name}" if name else f"no {family} method takes {SAID[kind]}; use another drafter"
    return [Finding("DS417", "error", evidence, consequence, fix, refused(drafter, str(algorithm)) if family == "vllm" else "")]


def refused(drafter: Mapping[str, Any] | None, method: str) -> str:
    """vLLM's error when its registry has neither the drafter's class nor, for a head's class, the name that the method makes of it."""
    config, classes = drafter or {}, keys_table()["vllm"]
    name = (config.get("architectures") or [""])[0]
    if name and name in classes:
        name = vllm_name(name, method, str(config.get("model_type")))
    return raised("vllm", None, "architecture", name=name) if name not in classes and HEADS.search(name) else ""


def described(drafter: Mapping[str, Any] | None) -> str:
    """The config's own word for what it is."""
    config = drafter or {}
    architecture = (config.get("architectures") or [None])[0]
    return str(config.get("speculators_model_type") or architecture or config.get("model_type") or "no architecture named")
