"""The load client: keeps a fixed number of streamed requests in flight and counts tokens from the server's usage.

Chunks are not tokens: one chunk may carry several tokens (speculation, coalescing) or none (buffering). Every count comes from
`usage.completion_tokens`, asked for on every chunk; the last usage seen wins. Times are `time.perf_counter()` seconds.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import aiohttp

FINISHED = ("stop", "length")
CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Request:
    """One completion to ask for. `stream=False` costs both sides less, but the reply then has no `first_s`."""

    id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stream: bool = True

    def payload(self, model: str) -> dict[str, Any]:
        """Body for POST /v1/completions."""
        body: dict[str, Any] = {
            "model": model,
            "prompt": self.prompt_token_ids,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "ignore_eos": self.ignore_eos,
            "return_token_ids": True,
            "stream": self.stream,
        }
        if self.stream:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        if self.seed is not None:
            body["seed"] = self.seed
        if self.stop:
            body["stop"] = list(self.stop)
        return body


@dataclass(frozen=True)
class Reply:
    """What came back. `ok` is False for anything that must not be measured, with the reason in `error`."""

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


class BrokenReply(Exception):
    """The server answered, but not with a whole completion."""


@dataclass
class Answer:
    """A reply while it comes in."""

    sent_s: float
    first_s: float = math.nan
    last_s: float = math.nan
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_chunk_tokens: int = 0
    num_chunks: int = 0
    finish_reason: str = ""

    def __post_init__(self) -> None:
        self.token_ids: list[int] = []
        self.texts: list[str] = []

    def take(self, chunk: dict[str, Any], now_s: float) -> None:
        """Add one chunk, or a whole reply that was not streamed. Raises BrokenReply for an error object."""
        if "error" in chunk:
            raise BrokenReply(f"server error: {error_text(chunk['error'])}")
        for choice in chunk.get("choices") or ():
            self.texts.append(choice.get("text") or "")
            self.token_ids.extend(choice.get("token_ids") or ())
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        usage = chunk.get("usage")
        if not usage:
            return
        self.prompt_tokens = usage.get("prompt_tokens") or self.prompt_tokens
        tokens = usage.get("completion_tokens") or 0
        if tokens > self.completion_tokens:
            if self.completion_tokens == 0:
                self.first_s = now_s
            if now_s == self.first_s:  # also chunks that were read in one piece with the first
                self.first_chunk_tokens = tokens
            self.last_s = now_s
            self.num_chunks += 1
        self.completion_tokens = tokens

    def problem(self, request: Request) -> str:
        """Why this is not a whole completion; empty when it is."""
        if self.finish_reason not in FINISHED:
            return f"ended early: finish_reason is {self.finish_reason or 'missing'}"
        if self.completion_tokens == 0:
            return "no completion tokens in the server's usage"
        if request.ignore_eos and self.completion_tokens < request.max_tokens:
            return f"ended early: {self.completion_tokens} of {request.max_tokens} tokens although ignore_eos"
        if self.token_ids and len(self.token_ids) != self.completion_tokens:
            return f"usage counts {self.completion_tokens} tokens, the reply holds {len(self.token_ids)} token ids"
        return ""

    def reply(self, request: Request, error: str = "") -> Reply:
        """The frozen record; not ok when `error` or `problem` says so."""
        error = error or self.problem(request)
        return Reply(
            id=request.id,
            ok=not error,
            error=error,
            sent_s=self.sent_s,
            first_s=self.first_s if request.stream else math.nan,
            last_s=self.last_s,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            first_chunk_tokens=self.first_chunk_tokens if request.stream else 0,
            num_chunks=self.num_chunks if request.stream else 0,
            finish_reason=self.finish_reason,
            token_ids=tuple(self.token_ids),
            text="".join(self.texts),
        )


def error_text(error: Any) -> str:
    """The message inside an OpenAI error object, shortened."""
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]


def split_events(buffer: bytearray) -> Iterator[bytes]:
    """Take the whole `data:` lines off the front of `buffer` and yield what follows `data:`."""
    end = buffer.rfind(b"\n")
    if end < 0:
        return
    lines = bytes(buffer[:end]).split(b"\n")
    del buffer[: end + 1]
    for line in lines:
        if line.startswith(b"data:"):
            yield line[5:].strip()


async def read_events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[dict[str, Any], float]]:
    """(chunk, arrival time) of a server-sent event stream, until [DONE]. Raises BrokenReply when it stops before."""
    buffer = bytearray()
    async for piece in response.content.iter_any():
        now_s = time.perf_counter()
        buffer += piece
        for event in split_events(buffer):
            if event == b"[DONE]":
                return
            yield json.loads(event), now_s
    raise BrokenReply("the stream stopped before [DONE]")


async def receive(response: aiohttp.ClientResponse, request: Request, answer: Answer) -> None:
    """Read one response into `answer`. Raises BrokenReply."""
    if response.status != 200:
        body = (await response.text())[:300]
        raise BrokenReply(f"HTTP {response.status}: {body.strip()}")
    if not request.stream:
        answer.take(await response.json(), time.perf_counter())
        return
    async for chunk, now_s in read_events(response):
        answer.take(chunk, now_s)


async def ask(session: aiohttp.ClientSession, url: str, model: str, request: Request) -> Reply:
    """Send one request and wait for its end. Raises ClientConnectorError when nobody listens; every other failure is a Reply."""
    answer = Answer(sent_s=time.perf_counter())
    try:
        async with session.post(f"{url}/v1/completions", json=request.payload(model)) as response:
            await receive(response, request, answer)
    except aiohttp.ClientConnectorError:
        raise
    except BrokenReply as error:
        return answer.reply(request, str(error))
    except TimeoutError:
        return answer.reply(request, "stalled: no byte within the time limit")
    except (aiohttp.ClientError, ConnectionError) as error:
        return answer.reply(request, f"connection lost: {type(error).__name__} {error}".strip())
    except ValueError as error:
        return answer.reply(request, f"not JSON: {error}")
    return answer.reply(request)


class ClosedLoop:
    """A queue of requests and the workers that empty it; each worker keeps one request in flight at one server."""

    def __init__(self, model: str, requests: Sequence[Request], on_reply: Callable[[Reply], None] | None, deadline_s: float | None) -> None:
        self.model = model
        self.queue = deque(enumerate(requests))
        self.replies: dict[int, Reply] = {}
        self.on_reply = on_reply
        self.stop_s = time.perf_counter() + (math.inf if deadline_s is None else deadline_s)
        self.dead: set[str] = set()

    def finish(self, place: int, reply: Reply) -> None:
        self.replies[place] = reply
        if self.on_reply is not None:
            self.on_reply(reply)

    async def work(self, session: aiohttp.ClientSession, url: str) -> None:
        """Take requests until the queue is empty, the deadline is past, or nobody listens at `url` any more."""
        while self.queue and url not in self.dead and time.perf_counter() < self.stop_s:
            place, request = self.queue.popleft()
            try:
                self.finish(place, await ask(session, url, self.model, request))
            except aiohttp.ClientConnectorError:
                self.dead.add(url)
                self.queue.appendleft((place, request))  # another server may answer it

    async def run(self, urls: Sequence[str], concurrency: int, stall_s: float) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=stall_s)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            workers = [self.work(session, url) for url, _ in zip(cycle(urls), range(concurrency), strict=False)]
            await asyncio.gather(*workers)
        late = time.perf_counter() >= self.stop_s
        for place, request in self.queue:
            error = "not sent: the deadline was past" if late else "not sent: no server listens"
            self.finish(place, Reply(id=request.id, ok=False, error=error))


def run_closed_loop(
    urls: str | Sequence[str],
    model: str,
    requests: Sequence[Request],
    concurrency: int,
    on_reply: Callable[[Reply], None] | None = None,
    deadline_s: float | None = None,
    stall_s: float = 120.0,
) -> list[Reply]:
    """Send `requests` in order with `concurrency` of them in flight (over all servers together); replies in the order of `requests`.

    urls: one server, or several that share the queue. on_reply is called as each reply ends; what it raises ends the loop.
    deadline_s: after it no request is sent any more; those in flight still finish, the rest come back as not sent.
    stall_s: longest silence of a server within one request (without streaming: longest whole request).
    A failed request gives ok=False and never an exception; a server that is gone fails the rest at once.
    """
    servers = [urls] if isinstance(urls, str) else list(urls)
    assert servers and concurrency >= 1, (servers, concurrency)
    loop = ClosedLoop(model, requests, on_reply, deadline_s)
    asyncio.run(loop.run(servers, concurrency, stall_s))
    return [loop.replies[place] for place in range(len(requests))]
