"""What a set of replies says about speed: the steady window of a load, and decode time per slot."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from draftsmith.errors import InvalidMeasurement
from draftsmith.measure.messages import Reply
from draftsmith.metrics import output_tok_s


@dataclass(frozen=True)
class SteadyWindow:
    """The part of a cell in which every slot was busy. `output_tokens` is not whole: see `tokens_until`."""

    window_s: float
    output_tokens: float

    @property
    def tok_s(self) -> float:
        """Output tokens per second with all slots busy."""
        return output_tok_s(self.output_tokens, self.window_s)


def tokens_until(reply: Reply, end_s: float) -> float:
    """Output tokens of one reply that were there at `end_s`: from its arrivals, else taken as evenly spread from first to last."""
    if reply.last_s <= end_s:
        return float(reply.completion_tokens)
    if reply.arrivals is not None:
        came = bisect_right(reply.arrivals, end_s - reply.sent_s, key=lambda arrival: arrival[0])
        return float(reply.arrivals[came - 1][1]) if came else 0.0
    if reply.first_s >= end_s:
        return 0.0
    share = (end_s - reply.first_s) / (reply.last_s - reply.first_s)
    return reply.first_chunk_tokens + share * (reply.completion_tokens - reply.first_chunk_tokens)


def steady_window(replies: Sequence[Reply], concurrency: int) -> SteadyWindow:
    """From the first send until the first moment when a slot finds the queue empty.

    The tail after it runs at a falling concurrency and would mix the speed of smaller ones into the cell. With one slot there is
    no tail. replies: all of one closed loop, all ok, at least `concurrency` of them.
    """
    assert len(replies) >= concurrency and all(reply.ok for reply in replies), (len(replies), concurrency)
    start_s = min(reply.sent_s for reply in replies)
    end_s = sorted(reply.last_s for reply in replies)[len(replies) - concurrency]
    return SteadyWindow(end_s - start_s, sum(tokens_until(reply, end_s) for reply in replies))


def decode_s(reply: Reply) -> float:
    """Seconds from the first to the last token: what one slot spent on decoding this reply."""
    return reply.last_s - reply.first_s


def decoded_tokens(reply: Reply) -> int:
    """Tokens decoded inside `decode_s`: all but those of the first chunk."""
    return reply.completion_tokens - reply.first_chunk_tokens


def seconds_per_token(replies: Sequence[Reply]) -> float:
    """Decode seconds of a slot per decoded token. Raises InvalidMeasurement when all tokens came at once."""
    seconds, tokens = sum(map(decode_s, replies)), sum(map(decoded_tokens, replies))
    if not seconds or not tokens:
        raise InvalidMeasurement("all tokens of an answer arrived at once: decode time cannot be seen", hint="longer output_tokens")
    return seconds / tokens


def chunk_rounds(reply: Reply) -> int:
    """Chunks that brought tokens after the first one: the rounds of a speculative server, if it sends a chunk per round.

    Good for a breakdown only, and only where the sum agrees with the server's counter.
    """
    return max(reply.num_chunks - 1, 0)


def decode_tok_s(reply: Reply) -> float:
    """Output tok/s of one reply after its first token; nan when all came at once."""
    tokens = decoded_tokens(reply)
    return output_tok_s(tokens, decode_s(reply)) if tokens > 0 and decode_s(reply) > 0 else math.nan


def request_s(reply: Reply) -> float:
    """Seconds of one request: from when it was due (an open load), else from when it was sent, to its last token."""
    return reply.last_s - (reply.sent_s if math.isnan(reply.due_s) else reply.due_s)


def request_tok_s(replies: Sequence[Reply]) -> float:
    """Output tokens per second of a request, over all requests: sum of tokens / sum of request times."""
    return output_tok_s(sum(reply.completion_tokens for reply in replies), sum(map(request_s, replies)))
