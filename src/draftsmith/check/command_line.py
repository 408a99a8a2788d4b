"""A pasted launch command -> engine family, flags and environment. What people copy from a README, a script or a compose file.

Nothing is executed and nothing is expanded but variables that the pasted text itself sets.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftsmith.check.args import parsed
from draftsmith.check.manifests import manifest_words
from draftsmith.check.shell import ASSIGNMENT, arrays, assignments, end_of, expanded, tokens, without_redirections
from draftsmith.check.subject import Family
from draftsmith.errors import UsageError
from draftsmith.settings import FlagValue

IMAGE = re.compile(r"^(vllm|sglang)(?!-router)[\w.-]*$")
TAG_VERSION = re.compile(r"^(?:v(?=\d)|(?=0\.))(\d+(?:\.\d+)+(?:\.?(?:post|rc|dev)\d+)*)")  # other tags count something else: 25.09-py3
MODULES: dict[str, Family] = {
    "sglang.launch_server": "sglang",
    "launch_server.py": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "api_server.py": "vllm",
}
PROGRAMS: dict[str, Family] = {"sglang": "sglang", "vllm": "vllm", "sglang.cli.main": "sglang", "vllm.entrypoints.cli.main": "vllm"}
LAUNCH = re.compile(r"\b(?:sglang\.launch_server|vllm\.entrypoints\.openai\.api_server|(?:vllm|sglang)\s+serve)\b")
NO_SERVER = re.compile(r"^(?:sglang\.bench_\w+|sglang_router\.\w+|trtllm-serve|llama-server|lmdeploy|ollama|text-generation-launcher)$")
SHORT: dict[str, dict[str, str]] = {
    "vllm": {
        "ac": "attention-config",
        "asc": "api-server-count",
        "cc": "compilation-config",
        "dc": "diffusion-config",
        "dcp": "decode-context-parallel-size",
        "dp": "data-parallel-size",
        "dpa": "data-parallel-address",
        "dpb": "data-parallel-backend",
        "dpe": "data-parallel-external-lb",
        "dph": "data-parallel-hybrid-lb",
        "dpl": "data-parallel-size-local",
        "dpm": "data-parallel-multi-port-external-lb",
        "dpn": "data-parallel-rank",
        "dpp": "data-parallel-rpc-port",
        "dpr": "data-parallel-start-rank",
        "ep": "enable-expert-parallel",
        "h": "help",
        "n": "nnodes",
        "O": "optimization-level",
        "pcp": "prefill-context-parallel-size",
        "pp": "pipeline-parallel-size",
        "q": "quantization",
        "r": "node-rank",
        "sc": "speculative-config",
        "tp": "tensor-parallel-size",
    },
    "sglang": {"h": "help"},
}
# switches that a word may follow which is not theirs: only the model's name of `vllm serve` is a bare word
SWITCH = re.compile(r"^(no|enable|disable|enforce|trust|skip|use|async|language-model)-")
MODEL = {"vllm": "model", "sglang": "model-path"}
DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212"  # what a web page makes of two hyphens


@dataclass(frozen=True)
class Pasted:
    """What a launch command says. `flags` keep their spelling; the last of a repeated flag wins."""

    family: Family | None
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None  # of a container image's tag
    repeated: tuple[str, ...] = ()  # flags given more than once, with different values
    unread: tuple[str, ...] = ()  # words that belong to no flag
    odd_dashes: tuple[str, ...] = ()  # words that begin with a dash that is no hyphen
    one_dash: tuple[str, ...] = ()  # flags with one dash that the engine does not have so
    more: int = 0  # launches in the text behind the one that was read


def parse_command(words: Sequence[str]) -> Pasted:
    """Words after `--`: a command that the shell has split, or one quoted text as it was copied. Raises UsageError."""
    if len(words) == 1 and re.search(r"\s", words[0].strip()):
        words = manifest_words(words[0]) or tokens(words[0])
    if not words:
        raise UsageError(
            "no launch command after --", hint="draftsmith check --engine sglang==0.5.17 -- python -m sglang.launch_server ..."
        )
    words = unwrapped(words)
    position, family, version = entry_point(words)
    env = assignments(words[:position])
    end = position + end_of(words[position:])
    own = expanded(without_redirections(words[position:end]), env, arrays(words[:position]))
    return dataclasses.replace(read_flags(list(own), family, env, version), more=sum(1 for _ in launches(words[end:])))


def parse_argv(argv: Sequence[str], env: Mapping[str, str]) -> Pasted:
    """The words of a process as they are, without a shell before them: nothing is split, cut or put in. Raises UsageError."""
    position, family, _ = entry_point(argv)
    return read_flags(argv[position:], family, env, None)


# --- where the engine begins -----------------------------------------------------------------------------------------


def launches(words: Sequence[str]) -> Iterator[tuple[int, Family, str | None]]:
    """(index of the first word after an entry point, family, version behind @) of every launch among the words."""
    for index, word in enumerate(words):
        name, _, version = word.rsplit("/", 1)[-1].lstrip("!").partition("@")
        if name in MODULES:
            yield index + 1, MODULES[name], None
        elif name in PROGRAMS and words[index + 1 : index + 2] == ["serve"]:
            yield index + 2, PROGRAMS[name], version or None


def unwrapped(words: Sequence[str]) -> list[str]:
    """`bash -c "COMMAND"`, `ssh HOST "COMMAND"`, CMD="COMMAND": the command in the place of the word that holds it."""
    if next(launches(words), None):
        return list(words)
    for index, word in enumerate(words):
        if re.search(r"\s", word) and LAUNCH.search(word):
            return [*words[:index], *tokens(ASSIGNMENT.sub("", word))]
    return list(words)


def entry_point(words: Sequence[str]) -> tuple[int, Family | None, str | None]:
    """(index of the first word after the engine's entry point, family, version of an image's tag or behind @).

    Without an entry point the whole command is taken for flags. Raises UsageError when it starts something else.
    """
    image = next(((index, *found) for index, word in enumerate(words) if (found := image_of(word))), None)
    for index, family, version in launches(words):
        return index, family, version or (image[2] if image else None)
    if image:
        following = words[image[0] + 1 : image[0] + 2]  # `--entrypoint vllm IMAGE serve ...`
        return image[0] + 1 + (following == ["serve"]), image[1], image[2]
    for index, word in enumerate(words):
        other = word.rsplit("/", 1)[-1] in PROGRAMS and words[index + 1 : index + 2]
        if NO_SERVER.match(word.rsplit("/", 1)[-1]) or (other and re.fullmatch("[a-z-]+", other[0])):
            raise UsageError(
                f"{' '.join(words[index : index + (2 if other else 1)])} starts no server of SGLang or vLLM",
                hint="paste the launch of the server: `python -m sglang.launch_server`, `sglang serve` or `vllm serve`",
            )
    docker = any(word in ("docker", "podman", "nerdctl") for word in words[:2])
    marks = ("--model",) if docker else ("--",)  # an image that is not known: its own flags begin with the model
    first = next((index for index, word in enumerate(words) if word.startswith(marks)), len(words))
    if first == len(words) and (docker or not any(ASSIGNMENT.match(word) for word in words)):
        raise UsageError(
            "no launch of SGLang or vLLM in the pasted command",
            hint="it should hold `python -m sglang.launch_server`, `sglang serve`, `vllm serve` or the flags alone",
        )
    return first, None, None


def image_of(word: str) -> tuple[Family, str | None] | None:
    """(family, version of the tag) when a word is a container image of one of the engines."""
    name, _, tag = word.partition(":")
    repository = name.rsplit("/", 1)
    family = IMAGE.match(repository[-1])
    if len(repository) != 2 or family is None or word.startswith(("-", "/", ".")) or tag.startswith("/"):
        return None
    if not tag and repository[1] != "vllm-openai":
        return None
    found = TAG_VERSION.match(tag)
    return ("vllm" if family[1] == "vllm" else "sglang"), found[1] if found else None


# --- flags -----------------------------------------------------------------------------------------------------------


def read_flags(words: Sequence[str], family: Family | None, env: Mapping[str, str], version: str | None) -> Pasted:
    """Flags with their values. vLLM's first bare word is the model; its dotted flags are put together as JSON."""
    flags: dict[str, FlagValue] = {}
    nested: dict[str, dict[str, Any]] = {}
    repeated, unread = [], []
    for name, values in grouped(words, family):
        if name is None:
            key = MODEL.get(family or "")
            if key and key not in flags and (family == "vllm" or not flags):  # `sglang serve MODEL`, and nothing before it
                flags[key] = values[0]
                values = values[1:]
            unread += values
            continue
        outer, dot, inner = name.partition(".")
        if dot and family != "sglang":
            put(nested.setdefault(outer, {}), inner.split("."), " ".join(values))
            continue
        value: FlagValue = " ".join(values) if values else True
        if name in flags and flags[name] != value:
            repeated.append(name)
        flags.pop(name, None)
        flags[name] = value
    for outer, inner in nested.items():
        flags[outer] = json.dumps({**loads(flags.get(outer)), **inner})
    odd = tuple(word for word in words if word[:1] in DASHES and len(word) > 1)
    one_dash = tuple(word for word in words if family and re.match(r"-[A-Za-z]\w", word) and not short_name(word, family))
    return Pasted(family, flags, env, version, tuple(dict.fromkeys(repeated)), tuple(unread), odd, one_dash)


def short_name(word: str, family: Family | None) -> str | None:
    """The flag that a word with one dash means, before `=` and a dot; None when there is none."""
    name = re.split(r"[=.]", word[1:], maxsplit=1)[0]
    return "optimization-level" if re.fullmatch(r"O\d", name) else SHORT.get(family or "", {}).get(name)


def grouped(words: Sequence[str], family: Family | None) -> Iterator[tuple[str | None, list[str]]]:
    """(flag, its values), or (None, words of no flag)."""
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        name, equals, value = flag_of(word, family)
        if name is None:
            yield None, [word]
            continue
        values = [value] if equals else []
        while not equals and position < len(words) and flag_of(words[position], family)[0] is None:
            if family == "vllm" and SWITCH.match(name):
                break
            values.append(words[position])
            position += 1
        yield name, values


def flag_of(word: str, family: Family | None) -> tuple[str | None, bool, str]:
    """(name, is there a value behind =, that value) of a flag word; the name is None when it is no flag (-1 is a number)."""
    if len(word) > 1 and word[0] in DASHES:
        word = f"--{word.lstrip(DASHES + '-')}"  # said by the checks; read as it is meant
    if not word.startswith("-") or word in ("-", "--") or re.fullmatch(r"-\d[\d.e-]*", word):
        return None, False, ""
    name, equals, value = word.partition("=")
    if name.startswith("--"):
        return name[2:], bool(equals), value
    if re.fullmatch(r"-O\d", name):
        return "optimization-level", True, name[2:]
    short, dot, rest = name[1:].partition(".")
    return SHORT.get(family or "", {}).get(short, short) + dot + rest, bool(equals), value


def put(place: dict[str, Any], path: Sequence[str], text: str) -> None:
    """Set a nested key; the value is read as JSON when it is that."""
    *outer, last = path
    for key in outer:  # a later flag wins over a plain value in its way
        inside = place.get(key)
        place[key] = inside if isinstance(inside, dict) else {}
        place = place[key]
    try:
        place[last] = parsed(text)
    except json.JSONDecodeError:
        place[last] = text


def loads(value: FlagValue) -> dict[str, Any]:
    """A JSON object in a flag's value; empty when it is none."""
    try:
        found = parsed(value) if isinstance(value, str) else {}
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
