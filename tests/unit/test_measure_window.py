"""Speed from replies, against cases that can be worked out by hand."""

import math

import pytest

from draftsmith.measure.client import Reply
from draftsmith.measure.window import chunk_rounds, decode_tok_s, steady_window, tokens_until


def reply(sent: float, first: float, last: float, tokens: int, first_tokens: int = 1, chunks: int = 2) -> Reply:
    return Reply("r", True, "", sent, first, last, 5, tokens, first_tokens, chunks, "length")


def test_one_slot_has_no_tail() -> None:
    window = steady_window([reply(0, 0.5, 2, 10), reply(2, 2.5, 4, 20)], 1)
    assert (window.window_s, window.output_tokens, window.tok_s) == (4, 30, 7.5)


def test_the_window_ends_when_a_slot_finds_the_queue_empty() -> None:
    # slot 1: 0-4 and 4-8; slot 2: 0-6 and then 6-16, alone from 8 on
    replies = [reply(0, 0, 4, 41), reply(0, 0, 6, 61), reply(4, 4, 8, 41), reply(6, 6, 16, 101)]
    window = steady_window(replies, 2)
    assert window.window_s == 8
    assert window.output_tokens == pytest.approx(41 + 61 + 41 + (1 + 20))


def test_tokens_of_a_reply_that_is_cut_by_the_window() -> None:
    held_back = reply(0, 1, 5, 24, first_tokens=4)
    assert tokens_until(held_back, 0.9) == 0
    assert tokens_until(held_back, 3) == pytest.approx(4 + 10)
    assert tokens_until(held_back, 9) == 24


def test_first_chunk_tokens_are_not_decoded_inside_the_window() -> None:
    assert decode_tok_s(reply(0, 1, 5, 24, first_tokens=4)) == pytest.approx(20 / 4)
    assert math.isnan(decode_tok_s(reply(0, 1, 1, 4, first_tokens=4)))
    assert chunk_rounds(reply(0, 1, 5, 24, chunks=9)) == 8


def test_failed_replies_are_refused() -> None:
    with pytest.raises(AssertionError):
        steady_window([Reply("r", False, "boom")], 1)
