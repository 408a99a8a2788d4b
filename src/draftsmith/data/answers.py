"""Asking the engines and keeping every reply: a journal that survives a kill, and one way to ask for what it lacks."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftsmith.engines.server import Server
from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Talk
from draftsmith.manifest import append_jsonl, read_jsonl
from draftsmith.measure.client import Reply, Request, run_closed_loop

STALL_S = 600.0  # longest whole request: answers are not streamed


class Journal:
    """One JSON line per good reply, in order of arrival. `active_s` counts the time of asking over all starts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        kept = read_jsonl(path)
        self.rows: dict[str, dict[str, Any]] = {row["id"]: row for row in kept}
        self.before_s = max((row["active_s"] for row in kept), default=0.0)
        self.started = time.monotonic()

    @property
    def active_s(self) -> float:
        return self.before_s + time.monotonic() - self.started

    @property
    def asked_s(self) -> float:
        """Time of asking up to the last reply."""
        return max((row["active_s"] for row in self.rows.values()), default=0.0)

    @property
    def tokens(self) -> int:
        return sum(len(row["token_ids"]) for row in self.rows.values())

    def start_clock(self) -> None:
        """Asking begins (again) now."""
        self.before_s, self.started = self.asked_s, time.monotonic()

    def add(self, reply: Reply) -> None:
        row = {
            "id": reply.id,
            "prompt_tokens": reply.prompt_tokens,
            "finish_reason": reply.finish_reason,
            "text": reply.text,
            "token_ids": list(reply.token_ids),
            "active_s": round(self.active_s, 3),
        }
        append_jsonl(self.path, row)
        self.rows[reply.id] = row


@dataclass(frozen=True)
class Asker:
    """The running engines, and how many requests each keeps in flight."""

    servers: Sequence[Server]
    model: str
    concurrency: int
    talk: Talk
    endpoint: str = "completions"

    def ask(self, what: str, requests: Sequence[Request], journal: Journal, deadline_s: float | None = None) -> None:
        """Bring the journal up to `requests`: what it holds already is not asked again; a failed request is asked once more.

        deadline_s: seconds from now after which no request is sent any more. Raises EnvironmentFailed when an engine has died or
        requests fail twice.
        """
        journal.start_clock()
        for _attempt in range(2):
            missing = [replace(request, stream=False) for request in requests if request.id not in journal.rows]
            left_s = None if deadline_s is None else deadline_s - (time.monotonic() - journal.started)
            if not missing or (left_s is not None and left_s <= 0):
                return
            failed = self._round(what, missing, journal, left_s)
            if not failed:
                return
        raise EnvironmentFailed(
            f"{what}: {len(failed)} of {len(requests)} requests failed twice: {failed[0].error}", hint=f"engine log: {self.servers[0].log}"
        )

    def _round(self, what: str, requests: list[Request], journal: Journal, left_s: float | None) -> list[Reply]:
        """Send `requests` once; the failed replies, less those that the deadline kept from being sent."""
        begin, before = time.monotonic(), journal.tokens
        tokens = done = 0

        def keep(reply: Reply) -> None:
            nonlocal tokens, done
            if not reply.ok:
                return
            if not reply.token_ids:
                raise EnvironmentFailed("the engine's reply has no token ids", hint="use an engine version that knows `return_token_ids`")
            journal.add(reply)
            tokens, done = tokens + len(reply.token_ids), done + 1
            rate = tokens / (time.monotonic() - begin)
            self.talk.progress(f"data: {what}", done, len(requests), begin, f"{done}/{len(requests)}, {rate:.0f} tok/s")

        urls = [server.url for server in self.servers]
        replies = run_closed_loop(urls, self.model, requests, self.concurrency * len(urls), keep, left_s, STALL_S, self.endpoint)
        for server in self.servers:
            server.check_alive()
        took_s = time.monotonic() - begin
        self.talk.say(f"data: {what}: {done} replies, {journal.tokens - before} tokens in {took_s:.0f} s ({tokens / took_s:.0f} tok/s)")
        late = left_s is not None and took_s >= left_s
        return [reply for reply in replies if not reply.ok and not (late and math.isnan(reply.sent_s))]
