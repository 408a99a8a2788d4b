"""Everything that servers were seen to do to a stream, injected: the right number comes out, or the reply is not ok and says why."""

import math

import pytest

from draftsmith.measure.asking import Options
from draftsmith.measure.client import Reply, Request, run_load
from draftsmith.measure.endpoints import endpoint_named
from draftsmith.measure.latency import thinking_tokens, tpot_s
from draftsmith.measure.loads import ClosedLoad
from draftsmith.measure.messages import Answer
from mock_server import FAULTS, Behaviour, MockServer

ENDPOINTS = ("completions", "chat", "generate")
BAD = 102  # the prompt's first token, at which the fault is injected
SPECULATIVE = Behaviour(accepted=(2, 0, 3), depth=3)


def make(endpoint: str, first: int, tokens: int = 20, **options) -> Request:
    if endpoint == "chat":
        return Request(f"r{first}", (), tokens, messages=({"role": "user", "content": f"{first} 5"},), **options)
    return Request(f"r{first}", (first, 5), tokens, **options)


def ask(endpoint: str, behaviour: Behaviour, first: int = BAD, stall_s: float = 1.0, **options) -> Reply:
    with MockServer(behaviour) as server:
        [reply] = run_load(
            server.url, endpoint, "target", [make(endpoint, first, **options)], ClosedLoad(1), options=Options(stall_s=stall_s)
        )
    return reply


# --- the right number comes out ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("fault", ["comments", "split_bytes", "crlf", "open_body", "slow_start"])
def test_harmless_oddities_change_nothing(endpoint: str, fault: str) -> None:
    plain, odd = (ask(endpoint, Behaviour(step_s=0.002, faults=faults), stall_s=5.0) for faults in ({}, {BAD: fault}))
    assert plain.ok and odd.ok, (plain.error, odd.error)
    for name in ("completion_tokens", "token_ids", "text", "prompt_tokens", "finish_reason", "num_chunks"):
        assert getattr(odd, name) == getattr(plain, name), name
    assert "…" in odd.text and odd.completion_tokens == 20
    if fault == "slow_start":
        assert odd.first_s - odd.sent_s >= 0.3
    if fault == "open_body":
        assert odd.last_s - odd.sent_s < 0.5  # the time of the last token, not of the end of the body


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("shape", [{}, {"first_chunk": 7}, {"empty_chunks": True}, {"first_chunk": 7, "increments": True}])
def test_chunks_of_any_size_count_as_usage_says(endpoint: str, shape: dict) -> None:
    behaviour = Behaviour(accepted=(2, 0, 3), depth=3, step_s=0.02, **shape)
    reply = ask(endpoint, behaviour)
    assert reply.ok, reply.error
    assert reply.completion_tokens == len(reply.token_ids) == 20
    assert reply.num_chunks < 20  # 1, then 3 + 1 + 4 a cycle: fewer chunks than tokens
    assert reply.arrivals is not None
    assert [n for _, n in reply.arrivals] == ([9, 12, 13, 17, 20] if shape.get("first_chunk") else [1, 4, 5, 9, 12, 13, 17, 20])
    assert reply.first_chunk_tokens == (9 if shape.get("first_chunk") else 1)
    assert tpot_s(reply) == pytest.approx((reply.last_s - reply.first_s) / (20 - reply.first_chunk_tokens))


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_text_held_back_while_usage_grows(endpoint: str) -> None:
    """A parser that buffers: TTFT is when the first token was there, TTFO when the user saw something."""
    reply = ask(endpoint, Behaviour(step_s=0.02, faults={BAD: "buffered"}))
    assert reply.ok and reply.completion_tokens == 20 and reply.first_chunk_tokens == 1
    assert reply.last_s - reply.first_s >= 19 * 0.02
    if endpoint == "chat":
        assert reply.first_output_s == reply.last_s


def test_reasoning_is_told_from_the_answer_under_both_names() -> None:
    for first in (BAD, BAD + 1):  # the mock says `reasoning` to one, `reasoning_content` to the other
        reply = ask("chat", Behaviour(step_s=0.005, thinking=12), first)
        assert reply.ok and reply.completion_tokens == 20 and reply.reasoning_tokens == 12 and thinking_tokens(reply) == 12
        assert reply.first_output_s - reply.first_s >= 12 * 0.005


def test_reasoning_counted_above_all_tokens_is_not_believed() -> None:
    reply = ask("chat", Behaviour(step_s=0.005, thinking=12, faults={BAD: "more_reasoning"}))
    assert reply.ok and reply.completion_tokens == 20 and reply.reasoning_tokens is None
    assert thinking_tokens(reply) == 12  # from the arrivals


@pytest.mark.parametrize(("spoken", "told"), [(0, None), (3, 3), (None, None)])
def test_a_reasoning_count_of_zero_beside_reasoning_is_not_believed(spoken: int | None, told: int | None) -> None:
    """SGLang counts 0 until the end of the thinking, some versions for good; the chunk with the last usage has no text at all."""
    answer, read = Answer(sent_s=0.0), endpoint_named("chat").read
    usage = {"prompt_tokens": 2, "completion_tokens": 4, "reasoning_tokens": spoken, "prompt_tokens_details": {"cached_tokens": 1}}
    answer.add(read({"choices": [{"delta": {"reasoning_content": "hm"}}], "usage": {"completion_tokens": 2, "reasoning_tokens": 0}}), 1.0)
    answer.add(read({"choices": [{"delta": {"content": "so"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 4}}), 2.0)
    answer.add(read({"choices": [], "usage": usage}), 2.0)
    reply = answer.reply(make("chat", BAD))
    assert reply.ok and (reply.reasoning_tokens, reply.completion_tokens, reply.cached_tokens, reply.prompt_tokens) == (told, 4, 1, 2)


def test_an_answer_that_is_all_thinking_has_no_first_output() -> None:
    reply = ask("chat", Behaviour(thinking=50))
    assert reply.ok and math.isnan(reply.first_output_s) and not math.isnan(reply.first_s) and thinking_tokens(reply) == 20


# --- not ok, and why ---------------------------------------------------------------------------------------------------

REASONS = {
    "http_500": "HTTP 500: boom",
    "cut": "the stream stopped before [DONE]",
    "no_done": "the stream stopped before [DONE]",
    "reset": "connection lost",
    "truncated": "connection lost: closed by the server",
    "stall": "stalled",
    "error_event": "server error: engine died",
    "not_json": "not JSON",
    "abort": "abort",
    "short": "ended early: 10 of 20 tokens although ignore_eos",
    "context_cut": "ended early: 10 of 20 tokens although ignore_eos",
    "no_usage": "no completion tokens",
    "shrinking_usage": "went down",
    "too_many": "at most 20 were asked for",
    "prompt_cut": "prompt tokens",
    "lost_ids": "token ids",
    "trailing_usage": "cannot be placed in time",
}
OPENAI_ONLY = {"trailing_usage"}  # /generate says the usage in every chunk
WITH_IDS_ONLY = {"prompt_cut"}  # with chat the client does not know how many tokens the prompt has


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("fault", REASONS)
def test_a_fault_is_named(endpoint: str, fault: str) -> None:
    if (fault in OPENAI_ONLY and endpoint == "generate") or (fault in WITH_IDS_ONLY and endpoint == "chat"):
        pytest.skip("cannot happen there")
    behaviour = Behaviour(step_s=0.002, increments=fault == "lost_ids", faults={BAD: fault})
    reply = ask(endpoint, behaviour, stall_s=0.4, ignore_eos=True)
    assert not reply.ok and REASONS[fault] in reply.error, reply
    if fault in ("reset", "truncated", "stall", "cut"):
        assert 0 < reply.completion_tokens < 20  # what had come is kept


def test_every_fault_of_the_mock_is_in_a_test() -> None:
    harmless = {"comments", "split_bytes", "crlf", "open_body", "slow_start", "buffered", "more_reasoning"}
    assert set(FAULTS) == set(REASONS) | harmless | {"die"}  # "die" in test_measure_client.py


def test_cut_by_the_servers_own_limit_without_ignore_eos() -> None:
    reply = ask("completions", Behaviour(faults={BAD: "context_cut"}))
    assert not reply.ok and "cut by a limit of the server: 10 of 20" in reply.error


def test_aborted_by_sglang_says_why() -> None:
    assert "out of memory" in ask("generate", Behaviour(faults={BAD: "abort"})).error


# --- acceptance per request --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [("spec_verify_ct", "spec_correct_drafts_histogram"), ("spec_verify_ct", "spec_accept_histogram"), ("", "spec_accept_histogram")],
)
def test_per_request_acceptance_under_the_names_of_each_version(names: tuple[str, str]) -> None:
    reply = ask("generate", Behaviour(accepted=(2, 0, 3), depth=3, spec_names=names), tokens=17)
    assert (reply.rounds, reply.reached) == (6, (4, 4, 2))  # two cycles of 2, 0, 3 accepted: 1 + 2 x (3 + 1 + 4) tokens


def test_versions_that_count_rounds_only_and_servers_that_do_not_speculate() -> None:
    rounds_only = ask("generate", Behaviour(accepted=(2, 0, 3), depth=3, spec_names=("spec_verify_ct", "")), tokens=17)
    assert (rounds_only.rounds, rounds_only.reached) == (6, None)
    plain = ask("generate", Behaviour())
    assert (plain.rounds, plain.reached, plain.cached_tokens) == (None, None, 1)


def test_per_request_acceptance_of_vllm() -> None:
    reply = ask("completions", SPECULATIVE, tokens=17)
    assert (reply.rounds, reply.reached) == (6, (4, 4, 2))
