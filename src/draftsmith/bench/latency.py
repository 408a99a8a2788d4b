"""Latencies, goodput, ends and reasoning of the replies of one cell, by arm."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from draftsmith.measure.messages import Reply
from draftsmith.measure.window import request_s
from draftsmith.metrics import time_per_output_token_s

PERCENTILES = (50, 90, 99)
Z95 = 1.959964


def sent_at(reply: Reply) -> float:
    """When the wait of a user began: an open load's due time, else when the request was sent."""
    return reply.sent_s if math.isnan(reply.due_s) else reply.due_s


def times_of(reply: Reply) -> dict[str, float]:
    """The times of one reply, in seconds; nan where it has none."""
    return {
        "ttft_s": reply.first_s - sent_at(reply),
        "ttfo_s": reply.first_output_s - sent_at(reply),
        "tpot_s": time_per_output_token_s(reply.last_s, reply.first_s, reply.completion_tokens, reply.first_chunk_tokens),
        "e2e_s": request_s(reply),
    }


def chunk_gaps(reply: Reply) -> list[float]:
    """Seconds between chunks that brought tokens; under speculation the time of a round, not of a token."""
    return [b - a for (a, _), (b, _) in pairwise(reply.arrivals or ())]


def distribution(values: Sequence[float]) -> dict[str, float] | None:
    """p50, p90, p99 and mean of what is known; None when nothing is."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return None
    found = np.percentile(known, PERCENTILES)
    return {f"p{p}": float(value) for p, value in zip(PERCENTILES, found, strict=True)} | {"mean": float(np.mean(known))}


def latency(replies: Sequence[Reply]) -> dict[str, dict[str, float] | None]:
    """Every latency over the requests of one arm."""
    times = [times_of(reply) for reply in replies]
    found = {name: distribution([row[name] for row in times]) for name in ("ttft_s", "ttfo_s", "tpot_s", "e2e_s")}
    return found | {"inter_chunk_s": distribution([gap for reply in replies for gap in chunk_gaps(reply)])}


def wilson(hits: int, total: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    share, z2 = hits / total, Z95**2
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    return max(0.0, middle - half), min(1.0, middle + half)


def goodput(by_launch: Sequence[Sequence[Reply]], slo: Mapping[Any, float]) -> dict[str, Any] | None:
    """Share of requests that meet every limit, and such requests per second. A time that a reply does not have meets no limit."""
    replies = [reply for launch in by_launch for reply in launch]
    if not slo or not replies:
        return None
    good = sum(all(times_of(reply)[name] <= limit for name, limit in slo.items()) for reply in replies)
    seconds = sum(max(r.last_s for r in launch) - min(sent_at(r) for r in launch) for launch in by_launch if launch)
    low, high = wilson(good, len(replies))
    return {"share": good / len(replies), "low": low, "high": high, "requests_s": good / seconds, "slo": dict(slo)}


def finish(replies: Sequence[Reply]) -> dict[str, int]:
    """How many replies ended for which reason."""
    return dict(Counter(reply.finish_reason or "missing" for reply in replies))


def reasoning(replies: Sequence[Reply]) -> dict[str, int] | None:
    """Thinking and answer tokens; None when the server does not tell them apart."""
    told = [reply for reply in replies if reply.reasoning_tokens is not None]
    if not told:
        return None
    thought = sum(reply.reasoning_tokens or 0 for reply in told)
    return {"reasoning_tokens": thought, "answer_tokens": sum(reply.completion_tokens for reply in told) - thought}
