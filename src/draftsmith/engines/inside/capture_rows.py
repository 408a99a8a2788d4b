"""Shared by the plug-ins that run inside an engine: one file for each time a drafter is given something, in $DRAFTSMITH_FEATURES.

The engine's process that runs the model writes; with several of them the first rank alone. A file has some of these tensors, T rows of one
call and B rows of a block:

    features [T, taps * H]  input_ids [T]  positions [T]   what a drafter gets of the target, and (EAGLE) the token that it meets
    block_ids [B]  block_positions [B]                     what a DFlash drafter fills: the last token, then masks
"""

# the engine's packages exist in its own environment only
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

FOLDER = "DRAFTSMITH_FEATURES"
NUMBERS = count()


def write(**tensors: Any) -> None:
    """One file, complete as soon as it has its name. Ids and positions become int64; of three axes of positions (M-RoPE) the first."""
    import torch
    from safetensors.torch import save_file

    if torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
        return
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    plain = {name: tensor if name == "features" else first_axis(tensor).to(torch.int64) for name, tensor in plain.items()}
    path = Path(os.environ[FOLDER]) / f"call-{next(NUMBERS):06d}.safetensors"
    save_file(plain, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def first_axis(numbers: Any) -> Any:
    """[3, T] -> [T]."""
    return numbers[0].contiguous() if numbers.ndim > 1 else numbers
