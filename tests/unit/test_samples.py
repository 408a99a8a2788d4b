"""The parquet contract between `data` and the stages that read it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from draftsmith.errors import EnvironmentFailed
from draftsmith.samples import SCHEMA, Sample, problem, read_samples, spread, write_samples


def sample(prompt: int = 3, answer: int = 2, id: str = "a") -> Sample:
    tokens = np.arange(prompt + answer, dtype=np.int32)
    mask = np.array([0] * prompt + [1] * answer, dtype=np.uint8)
    turns = [{"role": "user", "content": "Grüße?"}, {"role": "assistant", "content": "Hi"}]
    return Sample(id, "explain", turns, tokens, mask, prompt, "stop")


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "samples-train.parquet"
    write_samples(path, [sample(id="a"), sample(5, 1, id="b")])
    first, second = read_samples(path)
    assert (first.id, second.id) == ("a", "b")
    assert first.turns == sample().turns and first.finish_reason == "stop" and first.source == "explain"
    assert first.token_ids.dtype == np.int32 and first.token_ids.tolist() == [0, 1, 2, 3, 4]
    assert first.loss_mask.dtype == np.uint8 and second.loss_mask.tolist() == [0, 0, 0, 0, 0, 1]
    assert second.prompt_ids.tolist() == [0, 1, 2, 3, 4] and second.answer_ids.tolist() == [5]
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no temporary file left


def test_no_samples_is_a_valid_file(tmp_path: Path) -> None:
    write_samples(tmp_path / "none.parquet", [])
    assert read_samples(tmp_path / "none.parquet") == []


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (replace(sample(), loss_mask=np.array([0, 0, 0, 1], dtype=np.uint8)), "shape"),
        (replace(sample(), loss_mask=np.array([0, 0, 0, 1, 2], dtype=np.uint8)), "expected 0 and 1"),
        (replace(sample(), loss_mask=np.array([0, 0, 1, 1, 1], dtype=np.uint8)), "not 0 on the 3 prompt tokens"),
        (replace(sample(), loss_mask=np.zeros(5, dtype=np.uint8)), "not 0 on the 3 prompt tokens"),
        (replace(sample(), num_prompt_tokens=5), "expected a prompt and an answer"),
        (replace(sample(), num_prompt_tokens=0), "expected a prompt and an answer"),
        (replace(sample(), token_ids=np.array([0, 1, 2, 3, -1], dtype=np.int32)), "negative"),
        (replace(sample(), token_ids=np.arange(5)), "int64"),
        (replace(sample(), turns=[{"role": "user"}]), "turns"),
    ],
)
def test_contradictions_are_named_and_never_written(tmp_path: Path, broken: Sample, words: str) -> None:
    assert words in (problem(broken) or "")
    with pytest.raises(AssertionError, match="a: "):
        write_samples(tmp_path / "x.parquet", [broken])
    assert not list(tmp_path.iterdir())


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="no samples"):
        read_samples(tmp_path / "x.parquet")


def test_cut_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_samples(path, [sample()])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(EnvironmentFailed, match="damaged") as error:
        read_samples(path)
    assert "draftsmith data" in error.value.hint


def test_wrong_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": ["a"], "token_ids": [[1, 2]]}), path)
    with pytest.raises(EnvironmentFailed, match="has the columns"):
        read_samples(path)


def row(**changes: object) -> dict[str, object]:
    good = {"id": "a", "source": "s", "turns": "[]", "token_ids": [1, 2], "loss_mask": [0, 1]}
    return {**good, "num_prompt_tokens": 1, "finish_reason": "stop", **changes}


DAMAGE = [{"turns": "not json"}, {"loss_mask": [1, 1]}, {"loss_mask": [0]}, {"num_prompt_tokens": 2}, {"token_ids": [1, None]}]


@pytest.mark.parametrize("changes", DAMAGE)
def test_damaged_rows(tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist([row(**changes)], schema=SCHEMA), path)
    with pytest.raises(EnvironmentFailed, match=r"row 0|sample a"):
        read_samples(path)


def test_spread_takes_from_everywhere() -> None:
    assert spread("abcdefghij", 5) == list("acegi")
    assert spread(range(3), 24) == spread(range(3), None) == [0, 1, 2]
    assert len(set(spread(range(96), 24))) == 24 and max(spread(range(96), 24)) >= 90
