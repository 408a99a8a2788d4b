"""Settings of the breakeven stage."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from draftsmith.settings import MOST_CONCURRENCY, MOST_LAUNCHES, Gate, Settings

GIVEN = re.compile(r"(\d+(?:\.\d+)?)us,(?!0+(?:\.0+)?GB)(\d+(?:\.\d+)?)GB/s")  # latency, bandwidth


def probe_file(text: str) -> tuple[Path, str] | None:
    """(file, arm) of a probe that is named; None for latency and bandwidth as numbers."""
    if GIVEN.fullmatch(text):
        return None
    name, _, arm = text.partition(":")
    return Path(name), arm or "default"


class BreakevenSettings(Settings):
    """Where T_ar and T_round are measured."""

    depths: tuple[int, ...] = Field(default=(1, 3), min_length=1)
    concurrency: tuple[int, ...] = Field(default=(1, 8), min_length=1)
    output_tokens: int = Field(default=64, ge=8, description="forced length of every answer")
    prompt_tokens: int | None = Field(
        default=None, ge=1, description="context before the answer; default 64. Only where acceptance is forced"
    )
    requests_per_slot: int = Field(default=3, ge=2, description="measured requests per slot; their spread is the interval inside a launch")
    replicates: int = Field(
        default=1, ge=1, le=MOST_LAUNCHES, description="launches of each kind; from two on in turned order, and launch noise is seen"
    )
    canary_tokens: int = Field(default=16, ge=2, description="length of the fixed single request that every launch answers")
    start_together: bool = Field(default=False, description="start all launches of a replicate side by side; one at a time is measured")
    min_speedup: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="advises against training when not even full acceptance reaches it"
    )
    # No part of what was measured: another gate of bench makes no measurement stale.
    gates: tuple[Gate, ...] = Field(
        default=(), exclude=True, description="the same at one concurrency, each like 1.1@4; in a recipe: those of bench"
    )
    collectives: str | None = Field(
        default=None, description="all-reduce of these GPUs for the cost model: a probe's collectives.json[:ARM], or 30us,50GB/s"
    )
    seed: int = 0

    @field_validator("gates", mode="before")
    @classmethod
    def one_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    def files(self) -> tuple[Path, ...]:
        """The probe's document."""
        path = probe_file(self.collectives) if self.collectives else None
        return () if path is None else (path[0],)

    @model_validator(mode="after")
    def numbers_that_can_be_meant(self) -> BreakevenSettings:
        for name in ("depths", "concurrency"):
            values = getattr(self, name)
            if min(values) < 1 or len(set(values)) != len(values):
                raise ValueError(f"{name} is {list(values)}; expected different numbers from 1 up")
        if max(self.concurrency) > MOST_CONCURRENCY:
            raise ValueError(f"concurrency is {list(self.concurrency)}; at most {MOST_CONCURRENCY}")
        return self
