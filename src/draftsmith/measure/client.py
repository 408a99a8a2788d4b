"""The load client: sends requests as a load says, reads their streams and counts tokens from the server's usage.

Per segment of a stream the client notes the time and splits events; JSON is parsed some dozens of events at a time, each event with
its own time of arrival, so that the parser's cost is halved and nothing is lost. One process, one thread; how long it was too busy to
look is recorded with each reply (`client_lag_s`), and how late it sent a request (`sent_s - due_s`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle

from draftsmith.measure.asking import Asker, Connections, Options
from draftsmith.measure.endpoints import endpoint_named
from draftsmith.measure.loads import ClosedLoad, Load
from draftsmith.measure.messages import Reply, Request
from draftsmith.measure.wire import NoServer

LAG_TICK_S, LAG_LEAST_S = 0.02, 0.001
NO_SERVER, LATE = "not sent: no server listens", "not sent: the deadline was past"


class Run:
    """One load on its way: requests that wait, replies that came."""

    def __init__(self, asker: Asker, requests: Sequence[Request], on_reply: Callable[[Reply], None] | None) -> None:
        self.asker, self.on_reply = asker, on_reply
        self.queue = deque(enumerate(requests))
        self.replies: dict[int, Reply] = {}
        deadline_s = asker.options.deadline_s
        self.stop_s = time.perf_counter() + (math.inf if deadline_s is None else deadline_s)

    def finish(self, place: int, reply: Reply) -> None:
        self.replies[place] = reply
        if self.on_reply is not None:
            self.on_reply(reply)

    # closed: a worker per slot

    async def slot(self, server: Connections, dead: set[Connections]) -> None:
        """Take requests until the queue is empty, the deadline is past, or nobody listens at `server` any more."""
        while self.queue and server not in dead and time.perf_counter() < self.stop_s:
            place, request = self.queue.popleft()
            try:
                self.finish(place, await self.asker.ask(server, request))
            except NoServer:
                dead.add(server)
                self.queue.appendleft((place, request))  # another server may answer it

    async def closed(self, servers: Sequence[Connections], concurrency: int) -> None:
        dead: set[Connections] = set()
        await asyncio.gather(*(self.slot(server, dead) for server, _ in zip(cycle(servers), range(concurrency), strict=False)))
        late = time.perf_counter() >= self.stop_s
        for place, request in self.queue:
            self.finish(place, Reply(id=request.id, ok=False, error=LATE if late else NO_SERVER, category=request.category))

    # open: a task per request, started when it is due

    async def one(self, place: int, request: Request, servers: deque[Connections], due_s: float, free: asyncio.Semaphore | None) -> None:
        """One request of an open load; the servers take turns, and one at which nobody listens is left out from then on."""
        try:
            while servers:
                server = servers[0]
                servers.rotate()
                try:
                    self.finish(place, await self.asker.ask(server, request, due_s))
                    return
                except NoServer:
                    if server in servers:
                        servers.remove(server)
            self.finish(place, Reply(id=request.id, ok=False, error=NO_SERVER, category=request.category, due_s=due_s))
        finally:
            if free is not None:
                free.release()

    async def open(self, servers: Sequence[Connections], due: Sequence[float], max_concurrency: int | None) -> None:
        turns = deque(servers)
        free = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # what on_reply raises ends the load
        tasks: set[asyncio.Task[None]] = set()

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None and not broken.done():
                broken.set_result(None)

        start_s = time.perf_counter()
        for place, request in sorted(self.queue, key=lambda entry: due[entry[0]]):
            due_s = start_s + due[place]
            if (wait_s := due_s - time.perf_counter()) > 0:
                await asyncio.wait({broken}, timeout=wait_s)
            if free is not None:
                await free.acquire()
            if broken.done():
                break
            if time.perf_counter() >= self.stop_s:
                self.finish(place, Reply(id=request.id, ok=False, error=LATE, category=request.category, due_s=due_s))
                continue
            task = asyncio.create_task(self.one(place, request, turns, due_s, free))
            task.add_done_callback(ended)
            tasks.add(task)
        await asyncio.gather(*tasks)

    async def watch_lag(self) -> None:
        """Note in the running answers for how long this thread was too busy to look at them."""
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(LAG_TICK_S)
            lag_s = time.perf_counter() - before_s - LAG_TICK_S
            if lag_s > LAG_LEAST_S:
                for answer in self.asker.active:
                    answer.client_lag_s = max(answer.client_lag_s, lag_s)

    async def run(self, urls: Sequence[str], load: Load, requests: Sequence[Request]) -> None:
        servers = [Connections(url) for url in urls]
        watch = asyncio.create_task(self.watch_lag())
        due = load.due(requests)
        try:
            if isinstance(load, ClosedLoad):
                await self.closed(servers, load.concurrency)
            else:
                assert due is not None
                await self.open(servers, due, load.max_concurrency)
        finally:
            watch.cancel()
            for server in servers:
                server.close()


def run_load(
    urls: str | Sequence[str],
    endpoint: str,
    model: str,
    requests: Sequence[Request],
    load: Load,
    on_reply: Callable[[Reply], None] | None = None,
    options: Options | None = None,
) -> list[Reply]:
    """Send `requests` as `load` says; replies in the order of `requests`.

    urls: one server, or several that share the requests. endpoint: completions, chat or generate (measure/endpoints.py).
    on_reply is called as each reply ends; what it raises ends the load. A failed request gives ok=False and never an exception; a
    server that is gone fails the rest at once. Raises UsageError for requests that the endpoint or the load cannot take.
    """
    servers = [urls] if isinstance(urls, str) else list(urls)
    assert servers, "no server"
    asker = Asker(endpoint_named(endpoint), model, options or Options())
    for request in requests:
        asker.endpoint.payload(request, model)
    run = Run(asker, requests, on_reply)
    asyncio.run(run.run(servers, load, requests))
    return [run.replies[place] for place in range(len(requests))]


def run_closed_loop(
    urls: str | Sequence[str],
    model: str,
    requests: Sequence[Request],
    concurrency: int,
    on_reply: Callable[[Reply], None] | None = None,
    deadline_s: float | None = None,
    stall_s: float = 120.0,
    endpoint: str = "completions",
) -> list[Reply]:
    """`run_load` of a closed loop, with `concurrency` requests in flight over all servers together."""
    assert concurrency >= 1, concurrency
    return run_load(urls, endpoint, model, requests, ClosedLoad(concurrency), on_reply, Options(deadline_s, stall_s))
