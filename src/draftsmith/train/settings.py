"""Settings of the train stage."""

from typing import Literal

from pydantic import Field

from draftsmith.settings import Settings


class TrainSettings(Settings):
    """One training run. It ends after `budget_s` of work (summed over restarts) or `epochs`, whichever comes first."""

    device: Literal["cpu", "cuda"] = Field(default="cpu", description="on a GPU two equal runs differ in rounding")
    budget_s: float = Field(default=300.0, gt=0)
    epochs: int = Field(default=100, ge=1)
    ttt_steps: int = Field(default=3, ge=1, description="training-time-test steps: how deep the drafter learns on its own features")
    shallow_share: float = Field(
        default=0.0, ge=0, lt=1, description="share of the run, at its start, that trains the first draft only: steps of half the cost"
    )
    step_decay: float = Field(default=0.8, gt=0, le=1)
    off_path_share: float = Field(default=0.2, ge=0, le=1, description="share of rows that go on to later steps after a wrong draft")
    frequent_candidates: int = Field(
        default=2048,
        ge=0,
        description="frequent draft tokens that every batch scores beside its own; 0: score the whole draft vocabulary",
    )
    tokens_per_batch: int = Field(default=512, ge=1, description="supervised rows per step; small batches learn more per token here")
    learning_rate: float = Field(default=1.5e-3, gt=0)
    warmup_share: float = Field(default=0.03, ge=0, lt=1)
    weight_decay: float = Field(default=0.01, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    checkpoint_every_s: float = Field(default=30.0, ge=0)
    evaluate_every_s: float = Field(default=60.0, ge=0)
    seed: int = 0
