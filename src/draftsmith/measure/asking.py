"""One request and its answer: the connection it takes, the reader of its stream, and every way in which it can fail."""

from __future__ import annotations

import asyncio
import json
import math
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftsmith.measure.endpoints import Endpoint
from draftsmith.measure.messages import Answer, BrokenReply, Reply, Request, error_text
from draftsmith.measure.sse import DONE, EventSplitter, parse_events
from draftsmith.measure.wire import SEGMENT_BYTES, Address, Exchange, LostConnection, connect, request_bytes

PARSE_AT_ONCE = 32  # events; a parse of that many takes about 0.1 ms, so it does not delay other streams
IDLE_S = 1.0  # servers close idle connections after seconds; an older one is not used again
BODY_END_S = 0.5  # how long the end of the body may lag behind [DONE]


@dataclass(frozen=True)
class Options:
    """deadline_s: after it no request is sent any more; those in flight still finish, the rest come back as not sent.
    stall_s: longest silence of a server within one request (without streaming: longest whole request).
    headers: e.g. {"Authorization": "Bearer ..."}.   arrivals: keep the time of every chunk in the replies."""

    deadline_s: float | None = None
    stall_s: float = 120.0
    headers: Mapping[str, str] = field(default_factory=dict)
    arrivals: bool = True


class Reader:
    """Reads one response into an `Answer`."""

    def __init__(self, exchange: Exchange, endpoint: Endpoint, request: Request, answer: Answer) -> None:
        self.exchange, self.endpoint, self.request, self.answer = exchange, endpoint, request, answer
        self.splitter = EventSplitter()
        self.events: list[bytes] = []
        self.times: list[float] = []
        self.plain: list[bytes] = []  # a body that is no stream
        self.done = False

    def feed(self, content: bytes, now_s: float) -> None:
        """One segment of the body. Raises BrokenReply or another ValueError."""
        if not self.request.stream or self.exchange.status != 200:
            self.plain.append(content)
            return
        self.take(self.splitter.feed(content), now_s)

    def take(self, events: list[bytes], now_s: float) -> None:
        if DONE in events:
            self.done = True
            asyncio.get_running_loop().call_later(BODY_END_S, give_up_body, self.exchange, self.exchange.finished)
            events = events[: events.index(DONE)]
        self.events += events
        self.times += [now_s] * len(events)
        if len(self.events) >= PARSE_AT_ONCE:
            self.parse()

    def parse(self) -> None:
        events, times = self.events, self.times
        self.events, self.times = [], []
        self.read(parse_events(events), times)

    def read(self, chunks: Sequence[Any], times: Sequence[float]) -> None:
        """Add chunks that came at `times`. Raises BrokenReply."""
        read, add, chunk = self.endpoint.read, self.answer.add, None
        try:
            for chunk, now_s in zip(chunks, times, strict=True):
                add(read(chunk), now_s)
        except (AttributeError, KeyError, TypeError) as error:
            raise BrokenReply(f"a chunk has an unexpected shape: {str(chunk)[:200]}") from error

    def finish(self) -> None:
        """The body has ended, or nothing more is waited for. Raises BrokenReply or another ValueError."""
        body = b"".join(self.plain)
        if self.exchange.status not in (0, 200):
            raise BrokenReply(f"HTTP {self.exchange.status}: {http_error(body)}")
        if self.request.stream:
            if not self.done:
                self.take(self.splitter.finish(), self.exchange.last_byte_s)
            self.parse()
        elif body:
            self.read([json.loads(body)], [self.exchange.last_byte_s])


def give_up_body(exchange: Exchange, finished: asyncio.Future[None]) -> None:
    """The server keeps the body open after [DONE]: the reply is whole, the connection is not used again. By now the connection may be
    answering another request, so it is told by its future which one is meant."""
    if not finished.done():
        exchange.keep = False
        finished.set_result(None)


def http_error(body: bytes) -> str:
    """What a body of an error status says."""
    try:
        content = json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()[:300]
    return error_text(content.get("error", content.get("detail", content)) if isinstance(content, dict) else content)


class Connections:
    """The connections to one server; an idle one is used again while it is fresh."""

    def __init__(self, url: str) -> None:
        self.address = Address.of(url)
        self.tls = ssl.create_default_context() if self.address.tls else None
        self.segment = memoryview(bytearray(SEGMENT_BYTES))
        self.idle: list[Exchange] = []
        self.every: set[Exchange] = set()

    async def take(self) -> Exchange:
        """Raises NoServer."""
        while self.idle:
            exchange = self.idle.pop()
            if exchange.open and time.perf_counter() - exchange.last_byte_s < IDLE_S:
                return exchange
            self.drop(exchange)
        exchange = await connect(self.address, self.tls, self.segment)
        self.every.add(exchange)
        return exchange

    def give(self, exchange: Exchange) -> None:
        if exchange.keep and exchange.open and exchange.finished.done():
            self.idle.append(exchange)
        else:
            self.drop(exchange)

    def drop(self, exchange: Exchange) -> None:
        self.every.discard(exchange)
        exchange.close()

    def close(self) -> None:
        for exchange in list(self.every):
            self.drop(exchange)


async def until_finished(exchange: Exchange, stall_s: float) -> None:
    """Wait for the end of a response. Raises TimeoutError after `stall_s` without a byte, and what ended the exchange otherwise."""
    while True:
        left_s = exchange.last_byte_s + stall_s - time.perf_counter()
        if left_s <= 0:
            raise TimeoutError
        done, _ = await asyncio.wait({exchange.finished}, timeout=left_s)
        if done:
            exchange.finished.result()
            return


class Asker:
    """Asks one endpoint for one model. `active`: the answers that are coming in."""

    def __init__(self, endpoint: Endpoint, model: str, options: Options) -> None:
        self.endpoint, self.model, self.options = endpoint, model, options
        self.active: set[Answer] = set()

    async def ask(self, server: Connections, request: Request, due_s: float = math.nan) -> Reply:
        """Send one request and wait for its end. Raises NoServer when nobody listens; every other failure is a Reply."""
        body = json.dumps(self.endpoint.payload(request, self.model)).encode()
        data = request_bytes(server.address, self.endpoint.path, body, self.options.headers)
        exchange = await server.take()
        answer = Answer(time.perf_counter(), due_s)
        reader = Reader(exchange, self.endpoint, request, answer)
        self.active.add(answer)
        try:
            exchange.send(data, reader.feed)
            error = await self.wait(exchange, reader)
        finally:
            self.active.discard(answer)
            server.give(exchange)
        return answer.reply(request, error, self.options.arrivals)

    async def wait(self, exchange: Exchange, reader: Reader) -> str:
        """Until the response is over; what was wrong with it. What the server itself said explains more than how it ended."""
        error = ""
        try:
            await until_finished(exchange, self.options.stall_s)
        except TimeoutError:
            error = "stalled: no byte within the time limit"
        except LostConnection as lost:
            error = "" if reader.done else f"connection lost: {lost}"
        except BrokenReply as broken:
            error = str(broken)
        except ValueError as broken:
            error = f"not JSON: {broken}"
        try:
            reader.finish()
        except BrokenReply as broken:
            return str(broken)
        except ValueError as broken:
            return error or f"not JSON: {broken}"
        return error or ("the stream stopped before [DONE]" if reader.request.stream and not reader.done else "")
