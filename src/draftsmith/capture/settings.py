"""Settings of the capture stage."""

from typing import Literal

from draftsmith.settings import Settings


class CaptureSettings(Settings):
    """How hidden states are computed and stored."""

    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    device: Literal["cpu", "cuda"] = "cpu"
    tokens_per_batch: int = 4096
    tokens_per_shard: int = 16384
