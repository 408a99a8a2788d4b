"""What can be tried: how a drafter drafts (chain, tree, block), in which environment, and which of two is the simpler."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from draftsmith.engines.protocol import Drafting
from draftsmith.errors import UsageError
from draftsmith.tune.settings import TREE, TuneSettings

TREES = {"sglang": ("3-4-16", "5-4-32")}  # tried when the settings name none; vLLM drafts no trees
Kind = Literal["chain", "tree", "block", "schedule"]


@dataclass(frozen=True)
class Candidate:
    """One way to draft. depth: drafts that a round can accept at most. rows: tokens that a request puts into a verify pass."""

    kind: Kind
    depth: int
    rows: int
    top_k: int = 1

    @property
    def name(self) -> str:
        """chain 3, tree 3-4-16, block 8; schedule: what the engine is given in the end, of so many drafts at most."""
        if self.kind == "schedule":
            return "schedule"
        if self.kind == "tree":
            return f"tree {self.depth}-{self.top_k}-{self.rows}"
        return f"block {self.rows}" if self.kind == "block" else f"chain {self.depth}"

    @property
    def complexity(self) -> tuple[bool, int, int]:
        """Smaller is simpler: a chain before a tree, then fewer drafts."""
        return (self.kind == "tree", self.rows, self.depth)

    def drafting(self, method: str, folder: Path) -> Drafting:
        """As a launch takes it."""
        return Drafting(method, folder, self.depth, (self.top_k, self.rows) if self.kind == "tree" else None)

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, "depth": self.depth, "top_k": self.top_k, "rows": self.rows}


@dataclass(frozen=True)
class Arm:
    """What is launched: a candidate, or the baseline (None), in a named environment; "" is the recipe's own."""

    candidate: Candidate | None
    env_set: str = ""

    @property
    def name(self) -> str:
        """chain 3 @low-latency."""
        return (self.candidate.name if self.candidate else "baseline") + (f" @{self.env_set}" if self.env_set else "")

    @property
    def complexity(self) -> tuple[Any, ...]:
        """The recipe's environment before another one, no drafting before drafting."""
        return (self.env_set != "", *(self.candidate.complexity if self.candidate else (False, 1, 0)))


@dataclass(frozen=True)
class Drafter:
    """A drafter folder and how it drafts. block: tokens of the block that a DFlash drafter was trained for; 0 for EAGLE-3."""

    folder: Path
    method: Literal["eagle3", "dflash"]
    block: int = 0


def read_drafter(folder: Path) -> Drafter:
    """From its config.json. Raises UsageError when there is none."""
    path = folder / "config.json"
    if not path.is_file():
        raise UsageError(f"no config.json in {folder}", hint="--drafter takes the folder of a drafter that the engine can load")
    config: Mapping[str, Any] = json.loads(path.read_text())
    if "dflash_config" in config or any("DFlash" in name for name in config.get("architectures") or ()):
        block = int(config.get("block_size") or (config.get("dflash_config") or {}).get("block_size") or 0)
        if block < 2:
            raise UsageError(f"{path} is of a DFlash drafter and has no block_size", hint="give the block that it was trained for")
        return Drafter(folder, "dflash", block)
    return Drafter(folder, "eagle3")


def candidates_for(settings: TuneSettings, drafter: Drafter, engine: str) -> list[Candidate]:
    """All candidates, the simplest first. engine: "vllm" or "sglang". Raises UsageError for what it cannot draft."""
    if drafter.method == "dflash":
        return blocks(settings.blocks, drafter)
    if settings.blocks:
        raise UsageError("tune.blocks is for DFlash drafters, and this one is EAGLE-3", hint="tune.depths and tune.trees")
    found = [Candidate("chain", depth, depth + 1) for depth in settings.depths]
    for word in TREES.get(engine, ()) if settings.trees is None else settings.trees:
        match = TREE.fullmatch(word)
        assert match is not None, word
        steps, top_k, tokens = map(int, match.groups())
        found.append(Candidate("tree", steps, tokens, top_k))
    if settings.trees and engine != "sglang":
        raise UsageError(f"{engine} drafts no trees", hint="leave tune.trees out, or use SGLang")
    if not found:
        raise UsageError("nothing to try", hint="tune.depths, or tune.trees")
    return sorted(found, key=lambda candidate: candidate.complexity)


def blocks(asked: Sequence[int], drafter: Drafter) -> list[Candidate]:
    """DFlash blocks, none wider than what the drafter was trained for."""
    if too_wide := [block for block in asked if block > drafter.block]:
        raise UsageError(f"block {too_wide[0]}: the drafter was trained for blocks of {drafter.block}", hint="tune.blocks")
    sizes = asked or sorted({max(2, drafter.block // part) for part in (1, 2, 4)})
    return [Candidate("block", block - 1, block) for block in sorted(sizes)]
