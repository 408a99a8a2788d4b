"""Several runs side by side. Runs are ranked only against runs that were measured under the same conditions; where they were not, it is
said what differs. Within a group, intervals that overlap the best one's are told as not distinguishable from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from draftsmith.report.bench_parts import Data, Part, Rate, Speedup, Word
from draftsmith.report.formats import plain
from draftsmith.report.views import machine, num_invalid

SCHEMA = 1
SCHEMA_FILE = Path(__file__).parent / "schema" / f"joined-{SCHEMA}.json"
WORKLOAD = (
    "output_tokens",
    "temperature",
    "endpoint",
    "ignore_eos",
    "prompts",
    "lengths",
)  # settings of bench that change what is measured
MANNER = ("concurrency", "replica_env", "budget_s")  # settings of data that change how, not what
MUST_BE_KNOWN = ("target", "engine", "machine")  # two unknown ones are not the same one
HARMLESS = ("draftsmith",)  # recorded, but two runs that differ in it can still be compared
BASELINE_TOLERANCE = 0.05


class Row(Part):
    """One run at one load. with_best: its interval overlaps that of the run with the highest lower bound."""

    run: str
    verdict: Word
    speedup: Speedup | None
    accept_len: float | None
    needed: float | None
    baseline_tok_s: Rate
    speculative_tok_s: Rate
    with_best: bool | None


class LoadTable(Part):
    """All runs of a group that were measured at this load, by the lower bound of the speed-up."""

    label: str
    rows: list[Row]
    notes: list[str]


class JoinedRun(Part):
    """One run. number_invalid: launches that prove nothing."""

    name: str
    place: str
    target: str | None
    engine: str | None
    drafter: str | None
    depth: int | None
    finished: str | None
    sentence: str | None
    invalid: int | None
    launches: int | None


class Group(Part):
    """Runs that may be ranked against each other."""

    conditions: dict[str, str | None]
    runs: list[JoinedRun]
    loads: list[LoadTable]


class Difference(Part):
    """A condition in which groups differ, with the value of each group in their order."""

    key: str
    values: list[str | None]


class Joined(Part):
    """report.json of several runs."""

    schema_version: Literal[1] = Field(SCHEMA, alias="schema")
    kind: Literal["joined"] = "joined"
    title: str
    groups: list[Group]
    differences: list[Difference]


def join(runs: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """(place, content of its report) -> the content of the joined report."""
    names = unique_names([content["title"] for _, content in runs])
    grouped: list[tuple[dict[str, str | None], list[tuple[str, str, Data]]]] = []
    for name, (place, content) in zip(names, runs, strict=True):
        own = conditions(content)
        fitting = next((members for other, members in grouped if same(own, other)), None)
        if fitting is None:
            grouped.append((own, [(name, place, content)]))
        else:
            fitting.append((name, place, content))
    groups = [make_group(own, members) for own, members in grouped]
    keys = list(dict.fromkeys(key for group in groups for key in group.conditions))
    differing = [Difference(key=key, values=[group.conditions.get(key) for group in groups]) for key in keys]
    differing = [row for row in differing if len(set(row.values)) > 1]
    title = f"{len(runs)} runs side by side"
    return Joined(schema=SCHEMA, title=title, groups=groups, differences=differing).model_dump(mode="json", by_alias=True)


def unique_names(titles: Sequence[str]) -> list[str]:
    """Titles, numbered where they repeat."""
    return [title if titles.count(title) == 1 else f"{title} ({titles[: i + 1].count(title)})" for i, title in enumerate(titles)]


def conditions(content: Data) -> dict[str, str | None]:
    """What must be equal for two speed-ups to be ranked: the same question asked of the same machine. Flat: one entry per setting."""
    told = (content["verdict"] or {}).get("conditions")
    if told:
        return told_by_bench(told)
    origin, configs = content["provenance"], content["provenance"].get("configs", {})
    engine, bench = origin.get("engine") or {}, configs.get("bench", {}).get("settings", {})
    found = {
        "target": short(origin.get("target", {}).get("sha256")) or content["subject"]["target"],
        "engine": content["subject"]["engine"],
        "machine": machine(origin["hardware"]) if origin.get("hardware") else None,
    }
    settings = {
        "engine flag": engine.get("flags") or {},
        "engine variable": engine.get("env") or {},
        "bench": {key: bench[key] for key in WORKLOAD if key in bench},
        "prompts": {key: value for key, value in configs.get("data", {}).get("settings", {}).items() if key not in MANNER},
    }
    return found | {f"{kind} {key}": plain(value) for kind, given in settings.items() for key, value in given.items() if value is not None}


def told_by_bench(told: Data) -> dict[str, str | None]:
    """As bench wrote them down; digests by their first characters."""
    gpus = machine({"gpus": told.get("gpu") or [], "cpu": ""})
    found = {
        "target": short(told.get("target")),
        "engine": told.get("engine"),
        "machine": ", ".join(filter(None, (gpus, told.get("cpu")))) or None,
    }
    rest = {key: value for key, value in told.items() if key not in (*found, "gpu", "cpu", *HARMLESS)}
    return found | {key: short(value) for key, value in sorted(rest.items()) if value is not None}


def short(value: Any) -> str | None:
    """A digest is told by its first characters."""
    if isinstance(value, str) and len(value) == 64 and " " not in value:
        return f"sha256 {value[:12]}"
    return None if value is None else plain(value)


def same(one: dict[str, str | None], other: dict[str, str | None]) -> bool:
    """Equal, and what must be known is known."""
    return one == other and all(one[key] is not None for key in MUST_BE_KNOWN)


def make_group(own: dict[str, str | None], members: Sequence[tuple[str, str, Data]]) -> Group:
    """Tables of comparable runs; loads in the order in which the runs name them."""
    cells = {name: content["verdict"]["cells"] for name, _, content in members if content["verdict"]}
    labels = list(dict.fromkeys(cell["label"] for found in cells.values() for cell in found))
    return Group(
        conditions=own,
        runs=[joined_run(name, place, content) for name, place, content in members],
        loads=[
            table(label, [(name, cell) for name, found in cells.items() for cell in found if cell["label"] == label]) for label in labels
        ],
    )


def joined_run(name: str, place: str, content: Data) -> JoinedRun:
    verdict = content["verdict"]
    told = {"sentence": None, "invalid": None, "launches": None}
    if verdict:
        told = {"sentence": verdict["sentence"], "invalid": num_invalid(verdict), "launches": len(verdict["timeline"])}
    return JoinedRun(name=name, place=place, finished=content["provenance"].get("finished"), **content["subject"], **told)


def table(label: str, cells: Sequence[tuple[str, Data]]) -> LoadTable:
    """Sorted by the lower bound: what is sure counts, not what might be. Runs without a speed-up come last, in their own order."""
    ordered = sorted(cells, key=lambda item: -item[1]["speedup"]["low"] if item[1]["speedup"] else float("inf"))
    best = ordered[0][1]["speedup"]
    rows = [
        Row(
            run=name,
            verdict=cell["verdict"],
            speedup=cell["speedup"],
            accept_len=cell["acceptance"]["accept_len"] if cell["acceptance"] else None,
            needed=cell["break_even_accept_len"]["value"] if cell["break_even_accept_len"] else None,
            baseline_tok_s=cell["baseline_tok_s"],
            speculative_tok_s=cell["speculative_tok_s"],
            with_best=cell["speedup"]["high"] >= best["low"] if cell["speedup"] and best else None,
        )
        for name, cell in ordered
    ]
    return LoadTable(label=label, rows=rows, notes=baseline_doubts(rows))


def baseline_doubts(rows: Sequence[Row]) -> list[str]:
    """Comparable runs have the same baseline; where they have not, their speed-ups stand on different ground."""
    known = sorted((row.baseline_tok_s.mean, row.run) for row in rows if row.baseline_tok_s.mean is not None)
    if len(known) < 2 or known[-1][0] / known[0][0] - 1 <= BASELINE_TOLERANCE:
        return []
    gap = known[-1][0] / known[0][0] - 1
    return [
        f"the baseline of {known[-1][1]} is {100 * gap:.0f} % faster than that of {known[0][1]}: the machine was not the same,"
        " and the speed-ups stand on different ground"
    ]
