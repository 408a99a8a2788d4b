"""Latency, goodput, finish mix, acceptance and thinking, against cases that can be worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from draftsmith.measure.latency import (
    acceptance_of,
    findings,
    finish_mix,
    goodput_of,
    latency,
    reasoning,
    thinking_tokens,
    tpot_s,
    user_tok_s,
)
from draftsmith.measure.messages import Reply
from draftsmith.measure.window import tokens_until
from draftsmith.metrics import Acceptance, Slo


def reply(sent: float = 0.0, arrivals: tuple[tuple[float, int], ...] = ((0.5, 4), (1.0, 6), (2.5, 10)), **changes) -> Reply:
    """Sent at `sent`; the first chunk holds the first count of `arrivals`."""
    made = Reply(
        id="r",
        ok=True,
        sent_s=sent,
        first_s=sent + arrivals[0][0],
        last_s=sent + arrivals[-1][0],
        prompt_tokens=5,
        completion_tokens=arrivals[-1][1],
        first_chunk_tokens=arrivals[0][1],
        num_chunks=len(arrivals),
        finish_reason="length",
        first_output_s=sent + arrivals[0][0],
        arrivals=arrivals,
    )
    return replace(made, **changes)


def test_latencies_of_one_reply() -> None:
    found = latency([reply(first_output_s=1.0)])
    for name, value in {"ttft_s": 0.5, "ttfo_s": 1.0, "tpot_s": 2.0 / 6, "e2e_s": 2.5}.items():
        assert found[name] == pytest.approx({"p50": value, "p90": value, "p99": value, "mean": value})
    gaps = found["inter_chunk_s"]
    assert gaps is not None and gaps["mean"] == pytest.approx(1.0) and gaps["p90"] == pytest.approx(1.4)


def test_dividing_by_all_tokens_but_one_would_be_wrong() -> None:
    """Four tokens in the first chunk: the naive TPOT is a third too small."""
    assert tpot_s(reply()) == pytest.approx(1 / 3) and pytest.approx(tpot_s(reply()) * 2 / 3) == (2.5 - 0.5) / 9
    assert user_tok_s([reply(), reply(last_s=1.5)]) == pytest.approx((3 + 6) / 2)


def test_what_is_unknown_is_none_and_never_zero() -> None:
    whole = replace(reply(), first_s=math.nan, first_output_s=math.nan, arrivals=None, first_chunk_tokens=0)  # not streamed
    found = latency([whole])
    assert [found[name] for name in ("ttft_s", "ttfo_s", "tpot_s", "inter_chunk_s")] == [None] * 4 and found["e2e_s"] is not None
    at_once = reply(arrivals=((0.5, 10),))
    assert math.isnan(tpot_s(at_once)) and latency([at_once])["tpot_s"] is None and user_tok_s([at_once]) is None
    assert latency([])["ttft_s"] is None and acceptance_of([], 3) is None and reasoning([]) is None


def test_goodput_counts_failed_requests_as_not_good() -> None:
    slow = reply(sent=1.0, arrivals=((3.0, 1), (4.0, 11)))
    failed = replace(reply(), ok=False, error="stalled")
    found = goodput_of([[reply(), slow, failed], []], Slo(ttft_s=1.0, tpot_s=0.5))
    assert found is not None
    assert found["share"] == pytest.approx(1 / 3) and found["requests_s"] == pytest.approx(1 / 5)
    assert found["slo"] == {"ttft_s": 1.0, "tpot_s": 0.5}
    assert found["low"] == pytest.approx(0.0615, abs=1e-3) and found["high"] == pytest.approx(0.7923, abs=1e-3)  # Wilson, 1 of 3
    assert goodput_of([[reply()]], Slo()) is None


def test_a_reply_in_one_chunk_breaks_no_tpot_limit_but_an_unknown_ttft_does() -> None:
    assert goodput_of([[reply(arrivals=((0.5, 10),))]], Slo(tpot_s=0.01))["share"] == 1  # pyright: ignore[reportOptionalSubscript]
    assert goodput_of([[reply(first_s=math.nan)]], Slo(ttft_s=9.0))["share"] == 0  # pyright: ignore[reportOptionalSubscript]


def test_finish_mix() -> None:
    replies = [reply(), reply(finish_reason="stop"), reply(finish_reason="stop"), replace(reply(), ok=False)]
    assert finish_mix(replies) == {"length": 1, "stop": 2, "error": 1}


def test_acceptance_adds_up_over_replies_of_different_depth() -> None:
    first, second = reply(rounds=4, reached=(3, 1)), reply(rounds=2, reached=(1,))
    assert acceptance_of([first, second], 3) == Acceptance(6, (4, 1, 0))
    assert acceptance_of([first, reply()], 3) is None  # one reply without data: absent, not a part
    assert acceptance_of([first, reply(rounds=4)], 3) is None


def test_thinking_is_told_by_the_server_or_by_the_arrivals() -> None:
    assert thinking_tokens(reply(first_output_s=1.0)) == 4  # what was there before the chunk with content
    assert thinking_tokens(reply(first_output_s=1.0, reasoning_tokens=5)) == 5
    assert thinking_tokens(reply()) == 0 and thinking_tokens(reply(first_output_s=math.nan)) == 10
    assert thinking_tokens(replace(reply(), arrivals=None)) is None
    assert reasoning([reply(first_output_s=1.0), reply()]) == {"reasoning_tokens": 4, "answer_tokens": 16}


def test_findings_name_the_client_and_the_server() -> None:
    late = [replace(reply(), due_s=-0.2), replace(reply(), due_s=0.0)]
    [text] = [line for line in findings(late) if "late" in line]
    assert "0.20 s late" in text and "the client is saturated" in text and "max_concurrency" in findings(late, client_waits=True)[0]
    assert any("busy for 0.30 s" in line for line in findings([replace(reply(), client_lag_s=0.3)]))
    assert any("chunk of up to 4 tokens" in line for line in findings([reply()]))
    assert any("1 of 2 replies came in one piece" in line for line in findings([reply(), reply(arrivals=((0.5, 10),))]))
    assert any("still thinking" in line for line in findings([reply(first_output_s=math.nan)]))
    assert any("held 3 of 5 prompt tokens" in line for line in findings([replace(reply(), cached_tokens=3)]))
    assert findings([reply(arrivals=tuple((0.1 * i, i) for i in range(1, 30)))]) == []


def test_tokens_are_placed_where_they_arrived() -> None:
    assert [tokens_until(reply(sent=10.0), at) for at in (10.4, 10.5, 10.9, 11.0, 12.4, 12.5)] == [0, 4, 4, 6, 6, 10]


def test_a_reply_survives_json() -> None:
    before = reply(rounds=2, reached=(1, 0), token_ids=(5, 6), due_s=1.0, category="code")
    row = json.loads(json.dumps(before.row()))
    assert Reply.from_row(row) == before
    old = {
        "id": "r",
        "ok": True,
        "error": "",
        "sent_s": 1.0,
        "first_s": None,
        "last_s": 2.0,
        "token_ids": [5],
        "launch": 0,
        "phase": "cell",
    }
    read = Reply.from_row(old)
    assert math.isnan(read.first_s) and math.isnan(read.first_output_s) and read.arrivals is None and read.token_ids == (5,)
