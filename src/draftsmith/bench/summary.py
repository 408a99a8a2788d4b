"""From raw launches to summary.json: speed-ups, verdicts, gates, evidence. Nothing is kept on the side: the folder is enough."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftsmith.bench.cells import acceptance_by_category, summarise_cell, total_acceptance
from draftsmith.bench.context import Context, read_context
from draftsmith.bench.decide import all_gates, is_at, judge_gate, noise_floor, reason_to_stop, stops_paying_above
from draftsmith.bench.findings import find_doubts
from draftsmith.bench.planning import described_cells
from draftsmith.bench.runs import ARMS, Row, Runs
from draftsmith.bench.sentences import subject_of, verdict_sentence
from draftsmith.engines.protocol import Arm
from draftsmith.manifest import atomic_write_json

SUMMARY = "summary.json"


def summarise(folder: Path, context: Context | None = None) -> dict[str, Any]:
    """The content of summary.json, from the raw lines and conditions.json. Raises UsageError when those are not there."""
    context = context or read_context(folder)
    settings = context.settings
    runs = Runs(folder)
    described = described_cells(settings)
    cells = [summarise_cell(runs, cell, context) for cell in described]
    invalid = [{"launch": row["launch"], "arm": row["arm"], "reason": reason} for row in runs.launches for reason in row["invalid"]]
    num_invalid = sum(bool(row["invalid"]) for row in runs.launches)
    noise = noise_floor(runs, described, settings.last_pair)
    findings = find_doubts(runs, cells, noise, context)
    by_source = accept_len_by_source(runs, described)
    if by_source is None and runs.of("speculative"):
        findings.append("no accept_len by source: the server does not send one chunk per round")
    gates = [judge_gate(gate, cell, num_invalid) for gate in settings.all_gates for cell in cells if is_at(gate, cell)]
    result, reason = all_gates(gates)
    return {
        "cells": cells,
        "depth": context.depth,
        "launches": len(runs.launches),
        "launches_used": len(runs.launches) - num_invalid,
        "invalid": invalid,
        "findings": findings,
        "canary": [{"launch": row["launch"], "arm": row["arm"], "tok_s": row["canary_tok_s"]} for row in runs.launches],
        "accept_len_by_source": by_source or {},
        "order": "".join("A" if row["arm"] == "baseline" else "B" for row in runs.launches),
        "unit": context.unit,
        "tok_s": "output tokens from usage / second, from the first send until a slot finds the queue empty; in an open load the tokens of "
        "all requests / the sum of their times from when they were due",
        "acceptance_source": "difference of the server's counters over each cell, summed over launches",
        "bf16 texts": "requests.jsonl holds token_ids",
        "noise_floor": noise,
        "stopping": stopping(folder, context, runs, described),
        "stops_paying_above": stops_paying_above(cells),
        "gates": gates,
        "gate": result,
        "gate_reason": reason,
        "timeline": timeline(runs),
        "differences": list(context.differences),
        "command": context.command,
        "arms": arms(runs),
        "verdict_sentence": verdict_sentence(cells, subject_of(context.subject, context.depth)),
    }


def write_summary(folder: Path, context: Context | None = None) -> dict[str, Any]:
    """Compute summary.json anew."""
    summary = summarise(folder, context)
    atomic_write_json(folder / SUMMARY, summary)
    return summary


def accept_len_by_source(runs: Runs, described: Sequence[Row]) -> dict[str, float] | None:
    """accept_len of each prompt source over all speculative cells; None when rounds cannot be told apart by request."""
    labels = [cell["label"] for cell in described]
    counted = total_acceptance([cell for label in labels for cell in runs.cells("speculative", label)])
    found = acceptance_by_category([reply for label in labels for reply in runs.replies("speculative", label)], counted)
    return None if found is None else {name: row["accept_len"] for name, row in found.items() if row["rounds"]}


def stopping(folder: Path, context: Context, runs: Runs, described: Sequence[Row]) -> Row:
    """By which rule the experiment ended, and why."""
    done, most = runs.pairs_done, context.settings.last_pair
    reason = reason_to_stop(folder, context, done, described) if done else ""
    if not reason:
        reason = "all planned pairs" if done >= most else f"unfinished: {done} of {most} pairs"
    return {"rule": context.looks.rule, "reason": reason, "pairs_done": done, "pairs_max": most}


def timeline(runs: Runs) -> list[Row]:
    """Every launch with what the machine did meanwhile."""
    keys = ("launch", "pair", "arm", "name", "started", "ready_s", "measured_s", "canary_tok_s", "canary_end_tok_s", "sensors", "invalid")
    return [{key: row.get(key) for key in keys} | {"excluded": bool(row["invalid"])} for row in runs.launches]


def arms(runs: Runs) -> dict[Arm, Row | None]:
    """Command and environment of the first launch of each arm."""
    found: dict[Arm, Row | None] = {}
    for arm in ARMS:
        row = next((row for row in runs.launches if row["arm"] == arm), None)
        found[arm] = None if row is None else {"argv": row.get("argv"), "env": row.get("env")}
    return found
