"""Checkpoints of a training run: everything that is needed for a resumed run to equal a straight one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from draftsmith.manifest import atomic_folder

CHECKPOINT = "checkpoint"


@dataclass
class Progress:
    """Where a run stands. `batch` counts the batches of `epoch` that are done; elapsed_s sums training time over restarts."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0


class Stateful(Protocol):
    """What a checkpoint needs of an optimizer."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, states: Any, /) -> None: ...


def save_checkpoint(folder: Path, progress: Progress, drafter: nn.Module, optimizer: Stateful) -> None:
    """Replace the checkpoint atomically."""
    with atomic_folder(folder / CHECKPOINT) as new:
        content = {
            "progress": asdict(progress),
            "drafter": drafter.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
        }
        torch.save(content, new / "state.pt")


def load_checkpoint(folder: Path, drafter: nn.Module, optimizer: Stateful) -> Progress | None:
    """Restore drafter, optimizer and random state in place; None when there is no checkpoint."""
    path = folder / CHECKPOINT / "state.pt"
    if not path.is_file():
        return None
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    drafter.load_state_dict(content["drafter"], strict=True)
    optimizer.load_state_dict(content["optimizer"])
    torch.set_rng_state(content["rng"])
    return Progress(**content["progress"])
