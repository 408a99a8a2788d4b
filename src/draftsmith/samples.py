"""A sample: one conversation as token ids with a loss mask. The file between `data` and the stages that read it.

`samples-train.parquet` and `samples-heldout.parquet` have the columns id, source, turns (JSON), token_ids (list<int32>),
loss_mask (list<uint8>), num_prompt_tokens (int32), finish_reason. Everything is checked when written and when read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from draftsmith.errors import EnvironmentFailed
from draftsmith.manifest import commit, temporary_path

Row = TypeVar("Row")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("turns", pa.string(), nullable=False),
        pa.field("token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("loss_mask", pa.list_(pa.uint8()), nullable=False),
        pa.field("num_prompt_tokens", pa.int32(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
    ]
)


def samples_file(data: Path, split: str) -> Path:
    """Where a data stage leaves a split, train or heldout."""
    return data / f"samples-{split}.parquet"


@dataclass(frozen=True, eq=False)
class Sample:
    """Prompt and answer as the engine saw them: token_ids[:num_prompt_tokens] is the rendered prompt, the rest the answer.

    The sequence ends with the end-of-turn token exactly when the target emitted it. loss_mask is 0 on the prompt, 1 on the answer.
    """

    id: str
    source: str  # category of the prompt, or "synthesised"
    turns: list[dict[str, str]]  # {"role": ..., "content": ...}, answer included
    token_ids: np.ndarray  # int32 [T]
    loss_mask: np.ndarray  # uint8 [T]
    num_prompt_tokens: int
    finish_reason: str  # "stop": the target ended its turn; "length": cut at max_answer_tokens

    @property
    def prompt_ids(self) -> np.ndarray:
        """int32 [num_prompt_tokens]."""
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def answer_ids(self) -> np.ndarray:
        """int32 [T - num_prompt_tokens]."""
        return self.token_ids[self.num_prompt_tokens :]


def problem(sample: Sample) -> str | None:
    """What contradicts the contract in a sample, or None."""
    tokens, mask, prompt = sample.token_ids, sample.loss_mask, sample.num_prompt_tokens
    if tokens.dtype != np.int32 or mask.dtype != np.uint8:
        return f"token_ids are {tokens.dtype} and loss_mask {mask.dtype}, expected int32 and uint8"
    if tokens.ndim != 1 or tokens.shape != mask.shape:
        return f"token_ids have shape {tokens.shape}, loss_mask {mask.shape}"
    if not 0 < prompt < len(tokens):
        return f"num_prompt_tokens is {prompt} of {len(tokens)} tokens, expected a prompt and an answer"
    if (tokens < 0).any():
        return "token_ids hold a negative id"
    if (mask > 1).any():
        return f"loss_mask holds {int(mask.max())}, expected 0 and 1"
    if mask[:prompt].any() or not mask[prompt:].all():
        return f"loss_mask is not 0 on the {prompt} prompt tokens and 1 on the {len(tokens) - prompt} answer tokens"
    if not all(isinstance(turn, dict) and turn.keys() == {"role", "content"} for turn in sample.turns):
        return "turns are not a list of {role, content}"
    return None


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Write a whole parquet file atomically. Raises EnvironmentFailed when the disk refuses."""
    rows: list[dict[str, Any]] = []
    for sample in samples:
        assert (wrong := problem(sample)) is None, f"{sample.id}: {wrong}"
        rows.append(
            {
                "id": sample.id,
                "source": sample.source,
                "turns": json.dumps(sample.turns, ensure_ascii=False),
                "token_ids": sample.token_ids,
                "loss_mask": sample.loss_mask,
                "num_prompt_tokens": sample.num_prompt_tokens,
                "finish_reason": sample.finish_reason,
            }
        )
    temporary = temporary_path(path)
    try:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), temporary, compression="zstd")
        commit(temporary, path)
    except OSError as error:
        raise EnvironmentFailed(f"cannot write {path}: {error}", hint="free some disk space or choose another run folder") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_samples(path: Path) -> list[Sample]:
    """Every sample of a parquet file, checked. Raises EnvironmentFailed on a missing or damaged file."""
    hint = "run the data stage again: draftsmith data RECIPE"
    if not path.is_file():
        raise EnvironmentFailed(f"no samples at {path}", hint=hint)
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise EnvironmentFailed(f"{path} is damaged: {error}", hint=hint) from error
    found = {field.name: str(field.type) for field in table.schema}
    expected = {field.name: str(field.type) for field in SCHEMA}
    if list(found) != list(expected) or any(not same_type(found[name], kind) for name, kind in expected.items()):
        raise EnvironmentFailed(f"{path} has the columns {found}, expected {expected}", hint=hint)
    samples = []
    for number, row in enumerate(table.to_pylist()):
        try:
            sample = from_row(row)
        except (TypeError, ValueError) as error:  # a null, or turns that are not JSON
            raise EnvironmentFailed(f"{path}: row {number} cannot be read: {error}", hint=hint) from error
        if wrong := problem(sample):
            raise EnvironmentFailed(f"{path}: sample {sample.id}: {wrong}", hint=hint)
        samples.append(sample)
    return samples


def same_type(found: str, expected: str) -> bool:
    """Equal types, whatever the list's inner field is called."""
    return found.replace("element:", "item:").replace(" not null", "") == expected.replace(" not null", "")


def from_row(row: dict[str, Any]) -> Sample:
    return Sample(
        id=row["id"],
        source=row["source"],
        turns=json.loads(row["turns"]),
        token_ids=np.array(row["token_ids"], dtype=np.int32),
        loss_mask=np.array(row["loss_mask"], dtype=np.uint8),
        num_prompt_tokens=int(row["num_prompt_tokens"]),
        finish_reason=row["finish_reason"],
    )


def spread(rows: Sequence[Row], wanted: int | None) -> list[Row]:
    """`wanted` of the rows, evenly over all: the same ones every time. All of them when there are fewer, or with None."""
    if wanted is None or wanted >= len(rows):
        return list(rows)
    return [rows[i * len(rows) // wanted] for i in range(wanted)]
