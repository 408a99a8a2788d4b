"""Settings of the bench stage."""

from __future__ import annotations

from pydantic import Field, model_validator

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

    @model_validator(mode="after")
    def lists_fit_together(self) -> BenchSettings:
        n = len(self.concurrency)
        for name in ("requests", "warmup_requests"):
            values = getattr(self, name)
            if len(values) != n:
                raise ValueError(f"{name} has {len(values)} numbers, concurrency has {n}: give one for each concurrency")
        if min(self.concurrency) < 1 or len(set(self.concurrency)) != n:
            raise ValueError(f"concurrency is {list(self.concurrency)}; expected different numbers from 1 up")
        for concurrency, requests in zip(self.concurrency, self.requests, strict=True):
            if requests < 2 * concurrency:
                least = f"at least {2 * concurrency}"
                raise ValueError(f"requests: {requests} at concurrency {concurrency} would keep its slots busy for a moment only; {least}")
        if min(self.warmup_requests) < 1:
            raise ValueError("warmup_requests: every concurrency needs a warm-up of one request or more")
        if self.gate_concurrency not in self.concurrency:
            raise ValueError(f"gate_concurrency {self.gate_concurrency} is not in concurrency {list(self.concurrency)}")
        return self
