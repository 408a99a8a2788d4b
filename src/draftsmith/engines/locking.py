"""One writer at a time in a shared folder."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from draftsmith.errors import EnvironmentFailed


@contextmanager
def file_lock(path: Path, when_taken: Callable[[], object]) -> Iterator[None]:
    """Hold an exclusive lock on `path`. The system frees it when the holder dies.

    when_taken is called when another process has it: it may raise; when it returns, we wait. Raises EnvironmentFailed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise EnvironmentFailed(f"cannot write {path}: {error.strerror}", hint="free some disk space, or set DRAFTSMITH_HOME") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            when_taken()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
