"""What a stage gets and what a stage is.

A stage is a module `draftsmith.<name>.stage` with the names of the `Stage` protocol. It reads the folders of the stages in
`INPUTS`, writes only into its own folder, goes on from a half-done folder, and never imports another stage.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from draftsmith.manifest import Manifest, read_json
from draftsmith.settings import DrafterSettings, EngineSettings


class Talk:
    """Progress and talk on stderr; stdout is for data. Lines carry the time since the command started.

    `progress` overwrites one line on a terminal and prints at most one line every `every_s` seconds elsewhere.
    """

    def __init__(self, quiet: bool = False, every_s: float = 10.0) -> None:
        self.quiet = quiet
        self.every_s = every_s
        self.start = time.monotonic()
        self.last_progress = 0.0
        self.open_line = False

    def say(self, text: str) -> None:
        if self.quiet:
            return
        if self.open_line:
            sys.stderr.write("\n")
            self.open_line = False
        sys.stderr.write(f"[{clock(time.monotonic() - self.start)}] {text}\n")
        sys.stderr.flush()

    def progress(self, what: str, done: float, total: float, started: float, detail: str = "") -> None:
        """One line with share done, rate-based ETA and detail. `started` is time.monotonic() at the beginning of the work."""
        now = time.monotonic()
        if self.quiet or (now - self.last_progress < (0.5 if sys.stderr.isatty() else self.every_s) and done < total):
            return
        self.last_progress = now
        share = min(done / total, 1.0) if total else 1.0
        eta = f", {clock((now - started) * (1 - share) / share)} left" if 0 < share < 1 else ""
        line = f"{what}: {100 * share:.0f} %{eta}{', ' + detail if detail else ''}"
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[2K[{clock(now - self.start)}] {line}")
            sys.stderr.flush()
            self.open_line = True
        else:
            self.say(line)


def clock(seconds: float) -> str:
    """12:34 or 1:02:03."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute:02d}:{second:02d}"


@dataclass(frozen=True)
class Job:
    """One run: where it lives, what it is about, how it talks."""

    run: Path
    target: Path  # Hugging Face folder
    engine: EngineSettings
    drafter: DrafterSettings
    talk: Talk = field(default_factory=Talk)
    trust_remote_code: bool = False

    def folder(self, stage: str) -> Path:
        return self.run / stage

    def summary(self, stage: str) -> dict[str, Any]:
        """The summary that a finished stage left in its manifest."""
        manifest = Manifest.read(self.folder(stage))
        assert manifest is not None, f"stage {stage} has not finished in {self.run}"
        return manifest.summary

    def read(self, stage: str, name: str) -> Any:
        """A JSON file that a finished stage left. Raises EnvironmentFailed when it is not there, or damaged."""
        return read_json(self.folder(stage) / name)


@dataclass(frozen=True)
class Plan:
    """What a stage would cost, for `--dry-run`."""

    launches: int = 0
    bytes: int = 0
    seconds: float = 0.0
    note: str = ""


class Stage(Protocol):
    """The names that a stage module has."""

    NAME: ClassVar[str]
    INPUTS: ClassVar[tuple[str, ...]]

    def plan(self, settings: Any, job: Job) -> Plan:
        """Estimate without doing anything."""
        ...

    def run(self, settings: Any, job: Job) -> dict[str, Any]:
        """Do the work in job.folder(NAME); return the summary for the manifest. Raises DraftsmithError."""
        ...
