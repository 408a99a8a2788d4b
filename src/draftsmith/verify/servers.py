"""The launches of verify: same held-out prompts to each server, raw replies kept. A finished launch is read back, not repeated."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.engines.protocol import Arm, Drafting, Launch
from draftsmith.engines.registry import engine_for
from draftsmith.engines.server import Server, start_many
from draftsmith.errors import InvalidMeasurement
from draftsmith.job import Job
from draftsmith.manifest import atomic_write_text, read_jsonl
from draftsmith.measure.client import Reply, Request, run_closed_loop
from draftsmith.measure.recorder import told_with_replies
from draftsmith.metrics import Acceptance
from draftsmith.verify.sequences import Answer
from draftsmith.verify.settings import VerifySettings

COUNTER_LAG_S = 5.0  # an engine may publish its counters a moment after the last token


@dataclass(frozen=True)
class Ask:
    """One launch and what to ask it."""

    arm: Arm
    dtype: str
    max_tokens: int
    env: dict[str, str]

    @property
    def label(self) -> str:
        return f"{self.dtype}-{self.arm}"


@dataclass(frozen=True)
class Served:
    """The answers of one launch, in prompt order, and its acceptance over exactly these prompts."""

    answers: list[Answer]
    acceptance: Acceptance | None
    record: dict[str, Any]


class Verifier:
    """Starts the servers of one job and keeps their replies in `folder`."""

    def __init__(self, settings: VerifySettings, job: Job, prompts: dict[str, tuple[int, ...]]) -> None:
        self.settings = settings
        self.job = job
        self.prompts = prompts
        self.folder = job.folder("verify")

    def serve(self, asks: Sequence[Ask]) -> list[Served]:
        """Answers of each ask; those without a finished file are launched side by side. Raises EnvironmentFailed, InvalidMeasurement."""
        todo = [ask for ask in asks if not self.path(ask).exists()]
        if todo:
            engine, python = engine_for(self.job.engine)
            launches = [self.launch(ask) for ask in todo]
            logs = [self.folder / f"{ask.label}.log" for ask in todo]
            label = " and ".join(ask.label for ask in todo)
            self.folder.mkdir(parents=True, exist_ok=True)
            with (
                ThreadPoolExecutor(len(todo)) as pool,  # outside: when interrupted, the servers stop first and the clients' threads end
                start_many(engine, python, launches, logs, self.job.engine.ready_timeout_s, self.job.talk, label) as servers,
            ):
                list(pool.map(self.question, servers, todo))
        return [self.read(ask) for ask in asks]

    def launch(self, ask: Ask) -> Launch:
        """The recipe's launch in the asked dtype."""
        job = self.job
        speculative = ask.arm == "speculative"
        return Launch(
            arm=ask.arm,
            target=job.target,
            flags={**job.engine.flags, "dtype": ask.dtype},
            env={**job.engine.env, **ask.env},
            drafting=Drafting(job.drafter.algorithm, job.folder("export"), job.drafter.depth) if speculative else None,
            trust_remote_code=job.trust_remote_code,
        )

    def path(self, ask: Ask) -> Path:
        return self.folder / f"{ask.label}.jsonl"

    def question(self, server: Server, ask: Ask) -> None:
        """Ask one server every prompt and write its file: a launch record, then one line per reply."""
        depth = self.job.drafter.depth
        requests = [
            Request(id=name, prompt_token_ids=prompt, max_tokens=ask.max_tokens, stream=False) for name, prompt in self.prompts.items()
        ]
        before = server.acceptance(depth) if ask.arm == "speculative" else None
        started = time.monotonic()
        done = 0

        def progress(_reply: Reply) -> None:
            nonlocal done
            done += 1
            self.job.talk.progress(f"verify {ask.label}", done, len(requests), started)

        engine, concurrency = server.engine, self.settings.concurrency
        replies = run_closed_loop(server.url, engine.served_model, requests, concurrency, progress, endpoint=engine.endpoint)
        check_replies(replies, server, ask.label)
        acceptance = self.acceptance(server, replies, before) if ask.arm == "speculative" else None
        record = {
            "launch": ask.label,
            "argv": server.argv,
            "env": dict(server.launch.env),
            "ready_s": server.ready_s,
            "rss_bytes": server.rss_bytes(),
            "answer_s": time.monotonic() - started,
            "acceptance": None if acceptance is None else acceptance.as_dict(),
        }
        rows = [record, *(reply_row(reply) for reply in replies)]
        atomic_write_text(self.path(ask), "".join(json.dumps(row) + "\n" for row in rows))

    def acceptance(self, server: Server, replies: Sequence[Reply], before: Acceptance | None) -> Acceptance:
        """Over exactly these replies: as told with each of them, else from the server's counters. Raises InvalidMeasurement."""
        told = told_with_replies(replies, self.job.drafter.depth)
        if told is not None:
            return told
        after = self.counters(server, replies)
        return after if before is None else after - before

    def counters(self, server: Server, replies: Sequence[Reply]) -> Acceptance:
        """Cumulative acceptance once the server has counted every token of `replies`. Raises InvalidMeasurement without counters."""
        tokens = sum(reply.completion_tokens for reply in replies)
        stop = time.monotonic() + COUNTER_LAG_S
        while (server.generation_tokens() or 0) < tokens and time.monotonic() < stop:
            time.sleep(0.1)
        acceptance = server.acceptance(self.job.drafter.depth)
        if acceptance is None:
            raise InvalidMeasurement(
                f"{server.engine.name} tells acceptance neither by position on /metrics nor with its replies", hint=f"log: {server.log}"
            )
        return acceptance

    def read(self, ask: Ask) -> Served:
        """A finished launch from its file."""
        record, *rows = read_jsonl(self.path(ask))
        answers = [Answer(row["id"], self.prompts[row["id"]], tuple(row["token_ids"]), row["finish_reason"]) for row in rows]
        counts = record["acceptance"]
        return Served(answers, None if counts is None else Acceptance.from_dict(counts), record)


def check_replies(replies: Sequence[Reply], server: Server, label: str) -> None:
    """Raise when a reply failed or carries no token ids: the server's own death first, then InvalidMeasurement."""
    bad = [reply for reply in replies if not reply.ok or not reply.token_ids]
    if bad:
        server.check_alive()
        why = bad[0].error or "no token ids in the reply"
        raise InvalidMeasurement(
            f"{len(bad)} of {len(replies)} replies of {label} failed, first {bad[0].id}: {why}", hint=f"log: {server.log}"
        )


def reply_row(reply: Reply) -> dict[str, Any]:
    """JSON form of what verify needs of a reply."""
    return {
        "id": reply.id,
        "token_ids": list(reply.token_ids),
        "finish_reason": reply.finish_reason,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
    }
