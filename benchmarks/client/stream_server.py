"""A server that streams completions at exactly known times, as cheaply as Python can: every chunk is built before it is needed.

    python stream_server.py --port 8765 --rate 50

Each stream gets one token per chunk, `rate` a second; the streams are spread over the ticks of a timer wheel (1 ms). After
POST /reset?N nothing is sent until N requests have come, so that all N streams run together. The server keeps its own record of when
it sent (GET /stats; GET /sent: only how many chunks), so a slow server is not taken for a slow client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from functools import cache

TICK_S = 0.001
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def chunked(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


@cache
def chunks(chat: bool, tokens: int, prompt_tokens: int, usage: bool, ids: bool) -> tuple[bytes, ...]:
    """All chunks of a stream, as vLLM writes them; the last one carries the finish, the trailing usage and [DONE]."""
    built = []
    head = {"id": "cmpl-0", "object": "chat.completion.chunk" if chat else "text_completion", "created": 1700000000, "model": "target"}
    for i in range(tokens):
        said = {"delta": {"content": " token"}} if chat else {"text": " token"}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": "length" if i == tokens - 1 else None, "stop_reason": None}
        if ids:
            choice["token_ids"] = [100 + i % 1000]
        counts = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + i + 1, "completion_tokens": i + 1}
        chunk = {**head, "choices": [choice], **({"usage": counts} if usage else {})}
        data = chunked(b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n")
        if i == tokens - 1:
            data += chunked(b"data: " + json.dumps({**head, "choices": [], "usage": counts}, separators=(",", ":")).encode() + b"\n\n")
            data += chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        built.append(data)
    return tuple(built)


class Wheel:
    """Sends what is due at each tick. Slot k of the wheel holds the streams that are due at ticks k, k + period, ..."""

    def __init__(self, rate: float) -> None:
        self.period = round(1 / rate / TICK_S)
        self.slots: list[list[Stream]] = [[] for _ in range(self.period)]
        self.next_slot = 0
        self.reset()

    def reset(self, together: int = 1) -> None:
        self.together = together  # streams that start at the same time
        self.waiting: list[Stream] = []
        self.sent = 0
        self.worst_late_s = 0.0
        self.finished: list[tuple[float, float, int]] = []  # first send, last send, tokens

    def add(self, stream: Stream) -> None:
        self.waiting.append(stream)
        if len(self.waiting) < self.together:
            return
        for ready in self.waiting:
            self.slots[self.next_slot].append(ready)
            self.next_slot = (self.next_slot + 1) % self.period
        self.waiting, self.together = [], 1

    async def turn(self) -> None:
        start_s, tick = time.perf_counter(), 0
        while True:
            due_s = start_s + tick * TICK_S
            now_s = time.perf_counter()
            if now_s < due_s:
                await asyncio.sleep(due_s - now_s)
                now_s = time.perf_counter()
            slot = self.slots[tick % self.period]
            if slot:
                self.worst_late_s = max(self.worst_late_s, now_s - due_s)
                self.slots[tick % self.period] = [stream for stream in slot if stream.send_next()]
            tick += 1
            if tick % 20 == 0:
                await asyncio.sleep(0)  # a late wheel must not keep requests from being read


class Stream(asyncio.Protocol):
    """A connection; one request at a time."""

    def __init__(self, wheel: Wheel) -> None:
        self.wheel = wheel
        self.buffer = b""
        self.chunks: tuple[bytes, ...] = ()
        self.at = 0
        self.first_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.chunks = ()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, mark, body = self.buffer.partition(b"\r\n\r\n")
        if not mark:
            return
        fields = head.decode("latin-1").lower()
        length = next((int(line.split(":")[1]) for line in fields.split("\r\n") if line.startswith("content-length:")), 0)
        if "expect: 100-continue" in fields and not body:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if len(body) < length:
            return
        self.buffer = body[length:]
        path, _, query = head.split(b" ", 2)[1].partition(b"?")
        self.answer(path, query, body[:length])

    def answer(self, path: bytes, query: bytes, body: bytes) -> None:
        if path == b"/stats":
            self.json(
                {
                    "sent": self.wheel.sent,
                    "worst_late_s": self.wheel.worst_late_s,
                    "waiting": len(self.wheel.waiting),
                    "finished": self.wheel.finished,
                }
            )
        elif path == b"/sent":
            self.json({"sent": self.wheel.sent})
        elif path == b"/reset":
            self.wheel.reset(int(query or 1))
            self.json({})
        elif path == b"/v1/models":
            self.json(
                {
                    "object": "list",
                    "data": [{"id": "target", "object": "model", "created": 0, "owned_by": "mock", "max_model_len": 1 << 20}],
                }
            )
        elif path in (b"/v1/completions", b"/v1/chat/completions"):
            self.start(path == b"/v1/chat/completions", json.loads(body))
        else:
            self.json({})

    def json(self, content: object) -> None:
        data = json.dumps(content).encode()
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data)

    def start(self, chat: bool, body: dict) -> None:
        tokens = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        prompt = body.get("prompt") or "x"
        prompt_tokens = len(prompt) if isinstance(prompt, list) else 16
        if not body.get("stream"):
            counts = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens}
            said = {"message": {"role": "assistant", "content": " token"}} if chat else {"text": " token"}
            self.json({"id": "cmpl-0", "model": "target", "choices": [{"index": 0, **said, "finish_reason": "length"}], "usage": counts})
            return
        options = body.get("stream_options") or {}
        usage = bool(options.get("continuous_usage_stats"))
        self.chunks = chunks(chat, tokens, prompt_tokens, usage, bool(body.get("return_token_ids")))
        self.at = 0
        self.transport.write(HEAD)
        self.wheel.add(self)

    def send_next(self) -> bool:
        """Send the next chunk; False after the last one."""
        if not self.chunks:
            return False
        if self.at == 0:
            self.first_s = time.perf_counter()
        self.transport.write(self.chunks[self.at])
        self.at += 1
        self.wheel.sent += 1
        if self.at < len(self.chunks):
            return True
        self.wheel.finished.append((self.first_s, time.perf_counter(), self.at))
        self.chunks = ()
        return False


async def serve(port: int, rate: float) -> None:
    wheel = Wheel(rate)
    server = await asyncio.get_running_loop().create_server(lambda: Stream(wheel), "127.0.0.1", port, backlog=4096)
    async with server:
        await wheel.turn()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, default=50.0)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.rate))
