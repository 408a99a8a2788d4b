"""What the drafter in a running vLLM is given: the launch that writes it down, and the reader of what was written.

Shapes: T rows, F taps * H.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from draftsmith.engines.flags import without
from draftsmith.engines.protocol import Launch
from draftsmith.errors import InvalidMeasurement
from draftsmith.manifest import atomic_write_text

FOLDER = "DRAFTSMITH_FEATURES"
SCRIPT = Path(__file__).parents[1] / "inside" / "capture_vllm.py"
PLUGIN = "draftsmith_features"
METADATA = f"Metadata-Version: 2.1\nName: {PLUGIN.replace('_', '-')}\nVersion: 1\n"
ENTRY_POINT = f"[vllm.general_plugins]\n{PLUGIN} = {PLUGIN}:install\n"


@dataclass(frozen=True)
class Served:
    """One request as the drafter saw it: row p is position p. input_ids_T: the token whose embedding meets the feature of that row."""

    features_TF: Tensor
    input_ids_T: Tensor
    positions_T: Tensor


def with_features(launch: Launch, folder: Path) -> Launch:
    """The launch whose drafter writes down its input in `folder`: eager, and without prefix caching, so that every row is computed."""
    plugin = folder / "plugin"
    info = plugin / f"{PLUGIN}-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(SCRIPT, plugin / f"{PLUGIN}.py")
    atomic_write_text(info / "METADATA", METADATA)
    atomic_write_text(info / "entry_points.txt", ENTRY_POINT)
    before = launch.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    env = {FOLDER: str(folder.resolve()), "PYTHONPATH": os.pathsep.join(filter(None, (str(plugin.resolve()), before)))}
    chosen = launch.env.get("VLLM_PLUGINS", os.environ.get("VLLM_PLUGINS"))
    if chosen is not None:  # only the named ones are loaded
        env["VLLM_PLUGINS"] = f"{chosen},{PLUGIN}"
    flags = without(launch.flags, "enforce-eager", "enable-prefix-caching")
    return replace(launch, flags={**flags, "enforce-eager": True, "enable-prefix-caching": False}, env={**launch.env, **env})


def calls(folder: Path) -> list[Path]:
    """The files that the drafter's calls have left so far, oldest first."""
    return sorted(folder.glob("call-*.safetensors"))


def read_calls(paths: Sequence[Path], num_prompt_tokens: int, num_tokens: int) -> Served:
    """The calls of one request of `num_tokens` tokens (prompt and answer), asked while no other ran.

    A later call overwrites a position of an earlier one: that is what the engine does with rejected drafts, and what counts.
    Row p is the p-th position from the first one given. The last token has no next one and is left out; an engine need not draft once
    a request is at its end, so that rows may be missing there. Raises InvalidMeasurement when one of the prompt is.
    """
    tensors = [load_file(path) for path in paths]
    start = min(int(call["positions"].min()) for call in tensors)
    rows: dict[int, tuple[int, int]] = {}
    for number, call in enumerate(tensors):
        rows |= {position - start: (number, row) for row, position in enumerate(call["positions"].tolist())}
    places = [rows[place] for place in takewhile(rows.__contains__, range(num_tokens - 1))]
    if len(places) < num_prompt_tokens:
        raise InvalidMeasurement(
            f"the drafter was never given position {start + len(places)} of a prompt of {num_prompt_tokens} tokens ({len(paths)} calls)",
            hint="its positions do not go up one by one, another request ran at the same time, or a prefix cache answered",
        )
    taken = {name: torch.stack([tensors[number][name][row] for number, row in places]) for name in ("features", "input_ids", "positions")}
    return Served(taken["features"], taken["input_ids"], taken["positions"])
