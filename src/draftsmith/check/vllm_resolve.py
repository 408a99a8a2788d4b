"""vLLM: --speculative-config and its shortcuts -> method, model, number and runner as they take effect. Pure. Data: vllm.yaml."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from draftsmith.check import pairing
from draftsmith.check.args import Args, whole
from draftsmith.check.resolution import Case, Resolution
from draftsmith.check.shell import unexpanded
from draftsmith.check.since import table
from draftsmith.check.subject import Subject
from draftsmith.check.vllm_config import read_config
from draftsmith.check.vllm_limits import batch, limits, parallel, pipeline
from draftsmith.check.vllm_method import LOOKUP, find_method
from draftsmith.check.vllm_runner import kept_compilation, runner

SPECULATOR = re.compile(r"speculators?[.-](eagle3|dflash|dspark)")  # how drafters that name their own target are called


def resolve_vllm(subject: Subject) -> Resolution:
    """Effective values by the names of vLLM's SpeculativeConfig."""
    case = Case(subject, Args(subject.flags))
    asked = read_config(case)
    if asked is None:
        return case.done({})
    if not asked and not case.stopped:
        served = next((config for config in (subject.target, subject.drafter or {}) if config.get("speculators_model_type")), None)
        if served is not None:
            speculators_target(case, served)
        named = SPECULATOR.search(case.args.text("model") or "")
        kept_compilation(case, case.effective.get("method") or (named and named[1]))
        return case.done({})
    config = {key: value for key, value in asked.items() if value is not None}
    if any(unexpanded(value) for value in config.values()):
        shown = ", ".join(f"{key} {value}" for key, value in config.items() if unexpanded(value))
        why = "the effective values cannot be worked out"
        case.say("DS465", "warning", f"{shown}: a variable is left", why, "write the value in its place")
        return Resolution(None, asked, case.findings)
    whole_number(case, config.get("num_speculative_tokens"))
    method = find_method(case, config)
    if method is not None:
        case.effective |= {"method": method, "model": config.get("model"), "num_speculative_tokens": number(case, config, method)}
        parallel(case, config, method)
        limits(case, config, method)
        pipeline(case, method)
        batch(case, config, method)
        runner(case, config, method)
        kept_compilation(case, method)
    count_fields(case)
    return case.done(asked)


def count_fields(case: Case) -> None:
    """pydantic counts the fields that it refuses, and names them all in one error."""
    one = "ValidationError: 1 validation error for SpeculativeConfig\n"
    fields = [finding for finding in case.findings if finding.raises.startswith(one) and "\n  Value error" not in finding.raises]
    if len(fields) > 1:
        several = f"ValidationError: {len(fields)} validation errors for SpeculativeConfig ..."
        case.findings = [dataclasses.replace(finding, raises=several) if finding in fields else finding for finding in case.findings]


def whole_number(case: Case, value: Any) -> None:
    """pydantic looks at the field before anything else is compared."""
    asked = whole(value)
    if value is not None and (asked is None or asked <= 0):
        why, fix = "vLLM stops: it must be a whole number above 0", 'for example "num_speculative_tokens": 3'
        wrong = "too_low" if asked is not None else "fraction" if isinstance(value, float) else "no_int"
        case.stop("DS451", f"num_speculative_tokens {value!r}", why, fix, case.raised(wrong))


def number(case: Case, config: dict[str, Any], method: str) -> int | None:
    """num_speculative_tokens, or what fills it in."""
    value, drafter = config.get("num_speculative_tokens"), case.subject.drafter
    if value is not None:
        asked = whole(value)
        if asked is None or asked <= 0:  # said before
            return None
        width(case, asked, method)
        return asked
    if case.stopped:  # a key was refused: perhaps this one, misspelt
        return None
    if method == "suffix":
        return whole(config.get("suffix_decoding_max_tree_depth", 24))
    trained = (drafter or {}).get("n_predict") or pairing.speculators_tokens(drafter)
    if method == "dspark" and case.version >= Version(table("vllm")["dspark_by_block"]):
        trained = pairing.block_size(drafter)
    if isinstance(trained, int):
        return trained
    maybe = (
        method in ("mtp", "mlp_speculator") or (method == "dspark" and not drafter) or bool((drafter or {}).get("speculators_model_type"))
    )
    why = "vLLM stops: num_speculative_tokens was not provided"
    fix = 'add "num_speculative_tokens": K, the drafts per round (SGLang\'s steps)'
    if maybe and config.get("model") is not None:
        case.say("DS451", "warning", f"method {method} without num_speculative_tokens", f"{why}, unless the drafter's config has one", fix)
    else:
        drafts = config.get("model") is not None and method not in LOOKUP
        raises = case.raised("no_number" if drafts else "nothing_to_draft")
        case.stop("DS451", f"method {method} without num_speculative_tokens", why, fix, raises)
    return None


def width(case: Case, asked: int, method: str) -> None:
    """The number against the width that the drafter was trained for: DFlash b is b - 1 here, DSpark gamma is gamma."""
    trained, kind = pairing.block_size(case.subject.drafter), pairing.kind_of(case.subject.drafter)
    method = kind if kind in ("dflash", "dspark") else method
    most = trained - 1 if trained and method == "dflash" else trained if method == "dspark" else None
    if most is None or asked == most:
        return
    copied = f"; {asked} is what SGLang calls it" if asked == most + 1 else ""
    name = "block" if method == "dflash" else "gamma"
    why = f"the drafter's {name} is {trained}, in vLLM that is num_speculative_tokens {most}{copied}"
    why += ": positions past it were never trained, and vLLM does not check" if asked > most else ""
    case.say("DS455", "warning", f"{method} with num_speculative_tokens {asked}", why, f'"num_speculative_tokens": {most}')


def speculators_target(case: Case, served: Mapping[str, Any]) -> None:
    """`vllm serve DRAFTER`: a drafter in the speculators format names its own target."""
    target = ((served.get("speculators_config") or {}).get("verifier") or {}).get("name_or_path")
    evidence = f"the model is a drafter in the speculators format; its target is {target or 'named in its config'}"
    case.say("DS463", "info", evidence, "vLLM serves the target with this drafter", "nothing")
    case.effective |= {
        "method": pairing.kind_of(served),
        "model": case.args.text("model"),
        "num_speculative_tokens": pairing.speculators_tokens(served),
    }
