"""Settings of the breakeven stage."""

from __future__ import annotations

from pydantic import Field, model_validator

from draftsmith.settings import MOST_CONCURRENCY, MOST_LAUNCHES, Settings


class BreakevenSettings(Settings):
    """Where T_ar and T_round are measured."""

    depths: tuple[int, ...] = Field(default=(1, 3), min_length=1)
    concurrency: tuple[int, ...] = Field(default=(1, 8), min_length=1)
    output_tokens: int = Field(default=64, ge=8, description="forced length of every answer")
    requests_per_slot: int = Field(default=3, ge=2, description="measured requests per slot; their spread is the interval inside a launch")
    replicates: int = Field(
        default=1, ge=1, le=MOST_LAUNCHES, description="launches of each kind; from two on in turned order, and launch noise is seen"
    )
    canary_tokens: int = Field(default=16, ge=2, description="length of the fixed single request that every launch answers")
    start_together: bool = Field(default=False, description="start all launches of a replicate side by side; one at a time is measured")
    min_speedup: float = Field(default=1.0, gt=0, description="advises against training when not even full acceptance reaches it")
    seed: int = 0

    @model_validator(mode="after")
    def numbers_that_can_be_meant(self) -> BreakevenSettings:
        for name in ("depths", "concurrency"):
            values = getattr(self, name)
            if min(values) < 1 or len(set(values)) != len(values):
                raise ValueError(f"{name} is {list(values)}; expected different numbers from 1 up")
        if max(self.concurrency) > MOST_CONCURRENCY:
            raise ValueError(f"concurrency is {list(self.concurrency)}; at most {MOST_CONCURRENCY}")
        return self
