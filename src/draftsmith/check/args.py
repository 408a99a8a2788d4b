"""Reading flags that came as text: numbers, switches, and values that nobody can know yet (`$VAR`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draftsmith.check.shell import unexpanded
from draftsmith.settings import FlagValue

TRUE, FALSE = ("1", "true", "yes", "on", "y"), ("0", "false", "no", "off", "n", "")
SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Args:
    """Flags by their one name. Every getter gives None when the flag is not given."""

    flags: Mapping[str, FlagValue] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        return any(self.flags.get(name) is not None and self.flags.get(name) is not False for name in names)

    def open(self, *names: str) -> bool:
        """Does one of these hold a variable, so that nothing can be said about it?"""
        return any(unexpanded(self.flags.get(name)) for name in names)

    def text(self, *names: str) -> str | None:
        """The first of these that is given."""
        found = next((self.flags[name] for name in names if self.has(name)), None)
        return None if found is None or found is True else str(found)

    def number(self, *names: str) -> int | None:
        return whole(self.text(*names))

    def switch(self, name: str) -> bool:
        value = self.flags.get(name)
        return value is True or (isinstance(value, str) and value.lower() in TRUE) or (isinstance(value, int) and value == 1)


def whole(value: FlagValue) -> int | None:
    """A whole number, also written 32k, 1K or 1e3; None when it is none."""
    if value is None or isinstance(value, bool):
        return None
    match = re.fullmatch(r"\s*(-?\d{1,30}(?:\.\d{1,30})?)([kmgtKMGT]?)\s*", str(value))
    if not match:
        return None
    number = (float(match[1]) if "." in match[1] else int(match[1])) * SUFFIX.get(match[2], 1)
    return int(number) if number == int(number) else None


def above_zero(value: FlagValue) -> int | None:
    """The same, where 0 and less stand for nothing (as vLLM's max-model-len -1)."""
    number = whole(value)
    return number if number is not None and number > 0 else None


def parsed(text: str) -> Any:
    """JSON in a flag. Raises JSONDecodeError, also for what Python gives up on: nesting, and numbers of thousands of digits."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise json.JSONDecodeError(str(error), text, 0) from None


def switched(env: Mapping[str, str], name: str) -> bool | None:
    """An environment switch: on, off, or None when it is not set or says neither."""
    value = env.get(name, "unset").strip().lower()
    return True if value in TRUE else False if value in FALSE else None
