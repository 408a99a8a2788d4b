"""Settings of tune, the section `tune` of a recipe. What it does not say of the load is as the recipe's bench has it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from draftsmith.measure.loads import closed_shapes
from draftsmith.settings import MOST_CONCURRENCY, MOST_LAUNCHES, MOST_REQUESTS, Settings, Variable

TREE = re.compile(r"([1-9]\d*)-([1-9]\d*)-([1-9]\d*)")
NAMED_PROMPTS = ("heldout", "builtin")  # anything else is a file
LOAD = ("concurrency", "requests", "warmup_requests", "output_tokens", "prompts", "temperature", "start_together", "seed")


class TuneSettings(Settings):
    """What is tried, how it is measured, and what counts as a tie."""

    depths: tuple[int, ...] = Field(default=(1, 2, 3, 5), description="EAGLE-3 chains: drafts per round")
    trees: tuple[str, ...] | None = Field(default=None, description="EAGLE-3 trees as STEPS-TOPK-TOKENS; default on SGLang: 3-4-16, 5-4-32")
    blocks: tuple[int, ...] = Field(default=(), description="DFlash blocks; default: the trained one, a half and a quarter of it")
    env_sets: dict[str, dict[str, Variable]] = Field(default={}, description="named sets of environment variables that are tried besides")
    concurrency: tuple[int, ...] = Field(default=(1, 8), min_length=1)
    requests: tuple[int, ...] | None = Field(default=None, description="measured per launch, for each concurrency; default 10 x")
    warmup_requests: tuple[int, ...] | None = Field(default=None, description="before the measured ones; default 2 x concurrency")
    output_tokens: int = Field(default=96, ge=8, description="most tokens per answer")
    warmup_tokens: int = Field(default=8, ge=2)
    canary_tokens: int = Field(default=32, ge=2, description="length of the fixed single request that every launch answers")
    prompts: str = Field(default="heldout", description="heldout (of the data stage), builtin, or a file")
    temperature: float = Field(default=0.0, ge=0)
    start_together: bool = Field(default=False, description="start the arms of a round side by side; one at a time is measured")
    keep: int = Field(default=2, ge=1, description="candidates that are measured at each concurrency; the others are pruned by prediction")
    rounds: int = Field(
        default=2, ge=1, le=MOST_LAUNCHES, description="launches of every surviving arm, in turned order, before the best is picked"
    )
    pairs: int = Field(default=3, ge=2, le=MOST_LAUNCHES, description="pairs of launches that confirm the best against the baseline")
    pairs_max: int | None = Field(
        default=None, le=MOST_LAUNCHES, description="most pairs; from `pairs` on, each pair is followed by a look that may end it"
    )
    margin: float = Field(default=0.02, ge=0, lt=1, description="a simpler arm that is slower by at most this share is preferred")
    check_schedule: Literal["auto", "never"] = Field(default="auto", description="measure the schedule that is given to the engine, too")
    seed: int = 0

    def files(self) -> tuple[Path, ...]:
        return () if self.prompts in NAMED_PROMPTS else (Path(self.prompts),)

    def shapes(self) -> list[tuple[int, int, int]]:
        """(concurrency, measured requests, warm-up requests)."""
        return closed_shapes(self.concurrency, self.requests, self.warmup_requests)

    @property
    def last_pair(self) -> int:
        """Most pairs there will be."""
        return self.pairs_max or self.pairs

    @field_validator("trees")
    @classmethod
    def trees_that_can_be(cls, words: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for word in words or ():
            match = TREE.fullmatch(word)
            if match is None:
                raise ValueError(f"tree {word!r} is not STEPS-TOPK-TOKENS, for example 3-4-16")
            steps, top_k, tokens = map(int, match.groups())
            most = top_k + (steps - 1) * top_k * top_k + 1
            if top_k < 2 or not steps < tokens <= most:
                raise ValueError(f"tree {word!r} needs top-k 2 or more, and more than {steps} and at most {most} tokens")
        return words

    @model_validator(mode="after")
    def numbers_that_can_be_meant(self) -> TuneSettings:
        for name, least in (("depths", 1), ("blocks", 2), ("concurrency", 1)):
            values = getattr(self, name)
            if values and (min(values) < least or len(set(values)) != len(values)):
                raise ValueError(f"{name} is {list(values)}; expected different numbers from {least} up")
        for name in ("requests", "warmup_requests"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.concurrency):
                raise ValueError(f"{name} has {len(values)} numbers, concurrency has {len(self.concurrency)}: give one for each")
        for concurrency, requests, warmup in self.shapes():
            if concurrency > MOST_CONCURRENCY or max(requests, warmup) > MOST_REQUESTS:
                raise ValueError(f"concurrency {concurrency}: at most {MOST_CONCURRENCY}, and {MOST_REQUESTS} requests")
            if requests < 2 * concurrency or warmup < 1:
                raise ValueError(f"requests at concurrency {concurrency}: at least {2 * concurrency}, and a warm-up of one or more")
        if self.pairs_max is not None and self.pairs_max < self.pairs:
            raise ValueError(f"pairs_max {self.pairs_max} is below pairs {self.pairs}")
        if wrong := [name for name, values in self.env_sets.items() if not re.fullmatch(r"[\w.-]+", name) or not values]:
            raise ValueError(f"env_sets: {wrong[0]!r} needs a plain name and at least one variable")
        return self
