"""One writer at a time in a shared folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Talk


@contextmanager
def file_lock(path: Path, waiting: str, talk: Talk | None) -> Iterator[None]:
    """Hold an exclusive lock on `path`; says `waiting` when another process has it. The system frees it when the holder dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise EnvironmentFailed(f"cannot write {path}: {error.strerror}", hint="free some disk space, or set DRAFTSMITH_HOME") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if talk is not None:
                talk.say(f"{waiting}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
