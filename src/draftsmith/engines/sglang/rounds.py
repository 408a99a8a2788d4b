"""Rounds of an SGLang server. Read in the packages of 0.5.17 and 0.5.23; 0.5.17 was profiled from here on a GPU."""

from __future__ import annotations

from pathlib import Path

from draftsmith.engines.counters import gauge, samples, total
from draftsmith.engines.protocol import Launch
from draftsmith.engines.rounds import LiveCounts, RoundCounts, Spans

# 0.5.17 names a step after its forward mode, 0.5.23 after its role; without speculation a step is DECODE
VERIFY = r"^step\[(TARGET_VERIFY|VERIFY|DECODE)\b"
SPANS = Spans(begin=VERIFY, verify=VERIFY, draft=r"^(draft|draft_extend)$", prefill=r"^step\[(EXTEND|MIXED)\b")


def with_profiler(launch: Launch, folder: Path) -> Launch:
    """The launch itself: SGLang always has /start_profile, and is told the folder there."""
    return launch


def start_body(folder: Path | None) -> dict[str, object]:
    """What /start_profile is told."""
    body: dict[str, object] = {"activities": ["CPU", "GPU"], "with_stack": False}
    return {**body, "output_dir": str(folder)} if folder else body


def round_counts(metrics_text: str) -> RoundCounts | None:
    """From latency sums of finished requests; None while a counter is missing."""
    tokens = total(metrics_text, "sglang:generation_tokens_total")
    requests = total(metrics_text, "sglang:num_requests_total")
    whole = samples(metrics_text, "sglang:e2e_request_latency_seconds_sum")
    first = samples(metrics_text, "sglang:time_to_first_token_seconds_sum")
    if tokens is None or requests is None or not whole or not first:
        return None
    verifies = total(metrics_text, "sglang:spec_verify_calls_total")
    decode_s = sum(value for _, value in whole) - sum(value for _, value in first)
    return RoundCounts(verifies if verifies else tokens - requests, tokens, requests, decode_s)


def live_counts(metrics_text: str) -> LiveCounts:
    """Of finished requests: each brings all its rounds and tokens at once. Positions are not on the page, at any depth.

    A request's first token comes from the prefill, every other one from a round; so accepted = tokens - requests - rounds. Its last round
    may have accepted more than the answer had room for, which makes accept_len of short answers a little too low.
    """
    tokens = total(metrics_text, "sglang:generation_tokens_total")
    requests = total(metrics_text, "sglang:num_requests_total")
    rounds = total(metrics_text, "sglang:spec_verify_calls_total")
    told = samples(metrics_text, "sglang:spec_accept_length")
    accepted = tokens - requests - rounds if tokens is not None and requests is not None and rounds is not None else None
    return LiveCounts(
        tokens=tokens,
        requests=requests,
        rounds=None if accepted is None else rounds,
        accepted=accepted,
        running=gauge(metrics_text, "sglang:num_running_reqs"),
        told_accept_len=sum(value for _, value in told) / len(told) if told else None,
    )
