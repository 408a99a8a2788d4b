"""A run folder on disk: who may work in it, which stage folder is whose, how long a stage has worked.

A stage folder is finished (it has a manifest), half done (it has only KEY), or not there. Work for other settings is never
thrown away at once: the folder moves to `<stage>.old`, the one before it goes. Settings that come back bring their folder back.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError

from draftsmith.errors import DraftsmithError, EnvironmentFailed
from draftsmith.job import Talk
from draftsmith.manifest import Manifest, append_jsonl, atomic_write_text, read_jsonl

KEY = ".key"  # what the work in this folder is for, written before the work begins
TIMES = ".times.jsonl"  # {"start", "seconds"} every few seconds: a killed start still counts
BEAT_S = 2.0
FULL = (errno.ENOSPC, errno.EDQUOT)
SIGNS_OF_FULL = ("No space left on device", "inline_container.cc")  # safetensors; torch.save, whose message has nothing better
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)

State = Literal["finished", "half done", "to do"]


@contextmanager
def locked(run: Path, option: str = "--run-folder") -> Iterator[None]:
    """Hold the run folder for this process alone. The lock goes with the process, however that ends. option: what chooses another.

    Raises EnvironmentFailed when another command works there, or when the folder cannot be made.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFailed(f"cannot make the run folder {run}: {error.strerror}", hint=f"choose another with {option}") from error
    with (run / ".lock").open("a+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of the process, not inherited by engines that it starts
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            file.seek(0)
            raise EnvironmentFailed(
                f"another draftsmith command (process {file.read().strip()}) works in {run}",
                hint=f"wait for it, stop it, or choose another folder with {option}",
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextmanager
def disk_errors_said_plainly(place: Path, option: str = "--run-folder") -> Iterator[None]:
    """Turn what a full or forbidden disk makes of Python, torch and safetensors into EnvironmentFailed; let everything else pass."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if (told := user_error(error, place, option)) is None:
            raise
        raise told from error


def user_error(error: Exception, place: Path, option: str) -> DraftsmithError | None:
    """What to tell the user when the disk is the reason; None when the error is something else."""
    number = error.errno if isinstance(error, OSError) else None
    if number in FULL or any(sign in str(error) for sign in SIGNS_OF_FULL):
        there = next(folder for folder in (place, *place.resolve().parents) if folder.exists())
        free = shutil.disk_usage(there).free / 2**20
        found = f"the disk is full: {error} ({free:.0f} MiB free in {place})"
        return EnvironmentFailed(found, hint="free some space and run the same command to go on")
    if number in FORBIDDEN:
        return EnvironmentFailed(f"no permission: {error}", hint=f"choose another folder with {option}, or change its owner")
    return None


# --- whose folder is it ----------------------------------------------------------------------------------------------


def key_of(folder: Path) -> str | None:
    """What the work in `folder` is for; None when nobody knows."""
    manifest = Manifest.read(folder)
    if manifest is not None:
        return manifest.key
    return (folder / KEY).read_text().strip() if (folder / KEY).exists() else None


def find(folder: Path, key: str) -> tuple[State, Path]:
    """What a start with this key would find, and where. Looks only, and not for damage."""
    for place in (folder, old_of(folder), aside_of(folder)):
        if place.is_dir() and key_of(place) == key:
            state: State = "finished" if Manifest.read(place) is not None else "half done"
            return state, place
    return "to do", folder


def prepare(folder: Path, key: str, talk: Talk) -> Manifest | None:
    """Make `folder` the place for the work with this key: as it was left, brought back from `.old`, or empty.

    Returns the manifest when the work is finished and whole, else None (then KEY is there and the stage may begin).
    """
    recover(folder)
    old = old_of(folder)
    if old.is_dir() and key_of(old) == key and (not folder.is_dir() or key_of(folder) != key):
        exchange(folder, old)
        talk.say(f"{folder.name}: the settings are those of {old.name} again: brought back")
    if folder.is_dir() and key_of(folder) != key:
        set_aside(folder, talk, "made with other settings or inputs")
    manifest = Manifest.read(folder)
    if manifest is not None:
        damaged = manifest.damaged(folder)
        if not damaged:
            return manifest
        set_aside(folder, talk, f"{', '.join(damaged[:3])} missing or changed since the stage finished")
    folder.mkdir(exist_ok=True)
    sweep(folder)
    atomic_write_text(folder / KEY, key + "\n")
    return None


def sweep(folder: Path) -> None:
    """Remove what killed writers left: nobody else works here, and a checkpoint cut short can be large."""
    for rubbish in sorted(folder.rglob(".*.tmp")):
        if rubbish.is_dir() and not rubbish.is_symlink():
            shutil.rmtree(rubbish)
        else:
            rubbish.unlink(missing_ok=True)


def set_aside(folder: Path, talk: Talk, why: str) -> None:
    """Move a folder to `<stage>.old`; the one that was there before is removed."""
    old = old_of(folder)
    note = f" (the {old.name} before it is removed)" if old.exists() else ""
    talk.say(f"{folder.name}: {why}: moved to {old.name}{note}, starting over")
    remove(old)
    os.replace(folder, old)


def remove(folder: Path) -> None:
    """Delete a folder under a hidden name, so that a kill leaves no half-deleted folder that looks whole."""
    rubbish = folder.with_name(f".{folder.name}.rubbish")
    if rubbish.exists():
        shutil.rmtree(rubbish)
    if folder.exists():
        os.replace(folder, rubbish)
        shutil.rmtree(rubbish)


def exchange(folder: Path, old: Path) -> None:
    """Swap two folders; `recover` puts things right after a kill in between."""
    if folder.exists():
        os.replace(folder, aside_of(folder))
    os.replace(old, folder)
    if aside_of(folder).exists():
        os.replace(aside_of(folder), old)


def recover(folder: Path) -> None:
    """Finish or undo an exchange that a kill cut short."""
    if aside_of(folder).exists():
        os.replace(aside_of(folder), old_of(folder) if folder.exists() else folder)


def old_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.old")


def aside_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.aside")


# --- time ------------------------------------------------------------------------------------------------------------


@contextmanager
def working(folder: Path) -> Iterator[None]:
    """Count the time inside as work on this stage, also when the process is killed (then up to BEAT_S is lost)."""
    start, begin = time.time(), time.monotonic()
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            try:
                append_jsonl(folder / TIMES, {"start": start, "seconds": time.monotonic() - begin})
            except OSError:
                return  # the disk is full or gone: the stage, or the line below, meets the same error and says so

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    append_jsonl(folder / TIMES, {"start": start, "seconds": time.monotonic() - begin})


def worked_s(folder: Path) -> float:
    """Seconds of work over all starts."""
    return sum({row["start"]: float(row["seconds"]) for row in read_jsonl(folder / TIMES)}.values())


def first_start(folder: Path) -> float:
    """Unix time of the first start."""
    return min(float(row["start"]) for row in read_jsonl(folder / TIMES))
