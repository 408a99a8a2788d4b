"""Prompts from files, the built-in ones, the salt against prefix caches, and traces."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_fakes import CHATML, LLAMA3, make_target
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.measure.prompts import FIVE_LENGTHS, Prompt, Renderer, five_prompts, forty_prompts, heldout_prompts, read_prompts
from draftsmith.measure.traces import HASH_BLOCK, read_trace
from draftsmith.measure.workload import Deck
from draftsmith.samples import Sample, samples_file, write_samples

BLOCK = 16  # tokens in a block of vLLM's prefix cache


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return Renderer(make_target(tmp_path_factory.mktemp("target"), CHATML))


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# --- files -------------------------------------------------------------------------------------------------------------


def test_every_kind_of_row(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [
        {"prompt": "hello", "category": "chat"},
        {"id": "x", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "source": "mine"},
        {"turns": ["first", "second"]},
        {"turns": json.dumps(turns)},
        {"token_ids": [5, 6, 7, 8], "num_prompt_tokens": 3},
    ]
    found = read_prompts(write(tmp_path / "p.jsonl", *rows))
    assert [prompt.id for prompt in found] == ["p-00001", "x", "p-00003", "p-00004", "p-00005"]
    assert [prompt.category for prompt in found] == ["chat", "mine", "", "", ""]
    assert [[turn["content"] for turn in prompt.messages] for prompt in found] == [["hello"], ["s", "u"], ["first"], ["a"], []]
    assert found[-1].token_ids == (5, 6, 7)


def test_parquet_holds_the_same_as_jsonl(tmp_path: Path) -> None:
    rows = [{"id": "a", "messages": [{"role": "user", "content": "hi"}]}, {"id": "b", "messages": [{"role": "user", "content": "ho"}]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    assert read_prompts(tmp_path / "p.parquet") == read_prompts(write(tmp_path / "p.jsonl", *rows))


def test_heldout_prompts_are_what_the_engine_saw(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    mask = np.array([0, 0, 1], dtype=np.uint8)
    write_samples(samples_file(tmp_path, "heldout"), [Sample("h", "chat", turns, np.array([5, 6, 7], dtype=np.int32), mask, 2, "stop")])
    assert heldout_prompts(tmp_path) == [Prompt("h", (5, 6), "chat", (turns[0],))]
    with pytest.raises(EnvironmentFailed, match="no samples at"):
        heldout_prompts(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "a"}, {"text": "b"}], "row 2: no prompt; found text"),
        ([{"prompt": ""}], "row 1: no prompt"),
        ([{"token_ids": ["a"]}], "row 1: token_ids is not a list of numbers"),
        ([{"messages": "hello"}], "row 1: messages is not a conversation"),
        ([{"messages": [{"role": "user"}]}], "row 1: messages is not a conversation"),
        ([{"messages": [{"role": "assistant", "content": "a"}]}], "row 1: messages has no user turn at its end"),
        ([{"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}], "row 2: the id 'a' is there twice"),
        ([[1, 2]], "line 1 is a list"),
        ([], "holds no prompts"),
    ],
)
def test_a_row_that_is_no_prompt_is_named(tmp_path: Path, rows: list, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_prompts(write(tmp_path / "p.jsonl", *rows))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name, text, message in (
        ("p.jsonl", "{", "line 1 is not JSON"),
        ("p.parquet", "{}", "not a parquet file"),
        ("p.txt", "a", "cannot read .txt"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=message):
            read_prompts(tmp_path / name)
    with pytest.raises(UsageError, match="there is no file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(EnvironmentFailed, match="cannot load the tokenizer"):
        Renderer(tmp_path)


# --- built in ----------------------------------------------------------------------------------------------------------


def test_the_five_and_the_forty_are_rendered_through_the_template(renderer: Renderer) -> None:
    five = [renderer.render(prompt) for prompt in five_prompts()]
    assert [prompt.category for prompt in five] == ["fib", "qsort", "arith", "json", "haiku"] and FIVE_LENGTHS == (256, 1024, 2048)
    every = [*five, *(renderer.render(prompt) for prompt in forty_prompts())]
    assert len({prompt.token_ids for prompt in every}) == len({prompt.id for prompt in every}) == 45
    text = renderer.tokenizer.decode(five[0].token_ids)
    assert "Fibonacci" in text and text.endswith("assistant\n")


# --- salt --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [CHATML, LLAMA3])
def test_salt_changes_the_first_block_of_every_repeat(tmp_path: Path, template: str) -> None:
    """A prefix cache finds blocks by everything up to their end: with other first blocks, nothing is found."""
    renderer = Renderer(make_target(tmp_path, template))
    deck = Deck([renderer.render(prompt) for prompt in five_prompts()], seed=0, salt=renderer.salt)
    requests = deck.deal(32, 8)
    salted = requests[5:]
    first_blocks = [request.prompt_token_ids[:BLOCK] for request in requests]
    plain = {request.prompt_token_ids[:BLOCK] for request in requests[:5]}
    assert len({block for block in first_blocks[5:]}) == 27 and not plain & set(first_blocks[5:])
    assert deck.reused == 0 and Counter(request.id for request in requests).most_common(1)[0][1] == 7  # ids stay: pairs are by prompt
    bos = renderer.tokenizer.bos_token_id
    for request in salted:
        original = next(other for other in requests[:5] if other.id == request.id)
        assert request.prompt_token_ids[-20:] == original.prompt_token_ids[-20:]
        assert len(request.prompt_token_ids) - len(original.prompt_token_ids) == 13  # the line, with a tokenizer of bytes
        assert bos is None or (request.prompt_token_ids[0] == bos and request.prompt_token_ids.count(bos) == 1)
        assert request.messages[0]["content"].split("\n", 1)[1] == original.messages[0]["content"]


def test_the_salt_is_the_same_in_both_arms(renderer: Renderer) -> None:
    prompts = [renderer.render(prompt) for prompt in five_prompts()]
    assert Deck(prompts, 1, renderer.salt).deal(20, 8) == Deck(prompts, 1, renderer.salt).deal(20, 8)


def test_without_salt_repeats_are_counted() -> None:
    deck = Deck([Prompt("a", (1,), "c"), Prompt("b", (2,), "d")], seed=0)
    requests = deck.deal(5, 8)
    assert deck.reused == 3 and {request.category for request in requests} == {"c", "d"}


# --- traces ------------------------------------------------------------------------------------------------------------


def test_a_trace_with_its_own_prompts(tmp_path: Path, renderer: Renderer) -> None:
    rows = [{"at_s": 2.0, "prompt": "later", "max_tokens": 8}, {"at_s": 0.5, "token_ids": [5, 6], "max_tokens": 4, "category": "c"}]
    first, second = read_trace(write(tmp_path / "t.jsonl", *rows), render=renderer.render)
    assert (first.at_s, first.prompt_token_ids, first.max_tokens, first.category, first.ignore_eos) == (0.5, (5, 6), 4, "c", False)
    assert "later" in renderer.tokenizer.decode(second.prompt_token_ids) and second.at_s == 2.0


def test_equal_hashes_of_a_mooncake_trace_are_equal_tokens(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1200, "output_length": 30, "hash_ids": [1, 2, 3]},
        {"timestamp": 1500, "input_length": 1100, "output_length": 7, "hash_ids": [1, 2, 9]},
        {"timestamp": 2500, "input_length": 700, "output_length": 7, "hash_ids": [4]},
    ]
    filler = [7 + i % 90 for i in range(700)]
    one, two, three = read_trace(write(tmp_path / "t.jsonl", *rows), filler)
    assert [request.at_s for request in (one, two, three)] == [0, 1.5, 2.5]
    assert [len(request.prompt_token_ids) for request in (one, two, three)] == [1200, 1100, 700]
    assert [request.max_tokens for request in (one, two, three)] == [30, 7, 7] and one.ignore_eos
    shared = 2 * HASH_BLOCK
    assert one.prompt_token_ids[:shared] == two.prompt_token_ids[:shared]
    assert one.prompt_token_ids[shared : shared + BLOCK] != two.prompt_token_ids[shared : shared + BLOCK]
    assert three.prompt_token_ids[:BLOCK] != one.prompt_token_ids[:BLOCK]
    assert set(three.prompt_token_ids) <= set(filler)
    assert read_trace(tmp_path / "t.jsonl", filler) == [one, two, three]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"at_s": -1, "prompt": "a", "max_tokens": 8}, "row 1: at_s is -1"),
        ({"at_s": 1, "prompt": "a"}, "row 1: max_tokens is None"),
        ({"prompt": "a", "max_tokens": 8}, "row 1: at_s is None"),
        ({"timestamp": 0, "input_length": 0, "output_length": 7}, "row 1: input_length is 0"),
        ({"timestamp": 0, "input_length": 8, "output_length": 7, "hash_ids": "a"}, "row 1: hash_ids is 'a'"),
    ],
)
def test_a_trace_row_that_cannot_be_meant(tmp_path: Path, row: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_trace(write(tmp_path / "t.jsonl", row), filler=[1])
    with pytest.raises(UsageError, match="has lengths but no prompt"):
        read_trace(write(tmp_path / "t.jsonl", {"timestamp": 0, "input_length": 8, "output_length": 7}))
