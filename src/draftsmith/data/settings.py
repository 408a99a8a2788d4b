"""Settings of the data stage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from draftsmith.settings import MOST_CONCURRENCY, Settings

HoldOut = Literal["topic", "prompt"]


class DataSettings(Settings):
    """The prompt mix and how the target answers it. Held-out prompts are always answered greedily."""

    written: int = Field(default=900, ge=0, description="training prompts taken from the project's own templates")
    synthesised: int = Field(default=300, ge=0, description="training prompts that the target writes itself")
    categories: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="categories of the written prompts, as in the traffic of one service; left out: all of them"
    )
    heldout: int = Field(default=96, ge=1, description="prompts kept out of training, in the same proportions")
    hold_out: HoldOut = Field(
        default="topic",
        description="written prompts: keep whole topics out of training, or single prompts (new questions on topics that recur)",
    )
    max_answer_tokens: int = Field(default=128, ge=1)
    temperature: float = Field(default=0.0, ge=0, description="of the training answers")
    synthesis_temperature: float = Field(default=0.9, gt=0, description="greedy sampling would write the same prompt every time")
    synthesis_top_p: float = Field(default=0.95, gt=0, le=1, description="cuts the tail: small targets write nonsense from it")
    synthesis_max_tokens: int = Field(default=80, ge=1)
    synthesis_openings: tuple[str, ...] = Field(
        default=("",), min_length=1, description="how the target's own prompts begin, in turn; it writes the rest. Keeps them to one domain"
    )
    concurrency: int = Field(default=64, ge=1, le=MOST_CONCURRENCY, description="requests in flight at each engine")
    replica_env: tuple[dict[str, str], ...] = Field(
        default=({},), min_length=1, description="one engine is started per entry, with these variables added"
    )
    budget_s: float | None = Field(
        default=None, gt=0, description="stop asking for new training answers after this time of asking; what is there is used"
    )
    seed: int = 0

    @model_validator(mode="after")
    def asks_for_something(self) -> DataSettings:
        if self.written + self.synthesised == 0:
            raise ValueError("written and synthesised are both 0: there would be nothing to train on")
        return self
