"""What the drafter in a running engine is given: the plug-in folder that makes an engine write it down, and the reader of what was written.

Shapes: T rows, F taps * H, B rows of a block.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from draftsmith.errors import InvalidMeasurement
from draftsmith.manifest import atomic_write_text

FOLDER = "DRAFTSMITH_FEATURES"
INSIDE = Path(__file__).with_name("inside")
SHARED, SHARED_AS = INSIDE / "capture_rows.py", "draftsmith_rows.py"
PLUGIN = "draftsmith_features"
METADATA = f"Metadata-Version: 2.1\nName: {PLUGIN.replace('_', '-')}\nVersion: 1\n"


@dataclass(frozen=True)
class Block:
    """What a DFlash drafter filled in one round. Positions count from the first one given; context: the first without a feature so far."""

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    context: int


@dataclass(frozen=True)
class Served:
    """One request as the drafter saw it: row p is position p. input_ids_T: the token whose embedding meets the feature of that row.

    A DFlash drafter meets no tokens there; it has blocks.
    """

    features_TF: Tensor
    input_ids_T: Tensor | None
    positions_T: Tensor
    blocks: tuple[Block, ...] = field(default=())


def plugin_folder(folder: Path, script: Path, group: str) -> Path:
    """A package that an engine finds on its import path by its entry point, as if it were installed. Returns the folder for that path."""
    plugin = folder / "plugin"
    info = plugin / f"{PLUGIN}-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(script, plugin / f"{PLUGIN}.py")
    shutil.copyfile(SHARED, plugin / SHARED_AS)
    atomic_write_text(info / "METADATA", METADATA)
    atomic_write_text(info / "entry_points.txt", f"[{group}]\n{PLUGIN} = {PLUGIN}:install\n")
    return plugin.resolve()


def calls(folder: Path) -> list[Path]:
    """The files that the drafter's calls have left so far, oldest first."""
    return sorted(folder.glob("call-*.safetensors"))


def read_calls(paths: Sequence[Path], num_prompt_tokens: int, num_tokens: int) -> Served:
    """The calls of one request of `num_tokens` tokens (prompt and answer), asked while no other ran.

    A later call overwrites a position of an earlier one: that is what the engine does with rejected drafts, and what counts. What comes
    before the last prefill belongs to another request: a round begun for the one before, or the engine's own question after its health.
    Row p is the p-th position from the first one given.
    The last token has no next one and is left out; an engine need not draft once a request is at its end, so that rows may be missing
    there. Raises InvalidMeasurement when one of the prompt is.
    """
    tensors = [load_file(path) for path in paths]
    given = [call["positions"] for call in tensors if len(call.get("positions", ()))]
    if not given:
        raise InvalidMeasurement("the drafter was given no features of this request", hint="does it draft? see the engine's log")
    start = min(int(positions.min()) for positions in given)
    first = max(number for number, call in enumerate(tensors) if "positions" in call and start in call["positions"])
    rows: dict[int, tuple[int, int]] = {}
    blocks: list[Block] = []
    for number, call in enumerate(tensors[first:], first):
        if "positions" in call:
            rows |= {position - start: (number, row) for row, position in enumerate(call["positions"].tolist())}
        if "block_ids" in call:
            context = next(place for place in range(len(rows) + 1) if place not in rows)
            blocks.append(Block(tuple(call["block_ids"].tolist()), tuple((call["block_positions"] - start).tolist()), context))
    places = [rows[place] for place in takewhile(rows.__contains__, range(num_tokens - 1))]
    if len(places) < num_prompt_tokens:
        raise InvalidMeasurement(
            f"the drafter was never given position {start + len(places)} of a prompt of {num_prompt_tokens} tokens ({len(paths)} calls)",
            hint="its positions do not go up one by one, another request ran at the same time, or a prefix cache answered",
        )
    names = [name for name in ("features", "input_ids", "positions") if name in tensors[first]]
    taken = {name: torch.stack([tensors[number][name][row] for number, row in places]) for name in names}
    told = tuple(block for block in blocks if block.positions and block.positions[0] < num_tokens)
    return Served(taken["features"], taken.get("input_ids"), taken["positions"], told)
