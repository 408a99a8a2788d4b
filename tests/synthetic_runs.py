"""Raw lines (launches.jsonl, requests.jsonl) of an experiment with exactly known times, without a server or a clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from draftsmith.manifest import append_jsonl
from draftsmith.measure.client import Reply
from draftsmith.measure.loads import load_dict
from draftsmith.measure.protocol import LAUNCHES, REQUESTS, Cell, Planned, Workload
from draftsmith.measure.window import steady_window
from draftsmith.metrics import Acceptance

PREFILL_S = 0.05
Times = Callable[[Planned, int], float]  # (launch, concurrency) -> seconds per step or round


def simulate(cell: Cell, round_s: float, accept_len: float) -> list[Reply]:
    """Replies of a closed loop in which every round takes `round_s` and emits `accept_len` tokens on average; in order of their end."""
    free = [0.0] * cell.concurrency
    replies = []
    for request in cell.requests:
        slot = min(range(cell.concurrency), key=free.__getitem__)
        rounds = math.ceil((request.max_tokens - 1) / accept_len)
        first = free[slot] + PREFILL_S
        last = first + rounds * round_s
        replies.append(Reply(request.id, True, "", free[slot], first, last, 2, request.max_tokens, 1, rounds + 1, "length", (5, 6)))
        free[slot] = last
    return sorted(replies, key=lambda reply: reply.last_s)


def write_launches(folder: Path, launches: Sequence[Planned], workload: Workload, times: Times, accept_len: float) -> None:
    """One line per launch and per measured reply, as `measure.protocol` writes them. accept_len - 1 drafts are accepted per round."""
    for planned in launches:
        cells = []
        for cell in workload.cells:
            speed = accept_len if planned.depth else 1.0
            replies = simulate(cell, times(planned, cell.concurrency), speed)
            for reply in replies:
                head = {"launch": planned.index, "phase": "cell", "concurrency": cell.concurrency, "cell": cell.label}
                append_jsonl(folder / REQUESTS, head | reply.row())
            window = steady_window(replies, cell.concurrency)
            tokens = sum(reply.completion_tokens for reply in replies)
            rounds = sum(reply.num_chunks - 1 for reply in replies)
            reached = (round(rounds * (accept_len - 1)), *[0] * (planned.depth - 1))
            cells.append(
                {
                    "concurrency": cell.concurrency,
                    "label": cell.label,
                    "load": load_dict(cell.load),
                    "requests": len(replies),
                    "usage_tokens": tokens,
                    "counter_tokens": tokens,
                    "window_s": window.window_s,
                    "output_tokens": window.output_tokens,
                    "tok_s": window.tok_s,
                    "acceptance": Acceptance(rounds, reached).as_dict() if planned.depth else None,
                }
            )
        row = {"launch": planned.index, "pair": planned.pair, "arm": planned.launch.arm, "name": planned.name, "depth": planned.depth}
        row["gpu_set"] = planned.gpu_set
        append_jsonl(folder / LAUNCHES, row | {"canary_tok_s": 1 / times(planned, 1), "cells": cells, "invalid": []})
