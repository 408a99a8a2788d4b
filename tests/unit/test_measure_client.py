"""The load client against a server that misbehaves on demand."""

import math
import time

import pytest

from draftsmith.measure.client import Reply, Request, run_closed_loop
from draftsmith.measure.messages import Answer, Piece
from mock_server import Behaviour, MockServer


def make(count: int, tokens: int = 8, first: int = 100, **options) -> list[Request]:
    return [Request(id=f"r{i}", prompt_token_ids=(first + i, 5), max_tokens=tokens, **options) for i in range(count)]


def test_replies_in_order_with_ids_usage_and_times() -> None:
    with MockServer(Behaviour(step_s=0.002)) as server:
        seen: list[Reply] = []
        replies = run_closed_loop(server.url, "target", make(6), 3, seen.append)
        bodies = server.seen
    assert [reply.id for reply in replies] == [f"r{i}" for i in range(6)]
    assert {reply.id for reply in seen} == {reply.id for reply in replies}
    for i, reply in enumerate(replies):
        assert reply.ok, reply.error
        assert reply.token_ids == tuple(3 + (7 * (105 + i) + k) % 1000 for k in range(8))
        assert (reply.prompt_tokens, reply.completion_tokens, reply.num_chunks, reply.finish_reason) == (2, 8, 8, "length")
        assert reply.sent_s < reply.first_s <= reply.last_s
        assert reply.last_s - reply.sent_s >= 7 * 0.002
    assert bodies[0]["temperature"] == 0.0 and "seed" not in bodies[0] and bodies[0]["return_token_ids"]


def test_concurrency_is_held_and_not_exceeded() -> None:
    with MockServer(Behaviour(step_s=0.005)) as server:
        run_closed_loop(server.url, "target", make(12), 4)
        assert server.most_in_flight == 4


@pytest.mark.parametrize("empty_chunks", [False, True])
def test_tokens_come_from_usage_not_from_chunks(empty_chunks: bool) -> None:
    shape = Behaviour(accepted=(2, 0, 3), depth=3, first_chunk=4, empty_chunks=empty_chunks)
    with MockServer(shape) as server:
        [reply] = run_closed_loop(server.url, "target", make(1, tokens=20), 1)
        assert server.tokens == 20
    assert reply.ok and reply.completion_tokens == 20 and len(reply.token_ids) == 20
    assert reply.first_chunk_tokens >= 4  # more when the client reads several chunks in one piece


def test_stop_before_max_tokens_is_whole_unless_eos_is_ignored() -> None:
    with MockServer(Behaviour(answer_tokens=3, faults={200: "short"})) as server:
        [stopped] = run_closed_loop(server.url, "target", make(1), 1)
        [short] = run_closed_loop(server.url, "target", make(1, first=200, ignore_eos=True), 1)
    assert stopped.ok and stopped.finish_reason == "stop" and stopped.completion_tokens == 3
    assert not short.ok and short.error.startswith("ended early: 4 of 8")


FAULT_ERRORS = {
    "http_500": "HTTP 500",
    "reset": "connection lost",
    "cut": "the stream stopped before [DONE]",
    "error_event": "server error: engine died",
    "no_usage": "no completion tokens",
    "abort": "finish_reason is abort",
    "lost_ids": "7 token ids",
    "stall": "stalled",
}


@pytest.mark.parametrize("fault", FAULT_ERRORS)
def test_a_fault_spoils_one_reply_and_no_other(fault: str) -> None:
    with MockServer(Behaviour(faults={102: fault})) as server:
        replies = run_closed_loop(server.url, "target", make(6), 2, stall_s=0.3)
    assert [reply.ok for reply in replies] == [True, True, False, True, True, True]
    assert FAULT_ERRORS[fault] in replies[2].error


def test_dead_server_fails_all_at_once() -> None:
    with MockServer() as server:
        url = server.url
    start = time.perf_counter()
    replies = run_closed_loop(url, "target", make(500), 8)
    assert time.perf_counter() - start < 2
    assert len(replies) == 500 and not any(reply.ok for reply in replies)
    assert replies[0].error == "not sent: no server listens"


def test_server_that_dies_on_the_way() -> None:
    with MockServer(Behaviour(step_s=0.002, faults={103: "die"})) as server:
        replies = run_closed_loop(server.url, "target", make(50), 2, stall_s=1)
    assert replies[0].ok and not replies[3].ok
    assert not any(reply.ok for reply in replies[5:])


def test_two_servers_share_the_queue_and_a_dead_one_is_left() -> None:
    with MockServer(Behaviour(step_s=0.001)) as fast, MockServer(Behaviour(step_s=0.01)) as slow:
        replies = run_closed_loop([fast.url, slow.url], "target", make(40), 4)
        assert all(reply.ok for reply in replies)
        assert len(fast.seen) > len(slow.seen) > 0
    with MockServer() as alive:
        replies = run_closed_loop([slow.url, alive.url], "target", make(20), 4)
        assert all(reply.ok for reply in replies) and len(alive.seen) == 20


def test_deadline_lets_requests_in_flight_finish() -> None:
    with MockServer(Behaviour(step_s=0.01)) as server:
        replies = run_closed_loop(server.url, "target", make(40), 2, deadline_s=0.25)
    answered = [reply for reply in replies if reply.ok]
    assert 2 <= len(answered) < 40
    assert {reply.error for reply in replies if not reply.ok} == {"not sent: the deadline was past"}


def test_whole_reply_without_streaming() -> None:
    with MockServer() as server:
        [reply] = run_closed_loop(server.url, "target", make(1, stream=False), 1)
    assert reply.ok and reply.completion_tokens == 8 and len(reply.token_ids) == 8 and math.isnan(reply.first_s)


def test_what_on_reply_raises_ends_the_loop() -> None:
    def full(_: Reply) -> None:
        raise OSError("no space left")

    with MockServer() as server, pytest.raises(OSError, match="no space"):
        run_closed_loop(server.url, "target", make(20), 2, full)


def test_chunks_read_in_one_piece_belong_to_the_first() -> None:
    answer = Answer(sent_s=0.0)
    for tokens, now_s in ((1, 1.0), (3, 1.0), (4, 1.5), (4, 2.0)):
        answer.add(Piece(tokens), now_s)
    reply = answer.reply(make(1)[0])
    assert (reply.first_s, reply.last_s, reply.first_chunk_tokens, reply.num_chunks) == (1.0, 1.5, 3, 3)
    assert reply.arrivals == ((1.0, 1), (1.0, 3), (1.5, 4))


def test_a_connection_is_used_again_and_each_answer_is_its_own() -> None:
    """The end of one answer must not end the next on the same connection, however long that takes."""
    with MockServer(Behaviour(step_s=0.05)) as server:
        replies = run_closed_loop(server.url, "target", make(3, tokens=16), 1)
        assert server.connections == 1
    assert [(reply.ok, reply.completion_tokens, reply.error) for reply in replies] == [(True, 16, "")] * 3
