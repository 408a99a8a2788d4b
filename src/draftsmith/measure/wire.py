"""One HTTP/1.1 exchange after another on a connection, with as little work per segment as asyncio allows.

A general client spends several times more per streamed token on its layers (parser objects, stream reader, one task switch each); the
client then distorts what it measures at a few hundred streams (benchmarks/client/). Here a segment is a callback: note the time, take
the coding off, hand the events on. Only what inference servers use is known: POST, no redirects, no compression, no proxy.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from draftsmith.measure.sse import BadBody, ChunkedBody

CONNECT_TIMEOUT_S = 10.0
SEGMENT_BYTES = 65536
MOST_HEAD_BYTES = 65536


class NoServer(ConnectionError):
    """Nobody listens at the address."""


class LostConnection(ConnectionError):
    """The server closed or reset the connection before the response was whole."""


class Address(NamedTuple):
    """Where a server is; `base` is the path before /v1."""

    host: str
    port: int
    tls: bool
    base: str

    @classmethod
    def of(cls, url: str) -> Address:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        tls = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname or "127.0.0.1", parts.port or (443 if tls else 80), tls, base)


class Exchange(asyncio.BufferedProtocol):
    """A connection. `feed(body bytes, time)` is called for each segment of a response; `finished` resolves when it is whole.

    segment: the buffer that the connections of one event loop read into in turn; asyncio's own way, a new one of 256 KiB for every
    segment, costs more than all the rest.
    """

    def __init__(self, segment: memoryview) -> None:
        self.segment = segment
        self.transport: asyncio.Transport | None = None
        self.open = False
        self.feed: Callable[[bytes, float], None] = ignore
        self.reset()
        self.finished.set_result(None)  # nothing has been asked yet

    def reset(self) -> None:
        """Ready for the next response."""
        self.head = b""
        self.in_body = False
        self.status = 0
        self.chunked: ChunkedBody | None = None
        self.left: int | None = None  # bytes of the body that have not come; None: until the server closes
        self.keep = True
        self.last_byte_s = time.perf_counter()
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, data: bytes, feed: Callable[[bytes, float], None]) -> None:
        """Write a whole request. The response goes to `feed`, and `finished` tells how it ended: None, LostConnection, or the
        ValueError that `feed` raised."""
        self.reset()
        self.feed = feed
        if self.transport is None or not self.open:
            self.fail(LostConnection("closed by the server before it was asked"))
        else:
            self.transport.write(data)

    def close(self) -> None:
        """Close the connection; what is under way is given up."""
        if self.transport is not None:
            self.transport.abort()

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.open = transport, True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.segment

    def buffer_updated(self, nbytes: int) -> None:
        now_s = time.perf_counter()
        data = bytes(self.segment[:nbytes])
        self.last_byte_s = now_s
        if self.finished.done():  # bytes after the end: this connection cannot be trusted any more
            self.keep = False
            return
        try:
            if not self.in_body:
                data = self.read_head(data)
            if self.in_body:
                self.read_body(data, now_s)
        except ValueError as error:
            self.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self.finished.done():
            return
        if exc is None and self.in_body and self.chunked is None and self.left is None:
            self.finished.set_result(None)
        else:
            what = f"{type(exc).__name__} {exc}" if exc else "closed by the server"
            self.fail(LostConnection(what if self.in_body or self.head else f"{what} before it answered"))

    def fail(self, error: Exception) -> None:
        self.keep = False
        if not self.finished.done():
            self.finished.set_exception(error)
            self.finished.exception()  # seen: after Ctrl-C nobody waits for it any more, and asyncio would print a traceback

    # reading

    def read_head(self, data: bytes) -> bytes:
        """Take status line and header off; the rest belongs to the body. Raises BadBody."""
        self.head += data
        end = self.head.find(b"\r\n\r\n")
        if end < 0:
            if len(self.head) > MOST_HEAD_BYTES:
                raise BadBody("a header without end")
            return b""
        lines = self.head[:end].decode("latin-1").split("\r\n")
        rest = self.head[end + 4 :]
        version, _, status = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdigit():
            raise BadBody(f"not an HTTP/1 response: {lines[0][:40]!r}")
        if status.startswith("1"):  # e.g. 100 Continue: the response proper follows
            self.head = b""
            return self.read_head(rest) if rest else b""
        fields = {name.strip().lower(): value.strip().lower() for name, _, value in (line.partition(":") for line in lines[1:])}
        self.status = int(status[:3])
        self.keep = "close" not in fields.get("connection", "") and version != "HTTP/1.0"
        if "chunked" in fields.get("transfer-encoding", ""):
            self.chunked = ChunkedBody()
        elif "content-length" in fields:
            self.left = int(fields["content-length"])
        else:
            self.keep = False
        self.in_body = True
        return rest

    def read_body(self, data: bytes, now_s: float) -> None:
        if self.chunked is not None:
            content, over = self.chunked.feed(data), False
            over = self.chunked.done
        elif self.left is not None:
            content = data[: self.left]
            self.left -= len(content)
            over = self.left == 0
        else:
            content, over = data, False
        if content:
            self.feed(content, now_s)
        if over and not self.finished.done():
            self.finished.set_result(None)


def ignore(_: bytes, __: float) -> None:
    """The reader of a connection that has nothing to read."""


async def connect(address: Address, tls: ssl.SSLContext | None, segment: memoryview) -> Exchange:
    """A new connection. Raises NoServer."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, exchange = await loop.create_connection(lambda: Exchange(segment), address.host, address.port, ssl=tls)
    except (OSError, TimeoutError) as error:
        raise NoServer(f"{address.host}:{address.port}: {type(error).__name__} {error}".strip()) from error
    return exchange


def request_bytes(address: Address, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """A whole POST."""
    lines = [
        f"POST {address.base}{path} HTTP/1.1",
        f"Host: {address.host}:{address.port}",
        "Content-Type: application/json",
        "Accept: text/event-stream, application/json",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
