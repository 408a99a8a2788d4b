"""Waves: C requests of one forced length start together, and the time of a round is read while all C decode.

A wave is one POST with C prompts (asking.py), streamed in steps of `STREAM_STEP` tokens: a chunk per token would make the server's and
the client's Python the thing that is measured (64 slots of a small target are 20 000 chunks a second). Inside a wave the window runs
from the moment when every request has its first token, so that no prefill is in it, to the first last token, so that every slot
is busy. In it: T_ar = C * window / tokens, T_round = C * window / rounds; rounds = tokens / accept_len of each request, as the
server tells it with the reply (SGLang), or of all of them together, from its counters over the wave (vLLM).
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from draftsmith.breakeven.asking import FORMS, Form, Seen
from draftsmith.engines.protocol import Engine, Launch
from draftsmith.errors import EnvironmentFailed, InvalidMeasurement
from draftsmith.measure.endpoints import accept_len_of
from draftsmith.metrics import Acceptance

STREAM_STEP = 16  # tokens between two chunks of one request
SILENCE_S = 60.0  # longest silence of the server; first use of a kernel compiles it
COUNTER_LAG_S = 3.0  # counters may come a moment after the last token
Point = tuple[float, int]  # seconds since the wave was sent, tokens that were there


class Serving(Protocol):
    """What is needed of a running server (engines.server.Server)."""

    engine: Engine
    launch: Launch

    @property
    def url(self) -> str: ...
    def acceptance(self, depth: int) -> Acceptance | None: ...
    def generation_tokens(self) -> int | None: ...


@dataclass
class Answer:
    """One request of a wave. `meta`: what the server told of it last."""

    points: list[Point] = field(default_factory=list)
    meta: Mapping[str, Any] = field(default_factory=dict)
    ids: set[int] = field(default_factory=set)

    @property
    def tokens(self) -> int:
        return self.points[-1][1] if self.points else 0

    @property
    def accept_len(self) -> float | None:
        """Tokens per round, bonus included; None without speculation."""
        return accept_len_of(self.meta, self.tokens)

    def tokens_at(self, moment: float) -> float:
        """Tokens at a moment between the first and the last; evenly spread between two chunks."""
        before = max((p for p in self.points if p[0] <= moment), key=lambda p: p[0])
        after = min((p for p in self.points if p[0] >= moment), key=lambda p: p[0])
        if after[0] == before[0]:
            return float(after[1])
        return before[1] + (moment - before[0]) / (after[0] - before[0]) * (after[1] - before[1])


def send_wave(url: str, form: Form, prompts: Sequence[Sequence[int]], tokens: int, stream_step: int) -> list[Answer]:
    """All prompts in one request. Raises InvalidMeasurement when the server refuses or breaks off, OSError when it is gone."""
    body = json.dumps(form.body(prompts, tokens, stream_step))
    answers = [Answer() for _ in prompts]
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=SILENCE_S)
    try:
        sent = time.perf_counter()
        connection.request("POST", form.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise InvalidMeasurement(f"HTTP {response.status} from {form.path}: {response.read(300).decode(errors='replace')}")
        while line := response.readline():
            now = time.perf_counter() - sent
            if line.startswith(b"data:") and not line.startswith(b"data: [DONE]"):
                chunk = json.loads(line[5:])
                if "error" in chunk:
                    raise InvalidMeasurement(f"server error: {str(chunk['error'])[:300]}")
                if (seen := form.read(chunk)) is not None:
                    take(answers, seen, now)
    finally:
        connection.close()
    return answers


def take(answers: Sequence[Answer], seen: Seen, now_s: float) -> None:
    """Add one chunk to the answer that it belongs to."""
    answer = answers[seen.index]
    if seen.tokens > answer.tokens:
        answer.points.append((now_s, seen.tokens))
    answer.meta = seen.meta
    answer.ids.update(seen.ids)


def run_wave(server: Serving, prompts: Sequence[Sequence[int]], tokens: int, stream_step: int = STREAM_STEP) -> dict[str, Any]:
    """One wave and its figures, for a JSON line. Raises InvalidMeasurement."""
    form, drafts = FORMS[server.engine.name], server.launch.depth > 0
    try:
        if not (drafts and form.by_counters):
            return figures(send_wave(server.url, form, prompts, tokens, stream_step), tokens)
        before = counters(server)
        answers = send_wave(server.url, form, prompts, tokens, stream_step)
        return figures(answers, tokens, counted(server, before, tokens * len(prompts)))
    except (http.client.HTTPException, OSError, ValueError, EnvironmentFailed) as error:
        raise InvalidMeasurement(f"a wave of {len(prompts)} broke off: {type(error).__name__} {error}") from error


def counters(server: Serving) -> tuple[int, Acceptance]:
    """(output tokens, acceptance) that the server counts so far. Raises InvalidMeasurement where it has no such counters."""
    tokens, acceptance = server.generation_tokens(), server.acceptance(server.launch.depth)
    if tokens is None or acceptance is None:
        raise InvalidMeasurement(f"{server.engine.name} has no acceptance counters on /metrics")
    return tokens, acceptance


def counted(server: Serving, before: tuple[int, Acceptance], tokens: int) -> float:
    """accept_len of a wave of so many tokens, from the counters before it and now. Raises InvalidMeasurement when they did not move."""
    patience = time.monotonic() + COUNTER_LAG_S
    while (now := counters(server))[0] < before[0] + tokens and time.monotonic() < patience:
        time.sleep(0.02)
    if now[1].rounds == before[1].rounds:
        raise InvalidMeasurement("the acceptance counters did not move: the server does not speculate")
    return (now[1] - before[1]).accept_len


def figures(answers: Sequence[Answer], tokens: int, accept_len: float | None = None) -> dict[str, Any]:
    """Times of a wave. `decode_step_s`: T_ar, or with speculation the time per token; `round_s`: T_round, None without speculation.

    accept_len: of all requests together, where the replies do not tell their own. Raises InvalidMeasurement when an answer is short, or
    when no moment saw all requests decode.
    """
    short = [answer.tokens for answer in answers if answer.tokens != tokens]
    if short:
        raise InvalidMeasurement(f"{len(short)} of {len(answers)} answers have {short[:3]} tokens instead of {tokens}")
    all_started = max(answer.points[0][0] for answer in answers)
    # the chunk in which the last prefill falls is left out too: its tokens did not come evenly
    begin = max(min((p[0] for p in answer.points if p[0] >= all_started), default=answer.points[-1][0]) for answer in answers)
    end = min(answer.points[-1][0] for answer in answers)
    window_s = end - begin
    if window_s <= 0:
        raise InvalidMeasurement(f"no moment in which all {len(answers)} requests decoded", hint="longer answers")
    decoded = [answer.tokens_at(end) - answer.tokens_at(begin) for answer in answers]
    lengths = [answer.accept_len or accept_len for answer in answers]
    speculates = all(length is not None for length in lengths)
    rounds = sum(n / length for n, length in zip(decoded, lengths, strict=True) if length) if speculates else None
    return {
        "decode_step_s": len(answers) * window_s / sum(decoded),
        "round_s": len(answers) * window_s / rounds if rounds else None,
        "window_s": window_s,
        "window_tokens": sum(decoded),
        "window_rounds": rounds,
        "accept_len": sum(decoded) / rounds if rounds else None,
        "verify_calls": [answer.meta.get("spec_verify_ct") for answer in answers],
        "tokens": tokens * len(answers),
        "distinct_ids": len({i for answer in answers for i in answer.ids}),  # few: a router sends all rows to few experts
        "first_s": [min(answer.points[0][0] for answer in answers), all_started],
        "wall_s": max(answer.points[-1][0] for answer in answers),
    }
