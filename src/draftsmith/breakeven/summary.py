"""From raw launches to the accept_len that speculation needs (pure, apart from reading the two JSONL files).

T_ar(C): seconds a slot spends on one token in the baseline. T_round(C, depth): seconds a slot spends on one round. Both are decode
time, summed over all replies of a cell, first to last token of each (prefill is the same in both arms and left out), divided by
the tokens decoded in that time, or by the rounds that the server counted. Speculation pays when accept_len > T_round / T_ar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftsmith.breakeven.depths import needed_share, worth_training
from draftsmith.breakeven.intervals import INSIDE, Key, Timed, kind_of, measured_fields, scatter_at
from draftsmith.breakeven.settings import BreakevenSettings
from draftsmith.breakeven.surface import ONCE, judged, predictions
from draftsmith.breakeven.words import implausible, pays_if, unknown_gates
from draftsmith.errors import InvalidMeasurement
from draftsmith.manifest import read_jsonl
from draftsmith.measure.client import Reply
from draftsmith.measure.protocol import LAUNCHES, Row, replies_of
from draftsmith.measure.window import decode_s, seconds_per_token

SOURCE = (
    "measured on the engine: decode time of all slots / tokens from usage (T_ar, baseline launch), / rounds from the server's counters "
    "(T_round, a drafter of the recipe's shape with random weights; a round costs the same whatever is accepted)"
)


def waves(replies: Sequence[Reply], concurrency: int) -> list[Sequence[Reply]]:
    """Replies in groups of `concurrency`, as they ended; requests of equal length move through the slots in such waves."""
    return [replies[i : i + concurrency] for i in range(0, len(replies) - concurrency + 1, concurrency)]


def cell_time(replies: Sequence[Reply], concurrency: int, rounds: int | None) -> tuple[float, list[float]]:
    """(seconds per token, or per round when `rounds` is given, in one cell of one launch; the same in each of its waves)."""
    per_token = seconds_per_token(replies)
    value = sum(map(decode_s, replies)) / rounds if rounds else per_token
    tokens_per_round = value / per_token
    return value, [tokens_per_round * seconds_per_token(wave) for wave in waves(replies, concurrency)]


def measured_times(folder: Path, launches: Sequence[Row], depth: int, concurrency: int) -> Timed:
    """T_ar (depth 0) or T_round at one concurrency. Raises InvalidMeasurement when no valid launch measured it."""
    cells = []
    for row in launches:
        if row["depth"] != depth or row["invalid"]:
            continue
        [cell] = [cell for cell in row["cells"] if cell["concurrency"] == concurrency]
        replies = replies_of(folder, row["launch"], "cell", concurrency)
        cells.append(cell_time(replies, concurrency, cell["acceptance"]["rounds"] if depth else None))
    if not cells:
        reasons = [reason for row in launches if row["depth"] == depth for reason in row["invalid"]]
        raise InvalidMeasurement(f"no valid launch of {name_of(depth)}: {'; '.join(reasons)}", hint=f"raw replies: {folder}/requests.jsonl")
    return Timed(tuple(value for value, _ in cells), tuple(second for _, waves in cells for second in waves))


def name_of(depth: int) -> str:
    return f"depth {depth}" if depth else "the baseline"


def all_times(folder: Path, depths: Sequence[int], concurrency: Sequence[int]) -> dict[Key, Timed]:
    """Every kind of launch at every concurrency. Raises InvalidMeasurement when one has no valid launch."""
    launches = read_jsonl(folder / LAUNCHES)
    return {(name_of(d), c): measured_times(folder, launches, d, c) for d in (0, *depths) for c in concurrency}


def summarise(folder: Path, settings: BreakevenSettings, cells: Mapping[Key, Timed], model: Row | None = None) -> dict[str, Any]:
    """The content of summary.json. cells: of `all_times`; model: of `model.between`."""
    launches = read_jsonl(folder / LAUNCHES)
    depths, concurrency = settings.depths, settings.concurrency
    times = {d: {c: shown(cells, d, c) for c in concurrency} for d in (0, *depths)}
    entries = [entry(cells, d, c) for c in concurrency for d in depths]
    return {
        "concurrency": list(concurrency),
        "depths": list(depths),
        "decode_step_s": {str(c): value for c, value in times[0].items()},
        "round_s": {str(d): {str(c): value for c, value in times[d].items()} for d in depths},
        "break_even": entries,
        "depth_worth_training": worth_training(entries),
        **judged(entries, settings.min_speedup, settings.gates, model),
        "findings": [text for c in concurrency for text in implausible(c, times[0][c], {d: times[d][c] for d in depths})]
        + unknown_gates([*entries, *predictions(model)], settings.gates),
        "source": SOURCE,
        "note": ONCE if all(entry["interval"] == INSIDE for entry in entries) else "",
        "invalid": [{"launch": row["launch"], "reason": reason} for row in launches for reason in row["invalid"]],
        "canary": [{"launch": row["launch"], "name": row["name"], "tok_s": canary_of(row)} for row in launches],
        "cost_model": model,
    }


def canary_of(row: Row) -> list[float]:
    """tok/s of the fixed single request at the start and at the end of a launch, where it was answered."""
    return [value for value in (row["canary_tok_s"], row.get("canary_end_tok_s")) if value]


def shown(cells: Mapping[Key, Timed], depth: int, concurrency: int) -> dict[str, Any]:
    """One time, with what it was computed from."""
    cell, kind = cells[name_of(depth), concurrency], kind_of(scatter_at(cells, concurrency))
    return {"value": cell.seconds, "launches": list(cell.launches), "samples": list(cell.waves), "interval": kind}


def entry(cells: Mapping[Key, Timed], depth: int, concurrency: int) -> dict[str, Any]:
    """One row of the break-even table."""
    step, round_ = cells[name_of(0), concurrency], cells[name_of(depth), concurrency]
    fields = measured_fields(round_, step, scatter_at(cells, concurrency))
    row = {
        "concurrency": concurrency,
        "depth": depth,
        **fields,
        "ceiling": depth + 1,
        "needed_share": needed_share(fields["accept_len"], depth),
    }
    return row | {"pays_if": pays_if(row)}
