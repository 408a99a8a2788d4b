"""What is asked of a server and what comes back. Tokens are the server's `usage`, never chunks.

One chunk may carry several tokens (speculation, coalescing) or none (buffering), so each chunk's cumulative usage is taken together
with its time of arrival; the last usage seen is the count. Times are `time.perf_counter()` seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

FINISHED = ("stop", "length", "tool_calls")
TIMES = ("sent_s", "first_s", "last_s", "first_output_s", "due_s")


@dataclass(frozen=True)
class Request:
    """One completion to ask for. `stream=False` costs both sides less, but the reply then has no `first_s`.

    The prompt is one of: prompt_token_ids (exact, any endpoint but chat), text, messages (chat; the server applies its template).
    at_s: when a trace sends it, seconds from the start. extra: more fields of the body, e.g. chat_template_kwargs.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stream: bool = True
    category: str = ""
    text: str = ""
    messages: tuple[Mapping[str, str], ...] = ()
    at_s: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What came back. `ok` is False for anything that must not be measured, with the reason in `error`. Absent is None or nan."""

    id: str
    ok: bool
    error: str = ""
    sent_s: float = math.nan
    first_s: float = math.nan  # when usage first grew
    last_s: float = math.nan  # when usage last grew; without streaming, when the reply came
    prompt_tokens: int = 0
    completion_tokens: int = 0  # server usage
    first_chunk_tokens: int = 0  # tokens that were there at first_s
    num_chunks: int = 0  # chunks in which usage grew; not tokens
    finish_reason: str = ""
    token_ids: tuple[int, ...] = ()
    text: str = ""
    first_output_s: float = math.nan  # first content that is not reasoning
    reasoning_tokens: int | None = None  # as the server says
    category: str = ""
    arrivals: tuple[tuple[float, int], ...] | None = None  # (seconds since sent_s, usage so far) wherever usage grew
    rounds: int | None = None  # verify steps of this request
    reached: tuple[int, ...] | None = None  # rounds that accepted at least 1, 2, ... drafts
    cached_tokens: int | None = None  # prompt tokens that the prefix cache held
    due_s: float = math.nan  # when an open load wanted to send it
    client_lag_s: float = 0.0  # longest time for which this client was too busy to look, while the request ran

    def row(self) -> dict[str, Any]:
        """JSON form; nan becomes None. Cheap, unlike dataclasses.asdict: it runs while other streams come in."""
        row = {name: getattr(self, name) for name in REPLY_FIELDS}
        return row | {name: None for name in TIMES if row[name] != row[name]}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Reply:
        """From `row()` or a line of an older version; unknown keys are left aside."""
        values = {name: row[name] for name in REPLY_FIELDS if name in row}
        for name in TIMES:
            values[name] = math.nan if values.get(name) is None else values[name]
        values["token_ids"] = tuple(values.get("token_ids") or ())
        for name in ("reached", "arrivals"):
            if values.get(name) is not None:
                values[name] = tuple(tuple(pair) if isinstance(pair, list) else pair for pair in values[name])
        return cls(**values)


REPLY_FIELDS = tuple(entry.name for entry in fields(Reply))


class BrokenReply(ValueError):
    """The server answered, but not with a whole completion."""


class Piece(NamedTuple):
    """What one chunk says, whatever the endpoint. tokens: usage so far; None when the chunk does not say."""

    tokens: int | None = None
    text: str = ""
    output: bool = True  # what came is not reasoning
    token_ids: tuple[int, ...] | list[int] = ()
    whole: bool = False  # text and token_ids are all so far, not what is new
    finish_reason: str = ""
    details: Mapping[str, Any] = {}  # fields of Reply that came with it: prompt_tokens, cached_tokens, reasoning_tokens, rounds, reached
    usage: Mapping[str, Any] = {}  # OpenAI's object with the counts so far, as it came
    thought: bool = False  # reasoning is in `text`


class Answer:
    """A reply while it comes in."""

    def __init__(self, sent_s: float, due_s: float = math.nan) -> None:
        self.sent_s, self.due_s = sent_s, due_s
        self.first_s = self.last_s = self.first_output_s = self.content_s = math.nan
        self.tokens = self.first_chunk_tokens = 0
        self.shrank = False
        self.finish_reason = ""
        self.arrivals: list[tuple[float, int]] = []
        self.token_ids: list[int] = []
        self.texts: list[str] = []
        self.details: dict[str, Any] = {}
        self.usage: dict[str, Any] = {}
        self.thought = False
        self.client_lag_s = 0.0

    def add(self, piece: Piece, now_s: float) -> None:
        """Add one chunk that came at `now_s`, or a whole reply that was not streamed."""
        tokens, text, output, ids, whole, finish_reason, details, usage, thought = piece
        if whole:
            self.texts, self.token_ids = [text], list(ids)
        else:
            if text:
                self.texts.append(text)
            self.token_ids.extend(ids)
        if finish_reason:
            self.finish_reason = finish_reason
        if details:
            self.details.update(details)
        if usage:
            self.usage.update(usage)
        if thought:
            self.thought = True
        if (text or ids) and self.content_s != self.content_s:
            self.content_s = now_s
        if tokens is None:
            grew = False
        else:
            grew = tokens > self.tokens
            self.shrank = self.shrank or tokens < self.tokens
            self.tokens = tokens
        if grew:
            if not self.arrivals:
                self.first_s = now_s
            if now_s == self.first_s:  # also chunks that were read in one piece with the first
                self.first_chunk_tokens = self.tokens
            self.last_s = now_s
            self.arrivals.append((now_s - self.sent_s, self.tokens))
        if output and (text or grew) and self.first_output_s != self.first_output_s:
            self.first_output_s = now_s

    def told(self) -> Mapping[str, Any]:
        """What the server said besides the tokens, under the names of Reply. A reasoning count of 0 beside reasoning is not believed."""
        usage = self.usage
        if not usage:
            return self.details
        cached, spoken = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
        reasoning = (spoken if isinstance(spoken, dict) else usage).get("reasoning_tokens")
        return {
            **self.details,
            "prompt_tokens": usage.get("prompt_tokens"),
            "cached_tokens": cached.get("cached_tokens") if isinstance(cached, dict) else None,
            "reasoning_tokens": None if self.thought and not reasoning else reasoning,
        }

    def problem(self, request: Request) -> str:
        """Why this is not a whole completion that can be measured; empty when it is."""
        n, most = self.tokens, request.max_tokens
        if self.finish_reason not in FINISHED:
            return f"ended early: finish_reason is {self.finish_reason or 'missing'}"
        if n == 0:
            return "no completion tokens in the server's usage"
        if self.shrank:
            return "the server's usage went down within one reply"
        if n > most:
            return f"usage counts {n} tokens, at most {most} were asked for"
        if request.ignore_eos and n < most:
            return f"ended early: {n} of {most} tokens although ignore_eos"
        if request.stream and self.finish_reason == "length" and n < most:  # an answer that is not timed is whole with any length
            return f"cut by a limit of the server: {n} of {most} tokens"
        if self.token_ids and len(self.token_ids) != n:
            return f"usage counts {n} tokens, the reply holds {len(self.token_ids)} token ids"
        if request.stream and self.content_s < self.first_s:
            return "usage came only after content: the server ignores continuous_usage_stats, its tokens cannot be placed in time"
        sent = len(request.prompt_token_ids)
        read = self.told().get("prompt_tokens")
        if sent and read is not None and read != sent:
            return f"the server read {read} prompt tokens, {sent} were sent"
        return ""

    def reply(self, request: Request, error: str = "", arrivals: bool = True) -> Reply:
        """The frozen record; not ok when `error` or `problem` says so. arrivals: keep the time of every chunk."""
        error = error or self.problem(request)
        details = self.told()
        reasoning = details.get("reasoning_tokens")
        streamed = request.stream
        return Reply(
            id=request.id,
            ok=not error,
            error=error,
            sent_s=self.sent_s,
            first_s=self.first_s if streamed else math.nan,
            last_s=self.last_s,
            prompt_tokens=details.get("prompt_tokens") or 0,
            completion_tokens=self.tokens,
            first_chunk_tokens=self.first_chunk_tokens if streamed else 0,
            num_chunks=len(self.arrivals) if streamed else 0,
            finish_reason=self.finish_reason,
            token_ids=tuple(self.token_ids),
            text="".join(self.texts),
            first_output_s=self.first_output_s if streamed else math.nan,
            reasoning_tokens=reasoning if reasoning is not None and reasoning <= self.tokens else None,
            category=request.category,
            arrivals=tuple(self.arrivals) if streamed and arrivals else None,
            rounds=details.get("rounds"),
            reached=details.get("reached"),
            cached_tokens=details.get("cached_tokens"),
            due_s=self.due_s,
            client_lag_s=self.client_lag_s,
        )


def error_text(error: Any) -> str:
    """The message inside an OpenAI error object, shortened."""
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
