"""What bench measured, as the report holds it. Absent is null, never 0; keys that are not known are dropped."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from draftsmith.metrics import Acceptance

CONFIDENCE = 0.95  # of every interval of version 1, which did not say so
Word = Literal["pays", "does not pay", "inconclusive"]
Gate = Literal["passed", "failed", "inconclusive"]
ArmName = Literal["baseline", "speculative"]
Data = dict[str, Any]  # shown as it is: what a stage says about itself


def without_nan(content: Any) -> Any:
    """JSON has no nan or infinity: they become null, which is shown as absent."""
    if isinstance(content, dict):
        return {key: without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_nan(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


class Part(BaseModel):
    """Base of everything in the report."""

    model_config = ConfigDict(frozen=True, extra="ignore", json_schema_serialization_defaults_required=True)


class Band(Part):
    """An estimate with its interval."""

    value: float
    low: float | None = None
    high: float | None = None


class Rate(Part):
    """Tokens per second over launches; the mean is null when no launch of the arm was valid. The interval is over launches."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    launches: list[float | None] = []

    @field_validator("mean")
    @classmethod
    def is_positive(cls, mean: float | None) -> float | None:
        """A speed of 0 would be an absence that was written as a number."""
        if mean is not None and mean <= 0:
            raise ValueError(f"a mean of {mean} tok/s: absent must be null")
        return mean


class Speedup(Part):
    """Speculative over baseline. pairs: launches of the rarer arm."""

    ratio: float
    low: float
    high: float
    pairs: int
    df: int | None = None
    confidence: float = CONFIDENCE
    method: str


class Counted(Part):
    """Acceptance, recomputed from its counts. reached[i], survival[i], conditional[i]: at least i + 1 drafts accepted."""

    rounds: int
    reached: list[int]
    accept_len: float
    survival: list[float]
    conditional: list[float | None]

    @model_validator(mode="before")
    @classmethod
    def recompute(cls, content: Any) -> Any:
        """The counts are the record."""
        if not isinstance(content, dict):
            return content
        counted = Acceptance.from_dict(content)
        if counted.rounds <= 0:
            raise ValueError("acceptance over no rounds: absent must be null")
        given_earlier = [None if math.isnan(share) else share for share in counted.conditional]
        return {**content, **counted.as_dict(), "conditional": given_earlier}


def no_rounds_is_absent(content: Any) -> Any:
    """Counters that saw no round say nothing."""
    return None if isinstance(content, dict) and content.get("rounds") == 0 else content


MaybeCounted = Annotated[Counted | None, BeforeValidator(no_rounds_is_absent)]


class CategoryCounted(Part):
    """Acceptance of one category of prompts. survival is null where the server only tells the sum."""

    rounds: int | None = None
    accept_len: float | None = None
    survival: list[float] | None = None


class Percentiles(Part):
    """Over the valid requests of all launches of an arm, in seconds."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    mean: float | None = None


class Goodput(Part):
    """Requests that met every bound of `slo`: their share and their rate."""

    share: float | None = None
    requests_s: float | None = None
    slo: dict[str, float | None] = {}


class Load(Part):
    """What kept the server busy: closed loop at a concurrency, Poisson arrivals at a rate, or a trace."""

    kind: str
    concurrency: int | None = None
    rate: float | None = None
    max_concurrency: int | None = None
    file: str | None = None
    speed: float | None = None


class Labelled(Part):
    """A load by its name: "C=4", "2 req/s". concurrency is null where the loop is open: bench writes how it warmed up there."""

    label: str
    concurrency: int | None = None
    load: Load | None = None

    @model_validator(mode="before")
    @classmethod
    def name_and_kind(cls, content: Any) -> Any:
        """Version 1 knew closed loops only: the label is the concurrency."""
        if not isinstance(content, dict):
            return content
        if ((content.get("load") or {}).get("kind") or "closed") != "closed":
            return {**content, "concurrency": None}
        return {**content, "label": content.get("label") or f"C={content.get('concurrency')}"}


class Cell(Labelled):
    """One load: both arms, speed-up, acceptance."""

    verdict: Word
    verdict_reason: str | None = None
    baseline_tok_s: Rate = Rate()
    speculative_tok_s: Rate = Rate()
    per_user_tok_s: dict[ArmName, Rate | None] | None = None
    speedup: Speedup | None
    speedup_over_prompts: Data | None = None
    speedup_bootstrap: Data | None = None
    predicted_speedup: float | None = None
    prediction_gap: float | None = None
    acceptance: MaybeCounted = None
    acceptance_by_category: dict[str, CategoryCounted] | None = None
    break_even_accept_len: Band | None = None
    latency: dict[ArmName, dict[str, Percentiles | None] | None] | None = None
    goodput: dict[ArmName, Goodput | None] | None = None
    finish: dict[ArmName, dict[str, int] | None] | None = None
    reasoning: dict[ArmName, dict[str, float | None] | None] | None = None
    output_tokens: dict[ArmName, int] | None = None


class LaunchCell(Labelled):
    """One load of one launch; tok_s is null where requests failed."""

    tok_s: float | None = None
    acceptance: MaybeCounted = None


class Launch(Part):
    """One start of an engine."""

    launch: int
    pair: int | None = None
    arm: ArmName
    ready_s: float | None = None
    canary_tok_s: float | None = None
    argv: list[str] = []
    env: dict[str, str] = {}
    cells: list[LaunchCell] = []


class Moment(Part):
    """One launch in the order in which they ran: what the machine did meanwhile. started: Unix seconds."""

    launch: int
    pair: int | None = None
    arm: str
    name: str | None = None
    started: float | None = None
    ready_s: float | None = None
    measured_s: float | None = None
    canary_tok_s: float | None = None
    canary_end_tok_s: float | None = None
    sensors: Data | None = None
    invalid: list[str] = []
    excluded: bool | None = None


class NoiseFloor(Part):
    """What launches of the same arm differ by. detectable: the smallest speed-up that the planned pairs could tell from 1."""

    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    launches: int | list[int] | None = None
    max_abs_log_ratio: float | None = None
    scatter: float | None = None
    detectable: float | None = None
    label: str | None = None
    source: str | None = None


class Difference(Part):
    """A setting in which the arms, or two runs, differ. matters: it spoils the comparison."""

    key: str
    baseline: Any = None
    speculative: Any = None
    matters: bool = False


class Invalid(Part):
    launch: int
    reason: str


class Canary(Part):
    launch: int
    arm: str
    tok_s: float | None


class GateResult(Part):
    concurrency: int | None = None
    label: str | None = None
    min_speedup: float | None = None
    result: Gate
    reason: str | None = None


class Verdict(Part):
    """What bench found. sentence: over all loads, with intervals and pairs."""

    sentence: str
    cells: list[Cell]
    gate: Gate | None = None
    gate_concurrency: int | None = None
    gate_reason: str | None = None
    gates: list[GateResult] | None = None
    order: str | None = None
    unit: str = Field("launch", description="what was replicated: a launch, or a block of requests at a server that keeps running")
    conditions: Data | None = Field(None, description="what must agree before this run may be compared with another one")
    findings: list[str] = []
    invalid: list[Invalid] = []
    canary: list[Canary] = []
    accept_len_by_source: dict[str, float | None] | None = None
    launches: list[Launch] = []
    timeline: list[Moment] = []
    noise_floor: NoiseFloor | None = None
    stopping: Data | None = None
    stops_paying_above: int | None = None
    differences: list[Difference] | None = None
    command: str | None = None
    arms: dict[str, Data | None] | None = None
    tok_s: str | None = Field(None, description="how output tok/s was measured")
    acceptance_source: str | None = None

    @model_validator(mode="before")
    @classmethod
    def has_a_timeline(cls, content: Any) -> Any:
        """Version 1 had launches only: they are the moments, without sensors; why one was invalid stood in a list of its own."""
        if not isinstance(content, dict) or content.get("timeline") or not content.get("launches"):
            return content
        reasons: dict[int, list[str]] = {}
        for row in content.get("invalid") or []:
            reasons.setdefault(row["launch"], []).append(row["reason"])
        moments = [{**row, "invalid": reasons.get(row["launch"], [])} for row in content["launches"]]
        return {**content, "timeline": moments}
