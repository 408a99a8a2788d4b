"""Acceptance against brute force over explicit rounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

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


@given(ROUNDS)
def test_a_histogram_of_accepted_drafts_says_the_same_as_the_rounds(accepted: list[int]) -> None:
    histogram = [sum(n == i for n in accepted) for i in range(max(accepted, default=0) + 1)]  # engines leave out the zeros at its end
    assert Acceptance.from_histogram(histogram, DEPTH) == Acceptance.from_rounds(accepted, DEPTH)
    shallow = Acceptance.from_histogram(histogram, len(histogram) - 1)
    assert shallow.padded(DEPTH) == Acceptance.from_rounds(accepted, DEPTH)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 1))
def test_percentiles_are_numpys(values: list[float], share: float) -> None:
    assert metrics.percentile(values, share) == pytest.approx(float(np.percentile(values, 100 * share)), rel=1e-9, abs=1e-6)


def test_spread_leaves_out_what_is_unknown() -> None:
    assert metrics.spread([math.nan, 2.0, 4.0]) == pytest.approx({"p50": 3.0, "p90": 3.8, "p99": 3.98, "mean": 3.0})
    assert metrics.spread([math.nan]) is None and metrics.spread([]) is None


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (50, 100), (1, 1)])
def test_wilson_interval_is_scipys(hits: int, trials: int) -> None:
    expected = binomtest(hits, trials).proportion_ci(method="wilson")
    assert metrics.wilson_interval(hits, trials) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert all(math.isnan(bound) for bound in metrics.wilson_interval(0, 0))


def test_chunks_and_users() -> None:
    assert metrics.inter_chunk_s([1.0, 1.5, 1.5, 3.0]) == [0.5, 0.0, 1.5]
    assert metrics.inter_chunk_s([1.0]) == []
    assert metrics.per_user_tok_s(0.02) == pytest.approx(50) and math.isnan(metrics.per_user_tok_s(math.nan))


@pytest.mark.parametrize(
    ("limits", "met"), [({"ttft_s": 0.5}, True), ({"ttft_s": 0.4}, False), ({"tpot_s": 0.01}, True), ({"ttfo_s": 9.0}, False), ({}, True)]
)
def test_slo(limits: dict[str, float], met: bool) -> None:
    latency = {"ttft_s": 0.5, "ttfo_s": math.nan, "tpot_s": math.nan, "e2e_s": 1.0}  # all in one chunk, and no output seen
    assert metrics.Slo(**limits).met(latency) is met
