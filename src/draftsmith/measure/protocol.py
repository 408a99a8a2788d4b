"""Which launches are measured in which order, and what is kept when that is interrupted.

Every reply goes to requests.jsonl when it ends and every launch to launches.jsonl when it ends; a launch without its line there did
not finish: its replies are dropped and it is done again. Summaries are computed from these two files, never kept on the side. What
runs inside a launch is in recorder.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftsmith.engines.protocol import Arm
from draftsmith.job import Talk
from draftsmith.manifest import append_jsonl, atomic_write_json, atomic_write_text, read_jsonl
from draftsmith.measure.live import Live
from draftsmith.measure.messages import Reply
from draftsmith.measure.recorder import REQUESTS, Planned, Recorder, Serving, Watch, Workload, describe
from draftsmith.measure.recorder import Cell as Cell

PLAN, LAUNCHES = "plan.json", "launches.jsonl"
NOISE_PAIR = -1  # launches of the noise floor come before the first pair
Row = dict[str, Any]
Starter = Callable[[Sequence[Planned]], AbstractContextManager[Sequence[Serving]]]
AfterPair = Callable[[int], str]  # pairs done -> why the experiment ends here, or ""


@dataclass(frozen=True)
class How:
    """What an experiment may have besides its launches. after_pair is asked whenever a pair has ended (0: after the noise floor)."""

    watch: Watch = field(default_factory=Watch)
    live: Live | None = None
    after_pair: AfterPair | None = None
    workload_of: Callable[[Planned], Workload] | None = None  # a workload of its own for each pair


def launch_arms(pairs: int) -> list[Arm]:
    """A B B A A B ...: each pair in the reverse order of the one before, so that a linear drift cancels over two pairs."""
    forward: tuple[Arm, Arm] = ("baseline", "speculative")
    return [arm for pair in range(pairs) for arm in (forward if pair % 2 == 0 else forward[::-1])]


# --- all launches ----------------------------------------------------------------------------------------------------


def write_plan(folder: Path, launches: Sequence[Planned], workload: Workload) -> None:
    """plan.json: the order of launches and the workload, written before the first launch."""
    order = [{"launch": p.index, "pair": p.pair, "arm": p.launch.arm, "name": p.name, "depth": p.depth} for p in launches]
    cells = [
        {
            "concurrency": cell.concurrency,
            "label": cell.label,
            "warmup": [r.id for r in cell.warmup],
            "requests": [r.id for r in cell.requests],
        }
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
    yield from [list(pending)] if together and pending else [[planned] for planned in pending]


def run_launches(
    folder: Path,
    launches: Sequence[Planned],
    workload: Workload,
    start: Starter,
    model: str | Mapping[Arm, str],
    talk: Talk,
    together: bool = False,
    how: How | None = None,
) -> str:
    """Measure every launch that has not finished in `folder`, in order. Returns why it ended before its last pair, or "".

    together: start the launches of a pair side by side and measure them one after the other. Saves start-up time; only for
    engines that use neither cores nor memory of each other while idle. Raises EnvironmentFailed when an engine dies.
    """
    how = how or How()
    write_plan(folder, launches, workload)
    finished = drop_unfinished(folder)
    if finished:
        talk.say(f"{len(finished)} of {len(launches)} launches were measured before")
    live = how.live or Live(talk, len(launches))
    try:
        for pair in sorted({planned.pair for planned in launches}):
            pending = [planned for planned in launches if planned.pair == pair and planned.index not in finished]
            for group in groups(pending, together and pair != NOISE_PAIR):
                measure_group(folder, group, workload, start, model, how, live)
            if how.after_pair and (reason := how.after_pair(pair + 1)):
                return reason
    finally:
        live.clear()  # also when an error is about to be told
    return ""


def measure_group(
    folder: Path, group: Sequence[Planned], workload: Workload, start: Starter, model: str | Mapping[Arm, str], how: How, live: Live
) -> None:
    """Start these launches, measure one after the other, and write each down when it has ended."""
    began_s = time.monotonic()
    if how.watch.sensors:
        how.watch.sensors.look_before()
    with start(group) as servers:
        for place, (planned, server) in enumerate(zip(group, servers, strict=True), start=1):
            live.launch(planned.index, planned.name, planned.pair)
            load = how.workload_of(planned) if how.workload_of else workload
            name = model if isinstance(model, str) else model[planned.launch.arm]
            row = Recorder(folder, planned, server, name, how.watch, live).run(load)
            append_jsonl(folder / LAUNCHES, row)
            live.launch_done(describe(row), row["canary_tok_s"], (time.monotonic() - began_s) / place)


def replies_of(folder: Path, launch: int, phase: str, where: int | str) -> list[Reply]:
    """The recorded replies of one phase of one launch in one cell (its concurrency, or its label), as they ended; texts are not kept."""
    key = "concurrency" if isinstance(where, int) else "cell"
    rows = [row for row in read_jsonl(folder / REQUESTS) if (row["launch"], row["phase"], row.get(key)) == (launch, phase, where)]
    return [Reply.from_row(row) for row in rows]
