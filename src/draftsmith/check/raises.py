"""What the engine raises, class and message, where a rule says that it stops. Data: raises.yaml."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from draftsmith.check.since import LOADER, at

MORE = " ..."  # at the end of a message that goes on
WRAPPED = re.compile(r"(\w+Config)(\.\S+)?: (.*)", re.DOTALL)


@cache
def messages() -> dict[str, dict[str, Any]]:
    """Name -> message, or its rows by version, for each engine and for `both`."""
    return yaml.load(Path(__file__).with_name("raises.yaml").read_text(), Loader=LOADER)


def raised(family: str, version: Version | None, name: str, /, **values: object) -> str:
    """ "Class: message" as that version has it (None: as all have it). The class alone is a bare error; " ..." ends a text that goes on."""
    rows = messages()[family].get(name) or messages()["both"][name]
    if not isinstance(rows, str):
        assert version is not None, f"{name} differs between versions"
        rows = str(at(rows, version))
    text = rows.format(**values)
    inside = WRAPPED.fullmatch(text)
    if inside is None:
        return text
    model, field, message = inside.groups()
    where = f"{field.removeprefix('.')}\n  " if field else "  Value error, "
    return f"ValidationError: 1 validation error for {model}\n{where}{message}"


def matches(raises: str, kind: str, message: str) -> bool:
    """Is this the error that was foretold?"""
    foretold, _, text = raises.partition(": ")
    begins = text.endswith(MORE) or text == MORE.strip()
    text = text.removesuffix(MORE.strip()).rstrip() if begins else text
    return foretold == kind and (message.startswith(text) if begins else message == text)
