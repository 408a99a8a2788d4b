"""YAML that people write: everything that is wrong with it is one ValueError in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as quick, where PyYAML was built with it
# what PyYAML raises besides its own errors: `!!int x`, `!!bool x`, `!!timestamp x`, a list as a key, nesting without end
ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError)


def read_yaml(text: str) -> Any:
    """The one document in a text. Raises ValueError for what is no YAML, and for a key that is there twice: one would be lost."""
    try:
        for key, lines in repeated(yaml.compose(text, Loader=LOADER), set()):
            raise ValueError(f"{key!r} is there twice, in lines {lines[0]} and {lines[1]}")
        return yaml.load(text, Loader=LOADER)
    except ERRORS as error:
        raise ValueError(" ".join(f"{error}".split())[:300] or type(error).__name__) from None


def repeated(node: Any, seen: set[int]) -> Iterator[tuple[str, tuple[int, int]]]:
    """(key, its lines) of every key that stands twice in a mapping. seen: nodes that were looked at, since aliases may make a ring."""
    if node is None or id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    yield key.value, (lines[key.value], key.start_mark.line + 1)
                lines[key.value] = key.start_mark.line + 1
            yield from repeated(value, seen)
    else:
        for entry in node.value:
            yield from repeated(entry, seen)
