"""Provenance and atomic writes: how every stage leaves its files.

A stage writes into its own folder and, last of all, `manifest.json`. A folder with a valid manifest is finished; one
without is half done and the stage goes on from what is there. Nothing is ever written in place: temporary name, fsync, rename.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import ValidationError

from draftsmith import __version__
from draftsmith.errors import EnvironmentFailed

SCHEMA = 1
MANIFEST = "manifest.json"
AGAIN = "it was changed or damaged: restore it, or move its folder away and run the command that makes it again"


# --- atomic writes ---------------------------------------------------------------------------------------------------


def fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temporary_path(path: Path) -> Path:
    """Where to write `path` before `commit`: same folder, so that the rename is atomic."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def commit(temporary: Path, path: Path) -> None:
    """fsync `temporary` and rename it to `path`."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    fsync_folder(path.parent)


def atomic_write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file, or leave the old one untouched."""
    temporary = temporary_path(path)
    try:
        temporary.write_bytes(content)
        commit(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise EnvironmentFailed(
            f"cannot write {path}: {error.strerror}", hint="free some disk space or choose another run folder"
        ) from error


def atomic_write_text(path: Path, content: str) -> None:
    atomic_write_bytes(path, content.encode())


def atomic_write_json(path: Path, content: Any) -> None:
    atomic_write_text(path, json.dumps(content, indent=2, sort_keys=False) + "\n")


def make_folder(folder: Path, option: str) -> Path:
    """The folder, made with those around it. Raises EnvironmentFailed when that cannot be; option: what chooses another."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFailed(f"cannot make the folder {folder}: {error.strerror}", hint=f"choose another with {option}") from error
    return folder


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder`; on a clean exit it replaces `folder`, otherwise it is removed.

    Raises EnvironmentFailed when no folder can be made there.
    """
    new = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir(parents=True)
    except OSError as error:
        raise EnvironmentFailed(f"cannot make the folder {folder}: {error.strerror}", hint="choose another place") from error
    try:
        yield new
        for file in new.rglob("*"):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(new, folder)
        fsync_folder(folder.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def append_jsonl(path: Path, row: Mapping[str, Any]) -> None:
    """Append one JSON line and flush it, so that a killed process keeps every line before it. A line that a kill cut short is removed
    first, so that it never ends up in the middle."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        drop_cut_line(file)
        file.write(json.dumps(row).encode() + b"\n")
        file.flush()


def drop_cut_line(file: BinaryIO) -> None:
    """Truncate a JSONL file, open for appending, after its last newline."""
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a JSONL file; a last line cut short by a kill is dropped. A missing file has no lines.

    Raises EnvironmentFailed naming the first line that is no JSON object.
    """
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = []
    with shaped(path):
        lines = path.read_text().split("\n")
    for number, line in enumerate(lines):
        if not line:
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines) - 1:
                break
            row = None
        if not isinstance(row, dict):
            raise EnvironmentFailed(f"{path}: line {number + 1} is not a JSON object", hint=AGAIN)
        rows.append(row)
    return rows


@contextmanager
def shaped(path: Path, hint: str = "") -> Iterator[None]:
    """Around the reading of a file that Draftsmith wrote: one EnvironmentFailed that names the file, whatever became of it since.

    For reading alone: what is worked out of a file that was read is not to be called malformed.
    """
    try:
        yield
    except FileNotFoundError:
        raise EnvironmentFailed(f"{path} is missing", hint=hint or AGAIN) from None
    except OSError as error:
        raise EnvironmentFailed(f"{path} cannot be read: {error.strerror or error}", hint=hint or AGAIN) from None
    except KeyError as error:
        raise EnvironmentFailed(f"{path} has no key {error}", hint=hint or AGAIN) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise EnvironmentFailed(f"{path} is malformed: {f'{where}: ' if where else ''}{first['msg']}", hint=hint or AGAIN) from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise EnvironmentFailed(f"{path} is malformed: {' '.join(str(error).split())[:300]}", hint=hint or AGAIN) from error


def read_json(path: Path, hint: str = "") -> dict[str, Any]:
    """A JSON object that Draftsmith wrote. Raises EnvironmentFailed naming the file when it is not there, or holds anything else."""
    with shaped(path, hint):
        content = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise ValueError(f"it holds {type(content).__name__}, expected an object")
        return content


# --- hashes ----------------------------------------------------------------------------------------------------------


def sha256_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex digest of a file, read in 1 MiB blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def canonical_hash(content: Any) -> str:
    """Digest of JSON-able data that does not depend on key order."""
    return sha256_bytes(json.dumps(content, sort_keys=True, separators=(",", ":"), default=str).encode())


# --- provenance ------------------------------------------------------------------------------------------------------


@cache
def hardware() -> dict[str, Any]:
    """CPU model, cores, memory and GPUs of this machine."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")),
        platform.processor(),
    )
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpus: list[str] = []
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        gpus = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False).stdout.strip().splitlines()
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "memory_gib": round(memory_gib, 1), "gpus": gpus, "os": platform.platform()}


@cache
def tool_versions() -> dict[str, str]:
    """Versions of Draftsmith and of the packages that can change a result; the git commit when run from a checkout."""
    versions = {"draftsmith": __version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "absent"
    root = Path(__file__).resolve().parents[2]
    if (root / ".git").exists():
        git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
        versions["git"] = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return versions


@dataclass
class Manifest:
    """What a finished stage says about itself. Times are Unix seconds."""

    stage: str
    config: dict[str, Any]
    inputs: dict[str, str]  # stage name -> digest of its manifest's identity
    outputs: dict[str, str]  # file name inside the folder -> sha256
    summary: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    started: float = 0.0
    finished: float = 0.0
    active_s: float = 0.0  # work time over all starts of this stage, without the pauses between them
    schema: int = SCHEMA

    @property
    def key(self) -> str:
        """Digest of what the result depends on: stage, config, inputs. Equal keys mean that the work need not be done again."""
        return stage_key(self.stage, self.config, self.inputs)

    @property
    def identity(self) -> str:
        """Digest of the result itself, for the stages that read it."""
        return canonical_hash({"key": self.key, "outputs": self.outputs})

    def write(self, folder: Path) -> None:
        self.finished = time.time()
        self.provenance = {"tools": tool_versions(), "hardware": hardware(), **self.provenance}
        atomic_write_json(folder / MANIFEST, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """The manifest in `folder`, or None when the stage has not finished there."""
        path = folder / MANIFEST
        if not path.exists():
            return None
        content = read_json(path)
        if content.get("schema") != SCHEMA:
            raise EnvironmentFailed(f"{path}: schema {content.get('schema')}, this version reads {SCHEMA}", hint="use a new run folder")
        with shaped(path):
            known = cls(**content)
            for name in ("config", "inputs", "outputs", "summary", "provenance"):
                if not isinstance(getattr(known, name), dict):
                    raise ValueError(f"{name} is no mapping")
            return known

    def damaged(self, folder: Path) -> list[str]:
        """Names of output files that are missing or no longer have the recorded digest."""
        return [name for name, digest in self.outputs.items() if not (folder / name).is_file() or sha256_file(folder / name) != digest]


def stage_key(stage: str, config: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """Digest of stage, config and inputs (see Manifest.key)."""
    return canonical_hash({"stage": stage, "config": dict(config), "inputs": dict(inputs)})


def hash_outputs(folder: Path) -> dict[str, str]:
    """sha256 of every finished file under `folder`, except the manifest, logs and temporary files."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    kept = [file for file in files if file.name != MANIFEST and file.suffix != ".log" and not file.name.startswith(".")]
    return {str(file.relative_to(folder)): sha256_file(file) for file in kept}
