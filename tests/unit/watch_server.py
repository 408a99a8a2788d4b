"""A server for the tests of `watch`: its counters move by themselves at every look, as a script says."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from test_bench_running import Running

from mock_server import Behaviour

SPECULATING = Behaviour(accepted=(1,), depth=3)


class Scripted(Running):
    """Counters that move by themselves at every look: `step(server)` says how. Also tells running requests and finished ones."""

    def __init__(self, step: Callable[[Scripted], None], key: str = "") -> None:
        super().__init__(SPECULATING)
        self.step, self.key, self.looked, self.requests = step, key, 0, 0
        self.gone = False

    def __enter__(self) -> Scripted:
        super().__enter__()
        return self

    def metrics_text(self) -> str:
        self.looked += 1
        self.step(self)
        more = f'vllm:num_requests_running{{engine="0"}} 3.0\nvllm:request_decode_time_seconds_count{{engine="0"}} {self.requests}.0\n'
        return super().metrics_text() + more

    async def metrics(self, request: web.Request) -> web.Response:
        if self.gone:
            return web.Response(status=503)
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "no"}, status=401)
        return await super().metrics(request)


def moves(rounds: int, *shares: float) -> Callable[[Scripted], None]:
    """So many rounds between two looks, of which a share accepted at least 1, 2, 3 drafts."""

    def step(server: Scripted) -> None:
        server.rounds += rounds
        gained = [round(rounds * share) for share in shares]
        server.reached = [n + more for n, more in zip(server.reached, gained, strict=True)]
        server.requests += max(1, rounds // 50)
        server.tokens += rounds + sum(gained) + max(1, rounds // 50)

    return step


GOOD = moves(400, 0.6, 0.3, 0.15)
