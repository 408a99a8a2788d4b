"""Tables of rules by version: lists of {since, value}, and which versions were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from draftsmith.yaml_text import LOADER

Row = Mapping[str, Any]


@cache
def table(family: str) -> dict[str, Any]:
    """The rows of sglang.yaml or vllm.yaml."""
    return yaml.load(Path(__file__).with_name(f"{family}.yaml").read_text(), Loader=LOADER)


def at(rows: Sequence[Row], version: Version) -> Any:
    """The value that holds in a version: of the last row that is not newer, else of the first one."""
    return ([row for row in rows if Version(row["since"]) <= version] or rows[:1])[-1]["value"]


def starts(rows: Sequence[Row], version: Version) -> bool:
    """Does any row hold yet?"""
    return Version(rows[0]["since"]) <= version


def known(names: Mapping[str, str], version: Version) -> list[str]:
    """Names of a {name: first version} mapping that a version has."""
    return [name for name, first in names.items() if Version(first) <= version]


@cache
def nearest(family: str, version: Version) -> Version:
    """The read version whose rules are applied: the newest that is not newer, else the oldest."""
    read = [Version(name) for name in table(family)["read"]]
    return max((name for name in read if name <= version), default=min(read))


def was_read(family: str, version: Version) -> bool:
    """Is there a table for exactly this release (a post release counts as its release)?"""
    return version.base_version in table(family)["read"] and not version.is_prerelease
