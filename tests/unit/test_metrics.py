"""Acceptance against brute force over explicit rounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftsmith import metrics
from draftsmith.metrics import Acceptance

DEPTH = 4
ROUNDS = st.lists(st.integers(0, DEPTH), max_size=40)
ROWS = st.lists(st.lists(st.booleans(), min_size=DEPTH, max_size=DEPTH), min_size=1, max_size=20)


@given(ROUNDS.filter(bool))
def test_accept_len_and_survival_are_what_the_words_say(accepted: list[int]) -> None:
    found = Acceptance.from_rounds(accepted, DEPTH)
    emitted = sum(n + 1 for n in accepted)  # every round emits its accepted drafts and the bonus token
    assert found.rounds == len(accepted) and found.depth == DEPTH
    assert found.accept_len == pytest.approx(emitted / len(accepted))
    for i in range(DEPTH):
        assert found.survival[i] == pytest.approx(sum(n >= i + 1 for n in accepted) / len(accepted))
    assert found.accept_len == pytest.approx(1 + sum(found.survival))
    assert math.prod(found.conditional) == pytest.approx(found.survival[-1], nan_ok=True) or math.isnan(math.prod(found.conditional))


@given(ROWS)
def test_matches_count_only_up_to_the_first_miss(rows: list[list[bool]]) -> None:
    by_hand = []
    for row in rows:
        n = 0
        while n < DEPTH and row[n]:
            n += 1
        by_hand.append(n)
    assert Acceptance.from_matches(rows, DEPTH) == Acceptance.from_rounds(by_hand, DEPTH)


@given(ROUNDS, st.integers(0, DEPTH))
def test_a_shallower_chain_is_the_same_rounds_cut_off(accepted: list[int], depth: int) -> None:
    assert Acceptance.from_rounds(accepted, DEPTH).at_depth(depth) == Acceptance.from_rounds([min(n, depth) for n in accepted], depth)


@given(ROUNDS, ROUNDS)
def test_counters_add_and_subtract(first: list[int], second: list[int]) -> None:
    one, two = Acceptance.from_rounds(first, DEPTH), Acceptance.from_rounds(second, DEPTH)
    both = Acceptance.from_rounds([*first, *second], DEPTH)
    assert one + two == both and both - one == two
    assert Acceptance.from_dict(both.as_dict()) == both


def test_no_rounds_have_no_accept_len() -> None:
    empty = Acceptance.from_rounds([], 2)
    assert math.isnan(empty.accept_len) and all(math.isnan(share) for share in empty.survival)


def test_more_drafts_than_the_depth_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        Acceptance.from_rounds([3], 2)
    with pytest.raises(AssertionError):
        _ = Acceptance.from_rounds([1], 2) + Acceptance.from_rounds([1], 3)


def test_time_per_output_token_leaves_the_first_chunk_out() -> None:
    assert metrics.time_per_output_token_s(last_token_s=3.0, first_chunk_s=1.0, num_tokens=11, first_chunk_tokens=3) == pytest.approx(0.25)
    assert math.isnan(metrics.time_per_output_token_s(1.0, 1.0, 4, 4))


def test_break_even_and_gap() -> None:
    assert metrics.output_tok_s(90, 3.0) == pytest.approx(30)
    assert metrics.break_even_accept_len(round_s=0.06, decode_step_s=0.04) == pytest.approx(1.5)
    assert metrics.relative_gap(predicted=2.1, measured=2.0) == pytest.approx(0.05)
