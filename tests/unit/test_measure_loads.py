"""When requests are sent: rates, seeds, traces, lateness, and what a load may hold back."""

from __future__ import annotations

import math
import time
from statistics import fmean

import pytest

from draftsmith.errors import UsageError
from draftsmith.measure.asking import Options
from draftsmith.measure.client import Reply, Request, run_load
from draftsmith.measure.loads import ClosedLoad, PoissonLoad, TraceLoad, load_dict, load_from, size_problems
from mock_server import Behaviour, MockServer


def make(count: int, tokens: int = 4, gap_s: float = 0.0) -> list[Request]:
    return [Request(f"r{i}", (100 + i, 5), tokens, at_s=7 + gap_s * i) for i in range(count)]


def test_poisson_gaps_are_exponential_with_the_given_mean_and_fixed_by_the_seed() -> None:
    load = PoissonLoad(rate=4.0, seed=1)
    due = load.due(make(4000))
    assert due is not None and due == load.due(make(4000)) != PoissonLoad(4.0, seed=2).due(make(4000))
    gaps = [b - a for a, b in zip([0.0, *due], due, strict=False)]
    assert fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.03)
    assert fmean((gap - 0.25) ** 2 for gap in gaps) ** 0.5 == pytest.approx(0.25, rel=0.07)  # its deviation is its mean


def test_an_open_load_does_not_wait_for_the_server() -> None:
    load = PoissonLoad(rate=100.0)
    with MockServer(Behaviour(step_s=0.1)) as server:
        replies = run_load(server.url, "completions", "target", make(20), load)
        assert server.most_in_flight >= 15  # sent within 0.2 s, answered after 0.3 s
    due = load.due(make(20))
    assert due is not None and all(reply.ok for reply in replies)
    for reply, other in zip(replies[1:], due[1:], strict=True):
        assert reply.due_s - replies[0].due_s == pytest.approx(other - due[0], abs=1e-6)
        assert 0 <= reply.sent_s - reply.due_s < 0.1


def test_sends_that_are_held_back_are_late_by_as_much() -> None:
    with MockServer(Behaviour(step_s=0.02)) as server:
        replies = run_load(server.url, "completions", "target", make(8), PoissonLoad(1000.0, max_concurrency=2))
        assert server.most_in_flight == 2
    assert replies[-1].sent_s - replies[-1].due_s > 3 * 0.06 - 0.05


def test_a_trace_keeps_its_times_at_the_given_speed() -> None:
    with MockServer() as server:
        replies = run_load(server.url, "completions", "target", make(5, gap_s=0.2)[::-1], TraceLoad("t.jsonl", speed=4.0))
    assert [reply.id for reply in replies] == ["r4", "r3", "r2", "r1", "r0"]  # in the order of the requests
    sent = [reply.sent_s for reply in replies[::-1]]
    for i, sent_s in enumerate(sent):
        assert sent_s - sent[0] == pytest.approx(0.05 * i, abs=0.03)
    with pytest.raises(UsageError, match="1 requests of the trace"):
        TraceLoad("t.jsonl").due([*make(2), Request("x", (1,), 4)])


def test_an_open_load_ends_with_the_server_the_deadline_or_what_on_reply_raises() -> None:
    with MockServer() as server:
        url = server.url
        late = run_load(url, "completions", "target", make(50), PoissonLoad(100.0), options=Options(deadline_s=0.1))
    assert {reply.error for reply in late if not reply.ok} == {"not sent: the deadline was past"} and late[0].ok
    gone = run_load(url, "completions", "target", make(50), PoissonLoad(1000.0))
    assert {reply.error for reply in gone} == {"not sent: no server listens"}

    def full(_: Reply) -> None:
        raise OSError("no space left")

    begun = time.monotonic()
    with MockServer() as server, pytest.raises(OSError, match="no space"):
        run_load(server.url, "completions", "target", make(100), PoissonLoad(10.0), full)
    assert time.monotonic() - begun < 3


def test_two_servers_take_turns_and_one_that_is_gone_is_left_out() -> None:
    with MockServer() as first, MockServer() as second:
        run_load([first.url, second.url], "completions", "target", make(20), PoissonLoad(500.0))
        assert len(first.seen) == len(second.seen) == 10
        gone = second.url
        second.__exit__()
        replies = run_load([first.url, gone], "completions", "target", make(20), PoissonLoad(500.0))
        assert all(reply.ok for reply in replies)


@pytest.mark.parametrize("load", [ClosedLoad(4), PoissonLoad(2.0), PoissonLoad(0.5, 8, 3), TraceLoad("a/t.jsonl", 2.0)])
def test_a_load_survives_json(load: ClosedLoad | PoissonLoad | TraceLoad) -> None:
    assert load_from(load_dict(load)) == load


def test_labels() -> None:
    labels = [load.label for load in (ClosedLoad(4), PoissonLoad(2.0), TraceLoad("a/t.jsonl", 2.0), TraceLoad("t.jsonl"))]
    assert labels == ["C=4", "2 req/s", "trace t.jsonl x2", "trace t.jsonl"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"kind": "opne"}, "load kind 'opne' is not known"),
        ({"kind": "closed", "concurency": 4}, "concurency"),
        ({"kind": "closed", "concurrency": 0}, "concurrency is 0"),
        ({"kind": "poisson", "rate": -1}, "rate is -1"),
    ],
)
def test_a_load_that_cannot_be_meant(content: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_from(content)


def test_sizes_of_a_closed_loop() -> None:
    assert size_problems(4, 40, 8) == []
    assert size_problems(4, 39, 8) == ["39 requests at concurrency 4: at least 40 show a steady state"]
    assert len(size_problems(4, 6, 1)) == 2
