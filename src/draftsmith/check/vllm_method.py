"""vLLM: which method it comes to: given, a dotted path, or guessed from the drafter's path and config. Pure. Data: vllm.yaml."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from draftsmith.check import pairing
from draftsmith.check.pairing import SAID
from draftsmith.check.resolution import Case
from draftsmith.check.since import known, table
from draftsmith.findings import Finding
from draftsmith.models.text_config import text_part

LOOKUP = ("ngram", "[ngram]", "ngram_gpu")


def find_method(case: Case, config: dict[str, Any]) -> str | None:
    """The method as vLLM comes to it: given, dotted path, or guessed from the drafter's path and config."""
    rules, given, model = table("vllm"), config.get("method"), config.get("model")
    if given is not None:
        if not method_exists(case, str(given)):
            return None
        given = "mtp" if str(given).endswith("_mtp") else "ngram" if given == "[ngram]" else str(given)
    if isinstance(model, str) and custom_path(case.version, model, given):
        what = f"model {model!r} has a dot and no slash: vLLM {case.version} takes it for a Python class and sets method custom_class"
        if given not in (None, "custom_class"):
            fix = "write the path with a slash: ./FOLDER"
            case.stop("DS452", f"{what}, although method is {given}", "it does not load the drafter", fix)
        elif given is None:
            case.say("DS452", "warning", what, "it does not load a drafter", "name the method, and write the path with a slash")
        return "custom_class"
    if given == "mtp" and model is None and without_mtp(case.subject.target):
        why, fix = "vLLM stops: the target has no MTP layer to draft with", "name a drafter and its method"
        case.stop("DS416", f"method mtp on {case.subject.target['architectures'][0]}", why, fix, case.raised("no_mtp"))
    if given in ("mtp", *LOOKUP, "suffix", "custom_class", "extract_hidden_states"):
        return "ngram" if given == "[ngram]" else given
    if model is None:
        without = "no_model" if config.get("num_speculative_tokens") is not None else "nothing_to_draft"
        if given not in rules["without_model"] and given is not None:
            why, fix = "vLLM stops: there is no speculative model", 'add "model": the drafter\'s folder or hub id'
            case.stop("DS416", f"method {given} without model", why, fix, case.raised(without))
        elif given is None:
            why, fix = "vLLM stops: neither a method nor a model", 'add "method" and "model"'
            case.stop("DS416", "--speculative-config without method and model", why, fix, case.raised(without))
        return given
    return guessed(case, str(model), given)


def without_mtp(target: Mapping[str, Any]) -> bool:
    """A plain decoder, or one whose config says that it has no layer of that kind."""
    plain = set(target.get("architectures") or ()) & set(table("sglang")["no_own_layer"])
    return bool(plain) or text_part(target).get("num_nextn_predict_layers") == 0


def method_exists(case: Case, given: str) -> bool:
    """Is the method in this version?"""
    rules = table("vllm")
    there = [name for name in known(rules["methods"], case.version) if not case.version >= Version(rules["methods_gone"].get(name, "999"))]
    if given in there or given.endswith("_mtp") or given == "[ngram]":
        return True
    first, gone = rules["methods"].get(given), rules["methods_gone"].get(given)
    close = difflib.get_close_matches(given.lower().replace("-", "_"), there, n=1, cutoff=0.6)
    fix = f"vLLM {first} or newer" if first and not gone else f"gone since {gone}" if gone else ""
    fix = fix or (f"did you mean {close[0]!r}?" if close else f"one of {', '.join(there)}")
    why = "vLLM stops: it is not one of the methods of this version"
    case.stop("DS453", f"method {given!r} in vLLM {case.version}", why, fix, case.raised("method"))
    return False


def custom_path(version: Version, model: str, given: Any) -> bool:
    """Is the model taken for a dotted Python path? In newer releases only without a method, and only when it looks like one."""
    first, changed = (Version(name) for name in table("vllm")["custom_path"])
    if "/" in model or "." not in model or version < first:
        return False
    return version < changed or (given is None and all(part.isidentifier() for part in model.split(".")))


def guessed(case: Case, model: str, given: str | None) -> str:
    """Heads that are named stay; anything else goes by the path, then by the config."""
    if given in ("eagle", "eagle3", "dflash", "dspark"):
        return given
    path = model.lower()
    kind = pairing.kind_of(case.subject.drafter)
    by_path = next((name for part, name, first in table("vllm")["guess"] if part in path and case.version >= Version(first)), None)
    by_config = {"mtp": "mtp", "gemma4": "mtp", "medusa": "medusa"}.get(kind or "")
    if kind == "dspark" and case.version >= Version("0.25"):
        by_config = "dspark"
    method = by_path or by_config or given or "draft_model"
    if given is not None and by_path and given != by_path:
        why = f"the name of the path wins: vLLM runs method {by_path}"
        case.say("DS452", "warning", f"method {given} with model {model!r}", why, f"rename the folder, or say method {by_path}")
    if given is None:
        case.findings.append(guess_finding(model, kind, method, by_path is not None, by_config is not None))
    return method


def guess_finding(model: str, kind: str | None, method: str, by_path: bool, by_config: bool) -> Finding:
    """What a missing method came to: an error when the drafter is known to be something else."""
    head = kind if kind in ("eagle3", "eagle", "dflash", "dspark") else None
    fix = f'add "method": "{head or method}"'
    if head is not None and head != method:
        why = f"{SAID[head]} is run as method {method}: it fails to load, or drafts noise"
        return Finding("DS452", "error", f"no method, and the path {model!r} does not say it: vLLM takes {method}", why, fix)
    if by_path or by_config:
        how = f"the name of the path, {model!r}" if by_path else "the drafter's config"
        return Finding(
            "DS452", "info", f"no method: vLLM goes by {how}", f"it runs as method {method}; another folder name may change that", fix
        )
    why = "vLLM runs it as method draft_model, a language model of its own; a head fails to load that way"
    severity = "info" if kind == "model" else "warning"
    return Finding("DS452", severity, f"no method, and nothing in the path {model!r} that vLLM knows", why, 'add "method"')
