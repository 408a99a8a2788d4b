"""Where the toolkit itself computes: on the CPU, or on one CUDA GPU."""

from __future__ import annotations

import torch

from draftsmith.errors import EnvironmentFailed


def usable(name: str, setting: str) -> torch.device:
    """The device of that name ("cpu", "cuda"). Raises EnvironmentFailed, naming the setting, where torch has no such GPU."""
    if name == "cuda" and not torch.cuda.is_available():
        build = torch.version.cuda
        why = f"torch {torch.__version__} finds no GPU" if build else f"torch {torch.__version__} is a build without CUDA"
        raise EnvironmentFailed(f"{setting} is cuda, but {why}", hint=f"{setting}=cpu, or a torch with CUDA on a machine with a GPU")
    return torch.device(name)
