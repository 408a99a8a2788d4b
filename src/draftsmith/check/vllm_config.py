"""vLLM: the words of --speculative-config and its shortcuts as one mapping, and keys that a release does not take. Data: vllm.yaml."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from draftsmith.check.args import Args, parsed, whole
from draftsmith.check.flag_names import spellings
from draftsmith.check.resolution import Case
from draftsmith.check.since import known, table
from draftsmith.settings import FlagValue

FLAG = "speculative-config"
CURLY = "\u201c\u201d\u2018\u2019"


def written_config(flags: Mapping[str, FlagValue]) -> dict[str, Any]:
    """The JSON, hyphens in keys as underscores, with the shortcuts put in; empty when there is no speculation.

    Raises ValueError when it is no JSON or no object.
    """
    value, args = flags.get(FLAG, flags.get("sc")), Args(flags)
    config: Any = parsed(value) if isinstance(value, str) else value if isinstance(value, dict) else {}
    if not isinstance(config, dict):
        raise ValueError(f"it is no mapping but a {type(config).__name__}")
    config = {str(key).replace("-", "_"): entry for key, entry in config.items()}
    for flag, (key, _) in table("vllm")["shortcuts"].items():
        if args.has(flag):
            config[key] = whole(args.text(flag)) if key == "num_speculative_tokens" else args.text(flag)
    return config


def read_config(case: Case) -> dict[str, Any] | None:
    """The settings with unknown keys said and left out; empty when there is no speculation, None when the JSON cannot be read."""
    flags = {name: value for name, value in case.args.flags.items() if shortcut_exists(case, name)}
    value = flags.get(FLAG)
    try:
        given = written_config({name: flags[name] for name in flags if name == FLAG})
        config = written_config(flags)
    except ValueError as error:
        shown = str(value) if len(str(value)) < 90 else f"{str(value)[:87]}..."
        fix = 'single quotes around it, double quotes inside: --speculative-config \'{"method": "eagle3", ...}\''
        if any(character in CURLY for character in str(value)):
            fix = "write straight quotes: a web page has made curly ones of them"
        elif isinstance(error, json.JSONDecodeError) and '"' in error.doc:
            fix = f"correct the JSON at ...{error.doc[max(0, error.pos - 20) : error.pos + 5]} (no comma at the end, double quotes)"
        not_json = isinstance(error, json.JSONDecodeError)
        raises = case.raised("not_mapping", kind=str(error).split()[-1])
        if not_json:
            raises = case.raised("json", names=spellings("vllm", case.version, FLAG), value=value)
        why = f"vLLM stops: it is not JSON ({error})" if not_json else f"vLLM stops: {error}"
        case.stop("DS450", f"--{FLAG} {shown}", why, fix if not_json else "write a JSON object", raises)
        return None
    for flag, (key, _) in table("vllm")["shortcuts"].items():
        if key in given and case.args.has(flag) and flag in flags:
            raises = case.raised("twice", flag=flag, key=key)
            case.stop("DS454", f"--{flag} and {key} in --{FLAG}", "vLLM stops: the same setting twice", "give one of the two", raises)
    refuse_keys(case, config)
    return config


def shortcut_exists(case: Case, flag: str) -> bool:
    """Is a flag anything but a shortcut that came later? (That is an unknown flag there, and said with the other flags.)"""
    return case.version >= Version(table("vllm")["shortcuts"].get(flag, ("", "0"))[1])


def refuse_keys(case: Case, config: dict[str, Any]) -> None:
    """Keys of this version; an unknown one is refused by the configuration class, and left out here."""
    there = set(known(table("vllm")["keys"], case.version)) - {"tensor_parallel_size"}
    gone = {key: row for key, row in table("vllm")["gone"].items() if case.version >= Version(row[0])}
    explained = case.version >= Version(table("vllm")["keys"]["tensor_parallel_size"])
    for key in [key for key in config if key not in there or key in gone]:
        value = config.pop(key)
        raises = case.raised(key) if key == "tensor_parallel_size" and explained else case.raised("key", key=key)
        if stands_for(key) in there:
            config.setdefault(stands_for(key), value)  # the rest is judged as it is meant
        if key in gone:
            first, instead = gone[key]
            case.stop("DS458", f"{key} in --{FLAG}", f"vLLM {case.version} stops: the key is gone since {first}", instead, raises)
        else:
            case.stop(
                "DS450", f"key {key!r} in --{FLAG}", f"vLLM {case.version} stops: it does not take this key", meant(key, there), raises
            )


def stands_for(key: str) -> str:
    """The key that is meant by one that never was."""
    return str(table("vllm")["wrong"].get(key, ""))


def meant(key: str, there: set[str]) -> str:
    """What to write instead of a key."""
    rules = table("vllm")
    if key == "tensor_parallel_size":
        return "draft_tensor_parallel_size"
    if stands_for(key):
        return stands_for(key)
    if key in rules["keys"]:
        return f"vLLM {rules['keys'][key]} or newer"
    close = difflib.get_close_matches(key, sorted(there), n=1, cutoff=0.75)
    return f"did you mean {close[0]!r}?" if close else "remove it"
