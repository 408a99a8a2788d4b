"""Settings of the bench stage."""

from pydantic import Field

from draftsmith.settings import Settings


class BenchSettings(Settings):
    """The paired experiment. A pair is one baseline and one speculative launch; pairs alternate A B, B A."""

    pairs: int = Field(default=2, ge=2)
    concurrency: tuple[int, ...] = (1, 8)
    requests: tuple[int, ...] = Field(default=(8, 32), description="measured requests per launch, for each concurrency")
    warmup_requests: tuple[int, ...] = (1, 8)
    output_tokens: int = 128
    temperature: float = 0.0
    canary_tokens: int = 32
    min_speedup: float = Field(default=1.0, description="gate: exit code 0 when the lower bound at `gate_concurrency` is above it")
    gate_concurrency: int = 1
    seed: int = 0
