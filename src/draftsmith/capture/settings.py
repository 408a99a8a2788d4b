"""Settings of the capture stage."""

from typing import Literal

from pydantic import Field

from draftsmith.settings import Settings


class CaptureSettings(Settings):
    """How hidden states are computed and stored."""

    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    device: Literal["cpu", "cuda"] = "cpu"
    tokens_per_batch: int = Field(default=4096, ge=1)
    tokens_per_shard: int = Field(default=16384, ge=1)
