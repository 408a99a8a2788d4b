"""What a stage's result depends on. Equal keys mean that the work need not be done again (see `manifest.stage_key`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.job import Job
from draftsmith.manifest import canonical_hash, sha256_bytes, sha256_file
from draftsmith.settings import Settings

# The parts of a job that a stage's result depends on, besides the stage's own settings and the stages that it reads.
DEPENDS: Mapping[str, tuple[str, ...]] = {
    "check": ("target", "engine", "drafter", "depth"),
    "breakeven": ("target", "engine", "drafter"),  # it has depths of its own
    "data": ("target", "engine"),
    "capture": ("target", "taps"),
    "train": ("target", "drafter"),
    "export": ("target", "drafter", "depth", "engine name"),  # the model card shows how to serve it
    "verify": ("target", "engine", "drafter", "depth"),
    "serve": ("target", "engine", "drafter", "depth"),
    "bench": ("target", "engine", "drafter", "depth"),
    "report": (),
}

# Stages that must have passed, but whose files the stage does not read: another start time in serve.json does not make a bench stale,
# and a depth that check looked at does not make the data stale.
GATES: Mapping[str, tuple[str, ...]] = {"breakeven": ("check",), "data": ("check",), "bench": ("verify", "serve")}
PASSED = "passed"

PARTS: Mapping[str, Callable[[Job], Any]] = {
    "target": lambda job: {"files": target_identity(job.target), "trust_remote_code": job.trust_remote_code},
    "engine": lambda job: job.engine.model_dump(mode="json", exclude={"ready_timeout_s"}),
    "engine name": lambda job: job.engine.name,
    "drafter": lambda job: job.drafter.model_dump(mode="json", exclude={"depth"}),
    "depth": lambda job: job.drafter.depth,
    "taps": lambda job: job.drafter.model_dump(mode="json", include={"taps"})["taps"],
}

SMALL_FILE_BYTES = 32 << 20
SAMPLES, SAMPLE_BYTES = 64, 64 << 10


def stage_config(stage: str, settings: Settings, job: Job) -> dict[str, Any]:
    """The config that goes into a stage's key and manifest: {"settings": the stage's own, one entry per part of the job, "files": digests
    of the files that the settings name, if any}. Raises UsageError for a file that is not there."""
    parts = {part: PARTS[part](job) for part in DEPENDS[stage]}
    files = {"files": {str(path): named_file_identity(stage, path) for path in settings.files()}} if settings.files() else {}
    return {"settings": settings.model_dump(mode="json")} | parts | files


def named_file_identity(stage: str, file: Path) -> str:
    """Digest of a file that a stage's settings name. Raises UsageError."""
    if not file.is_file():
        raise UsageError(f"{stage}: there is no file {file}", hint=f"it is named in the settings of {stage}, and its content counts")
    return sha256_file(file)


@cache
def target_identity(folder: Path) -> str:
    """Digest of a model folder's content, wherever it lies. Small files count whole; weights by size and 64 samples of 64 KiB
    each, so that a model of 100 GB takes no minute. Raises EnvironmentFailed when there is nothing to hash."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    if not files:
        raise EnvironmentFailed(f"no model files in {folder}", hint="target.model must be a Hugging Face folder")
    return canonical_hash({file.name: file_identity(file) for file in files})


def file_identity(file: Path) -> str:
    """Digest of a file, sampled when it is large."""
    size = file.stat().st_size
    if size <= SMALL_FILE_BYTES:
        return sha256_file(file)
    content = [str(size).encode()]
    with file.open("rb") as handle:
        for sample in range(SAMPLES):
            handle.seek((size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
            content.append(handle.read(SAMPLE_BYTES))
    return sha256_bytes(b"".join(content))
