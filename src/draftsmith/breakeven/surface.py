"""From waves to break-even: A* = T_round / T_ar with its interval, for every kind of launch and every concurrency (pure).

See `intervals` for the interval, `model` for what lies between the measured cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from draftsmith.breakeven.depths import needed_share, worth_training
from draftsmith.breakeven.intervals import Key, Timed, measured_fields, scatter, scatter_at
from draftsmith.breakeven.words import advice_for, implausible, pays_if, unknown_gates
from draftsmith.errors import InvalidMeasurement
from draftsmith.measure.statistics import Scatter, geometric_mean
from draftsmith.settings import Gate

Row = Mapping[str, Any]
PLAIN = ("depth", "block", "dflash")  # how the names of chains and blocks begin; other kinds are probes or trees
SOURCE = (
    "measured on the engine: waves of equal requests, prefill left out; T_round with forced acceptance, rounds as the engine tells them"
)
ONCE = "nothing was launched twice: another start may lie outside the intervals, which are over waves inside one launch"


def timed(rows: Sequence[Row]) -> dict[Key, Timed]:
    """All cells of waves.jsonl that hold; other phases and invalid waves are left out."""
    by_launch: dict[Key, dict[int, list[float]]] = {}
    for row in rows:
        if row["phase"] == "cell" and not row.get("invalid"):
            seconds = row["round_s"] if row["depth"] else row["decode_step_s"]
            by_launch.setdefault((row["name"], row["concurrency"]), {}).setdefault(row["launch"], []).append(seconds)
    return {
        key: Timed(
            tuple(geometric_mean(waves) for waves in launches.values()),
            tuple(seconds for waves in launches.values() for seconds in waves),
        )
        for key, launches in by_launch.items()
    }


def chains_of(rows: Sequence[Row], baseline: str = "baseline") -> dict[str, int]:
    """Kinds that one cost model describes, with their depth: the baseline, and chains (or, without any, blocks) that verify depth + 1
    rows. A chain drafts its depth in as many steps, a block in one: they are not fitted together."""
    drafting = [row for row in rows if row["depth"] and row["rows"] == row["depth"] + 1 and row["name"].split()[0] in PLAIN]
    method = "eagle3" if any(row["method"] == "eagle3" for row in drafting) else "dflash"
    found = {row["name"]: 0 for row in rows if row["name"] == baseline}
    return found | {row["name"]: row["depth"] for row in drafting if row["method"] == method and "," not in row["name"]}


def surface(
    rows: Sequence[Row], baseline: str = "baseline", min_speedup: float = 1.0, gates: Sequence[Gate] = (), model: Row | None = None
) -> dict[str, Any]:
    """The summary of a sweep. model: of `model.between`; gates at a concurrency that was not measured are looked up there.

    Raises InvalidMeasurement when there is no baseline, or nothing to set against it.
    """
    cells = timed(rows)
    heads = {row["name"]: row for row in reversed(rows)}
    spread = scatter(cells)
    step = {concurrency: cell for (name, concurrency), cell in cells.items() if name == baseline}
    entries = [
        entry(heads[name], concurrency, cell, step[concurrency], scatter_at(cells, concurrency))
        for (name, concurrency), cell in sorted(cells.items(), key=lambda item: (item[0][1], heads[item[0][0]]["depth"]))
        if heads[name]["depth"] and concurrency in step
    ]
    if not entries:
        raise InvalidMeasurement("no valid round and no valid decode step at the same concurrency", hint="raw lines: waves.jsonl")
    return {
        "concurrency": sorted({e["concurrency"] for e in entries}),
        "depths": sorted({e["depth"] for e in entries}),
        "decode_step_s": {str(c): {"value": cell.seconds, "launches": list(cell.launches)} for c, cell in sorted(step.items())},
        "break_even": entries,
        "depth_worth_training": worth_training(entries),
        **judged(entries, min_speedup, gates, model),
        "findings": [text for c, cell in sorted(step.items()) for text in doubtful(c, cell, cells, heads)]
        + unknown_gates([*entries, *predictions(model)], gates),
        "source": SOURCE,
        "launch_scatter": {"sd": None if math.isnan(spread.sd) else spread.sd, "df": spread.df},
        "note": "" if spread.df else ONCE,
        "invalid": sorted({f"launch {row['launch']}: {row['invalid']}" for row in rows if row.get("invalid")}),
        "canary": canaries(rows),
        "distinct": distinct_tokens(rows),
        "cost_model": model,
    }


def distinct_tokens(rows: Sequence[Row]) -> dict[str, float]:
    """Share of different tokens in a wave, by kind: the mean over its waves, where the engine tells ids."""
    shares: dict[str, list[float]] = {}
    for row in rows:
        if row["phase"] == "cell" and not row.get("invalid") and row.get("distinct_ids"):
            shares.setdefault(row["name"], []).append(row["distinct_ids"] / row["tokens"])
    return {name: fmean(values) for name, values in shares.items()}


def canaries(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The fixed single request of every visit of every launch, in tok/s: what differs between launches of one kind, or between visits, is
    the machine."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["phase"] == "canary" and not row.get("invalid"):
            seen = found.setdefault(row["launch"], {"launch": row["launch"], "name": row["name"], "tok_s": []})
            seen["tok_s"].append(1 / row["decode_step_s"])
    return list(found.values())


def predictions(model: Row | None) -> list[Row]:
    """What the model says of cells that were not measured."""
    return [e for e in (model or {}).get("break_even", ()) if e["label"] != "measured"]


def judged(entries: Sequence[Row], min_speedup: float, gates: Sequence[Gate], model: Row | None) -> dict[str, Any]:
    """The bars, whether full acceptance reaches them, and gates of which nothing is known."""
    stop, advice = advice_for(entries, min_speedup, gates, predictions(model))
    return {"stop": stop, "advice": advice, "min_speedup": min_speedup, "gates": [str(gate) for gate in gates]}


def entry(head: Row, concurrency: int, cell: Timed, step: Timed, spread: Scatter) -> dict[str, Any]:
    """One row of the break-even table."""
    fields, depth = measured_fields(cell, step, spread), head["depth"]
    chain = head["rows"] == depth + 1  # or a block: one draft for each row but the first
    row = {
        "name": head["name"],
        "method": head["method"],
        "concurrency": concurrency,
        "depth": depth,
        "rows": head["rows"],
        **fields,
        "ceiling": depth + 1,
        "needed_share": needed_share(fields["accept_len"], depth) if chain else None,
    }
    return row | {"pays_if": pays_if(row, "" if chain and head["method"] == "eagle3" else f"a {head['name']}")}


def doubtful(concurrency: int, step: Timed, cells: Mapping[Key, Timed], heads: Mapping[str, Row]) -> list[str]:
    """Chains whose times cannot be (see `summary.implausible`)."""
    chains = {
        heads[name]["depth"]: {"value": cell.seconds}
        for (name, c), cell in cells.items()
        if c == concurrency and name == f"depth {heads[name]['depth']}"
    }
    return implausible(concurrency, {"value": step.seconds}, chains)
