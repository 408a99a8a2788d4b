"""A pasted launch command -> engine family, flags and environment. What people copy from a README, a script or a compose file.

Nothing is executed and nothing is expanded but variables that the pasted text itself sets.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftsmith.check.subject import Family
from draftsmith.errors import UsageError
from draftsmith.settings import FlagValue

END = frozenset({"&", "&&", ";", ";;", "|", "||", "\n", "(", ")"})
ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
LEFT_OVER = re.compile(r"\$[\w{(]|`")
IMAGES: dict[str, Family] = {"vllm-openai": "vllm", "vllm": "vllm", "sglang": "sglang"}
TAG_VERSION = re.compile(r"^v?(\d+(?:\.\d+)+(?:\.?(?:post|rc|dev)\d+)*)")
SHORT: dict[str, dict[str, str]] = {
    "vllm": {
        "tp": "tensor-parallel-size",
        "pp": "pipeline-parallel-size",
        "dp": "data-parallel-size",
        "sc": "speculative-config",
        "q": "quantization",
        "cc": "compilation-config",
        "ac": "attention-config",
        "O": "optimization-level",
        "h": "help",
    },
    "sglang": {"h": "help"},
}
# switches that a word may follow which is not theirs: only the model's name of `vllm serve` is a bare word
SWITCH = re.compile(r"^(no|enable|disable|enforce|trust|skip|use|async|language-model)-")
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


def parse_command(words: Sequence[str]) -> Pasted:
    """Words after `--`: a command that the shell has split, or one quoted string as it was copied. Raises UsageError."""
    if len(words) == 1 and re.search(r"\s", words[0].strip()):
        words = tokens(words[0])
    if not words:
        raise UsageError(
            "no launch command after --", hint="draftsmith check --engine sglang==0.5.17 -- python -m sglang.launch_server ..."
        )
    words = unwrapped(words)
    env: dict[str, str] = {}
    position, family, version = entry_point(words)
    for word in words[:position]:
        word = word.removeprefix("--env=")
        if ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            env[name] = expand(value, env)
    return read_flags([expand(word, env) for word in up_to_the_end(words[position:])], family, env, version)


def parse_argv(argv: Sequence[str], env: Mapping[str, str]) -> Pasted:
    """The words of a process as they are, without a shell before them: nothing is split, cut or put in. Raises UsageError."""
    position, family, _ = entry_point(argv)
    return read_flags(argv[position:], family, env, None)


# --- words -----------------------------------------------------------------------------------------------------------


def tokens(text: str) -> list[str]:
    """Words as a shell splits them, operators and line ends as words of their own. Raises UsageError for an open quote."""
    text = re.sub(r"(?m)^[ \t]*#.*\n?", "", text.replace("\r\n", "\n"))  # lines that are comments
    text = re.sub(r"[ \t]+#[^'\"\n]*(?=\n|$)", "", text)  # comments behind words
    text = re.sub(r"\\[ \t]*\n", " ", text)
    text = re.sub(r"(?<=\s)\d(?=[<>])", "", text)  # the 2 of 2>&1
    text = re.sub(r"\n[ \t]*(?=--?[A-Za-z])", " ", text)  # a copied page often loses the backslashes
    lexer = shlex.shlex(text.strip(), posix=True, punctuation_chars=";&|<>()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        return list(lexer)
    except ValueError as error:
        raise UsageError(f"the pasted command cannot be split: {error}", hint="a quote is open; check the JSON in the command") from None


def unwrapped(words: Sequence[str]) -> list[str]:
    """`bash -c "COMMAND"`: the command in the place of the shell's words."""
    for index in range(len(words) - 2):
        if words[index].rsplit("/", 1)[-1] in ("bash", "sh", "zsh") and re.fullmatch(r"-\w*c", words[index + 1]):
            return [*words[:index], *tokens(words[index + 2])]
    return list(words)


def up_to_the_end(words: Sequence[str]) -> list[str]:
    """The words of this command only: without redirections, and without what follows `&`, `;`, `|` or a new line."""
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in END:
            break
        if re.fullmatch(r"\d?[<>&]*[<>][<>&]*\S*", word):
            if not re.search(r"[<>&]\S*[^<>&]$", word):
                next(rest, None)  # where it goes to
            continue
        kept.append(word)
    return kept


def expand(word: str, env: Mapping[str, str]) -> str:
    """Variables that the text itself set, and defaults of `${NAME:-default}`; others stay as they are."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return env.get(name, match[2] if match[2] is not None else match[0])

    return VARIABLE.sub(value, word)


def unexpanded(value: object) -> bool:
    """Is a variable or a command substitution left in a flag's value?"""
    return isinstance(value, str) and bool(LEFT_OVER.search(value))


# --- where the engine begins -----------------------------------------------------------------------------------------


def entry_point(words: Sequence[str]) -> tuple[int, Family | None, str | None]:
    """(index of the first word after the engine's entry point, family, version of an image tag).

    Without an entry point the whole command is taken for flags.
    """
    image = next(((index, *found) for index, word in enumerate(words) if (found := image_of(word))), None)
    version = image[2] if image else None
    for index, word in enumerate(words):
        name = word.rsplit("/", 1)[-1]
        following = words[index + 1] if index + 1 < len(words) else ""
        if name in ("sglang.launch_server", "launch_server.py"):
            return index + 1, "sglang", version
        if name in ("vllm.entrypoints.openai.api_server", "api_server.py"):
            return index + 1, "vllm", version
        if name in ("sglang", "vllm", "sglang.cli.main", "vllm.entrypoints.cli.main") and following == "serve":
            return index + 2, "vllm" if name.startswith("vllm") else "sglang", version
    if image:
        following = words[image[0] + 1 : image[0] + 2]  # `--entrypoint vllm IMAGE serve ...`
        return image[0] + 1 + (following == ["serve"]), image[1], version
    first = next((index for index, word in enumerate(words) if word.startswith("--")), len(words))
    docker = words[0] in ("docker", "podman", "nerdctl")
    if docker or (first == len(words) and not any(ASSIGNMENT.match(word) for word in words)):
        raise UsageError(
            "no launch of SGLang or vLLM in the pasted command",
            hint="it should hold `python -m sglang.launch_server`, `sglang serve`, `vllm serve` or the flags alone",
        )
    return first, None, None


def image_of(word: str) -> tuple[Family, str | None] | None:
    """(family, version of the tag) when a word is a container image of one of the engines."""
    name, _, tag = word.partition(":")
    repository = name.rsplit("/", 1)
    if (
        len(repository) != 2
        or repository[1] not in IMAGES
        or word.startswith(("-", "/", "."))
        or not (tag or repository[1] == "vllm-openai")
    ):
        return None
    found = TAG_VERSION.match(tag)
    return IMAGES[repository[1]], found[1] if found else None


# --- flags -----------------------------------------------------------------------------------------------------------


def read_flags(words: Sequence[str], family: Family | None, env: Mapping[str, str], version: str | None) -> Pasted:
    """Flags with their values. vLLM's first bare word is the model; its dotted flags are put together as JSON."""
    flags: dict[str, FlagValue] = {}
    nested: dict[str, dict[str, Any]] = {}
    repeated, unread = [], []
    for name, values in grouped(words, family):
        if name is None:
            if family == "vllm" and "model" not in flags:
                flags["model"] = values[0]
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
    return Pasted(family, flags, env, version, tuple(dict.fromkeys(repeated)), tuple(unread), odd)


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
    short = SHORT.get(family or "", {})
    if re.fullmatch(r"-O\d", name):
        return "optimization-level", True, name[2:]
    return short.get(name[1:], name[1:]), bool(equals), value


def put(place: dict[str, Any], path: Sequence[str], text: str) -> None:
    """Set a nested key; the value is read as JSON when it is that."""
    *outer, last = path
    for key in outer:
        place = place.setdefault(key, {})
    try:
        place[last] = json.loads(text)
    except json.JSONDecodeError:
        place[last] = text


def loads(value: FlagValue) -> dict[str, Any]:
    """A JSON object in a flag's value; empty when it is none."""
    try:
        found = json.loads(value) if isinstance(value, str) else {}
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
