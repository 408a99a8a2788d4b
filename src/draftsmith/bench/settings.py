"""Settings of the bench stage."""

from pydantic import Field

from draftsmith.settings import Settings


class BenchSettings(Settings):
    """The paired experiment. A pair is one baseline and one speculative launch; pairs alternate A B, B A.

    Three pairs with short windows beat two with long ones in the same time: 3 degrees of freedom against 2, and a start costs less
    than the t factor saves (see measure/statistics.py).
    """

    pairs: int = Field(default=3, ge=2)
    concurrency: tuple[int, ...] = Field(default=(1, 8), min_length=1)
    requests: tuple[int, ...] = Field(default=(6, 24), description="measured requests per launch, for each concurrency")
    warmup_requests: tuple[int, ...] = Field(default=(1, 8), description="requests before the measured ones, for each concurrency")
    warmup_tokens: int = Field(default=8, ge=2, description="length of the warm-up answers")
    output_tokens: int = Field(default=96, ge=8, description="most tokens per answer; it may end earlier, as in use")
    temperature: float = Field(default=0.0, ge=0)
    canary_tokens: int = Field(default=32, ge=2, description="length of the fixed single request that every launch answers")
    start_together: bool = Field(default=False, description="start both arms of a pair side by side; one at a time is measured")
    min_speedup: float = Field(default=1.0, description="gate: exit code 0 when the lower bound at `gate_concurrency` is above it")
    gate_concurrency: int = 1
    seed: int = 0
