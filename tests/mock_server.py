"""A small OpenAI/vLLM-like server for tests: known token rate, acceptance counters on /metrics, faults on demand.

It runs in a thread of its own, so a test can drive the blocking client. It exists to inject faults and known truths;
whatever can be tested on a real engine is tested there.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from draftsmith.engines.vllm.engine import VLLM
from draftsmith.errors import EnvironmentFailed
from draftsmith.measure.protocol import Planned, Starter
from draftsmith.metrics import Acceptance
from mock_formats import FORMATS, Moment

EOS = 2
MID_STREAM = ("cut", "reset", "die", "truncated", "stall", "error_event", "not_json")  # after half of the tokens
FAULTS = (
    *MID_STREAM,
    *("http_500", "abort", "short", "context_cut", "slow_start", "no_done", "open_body", "buffered", "lost_ids"),
    *("no_usage", "trailing_usage", "shrinking_usage", "too_many", "more_reasoning", "prompt_cut"),
    *("comments", "split_bytes", "crlf"),
)


@dataclass(frozen=True)
class Behaviour:
    """How the server answers. Times in seconds.

    accepted: drafts accepted in each round, repeated over a request's rounds; empty means plain decoding, one token a step.
    faults: prompt's first token id -> one of FAULTS.   answer_tokens: where a request without ignore_eos stops (None: max_tokens).
    first_chunk: tokens held back for the first chunk.   empty_chunks: an empty chunk follows every chunk.
    thinking: tokens of an answer that are reasoning (chat).   increments: /generate streams what is new, not all so far.
    spec_names: how /generate calls (rounds, histogram of accepted drafts); "" leaves one out.
    """

    step_s: float = 0.001
    prefill_s: float = 0.0
    accepted: tuple[int, ...] = ()
    depth: int = 0
    answer_tokens: int | None = None
    first_chunk: int = 1
    empty_chunks: bool = False
    thinking: int = 0
    increments: bool = False
    spec_names: tuple[str, str] = ("spec_verify_ct", "spec_correct_drafts_histogram")
    faults: Mapping[int, str] = field(default_factory=dict)
    slow_down: Callable[[int], float] = lambda in_flight: 1.0  # step time factor by requests in flight


class MockServer:
    """`with MockServer(Behaviour()) as server:` serves at `server.url`; `server.seen` holds the request bodies."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        self.seen: list[dict] = []
        self.tokens = self.rounds = self.in_flight = self.most_in_flight = 0
        self.reached = [0] * self.behaviour.depth
        self.url = ""
        self.peers: set[object] = set()
        self.ended = False  # the server died, or was told to stop
        self.loop = asyncio.new_event_loop()
        self.up = threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def __enter__(self) -> MockServer:
        self.thread.start()
        assert self.up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        if not self.ended:
            self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    @property
    def connections(self) -> int:
        """Connections over which requests came."""
        return len(self.peers)

    def serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        app = web.Application()
        for path in FORMATS:
            app.router.add_post(path, self.completions)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/health", self.health)
        self.add_routes(app)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        self.loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self.loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self.up.set()
        self.loop.run_forever()
        self.ended = True
        self.loop.run_until_complete(runner.cleanup())
        self.loop.close()

    def add_routes(self, app: web.Application) -> None:
        """For servers that can do more."""

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    def metrics_text(self) -> str:
        """Prometheus text with vLLM's names; no acceptance counters when plain."""
        lines = [f'vllm:generation_tokens_total{{engine="0"}} {float(self.tokens)}']
        if self.behaviour.accepted:
            lines.append(f'vllm:spec_decode_num_drafts_total{{engine="0"}} {float(self.rounds)}')
            lines.append(f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {float(self.rounds * self.behaviour.depth)}')
            lines.append(f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {float(sum(self.reached))}')
            for i, n in enumerate(self.reached):
                lines.append(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{i}"}} {float(n)}')
        return "\n".join(lines) + "\n"

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self.metrics_text())

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        self.peers.add(request.transport.get_extra_info("peername") if request.transport else None)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self.answer(request, FORMATS[request.path].normal(body))
        finally:
            self.in_flight -= 1

    def answer_ids(self, body: dict, fault: str) -> list[int]:
        """The greedy answer: a function of the prompt alone."""
        length = body["max_tokens"]
        if self.behaviour.answer_tokens is not None and not body["ignore_eos"]:
            length = min(length, self.behaviour.answer_tokens)
        if fault in ("short", "context_cut"):
            length = max(1, length // 2)
        return [3 + (7 * sum(body["prompt"]) + i) % 1000 for i in range(length)]

    async def answer(self, request: web.Request, body: dict) -> web.StreamResponse:
        fault = self.behaviour.faults.get(body["prompt"][0], "")
        if fault == "http_500":
            return web.json_response({"error": {"message": "boom"}}, status=500)
        if fault == "slow_start":
            await asyncio.sleep(0.3)
        ids = self.answer_ids(body, fault)
        early = {"abort": "abort", "short": "stop", "context_cut": "length"}
        reason = early.get(fault, "length" if len(ids) == body["max_tokens"] else "stop")
        moment = Moment(self.behaviour, body, ids, reason, fault)
        form = FORMATS[request.path]
        if not body["stream"]:
            async for _ in self.decode(ids, moment.histogram):
                pass
            return web.json_response(form.whole(moment.at(0, len(ids))))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent = 0
        async for count in self.decode(ids, moment.histogram):
            if fault in MID_STREAM and sent >= len(ids) // 2:
                await self.break_off(request, response, fault)
                return response
            await send(response, form.chunk(moment.at(sent, count)), fault)
            if self.behaviour.empty_chunks:
                await send(response, form.chunk(moment.at(count, count)), fault)
            sent = count
        if fault != "no_usage" and (trailing := form.trailing(moment.at(sent, sent))):
            await send(response, trailing, fault)
        if fault != "no_done":
            await response.write(b"data: [DONE]\n\n")
        if fault == "open_body":
            await asyncio.sleep(2)
        return response

    async def break_off(self, request: web.Request, response: web.StreamResponse, fault: str) -> None:
        """What a server does in the middle of a stream when something goes wrong. "cut" just ends the body."""
        assert request.transport is not None
        if fault in ("reset", "die"):
            request.transport.abort()
            if fault == "die":
                self.loop.call_soon(self.loop.stop)
        elif fault == "truncated":  # a proxy that goes away: closed in order, but without the last HTTP chunk
            request.transport.close()
        elif fault == "stall":
            await asyncio.sleep(3600)
        elif fault == "error_event":
            await send(response, {"error": {"message": "engine died", "code": 500}})
            await response.write(b"data: [DONE]\n\n")  # as SGLang does
        elif fault == "not_json":
            await response.write(b"data: {'choices': [\n\n")

    async def decode(self, ids: list[int], histogram: list[int]):
        """Yield the number of tokens decoded so far, at the moments when a chunk is due, and keep the counters.

        histogram: counts the rounds of this request by accepted drafts.
        """
        shape = self.behaviour
        await asyncio.sleep(shape.prefill_s)
        count, round_number = 1, 0
        self.tokens += 1
        held_back = shape.first_chunk
        if count >= held_back or count == len(ids):
            yield count
        while count < len(ids):
            await asyncio.sleep(shape.step_s * shape.slow_down(self.in_flight))
            step = 1
            if shape.accepted:
                hits = shape.accepted[round_number % len(shape.accepted)]
                round_number += 1
                self.rounds += 1
                histogram[hits] += 1
                for i in range(hits):
                    self.reached[i] += 1
                step = min(hits + 1, len(ids) - count)
            count += step
            self.tokens += step
            if count >= held_back or count == len(ids):
                yield count


async def send(response: web.StreamResponse, content: dict, fault: str = "") -> None:
    """One event. The text of a chunk holds a letter of three bytes, so "split_bytes" also cuts through letters."""
    data = b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"
    if fault == "comments":
        data = b": keep-alive\n\n" + b"event: chunk\nid: 7\n" + data + b":\n\n"
    if fault == "crlf":
        data = data.replace(b"\n", b"\r\n")
    if fault != "split_bytes":
        await response.write(data)
        return
    for start in range(0, len(data), 7):
        await response.write(data[start : start + 7])
        await asyncio.sleep(0)


class MockLaunch:
    """A MockServer as `measure.protocol.Serving`, its counters read by the real vLLM parser."""

    def __init__(self, server: MockServer) -> None:
        self.server = server
        self.argv = ["mock"]
        self.ready_s = 0.0
        self.engine = VLLM()

    @property
    def url(self) -> str:
        return self.server.url

    def acceptance(self, depth: int) -> Acceptance | None:
        return self.engine.acceptance(self.server.metrics_text(), depth)

    def generation_tokens(self) -> int | None:
        return self.engine.generation_tokens(self.server.metrics_text())

    def check_alive(self) -> None:
        if not self.server.thread.is_alive():
            raise EnvironmentFailed("mock engine died", hint="as asked")

    def rss_bytes(self) -> int:
        return 1


def mock_starter(behaviour: Callable[[Planned], Behaviour], started: list[list[int]] | None = None) -> Starter:
    """Starts a MockServer per launch; `started` collects the launch indices of every group."""

    @contextmanager
    def start(group: Sequence[Planned]) -> Iterator[list[MockLaunch]]:
        if started is not None:
            started.append([planned.index for planned in group])
        with ExitStack() as stack:
            yield [MockLaunch(stack.enter_context(MockServer(behaviour(planned)))) for planned in group]

    return start
