"""Latency, goodput, finish mix, acceptance and thinking over the replies of a cell, in the forms that summaries keep."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any

from draftsmith.measure.messages import Reply
from draftsmith.metrics import Acceptance, Slo, goodput, inter_chunk_s, per_user_tok_s, percentile, spread, time_per_output_token_s

LATE_S = 0.05  # lateness of sends, or client lag, from which the client is part of what it measures
BUNDLED_SHARE = 0.05  # share of an answer in its first chunk from which the start of the answer was not seen


def latency_of(reply: Reply) -> dict[str, float]:
    """The latencies of one reply, seconds; nan where unknown."""
    return {
        "ttft_s": reply.first_s - reply.sent_s,
        "ttfo_s": reply.first_output_s - reply.sent_s,
        "tpot_s": tpot_s(reply),
        "e2e_s": reply.last_s - reply.sent_s,
    }


def tpot_s(reply: Reply) -> float:
    """TPOT of one reply; nan when everything came in the first chunk or at one moment."""
    value = time_per_output_token_s(reply.last_s, reply.first_s, reply.completion_tokens, reply.first_chunk_tokens)
    return value if value > 0 else math.nan


def latency(replies: Sequence[Reply]) -> dict[str, dict[str, float] | None]:
    """p50, p90, p99 and mean of each latency over the replies that are ok; inter-chunk time over all their chunks together."""
    good = [reply for reply in replies if reply.ok]
    each = [latency_of(reply) for reply in good]
    found = {name: spread(row[name] for row in each) for name in ("ttft_s", "ttfo_s", "tpot_s", "e2e_s")}
    gaps = [gap for reply in good if reply.arrivals for gap in inter_chunk_s([at for at, _ in reply.arrivals])]
    return {**found, "inter_chunk_s": spread(gaps)}


def user_tok_s(replies: Sequence[Reply]) -> float | None:
    """Per-user speed: median of 1 / TPOT over the replies that are ok; None when it is unknown for all."""
    speeds = [per_user_tok_s(tpot_s(reply)) for reply in replies if reply.ok]
    known = [speed for speed in speeds if not math.isnan(speed)]
    return percentile(known, 0.5) if known else None


def goodput_of(by_launch: Sequence[Sequence[Reply]], slo: Slo) -> dict[str, Any] | None:
    """Goodput under `slo` over all launches, each from its first send to its last token; None without limits or replies. Failed
    requests are not good."""
    replies = [reply for launch in by_launch for reply in launch]
    window_s = math.fsum(busy_s(launch) for launch in by_launch)
    if not slo.limits() or not window_s:
        return None
    return {**goodput([reply.ok and slo.met(latency_of(reply)) for reply in replies], window_s), "slo": slo.limits()}


def busy_s(replies: Sequence[Reply]) -> float:
    """Seconds from the first send to the last token of one launch; 0 when nothing was sent, or nothing came."""
    sent = [reply.sent_s for reply in replies if not math.isnan(reply.sent_s)]
    ends = [reply.last_s for reply in replies if not math.isnan(reply.last_s)]
    return max(ends) - min(sent) if sent and ends else 0.0


def finish_mix(replies: Sequence[Reply]) -> dict[str, int]:
    """How replies ended: the server's finish reasons of the good ones, and "error" for the rest."""
    return dict(Counter(reply.finish_reason if reply.ok else "error" for reply in replies))


def acceptance_of(replies: Sequence[Reply], depth: int) -> Acceptance | None:
    """Counts of all replies together, from per-request data; None unless every reply that is ok has them. An answer of one token, which
    comes from the prefill, has no round and needs none."""
    good = [reply for reply in replies if reply.ok]
    total = Acceptance(0, (0,) * depth)
    for reply in good:
        if reply.rounds is None and reply.completion_tokens == 1:
            continue
        if reply.rounds is None or reply.reached is None:
            return None
        total += Acceptance(reply.rounds, reply.reached).padded(depth)
    return total if good else None


# --- reasoning -------------------------------------------------------------------------------------------------------


def thinking_tokens(reply: Reply) -> int | None:
    """Tokens before the answer: as the server counts them, else usage before the first chunk with content (exact to a chunk)."""
    if reply.reasoning_tokens is not None:
        return reply.reasoning_tokens
    if reply.arrivals is None:
        return None
    if math.isnan(reply.first_output_s):
        return reply.completion_tokens  # it thought until the end
    output_s = reply.first_output_s - reply.sent_s
    before = bisect_left(reply.arrivals, output_s - 1e-9, key=lambda arrival: arrival[0])
    return reply.arrivals[before - 1][1] if before else 0


def reasoning(replies: Sequence[Reply]) -> dict[str, int] | None:
    """Thinking and answer tokens apart; None when any reply does not tell."""
    good = [reply for reply in replies if reply.ok]
    thought = [thinking_tokens(reply) for reply in good]
    if not good or any(tokens is None for tokens in thought):
        return None
    total = sum(tokens or 0 for tokens in thought)
    return {"reasoning_tokens": total, "answer_tokens": sum(reply.completion_tokens for reply in good) - total}


# --- findings --------------------------------------------------------------------------------------------------------


def findings(replies: Sequence[Reply], client_waits: bool = False) -> list[str]:
    """What a reader should know about this cell. client_waits: the load holds sends back on purpose (max_concurrency)."""
    good = [reply for reply in replies if reply.ok]
    found = []
    late = [reply.sent_s - reply.due_s for reply in good if not math.isnan(reply.due_s)]
    if late and (p99 := percentile(late, 0.99)) > LATE_S:
        cause = "max_concurrency held sends back" if client_waits else "the client is saturated"
        found.append(f"requests were sent up to {max(late):.2f} s late (p99 {p99:.2f} s): {cause}, the offered load was not reached")
    if good and (lag := max(reply.client_lag_s for reply in good)) > LATE_S:
        found.append(f"the client was busy for {lag:.2f} s at a stretch: arrival times are late by up to that")
    whole = [reply for reply in good if reply.num_chunks and 1 < reply.completion_tokens == reply.first_chunk_tokens]
    if whole:
        found.append(
            f"{len(whole)} of {len(good)} replies came in one piece: something buffers the stream, their TTFT is the whole answer's time"
        )
    bundled = [
        reply for reply in good if max(1, BUNDLED_SHARE * reply.completion_tokens) < reply.first_chunk_tokens < reply.completion_tokens
    ]
    if bundled:
        most = max(reply.first_chunk_tokens for reply in bundled)
        found.append(f"{len(bundled)} of {len(good)} replies began with a chunk of up to {most} tokens: their TTFT includes decoding")
    unfinished = [
        reply for reply in good if reply.finish_reason == "length" and reply.arrivals and thinking_tokens(reply) == reply.completion_tokens
    ]
    if unfinished:
        found.append(f"{len(unfinished)} of {len(good)} replies reached max_tokens while still thinking: they have no answer")
    if cached := sum(reply.cached_tokens or 0 for reply in good):
        prompts = sum(reply.prompt_tokens for reply in good)
        found.append(f"the prefix cache held {cached} of {prompts} prompt tokens")
    return found
