"""One launch: what runs on it, what is written down, and when it proves nothing.

Warm-up, canary, then one load per cell, each after its own warm-up, and the canary again. The canary is the same single request in
every launch: a machine that slows down shows in it, whatever the arm's cells do.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from draftsmith.engines.protocol import Arm, Launch
from draftsmith.errors import InvalidMeasurement
from draftsmith.manifest import append_jsonl
from draftsmith.measure.asking import Options
from draftsmith.measure.client import run_load
from draftsmith.measure.credentials import headers_for, hidden
from draftsmith.measure.latency import acceptance_of
from draftsmith.measure.live import Live
from draftsmith.measure.loads import ClosedLoad, Load, label_of, load_dict
from draftsmith.measure.messages import Reply, Request
from draftsmith.measure.sensors import Limits, Reading, Sensors, invalid_reasons
from draftsmith.measure.window import decode_tok_s, request_tok_s, steady_window
from draftsmith.metrics import Acceptance

VISIBLE = "CUDA_VISIBLE_DEVICES"
REQUESTS = "requests.jsonl"
COUNTER_TOLERANCE = 0.01  # share by which the server's token counter may differ from the sum of usage
COUNTER_LAG_S = 3.0
LOST, DYING_S = ("connection lost", "not sent"), 1.0
Row = dict[str, Any]


class Serving(Protocol):
    """What is needed of a running server (engines.server.Server)."""

    argv: list[str]

    @property
    def ready_s(self) -> float | None: ...
    @property
    def url(self) -> str: ...
    def acceptance(self, depth: int) -> Acceptance | None: ...
    def generation_tokens(self) -> int | None: ...
    def check_alive(self) -> None: ...
    def rss_bytes(self) -> int | None: ...


@dataclass(frozen=True)
class Planned:
    """One launch of an experiment. `must_accept`: a drafter that is never right makes the launch invalid. gpu_set: which of two sets.
    quiet: concurrencies at which a schedule has it draft nothing.
    """

    index: int
    pair: int
    name: str
    launch: Launch
    must_accept: bool = True
    gpu_set: int = 0
    quiet: tuple[int, ...] = ()

    @property
    def depth(self) -> int:
        """Drafts per round; 0 for a baseline."""
        return self.launch.depth

    @property
    def gpus(self) -> list[int] | None:
        """Indices of the GPUs that this launch may use, by its own environment or else ours; None: all, or not told by number."""
        words = self.launch.env.get(VISIBLE, os.environ.get(VISIBLE, "")).split(",")
        return [int(word) for word in words] if all(word.strip().isdigit() for word in words) else None


@dataclass(frozen=True)
class Cell:
    """One load. concurrency: of a closed loop; of the warm-up when there is an `open_load`. output_tokens: limit of its answers, where
    that tells it from other cells."""

    concurrency: int
    warmup: tuple[Request, ...]
    requests: tuple[Request, ...]
    open_load: Load | None = None
    output_tokens: int | None = None

    @property
    def load(self) -> Load:
        return self.open_load or ClosedLoad(self.concurrency)

    @property
    def label(self) -> str:
        return label_of(self.load, self.output_tokens)


@dataclass(frozen=True)
class Workload:
    """The same in every launch: same prompts, same order, same sampling."""

    canary: Request
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Watch:
    """How requests are sent and what is watched meanwhile. keys: of each arm's server, for its headers; written nowhere. must_answer: a
    first warm-up without one good answer ends the experiment; for servers that no new start will mend."""

    endpoint: str = "completions"
    sensors: Sensors | None = None
    limits: Limits = field(default_factory=Limits)
    keys: Mapping[Arm, str] = field(default_factory=dict, repr=False)
    must_answer: bool = False


class Recorder:
    """Measures one launch and writes its replies as they end."""

    def __init__(self, folder: Path, planned: Planned, server: Serving, model: str, watch: Watch, live: Live) -> None:
        self.path = folder / REQUESTS
        self.planned = planned
        self.server = server
        self.model = model
        self.watch = watch
        self.live = live
        self.key = watch.keys.get(planned.launch.arm, "")
        self.invalid: list[str] = []
        self.answered_tokens = server.generation_tokens() or 0  # what the server must have counted so far: from before, and our replies

    def send(self, phase: str, requests: Sequence[Request], load: Load, cell: Cell) -> list[Reply]:
        """Run a load and record it. Raises EnvironmentFailed when the engine died on the way."""
        head = {"launch": self.planned.index, "phase": phase, "concurrency": cell.concurrency, "cell": cell.label}
        ended = 0

        def write(reply: Reply) -> None:
            nonlocal ended
            row = reply.row()
            del row["text"]  # the token ids are the record
            row["error"] = hidden(reply.error, self.key)
            append_jsonl(self.path, head | row)
            ended += 1
            self.live.progress(phase, cell.label, ended, len(requests))

        self.live.progress(phase, cell.label, 0, len(requests))
        options = Options(headers=headers_for(self.key))
        replies = run_load(self.server.url, self.watch.endpoint, self.model, requests, load, write, options)
        self.answered_tokens += sum(reply.completion_tokens for reply in replies)
        failed = [reply for reply in replies if not reply.ok]
        if failed:
            self.check_alive(failed)
            first = f"{failed[0].id}: {hidden(failed[0].error, self.key)}"
            self.invalid.append(f"{phase} at {cell.label}: {len(failed)} of {len(replies)} requests failed ({first})")
        return replies

    def check_alive(self, failed: Sequence[Reply]) -> None:
        """Raise EnvironmentFailed when the engine died. A process that dies drops its connections first: after that it gets a moment."""
        patience = time.monotonic() + (DYING_S if any(reply.error.startswith(LOST) for reply in failed) else 0)
        self.server.check_alive()
        while time.monotonic() < patience:
            time.sleep(0.05)
            self.server.check_alive()

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
        """Measure one load. Acceptance and tokens are differences of the server's counters over it."""
        tokens_before, before = self.counters()
        replies = self.send("cell", cell.requests, cell.load, cell)
        tokens_after, after = self.counters()
        row: Row = {"concurrency": cell.concurrency, "label": cell.label, "load": load_dict(cell.load), "requests": len(replies)}
        row["usage_tokens"] = sum(reply.completion_tokens for reply in replies)
        if all(reply.ok for reply in replies):
            row |= speed(cell, replies)
        row["counter_tokens"] = None if tokens_before is None or tokens_after is None else tokens_after - tokens_before
        counted = after - before if before is not None and after is not None else told_with_replies(replies, self.planned.depth)
        row["acceptance"] = counted.as_dict() if counted else None
        row["acceptance_source"] = None if counted is None else "counters" if after is not None else "requests"
        self.invalid += self.doubts(cell, row)
        return row

    def doubts(self, cell: Cell, row: Row) -> list[str]:
        """Reasons why this cell proves nothing."""
        found = []
        counted = row["counter_tokens"]
        if counted is not None and abs(counted - row["usage_tokens"]) > COUNTER_TOLERANCE * row["usage_tokens"]:
            found.append(
                f"the server counted {counted} output tokens, the replies' usage {row['usage_tokens']}: other traffic, or lost replies"
            )
        if self.planned.depth and cell.concurrency not in self.planned.quiet:
            acceptance = row["acceptance"]
            if acceptance is None:
                found.append("no acceptance counters on the server")
            elif acceptance["rounds"] <= 0:
                found.append("the acceptance counters did not move: the server does not speculate")
            elif self.planned.must_accept and sum(acceptance["reached"]) == 0:
                found.append("accept_len is exactly 1.00: not one draft was accepted")
        return [f"cell {cell.label}: {reason}" for reason in found]

    def canary(self, workload: Workload) -> float | None:
        """Decode tok/s of the fixed single request; None when it failed, or came in one piece."""
        [reply] = self.send("canary", [workload.canary], ClosedLoad(1), Cell(1, (), (workload.canary,)))
        speed = decode_tok_s(reply)
        return speed if reply.ok and not math.isnan(speed) else None

    def check_answered(self, warmed: Sequence[Reply]) -> None:
        """Raise InvalidMeasurement when not one request of the first warm-up was answered: the hours to come would prove nothing."""
        if warmed and not any(reply.ok for reply in warmed):
            raise InvalidMeasurement(
                f"{self.planned.name} at {self.server.url}: none of {len(warmed)} warm-up requests was answered as it must be "
                f"({hidden(warmed[0].error, self.key)})",
                hint="mend that and run the same command: what was measured before stays",
            )

    def measure(self, workload: Workload) -> tuple[float | None, list[Row], float | None]:
        """(canary at the start, cells, canary at the end)."""
        cells, first = [], None
        for cell in workload.cells:
            warmed = self.send("warmup", cell.warmup, ClosedLoad(cell.concurrency), cell)
            if cell is workload.cells[0]:
                if self.watch.must_answer:
                    self.check_answered(warmed)
                first = self.canary(workload)
            cells.append(self.cell(cell))
        return first, cells, self.canary(workload) if cells else None

    def run(self, workload: Workload) -> Row:
        """The whole launch; the row for launches.jsonl."""
        started = time.time()
        sensors = self.watch.sensors
        with sensors.watching(self.planned.gpus) if sensors else nullcontext(Reading()) as reading:
            canary_tok_s, cells, canary_end_tok_s = self.measure(workload)
        told = reading.row()
        self.invalid += invalid_reasons(told, self.watch.limits)
        planned, server = self.planned, self.server
        return {
            "launch": planned.index,
            "pair": planned.pair,
            "arm": planned.launch.arm,
            "name": planned.name,
            "depth": planned.depth,
            "gpu_set": planned.gpu_set,
            "argv": server.argv,
            "env": dict(planned.launch.env),
            "ready_s": server.ready_s,
            "rss_bytes": server.rss_bytes(),
            "started": started,
            "measured_s": time.time() - started,
            "canary_tok_s": canary_tok_s,
            "canary_end_tok_s": canary_end_tok_s,
            "sensors": told,
            "cells": cells,
            "invalid": self.invalid,
        }


def speed(cell: Cell, replies: Sequence[Reply]) -> Row:
    """`tok_s`, by which the arms are compared: of the steady window in a closed loop. An open load gets the tokens that it asks for from
    any server that keeps up, so there it is the speed of a request, from when it was due to its last token."""
    if cell.open_load is None:
        window = steady_window(replies, cell.concurrency)
        return {"window_s": window.window_s, "output_tokens": window.output_tokens, "tok_s": window.tok_s}
    return {"window_s": None, "output_tokens": None, "tok_s": request_tok_s(replies)}


def told_with_replies(replies: Sequence[Reply], depth: int) -> Acceptance | None:
    """Acceptance from per-request data; None for a baseline, or when not every reply has it, or one is deeper than planned."""
    deeper = any(len(reply.reached or ()) > depth for reply in replies)
    return acceptance_of(replies, depth) if depth and not deeper else None


def describe(row: Row) -> str:
    """One line about a launch."""
    if row["invalid"]:
        return f"{row['name']}: INVALID: {row['invalid'][0]}"
    parts = []
    for cell in row["cells"]:
        accepted = f" (accept_len {cell['acceptance']['accept_len']:.2f})" if cell["acceptance"] else ""
        parts.append(f"{cell['tok_s']:.1f} tok/s at {cell['label']}{accepted}")
    return f"{row['name']}: {', '.join(parts)}"
