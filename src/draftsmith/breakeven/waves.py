"""Waves on SGLang's native API: C requests of one forced length start together, and the time of a round is read while all C decode.

A wave is one POST /generate with C prompts, streamed in steps of `STREAM_STEP` tokens: a chunk per token would make the server's and
the client's Python the thing that is measured (64 slots of a small target are 20 000 chunks a second). Inside a wave the window runs
from the moment when every request has its first token, so that no prefill is in it, to the first last token, so that every slot
is busy. In it: T_ar = C * window / tokens, T_round = C * window / rounds; rounds = tokens / accept_len of each request, as the
server tells it.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftsmith.errors import InvalidMeasurement
from draftsmith.measure.endpoints import accept_len_of

STREAM_STEP = 16  # tokens between two chunks of one request
SILENCE_S = 60.0  # longest silence of the server; first use of a kernel compiles it
Point = tuple[float, int]  # seconds since the wave was sent, tokens that were there


@dataclass
class Answer:
    """One request of a wave. `meta`: SGLang's meta_info with the last chunk."""

    points: list[Point] = field(default_factory=list)
    meta: Mapping[str, Any] = field(default_factory=dict)
    ids: Sequence[int] = ()

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


def send_wave(url: str, prompts: Sequence[Sequence[int]], tokens: int, stream_step: int) -> list[Answer]:
    """All prompts in one request. Raises InvalidMeasurement when the server refuses or breaks off, OSError when it is gone."""
    sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True, "stream_interval": stream_step}
    body = json.dumps({"input_ids": [list(prompt) for prompt in prompts], "sampling_params": sampling, "stream": True})
    answers = [Answer() for _ in prompts]
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=SILENCE_S)
    try:
        sent = time.perf_counter()
        connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise InvalidMeasurement(f"HTTP {response.status} from /generate: {response.read(300).decode(errors='replace')}")
        while line := response.readline():
            now = time.perf_counter() - sent
            if line.startswith(b"data:") and not line.startswith(b"data: [DONE]"):
                take(answers, json.loads(line[5:]), now)
    finally:
        connection.close()
    return answers


def take(answers: Sequence[Answer], chunk: Mapping[str, Any], now_s: float) -> None:
    """Add one chunk to the answer that it belongs to."""
    if "error" in chunk:
        raise InvalidMeasurement(f"server error: {str(chunk['error'])[:300]}")
    answer = answers[chunk.get("index", 0)]
    meta = chunk["meta_info"]
    if meta["completion_tokens"] > answer.tokens:
        answer.points.append((now_s, meta["completion_tokens"]))
    answer.meta = meta
    answer.ids = chunk.get("output_ids", ())


def run_wave(url: str, prompts: Sequence[Sequence[int]], tokens: int, stream_step: int = STREAM_STEP) -> dict[str, Any]:
    """One wave and its figures, for a JSON line. Raises InvalidMeasurement."""
    try:
        answers = send_wave(url, prompts, tokens, stream_step)
    except (http.client.HTTPException, OSError, ValueError) as error:
        raise InvalidMeasurement(f"a wave of {len(prompts)} broke off: {type(error).__name__} {error}") from error
    return figures(answers, tokens)


def figures(answers: Sequence[Answer], tokens: int) -> dict[str, Any]:
    """Times of a wave. `decode_step_s`: T_ar, or with speculation the time per token; `round_s`: T_round, None without speculation.

    Raises InvalidMeasurement when an answer is short, or when no moment saw all requests decode.
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
    lengths = [answer.accept_len for answer in answers]
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
