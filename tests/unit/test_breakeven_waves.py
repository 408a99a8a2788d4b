"""The arithmetic of a wave, against cases that can be worked out by hand."""

from __future__ import annotations

import pytest

from draftsmith.breakeven.asking import FORMS, Seen
from draftsmith.breakeven.waves import Answer, figures, take
from draftsmith.errors import InvalidMeasurement


def steady(first_s: float, step_s: float, tokens: int, every: int = 4, **meta: object) -> Answer:
    """First token at first_s, then one each step_s, seen every few tokens."""
    seen = [1, *range(1 + every, tokens, every), tokens]
    return Answer([(first_s + (n - 1) * step_s, n) for n in seen], dict(meta))


def test_a_plain_wave_gives_the_step_time_whatever_the_prefill_took() -> None:
    found = figures([steady(0.5, 0.01, 33), steady(0.5, 0.01, 33)], 33)
    assert found["decode_step_s"] == pytest.approx(0.01)
    assert found["round_s"] is None and found["accept_len"] is None
    assert found["window_s"] == pytest.approx(0.32) and found["window_tokens"] == pytest.approx(64)


def test_a_late_prefill_is_not_in_the_window() -> None:
    """The second request's prefill stalls the first one; what both decode together is all that counts."""
    stalled = Answer([(0.1, 1), (0.14, 5), (0.68, 9), (0.72, 13), (0.76, 17), (0.80, 21)])
    late = Answer([(0.64, 1), (0.68, 5), (0.72, 9), (0.76, 13), (0.80, 17), (0.84, 21)])
    assert figures([stalled, late], 21)["decode_step_s"] == pytest.approx(0.01)


def test_rounds_come_from_each_requests_own_acceptance() -> None:
    """20 ms a round; one request gets 2 tokens a round, the other 1: 40 against 20 tokens in the same time."""
    quick = Answer([(0.0, 1), (0.2, 21), (0.4, 41)], {"spec_verify_ct": 20, "spec_num_correct_drafts": 20})
    slow = Answer([(0.0, 1), (0.2, 11), (0.4, 21), (0.8, 41)], {"spec_verify_ct": 40, "spec_num_correct_drafts": 0})
    found = figures([quick, slow], 41)
    assert found["round_s"] == pytest.approx(0.02)
    assert found["accept_len"] == pytest.approx(60 / 40)
    assert found["window_rounds"] == pytest.approx(40)


def test_a_short_answer_and_a_wave_without_overlap_prove_nothing() -> None:
    with pytest.raises(InvalidMeasurement, match="instead of 9"):
        figures([steady(0, 0.01, 9), steady(0, 0.01, 8)], 9)
    with pytest.raises(InvalidMeasurement, match="no moment"):
        figures([steady(0, 0.01, 9), steady(5, 0.01, 9)], 9)


def test_chunks_go_to_the_answer_that_they_name() -> None:
    answers = [Answer(), Answer()]
    for index, now in ((1, 0.5), (1, 0.6), (0, 0.7)):
        take(answers, Seen(index, 1), now)
    assert [answer.points for answer in answers] == [[(0.7, 1)], [(0.5, 1)]]


def test_the_rounds_of_all_together_stand_in_for_each_requests_own() -> None:
    """40 ms for a round of 2 tokens: what vLLM's counters say of the whole wave."""
    found = figures([steady(0, 0.02, 33), steady(0, 0.02, 33)], 33, accept_len=2.0)
    assert found["round_s"] == pytest.approx(0.04) and found["accept_len"] == pytest.approx(2.0)


def test_what_chunks_say_in_both_engines() -> None:
    """vLLM counts an answer in each chunk's usage; the last chunk of the stream, the sum of all, belongs to none."""
    meta = {"completion_tokens": 5, "spec_verify_ct": 2}
    assert FORMS["sglang"].read({"index": 1, "output_ids": [7], "meta_info": meta}) == Seen(1, 5, [7], meta)
    chunk = {"choices": [{"index": 2, "token_ids": [4, 5]}], "usage": {"completion_tokens": 6}}
    assert FORMS["vllm"].read(chunk) == Seen(2, 6, [4, 5])
    assert FORMS["vllm"].read({"choices": [], "usage": {"completion_tokens": 24}}) is None
