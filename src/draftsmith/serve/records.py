"""What is known about the servers that `serve start` and `serve unit` made: one file each under home()/servers/. Never a secret's value."""

from __future__ import annotations

import os
import re
import signal
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from pydantic import TypeAdapter

from draftsmith.engines.home import home
from draftsmith.engines.locking import file_lock
from draftsmith.engines.process import start_ticks
from draftsmith.engines.registry import ENGINES
from draftsmith.errors import UsageError
from draftsmith.manifest import atomic_write_json, read_json, shaped

SCHEMA = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")  # also good as the name of a unit
MARK = "DRAFTSMITH_SERVER"  # a variable that every process of a server has: its tree is found even without its supervisor


@dataclass(frozen=True)
class Record:
    """One server. `pid` is its supervisor's; with the boot and the start time it names that process and no later one."""

    name: str
    engine: str  # NAME==VERSION
    recipe: str
    arm: str
    url: str
    log: str
    argv: list[str]  # secrets hidden
    env: dict[str, str]  # what was set on top of the caller's environment, secrets hidden
    planned: dict[str, str]  # settings that were asked for, under the names that the server tells them by
    mark: str = ""
    pid: int | None = None
    start_ticks: int | None = None
    boot: str = ""
    started: str = ""
    ready_s: float | None = None
    effective: dict[str, str] = field(default_factory=dict)
    trace_folder: str | None = None  # where the engine's profiler writes
    unit: str | None = None  # the service that runs it; then there is no pid of ours
    user_unit: bool = False
    schema: int = SCHEMA

    def alive(self) -> bool:
        """Does the very process still run?"""
        return self.pid is not None and self.boot == boot_id() and start_ticks(self.pid) == self.start_ticks

    def with_(self, **changes: Any) -> Record:
        return replace(self, **changes)


def folder() -> Path:
    return home() / "servers"


def record_path(name: str) -> Path:
    """Where a server's record lives. Raises UsageError for a name that is no file name."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name for a server", hint="letters, digits, dots, dashes and underscores; --name NAME")
    return folder() / f"{name}.json"


def log_path(name: str) -> Path:
    return folder() / f"{name}.log"


def write(record: Record) -> None:
    """Whole or not at all, and for its owner only."""
    path = record_path(record.name)
    atomic_write_json(path, asdict(record))
    path.chmod(0o600)


def read(name: str) -> Record | None:
    """The record of a server, or None when there is none."""
    path = record_path(name)
    if not path.exists():
        return None
    hint = f"its processes carry {MARK} in their environment; end them, then remove {path}"
    content, known = read_json(path, hint), Record.__dataclass_fields__
    with shaped(path, hint):
        record = TypeAdapter(Record).validate_python({key: value for key, value in content.items() if key in known})
        if record.engine.partition("==")[0] not in ENGINES:
            raise ValueError(f"engine {record.engine!r} is not known")
        return record


def names() -> list[str]:
    """Of every recorded server, in order; its record may be damaged."""
    return sorted(path.stem for path in folder().glob("*.json")) if folder().exists() else []


def all_records() -> list[Record]:
    """Every recorded server, by name."""
    return [record for name in names() if (record := read(name)) is not None]


def named(name: str | None) -> list[Record]:
    """The record of that name, or all. Raises UsageError for a name that nobody knows."""
    known = all_records()
    if name is None:
        return known
    found = [record for record in known if record.name == name]
    if not found:
        names = ", ".join(record.name for record in known) or "none"
        raise UsageError(f"no server {name!r}", hint=f"known: {names}; draftsmith serve start RECIPE")
    return found


def forget(name: str) -> None:
    record_path(name).unlink(missing_ok=True)


def only_one(name: str) -> AbstractContextManager[None]:
    """One command at a time starts or stops a server of one name. Raises UsageError at once when another is at it."""

    def refuse() -> NoReturn:
        hint = f"wait for it, or interrupt it; `draftsmith serve status {name}` shows how far it is"
        raise UsageError(f"another command is starting or stopping the server {name}", hint=hint) from None

    return file_lock(record_path(name).with_suffix(".lock"), refuse)


def boot_id() -> str:
    """A pid and its start time mean something only within one boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def marked(mark: str) -> list[int]:
    """Processes that carry a server's mark in their environment, whoever their parent is now."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and start_ticks(int(entry.name)) is not None:
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
