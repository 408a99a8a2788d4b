"""A launch that is no command line: a container in a Kubernetes or compose file, a list of words, a Dockerfile, a systemd unit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from draftsmith.check.shell import tokens
from draftsmith.yaml_text import ERRORS, LOADER

LOOKS_LIKE_ONE = re.compile(r"(?m)^\s*(?:- |\[|(?:args|command|entrypoint|image|services|containers|spec)\s*:)")
DOCKERFILE = re.compile(r"(?m)^\s*(ENTRYPOINT|CMD)\s+(\[.*\])\s*$")
UNIT = re.compile(r"(?m)^\s*ExecStart=")


def manifest_words(text: str) -> list[str] | None:
    """Variables as NAME=VALUE, the image, then command and arguments; None when the text is something else."""
    if UNIT.search(text):
        settings = re.sub(r"\\\s*\n", " ", text)
        lines = [line for line in re.findall(r"(?m)^\s*((?:Environment|ExecStart)=.*)$", settings)]
        variables = [line for line in lines if line.startswith("E") and not line.startswith("ExecStart=")]
        starts = [line.partition("=")[2].lstrip("-@:+!") for line in lines if line.startswith("ExecStart=")]
        return tokens(" ".join([*variables, *starts[:1]]))
    if found := DOCKERFILE.findall(text):
        words = {kind: as_list(line) for kind, line in found}
        return [*words.get("ENTRYPOINT", []), *words.get("CMD", [])]
    if not LOOKS_LIKE_ONE.search(text):
        return None
    try:
        documents = list(yaml.load_all(text, Loader=LOADER))
    except ERRORS:
        return None
    try:
        found = [words for document in documents for words in containers(document)]
    except RecursionError:  # an alias of what it stands in
        return None
    engines = [words for words in found if re.search(r"sglang|vllm", " ".join(words))]
    return next(iter(engines or found), None)


def as_list(line: str) -> list[str]:
    try:
        return [str(word) for word in json.loads(line)]
    except (ValueError, TypeError, RecursionError):
        return []


def containers(node: Any) -> Iterator[list[str]]:
    """The words of every container in a document, and of a document that is a list of words itself."""
    if isinstance(node, list):
        if node and not any(isinstance(entry, list | dict) for entry in node):
            yield [plain(entry) for entry in node]
        else:
            for entry in node:
                yield from containers(entry)
    elif isinstance(node, Mapping):
        if any(key in node for key in ("args", "command", "entrypoint")):
            image = [str(node["image"])] if node.get("image") else []
            parts = [words_of(node.get(key)) for key in ("entrypoint", "command", "args")]
            yield [*variables(node.get("env") or node.get("environment")), *image, *(word for part in parts for word in part)]
        elif not node.get("image"):
            for entry in node.values():
                if isinstance(entry, list | Mapping):
                    yield from containers(entry)


def words_of(value: Any) -> list[str]:
    """A list of words, or a line for the shell."""
    if isinstance(value, list):
        return [plain(word) for word in value]
    return tokens(value) if isinstance(value, str) else []


def plain(value: Any) -> str:
    """A scalar as a word; Kubernetes writes $(NAME) for a variable."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return re.sub(r"^\$\((\w+)\)$", r"${\1}", text)


def variables(value: Any) -> list[str]:
    """[{name, value}], [NAME=VALUE] or {NAME: VALUE} as NAME=VALUE words."""
    if isinstance(value, Mapping):
        return [f"{name}={plain(entry)}" for name, entry in value.items()]
    if not isinstance(value, list):
        return []
    named = [entry for entry in value if isinstance(entry, Mapping) and "name" in entry and "value" in entry]
    return [f"{entry['name']}={plain(entry['value'])}" for entry in named] + [entry for entry in value if isinstance(entry, str)]
