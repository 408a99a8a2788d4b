"""Engine flags as a mapping -> command-line words, and the port they may name."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from draftsmith.errors import UsageError
from draftsmith.settings import FlagValue


def spelled(name: str) -> str:
    """The one spelling of a flag: no leading dashes, hyphens for underscores."""
    return name.lstrip("-").replace("_", "-")


def render_flags(flags: Mapping[str, FlagValue], owned: Collection[str], negatable: bool) -> list[str]:
    """["--name", "value", ...] in the order given.

    owned: flags that Draftsmith sets itself. negatable: the engine knows `--no-NAME` for every switch.
    Raises UsageError for an owned flag, one given twice, or `false` where the engine has no such form.
    """
    words: list[str] = []
    seen: set[str] = set()
    for key, value in flags.items():
        name = spelled(key)
        if name in owned:
            raise UsageError(
                f"engine flag {name!r} is set by Draftsmith itself", hint="remove it from engine.flags; see `target` and `drafter`"
            )
        if name in seen:
            raise UsageError(f"engine flag {name!r} is given twice (hyphens and underscores are the same)", hint="keep one")
        seen.add(name)
        if value is None:
            continue
        if value is True:
            words.append(f"--{name}")
        elif value is False:
            if not negatable:
                raise UsageError(f"engine flag {name!r} is false, and this engine has no --no-{name}", hint="remove it from engine.flags")
            words.append(f"--no-{name}")
        else:
            words += [f"--{name}", str(value)]
    return words


def fixed_port(flags: Mapping[str, FlagValue]) -> int | None:
    """The port that the flags name, or None. Raises UsageError when it is not a port number."""
    value = flags.get("port")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 65536:
        raise UsageError(f"engine flag port is {value!r}, expected a number from 1 to 65535", hint="leave port out for a free one")
    return value


def without(flags: Mapping[str, FlagValue], *names: str) -> dict[str, FlagValue]:
    """The flags less some names."""
    return {key: value for key, value in flags.items() if spelled(key) not in names}
