"""How launches are measured: in which order, what runs in each, what is written down, and when a launch proves nothing.

A launch: start the engine, warm up, canary, then one closed loop per concurrency (a cell), each after its own warm-up. Every
reply goes to requests.jsonl when it ends and every launch to launches.jsonl when it ends; a launch without its line there did not
finish: its replies are dropped and it is done again. Summaries are computed from these two files, never kept on the side.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from draftsmith.engines.protocol import Arm, Launch
from draftsmith.errors import InvalidMeasurement
from draftsmith.job import Talk
from draftsmith.manifest import append_jsonl, atomic_write_json, atomic_write_text, read_jsonl
from draftsmith.measure.client import Reply, Request, run_closed_loop
from draftsmith.measure.window import decode_tok_s, steady_window
from draftsmith.metrics import Acceptance

PLAN, LAUNCHES, REQUESTS = "plan.json", "launches.jsonl", "requests.jsonl"
COUNTER_TOLERANCE = 0.01  # share by which the server's token counter may differ from the sum of usage
COUNTER_LAG_S = 3.0
Row = dict[str, Any]


class Serving(Protocol):
    """What is needed of a running server (engines.server.Server)."""

    argv: list[str]
    ready_s: float

    @property
    def url(self) -> str: ...
    def acceptance(self, depth: int) -> Acceptance | None: ...
    def generation_tokens(self) -> int | None: ...
    def check_alive(self) -> None: ...
    def rss_bytes(self) -> int: ...


@dataclass(frozen=True)
class Planned:
    """One launch of an experiment. `must_accept`: a drafter that is never right makes the launch invalid."""

    index: int
    pair: int
    name: str
    launch: Launch
    must_accept: bool = True

    @property
    def depth(self) -> int:
        """Drafts per round; 0 for a baseline."""
        return self.launch.drafting.depth if self.launch.drafting else 0


@dataclass(frozen=True)
class Cell:
    """One closed loop at one concurrency."""

    concurrency: int
    warmup: tuple[Request, ...]
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Workload:
    """The same in every launch: same prompts, same order, same sampling."""

    canary: Request
    cells: tuple[Cell, ...]


Starter = Callable[[Sequence[Planned]], AbstractContextManager[Sequence[Serving]]]


def launch_arms(pairs: int) -> list[Arm]:
    """A B B A A B ...: each pair in the reverse order of the one before, so that a linear drift cancels over two pairs."""
    forward: tuple[Arm, Arm] = ("baseline", "speculative")
    return [arm for pair in range(pairs) for arm in (forward if pair % 2 == 0 else forward[::-1])]


# --- one launch ------------------------------------------------------------------------------------------------------


class Recorder:
    """Measures one launch and writes its replies as they end."""

    def __init__(self, folder: Path, planned: Planned, server: Serving, model: str) -> None:
        self.path = folder / REQUESTS
        self.planned = planned
        self.server = server
        self.model = model
        self.invalid: list[str] = []
        self.answered_tokens = 0  # usage of all replies of this launch so far

    def loop(self, phase: str, requests: Sequence[Request], concurrency: int) -> list[Reply]:
        """Run a closed loop and record it. Raises EnvironmentFailed when the engine died on the way."""
        head = {"launch": self.planned.index, "phase": phase, "concurrency": concurrency}

        def write(reply: Reply) -> None:
            row = asdict(reply)
            del row["text"]  # the token ids are the record
            append_jsonl(self.path, head | {key: None if value != value else value for key, value in row.items()})

        replies = run_closed_loop(self.server.url, self.model, requests, concurrency, write)
        self.answered_tokens += sum(reply.completion_tokens for reply in replies)
        failed = [reply for reply in replies if not reply.ok]
        if failed:
            self.server.check_alive()
            first = f"{failed[0].id}: {failed[0].error}"
            self.invalid.append(f"{phase} at concurrency {concurrency}: {len(failed)} of {len(replies)} requests failed ({first})")
        return replies

    def counters(self) -> tuple[int | None, Acceptance | None]:
        """(output tokens, acceptance) since the server started. Counters that contradict each other make the launch invalid.

        An engine may publish its counters a moment after the last token: waits until they hold every answered token.
        """
        patience = time.monotonic() + COUNTER_LAG_S
        while (tokens := self.server.generation_tokens()) is not None and tokens < self.answered_tokens and time.monotonic() < patience:
            time.sleep(0.05)
        try:
            return tokens, self.server.acceptance(self.planned.depth) if self.planned.depth else None
        except InvalidMeasurement as error:
            self.invalid.append(error.message)
            return tokens, None

    def cell(self, cell: Cell) -> Row:
        """Measure one closed loop. Acceptance and tokens are differences of the server's counters over the closed loop."""
        tokens_before, before = self.counters()
        replies = self.loop("cell", cell.requests, cell.concurrency)
        tokens_after, after = self.counters()
        row: Row = {"concurrency": cell.concurrency, "requests": len(replies), "usage_tokens": sum(r.completion_tokens for r in replies)}
        if all(reply.ok for reply in replies):
            window = steady_window(replies, cell.concurrency)
            row |= {"window_s": window.window_s, "output_tokens": window.output_tokens, "tok_s": window.tok_s}
        row["counter_tokens"] = None if tokens_before is None or tokens_after is None else tokens_after - tokens_before
        row["acceptance"] = None if before is None or after is None else (after - before).as_dict()
        self.invalid += self.doubts(cell.concurrency, row)
        return row

    def doubts(self, concurrency: int, row: Row) -> list[str]:
        """Reasons why this cell proves nothing."""
        found = []
        counted = row["counter_tokens"]
        if counted is not None and abs(counted - row["usage_tokens"]) > COUNTER_TOLERANCE * row["usage_tokens"]:
            found.append(
                f"the server counted {counted} output tokens, the replies' usage {row['usage_tokens']}: other traffic, or lost replies"
            )
        if self.planned.depth:
            acceptance = row["acceptance"]
            if acceptance is None:
                found.append("no acceptance counters on the server")
            elif acceptance["rounds"] <= 0:
                found.append("the acceptance counters did not move: the server does not speculate")
            elif self.planned.must_accept and sum(acceptance["reached"]) == 0:
                found.append("accept_len is exactly 1.00: not one draft was accepted")
        return [f"cell at concurrency {concurrency}: {reason}" for reason in found]

    def run(self, workload: Workload) -> Row:
        """The whole launch; the row for launches.jsonl."""
        started = time.time()
        cells, canary_tok_s = [], None
        for cell in workload.cells:
            self.loop("warmup", cell.warmup, cell.concurrency)
            if canary_tok_s is None:
                [canary] = self.loop("canary", [workload.canary], 1)
                canary_tok_s = decode_tok_s(canary) if canary.ok else 0.0
            cells.append(self.cell(cell))
        planned, server = self.planned, self.server
        return {
            "launch": planned.index,
            "pair": planned.pair,
            "arm": planned.launch.arm,
            "name": planned.name,
            "depth": planned.depth,
            "argv": server.argv,
            "env": dict(planned.launch.env),
            "ready_s": server.ready_s,
            "rss_bytes": server.rss_bytes(),
            "started": started,
            "measured_s": time.time() - started,
            "canary_tok_s": canary_tok_s,
            "cells": cells,
            "invalid": self.invalid,
        }


# --- all launches ----------------------------------------------------------------------------------------------------


def write_plan(folder: Path, launches: Sequence[Planned], workload: Workload) -> None:
    """plan.json: the order of launches and the workload, written before the first launch."""
    order = [{"launch": p.index, "pair": p.pair, "arm": p.launch.arm, "name": p.name, "depth": p.depth} for p in launches]
    cells = [
        {"concurrency": cell.concurrency, "warmup": [r.id for r in cell.warmup], "requests": [r.id for r in cell.requests]}
        for cell in workload.cells
    ]
    atomic_write_json(folder / PLAN, {"launches": order, "cells": cells, "canary": workload.canary.id})


def drop_unfinished(folder: Path) -> set[int]:
    """Indices of the finished launches; replies of any other launch are taken out of requests.jsonl."""
    finished = {row["launch"] for row in read_jsonl(folder / LAUNCHES)}
    rows = read_jsonl(folder / REQUESTS)
    kept = [row for row in rows if row["launch"] in finished]
    for name, content in ((REQUESTS, kept), (LAUNCHES, read_jsonl(folder / LAUNCHES))):
        if (folder / name).exists():  # also takes off a last line cut short by a kill
            atomic_write_text(folder / name, "".join(json.dumps(row) + "\n" for row in content))
    return finished


def groups(pending: Sequence[Planned], together: bool) -> Iterator[list[Planned]]:
    """What starts side by side: the launches of a pair, or each launch alone."""
    pairs = sorted({planned.pair for planned in pending})
    for pair in pairs:
        members = [planned for planned in pending if planned.pair == pair]
        yield from [members] if together else [[planned] for planned in members]


def run_launches(
    folder: Path, launches: Sequence[Planned], workload: Workload, start: Starter, model: str, talk: Talk, together: bool = False
) -> None:
    """Measure every launch that has not finished in `folder`, in order.

    together: start the launches of a pair side by side and measure them one after the other. Saves start-up time; only for
    engines that use neither cores nor memory of each other while idle. Raises EnvironmentFailed when an engine dies.
    """
    write_plan(folder, launches, workload)
    finished = drop_unfinished(folder)
    if finished:
        talk.say(f"{len(finished)} of {len(launches)} launches were measured before")
    for group in groups([planned for planned in launches if planned.index not in finished], together):
        with start(group) as servers:
            for planned, server in zip(group, servers, strict=True):
                row = Recorder(folder, planned, server, model).run(workload)
                append_jsonl(folder / LAUNCHES, row)
                talk.say(f"launch {planned.index + 1} of {len(launches)}, {describe(row)}")


def describe(row: Row) -> str:
    """One line about a launch."""
    if row["invalid"]:
        return f"{row['name']}: INVALID: {row['invalid'][0]}"
    parts = []
    for cell in row["cells"]:
        accepted = f" (accept_len {cell['acceptance']['accept_len']:.2f})" if cell["acceptance"] else ""
        parts.append(f"{cell['tok_s']:.1f} tok/s at concurrency {cell['concurrency']}{accepted}")
    return f"{row['name']}: {', '.join(parts)}"


def replies_of(folder: Path, launch: int, phase: str, concurrency: int) -> list[Reply]:
    """The recorded replies of one phase of one launch, in the order in which they ended; texts are not kept."""
    rows = [
        row for row in read_jsonl(folder / REQUESTS) if (row["launch"], row["phase"], row["concurrency"]) == (launch, phase, concurrency)
    ]
    return [reply_from(row) for row in rows]


def reply_from(row: Row) -> Reply:
    """A Reply from its JSON row; null times become nan."""
    values: Row = {name: row[name] for name in Reply.__dataclass_fields__ if name in row}
    for name in ("sent_s", "first_s", "last_s"):
        values[name] = float("nan") if values[name] is None else values[name]
    values["token_ids"] = tuple(values["token_ids"])
    return Reply(**values)
