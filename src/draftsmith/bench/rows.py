"""The raw lines of an experiment as they must be for a summary: what a disk or an editor made of them is told by file and line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from draftsmith.engines.protocol import Arm
from draftsmith.manifest import read_jsonl, shaped
from draftsmith.measure.messages import TIMES, Reply

Row = dict[str, Any]
# fields of a reply that are worked with -> what they hold; times may be nan
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys((*TIMES, "client_lag_s"), (float, int)),
    **dict.fromkeys(("prompt_tokens", "completion_tokens", "first_chunk_tokens", "num_chunks"), (int,)),
    **dict.fromkeys(("reasoning_tokens", "rounds", "cached_tokens"), (int, type(None))),
    **dict.fromkeys(("id", "error", "finish_reason", "category"), (str,)),
    "ok": (bool,),
}


class Counted(BaseModel):
    """Acceptance as `Acceptance.as_dict` has it."""

    rounds: int
    reached: list[int]


class Measured(BaseModel):
    """A load in a launch. tok_s is absent when requests failed."""

    model_config = ConfigDict(allow_inf_nan=False)

    label: str
    usage_tokens: int
    counter_tokens: int | None
    acceptance: Counted | None
    tok_s: float | None = None


class Launched(BaseModel):
    """A launch, as far as summaries read it."""

    launch: int
    pair: int
    arm: Arm
    invalid: list[str]
    cells: list[Measured]
    gpu_set: int = 0
    canary_tok_s: float | None = None
    canary_end_tok_s: float | None = None

    @model_validator(mode="after")
    def has_speeds(self) -> Launched:
        if not self.invalid and any(cell.tok_s is None for cell in self.cells):
            raise ValueError("a load of a valid launch has no tok_s")
        return self


def launch_rows(path: Path) -> list[Row]:
    """The lines of launches.jsonl. Raises EnvironmentFailed naming the first that is none."""
    rows = read_jsonl(path)
    for number, row in enumerate(rows, 1):
        with shaped(path, f"line {number} is no launch; restore the file, or measure again into another folder"):
            Launched.model_validate(row, strict=True)
    return rows


def reply_rows(path: Path) -> list[tuple[tuple[int, str], Reply]]:
    """((launch, cell), reply) of the lines of requests.jsonl that were measured. Raises EnvironmentFailed naming the first that is none."""
    found = []
    for number, row in enumerate(read_jsonl(path), 1):
        with shaped(path, f"line {number} is no reply; restore the file, or measure again into another folder"):
            if row["phase"] == "cell":
                place = (row["launch"], row["cell"])
                if not isinstance(place[0], int) or not isinstance(place[1], str):
                    raise ValueError(f"launch and cell are {place}")
                found.append((place, reply_of(row)))
    return found


def reply_of(row: Row) -> Reply:
    """Raises ValueError, TypeError or KeyError."""
    reply = Reply.from_row(row)
    wrong = next((name for name, kinds in KINDS.items() if not isinstance(getattr(reply, name), kinds)), None)
    if wrong is not None:
        raise ValueError(f"{wrong} is {getattr(reply, wrong)!r}")
    if any(math.isinf(getattr(reply, name)) for name in TIMES) or not math.isfinite(reply.client_lag_s):
        raise ValueError("a time is infinite")
    if not all(isinstance(count, int) for count in reply.reached or ()):
        raise ValueError(f"reached is {list(reply.reached or ())}")
    return reply
