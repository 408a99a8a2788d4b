"""vLLM: --speculative-config and its shortcuts -> method, model, number and runner as they take effect. Pure. Data: vllm.yaml."""

from __future__ import annotations

import difflib
import json
from typing import Any

from packaging.version import Version

from draftsmith.check import pairing
from draftsmith.check.args import Args, whole
from draftsmith.check.command_line import unexpanded
from draftsmith.check.pairing import SAID
from draftsmith.check.resolution import Case, Resolution
from draftsmith.check.since import at, known, table
from draftsmith.check.subject import Subject
from draftsmith.check.vllm_runner import runner
from draftsmith.findings import Finding
from draftsmith.models.text_config import text_part

LOOKUP = ("ngram", "[ngram]", "ngram_gpu")


def resolve_vllm(subject: Subject) -> Resolution:
    """Effective values by the names of vLLM's SpeculativeConfig."""
    case = Case(subject, Args(subject.flags))
    asked = read_config(case)
    if asked is None:
        return case.done({})
    if not asked:
        if pairing.speculators_tokens(subject.target) or subject.target.get("speculators_model_type"):
            speculators_target(case)
        return case.done({})
    names(case, asked)
    config = {key: value for key, value in asked.items() if value is not None}
    if any(unexpanded(value) for value in config.values()):
        shown = ", ".join(f"{key} {value}" for key, value in config.items() if unexpanded(value))
        case.say(
            "DS465", "warning", f"{shown}: a variable is left", "the effective values cannot be worked out", "write the value in its place"
        )
        return Resolution(None, asked, case.findings)
    method = find_method(case, config)
    if method is not None:
        case.effective |= {"method": method, "model": config.get("model"), "num_speculative_tokens": number(case, config, method)}
        parallel(case, config, method)
        limits(case, config, method)
        runner(case, config, method)
    return case.done(asked)


def read_config(case: Case) -> dict[str, Any] | None:
    """The JSON with the shortcuts put in; empty when there is no speculation, None when it cannot be read."""
    value = case.args.flags.get("speculative-config")
    config: Any = value if isinstance(value, dict) else {}
    if isinstance(value, str):
        try:
            config = json.loads(value)
        except json.JSONDecodeError as error:
            fix = 'single quotes around it, double quotes inside: --speculative-config \'{"method": "eagle3", ...}\''
            case.stop("DS450", f"--speculative-config {shortened(value)}", f"vLLM stops: it is not JSON ({error})", fix)
            return None
        if not isinstance(config, dict):
            case.stop("DS450", f"--speculative-config {shortened(value)}", "vLLM stops: it is not a mapping", "write a JSON object")
            return None
    config = {str(key).replace("-", "_"): entry for key, entry in config.items()}
    for flag, (key, first) in table("vllm")["shortcuts"].items():
        if not case.args.has(flag):
            continue
        if case.version < Version(first):
            continue  # an unknown flag there: said with the other flags
        if key in config:
            why = "vLLM stops: ValueError, the same setting twice"
            case.stop("DS454", f"--{flag} and {key} in --speculative-config", why, "give one of the two")
        config[key] = whole(case.args.text(flag)) if key == "num_speculative_tokens" else case.args.text(flag)
    return config


def shortened(text: str) -> str:
    return text if len(text) < 90 else f"{text[:87]}..."


def names(case: Case, config: dict[str, Any]) -> None:
    """Keys of this version; an unknown one is refused by the configuration class, and left out here."""
    there = set(known(table("vllm")["keys"], case.version)) - {"tensor_parallel_size"}
    gone = {key: row for key, row in table("vllm")["gone"].items() if case.version >= Version(row[0])}
    for key in [key for key in config if key not in there or key in gone]:
        config.pop(key)
        if key in gone:
            first, instead = gone[key]
            case.stop("DS458", f"{key} in --speculative-config", f"vLLM {case.version} stops: the key is gone since {first}", instead)
        else:
            why = f"vLLM {case.version} stops: it does not take this key"
            case.stop("DS450", f"key {key!r} in --speculative-config", why, meant(key, there))


def meant(key: str, there: set[str]) -> str:
    """What to write instead of a key."""
    rules = table("vllm")
    if key == "tensor_parallel_size":
        return "draft_tensor_parallel_size"
    if key in rules["wrong"]:
        return rules["wrong"][key]
    if key in rules["keys"]:
        return f"vLLM {rules['keys'][key]} or newer"
    close = difflib.get_close_matches(key, sorted(there), n=1, cutoff=0.75)
    return f"did you mean {close[0]!r}?" if close else "remove it"


# --- method ----------------------------------------------------------------------------------------------------------


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
            case.stop(
                "DS452", f"{what}, although method is {given}", "it does not load the drafter", "write the path with a slash: ./FOLDER"
            )
        elif given is None:
            case.say("DS452", "warning", what, "it does not load a drafter", "name the method, and write the path with a slash")
        return "custom_class"
    if given == "mtp" and model is None and set(case.subject.target.get("architectures") or ()) & set(table("sglang")["no_own_layer"]):
        why = "vLLM stops: NotImplementedError, the target has no MTP layer to draft with"
        case.stop("DS416", f"method mtp on {case.subject.target['architectures'][0]}", why, "name a drafter and its method")
    if given in ("mtp", *LOOKUP, "suffix", "custom_class", "extract_hidden_states"):
        return "ngram" if given == "[ngram]" else given
    if model is None:
        if given not in rules["without_model"] and given is not None:
            why = "vLLM stops: ValueError, a number of tokens without a speculative model"
            case.stop("DS416", f"method {given} without model", why, 'add "model": the drafter\'s folder or hub id')
        elif given is None:
            why = "vLLM stops: ValueError, neither a method nor a model"
            case.stop("DS416", "--speculative-config without method and model", why, 'add "method" and "model"')
        return given
    return guessed(case, str(model), given)


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
    case.stop("DS453", f"method {given!r} in vLLM {case.version}", "vLLM stops: it is not one of the methods of this version", fix)
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


# --- numbers and limits ----------------------------------------------------------------------------------------------


def number(case: Case, config: dict[str, Any], method: str) -> int | None:
    """num_speculative_tokens, or what fills it in."""
    value, drafter = config.get("num_speculative_tokens"), case.subject.drafter
    if value is not None:
        asked = whole(value)
        if asked is None or asked <= 0:
            case.stop(
                "DS451",
                f"num_speculative_tokens {value!r}",
                "vLLM stops: it must be a whole number above 0",
                'for example "num_speculative_tokens": 3',
            )
            return None
        width(case, asked, method)
        return asked
    if case.stopped:  # a key was refused: perhaps this one, misspelt
        return None
    if method == "suffix":
        return int(config.get("suffix_decoding_max_tree_depth", 24))
    trained = pairing.block_size(drafter) if method == "dspark" else (drafter or {}).get("n_predict") or pairing.speculators_tokens(drafter)
    if isinstance(trained, int):
        return trained
    maybe = method in ("mtp", "dspark", "mlp_speculator") or bool((drafter or {}).get("speculators_model_type"))
    why = "vLLM stops: ValueError, num_speculative_tokens was not provided"
    fix = 'add "num_speculative_tokens": K, the drafts per round (SGLang\'s steps)'
    if maybe and config.get("model") is not None:
        case.say("DS451", "warning", f"method {method} without num_speculative_tokens", f"{why}, unless the drafter's config has one", fix)
    else:
        case.stop("DS451", f"method {method} without num_speculative_tokens", why, fix)
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


def parallel(case: Case, config: dict[str, Any], method: str) -> None:
    """draft_tensor_parallel_size is 1 or the target's; a draft model must have the target's, and EAGLE heads do not read it."""
    draft, target = whole(config.get("draft_tensor_parallel_size")), case.args.number("tensor-parallel-size") or 1
    if draft is None or draft == target:
        return
    evidence = f"draft_tensor_parallel_size {draft}, tensor-parallel-size {target}"
    fix = f'"draft_tensor_parallel_size": {target}, or leave it out'
    if draft != 1:
        case.stop("DS456", evidence, "vLLM stops: ValueError, it must be 1 or the target's", fix)
    elif method == "draft_model":
        case.say(
            "DS456", "error", evidence, "the workers die while loading: a draft model must be split as the target is (ValueError)", fix
        )
    elif method in ("eagle", "eagle3", "mtp", "dflash"):
        case.say("DS456", "warning", evidence, "vLLM does not read it for this method: the head is split as the target is", fix)


def limits(case: Case, config: dict[str, Any], method: str) -> None:
    """What the method does not go with."""
    kind = str(text_part(case.subject.target).get("model_type") or "")
    old = case.version < Version(table("vllm")["eagle3_list_until"])
    able = at(table("vllm")["eagle3_targets"], case.version)
    if method == "eagle3" and kind and old and not any(part in kind for part in able):
        why = f"vLLM {case.version} stops: ValueError, EAGLE-3 is only supported for {', '.join(able)}"
        case.stop("DS459", f"eagle3 with target model_type {kind}", why, "vLLM 0.22 or newer, which has no such list")
    target, drafter = text_part(case.subject.target).get("vocab_size"), text_part(case.subject.drafter or {}).get("vocab_size")
    if method == "draft_model" and target and drafter and target != drafter and not config.get("use_heterogeneous_vocab"):
        why = "vLLM stops: ValueError, target and draft model should have the same vocabulary size"
        case.stop(
            "DS443",
            f"draft_model: vocabulary {drafter} of the drafter, {target} of the target",
            why,
            "a drafter of the target's own family",
        )
    lookup = [whole(config.get(f"prompt_lookup_{end}")) for end in ("min", "max")]
    if method in LOOKUP and lookup[0] is not None and lookup[1] is not None and lookup[0] > lookup[1]:
        evidence = f"prompt_lookup_min {lookup[0]}, prompt_lookup_max {lookup[1]}"
        case.stop("DS462", evidence, "vLLM stops: ValueError, min must be at most max", f'"prompt_lookup_max": {lookup[0]} or more')
    length, served = whole(config.get("max_model_len")), case.args.number("max-model-len")
    if length is not None and served is not None and length > served > 0:
        evidence = f"max_model_len {length} of the drafter, --max-model-len {served}"
        case.stop("DS462", evidence, "vLLM stops: ValueError, it cannot be larger", f'"max_model_len": {served}, or leave it out')
    forced = [key for key in ("synthetic_acceptance_rates", "synthetic_acceptance_length") if config.get(key) is not None]
    if config.get("rejection_sample_method") == "synthetic":
        if len(forced) != 1:
            why = "vLLM stops: ValueError, exactly one of synthetic_acceptance_rates and synthetic_acceptance_length"
            case.stop("DS464", "rejection_sample_method synthetic", why, '"synthetic_acceptance_length": 2.5')
        elif case.subject.cpu_build:
            why = "the first request kills the CPU engine: AssertionError, synthetic acceptance not supported with CPU sampling"
            case.say("DS460", "error", "rejection_sample_method synthetic on the CPU build", why, "remove it, or force acceptance on a GPU")
    elif forced:
        why = "vLLM stops: ValueError, only valid with rejection_sample_method synthetic"
        case.stop("DS464", f"{forced[0]} without it", why, f"remove {forced[0]}")


def speculators_target(case: Case) -> None:
    """`vllm serve DRAFTER`: a drafter in the speculators format names its own target."""
    target = ((case.subject.target.get("speculators_config") or {}).get("verifier") or {}).get("name_or_path")
    evidence = f"the model is a drafter in the speculators format; its target is {target or 'named in its config'}"
    case.say("DS463", "info", evidence, "vLLM serves the target with this drafter", "nothing")
    case.effective |= {
        "method": pairing.kind_of(case.subject.target),
        "model": case.args.text("model"),
        "num_speculative_tokens": pairing.speculators_tokens(case.subject.target),
    }
