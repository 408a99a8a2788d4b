"""Checkpoints of a training run: everything that is needed for a resumed run to equal a straight one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draftsmith.manifest import commit, temporary_path

CHECKPOINT = "checkpoint.pt"


@dataclass
class Progress:
    """Where a run stands. `batch` counts the batches of `epoch` that are done; elapsed_s sums training time over restarts."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0


def save_checkpoint(folder: Path, progress: Progress, drafter: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the checkpoint atomically: a kill leaves the old one or the new one."""
    content = {
        "progress": asdict(progress),
        "drafter": drafter.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
    }
    temporary = temporary_path(folder / CHECKPOINT)
    torch.save(content, temporary)
    commit(temporary, folder / CHECKPOINT)


def load_checkpoint(folder: Path, drafter: nn.Module, optimizer: torch.optim.Optimizer) -> Progress | None:
    """Restore drafter, optimizer and random state in place; None when there is no checkpoint."""
    path = folder / CHECKPOINT
    if not path.is_file():
        return None
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    drafter.load_state_dict(content["drafter"], strict=True)
    optimizer.load_state_dict(content["optimizer"])
    torch.set_rng_state(content["rng"])
    return Progress(**content["progress"])
