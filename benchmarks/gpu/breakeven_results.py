"""What breakeven.py measured -> a folder under results/: tables, the page, prediction against measurement, biases, raw lines.

    python benchmarks/gpu/breakeven_results.py --measured DIR... --title "SmolLM2-135M" --out results/smollm2-135m_breakeven_h200_DATE

DIR: what a part left; several of one shape are put together, and their launches of one kind show what two sessions differ by.
`--set-aside DIR`: a part that something disturbed. Its raw lines are kept in OUT/set-aside, with its times by pass beside those of the same
kind in DIR; no break-even is made of it. DIR may be a result itself: it is made again from its raw lines.
Prediction: the cost model is fitted to the cells with concurrency 1, 4, 16, 64 and depth 0, 1, 3, 7 and asked for all others.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftsmith.breakeven.model import between, observations
from draftsmith.breakeven.page import Subject, write_page
from draftsmith.breakeven.surface import Key, Row, Timed, chains_of, surface, timed
from draftsmith.errors import InvalidMeasurement, UsageError
from draftsmith.manifest import atomic_write_bytes, atomic_write_json, atomic_write_text, read_jsonl
from draftsmith.measure.costmodel import fit_cost_model, held_out
from draftsmith.measure.costmodel_terms import Cell, Shape, shape_of_config
from draftsmith.models.text_config import num_experts

KEPT_CONCURRENCY, KEPT_DEPTHS = (1, 4, 16, 64), (0, 1, 3, 7)
MEDIAN_GOAL, WORST_GOAL = 0.10, 0.20


def plain(name: str) -> bool:
    """Is this kind one of the table (a chain, a block, a tree, the baseline), not a probe?"""
    return name == "baseline" or name.startswith("tree ") or (name.split()[0] in ("depth", "dflash") and "," not in name)


def cells_of(cells: Mapping[Key, Timed], depths: Mapping[str, int]) -> list[Cell]:
    """Chains and the baseline, for the cost model."""
    return [
        Cell(concurrency, depths[name], cell.seconds)
        for (name, concurrency), cell in sorted(cells.items())
        if name in ("baseline", f"depth {depths[name]}")
    ]


def prediction(cells: Sequence[Cell], shape: Shape) -> dict[str, Any]:
    """Held-out cells, and the same for break-even lengths; errors against the goals."""
    entries = held_out(cells, lambda cell: cell.concurrency in KEPT_CONCURRENCY and cell.depth in KEPT_DEPTHS, shape)
    errors = [abs(entry["error"]) for entry in entries]
    inside = [entry["low"] <= entry["measured"] <= entry["high"] for entry in entries]
    return {
        "held_out": entries,
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "inside_interval": sum(inside) / len(inside),
        "reached": statistics.median(errors) <= MEDIAN_GOAL and max(errors) <= WORST_GOAL,
        "model": fit_cost_model(cells, shape).as_dict(),
    }


def compared(cells: Mapping[Key, Timed], name: str, other: str) -> list[dict[str, Any]]:
    """Times of one kind over those of another, at every concurrency that both have."""
    shared = sorted({c for n, c in cells if n == name} & {c for n, c in cells if n == other})
    return [
        {"concurrency": c, "this_ms": 1000 * cells[name, c].seconds, "other_ms": 1000 * cells[other, c].seconds,
         "ratio": cells[name, c].seconds / cells[other, c].seconds}
        for c in shared
    ]  # fmt: skip


def dummy_bias(cells: Mapping[Key, Timed], step: str, round_: str) -> list[dict[str, Any]]:
    """Break-even from other times (`step`, `round_`) against the one of baseline and depth 3."""
    found = []
    for (name, c), cell in sorted(cells.items(), key=lambda item: item[0][1]):
        if name == round_ and (step, c) in cells and ("baseline", c) in cells and ("depth 3", c) in cells:
            other = cell.seconds / cells[step, c].seconds
            ours = cells["depth 3", c].seconds / cells["baseline", c].seconds
            found.append({"concurrency": c, "other": other, "ours": ours, "ratio": other / ours})
    return found


def phases(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The probes and the cells that they belong to: time per step or round, and output rate with prefill, by phase; none without probes."""
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        if row["phase"] not in ("warmup", "canary") and not row.get("invalid") and row["name"] in ("baseline", "depth 3"):
            groups.setdefault((row["name"], row["phase"], row["concurrency"]), []).append(row)
    if {phase for _, phase, _ in groups} <= {"cell"}:
        return []
    return [
        {"name": name, "phase": phase, "concurrency": c, "ms": 1000 * statistics.mean(r["round_s"] or r["decode_step_s"] for r in found),
         "tok_s_with_prefill": statistics.mean(r["tokens"] / r["wall_s"] for r in found), "waves": len(found)}
        for (name, phase, c), found in sorted(groups.items()) if c in (16, 32, 48, 56, 64, 72)
    ]  # fmt: skip


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """A Markdown table; numbers with three digits that mean something."""
    shown = [
        [value if isinstance(value, str) else f"{value:.3g}" if isinstance(value, float) else str(value) for value in row] for row in rows
    ]
    return ["| " + " | ".join(row) + " |" for row in [list(head), ["---"] * len(head), *shown]] + [""]


def device(about: Mapping[str, Any]) -> str:
    """What was measured on: breakeven.py takes one GPU, whatever the machine has."""
    gpus = about["hardware"]["gpus"]
    if not gpus:
        return about["hardware"]["cpu"]
    return gpus[0] if len(gpus) == 1 else f"one of {len(gpus)} GPUs, {gpus[0]}"


def by_pass(rows: Sequence[Row], clean: Mapping[Key, Timed]) -> list[str]:
    """Times of a part that was set aside, by kind and pass, beside the same kind where nothing disturbed."""
    groups: dict[Key, dict[int, list[float]]] = {}
    for row in rows:
        if row["phase"] == "cell" and not row.get("invalid"):
            seconds = row["round_s"] if row["depth"] else row["decode_step_s"]
            groups.setdefault((row["name"], row["concurrency"]), {}).setdefault(row["pass"], []).append(1000 * seconds)
    lines = []
    for (name, c), passes in sorted(groups.items()):
        waves = [" ".join(f"{ms:.2f}" for ms in passes.get(number, [])) for number in (0, 1)]
        other = clean.get((name, c)) or clean.get((f"dummy {name}", c))
        least = [min(ms for found in passes.values() for ms in found), 1000 * min(other.waves) if other else None]
        lines.append([name, c, *waves, *("" if ms is None else f"{ms:.2f}" for ms in least)])
    return table(["kind", "C", "first pass, ms", "second pass, ms", "least, ms", "least undisturbed (own or random weights), ms"], lines)


def set_aside(folder: Path, out: Path, clean: Mapping[Key, Timed]) -> None:
    """Raw lines of a disturbed part, its probes, and its times by pass."""
    rows, launches = together([folder], "waves.jsonl"), nameless(together([folder], "launches.jsonl"))
    write_raw(out, rows, launches, together([folder], "profile.jsonl"))
    atomic_write_json(out / "about.json", abouts_of(folder)[0] | {"probes": phases(rows)})
    probes = [list(entry.values()) for entry in phases(rows)]
    head = ["kind", "phase", "C", "ms", "tok/s with prefill", "waves"]
    lines = ["# Set aside: disturbed", "", *by_pass(rows, clean), *(["# Probes", "", *table(head, probes)] if probes else [])]
    atomic_write_text(out / "times.md", "\n".join(lines))


def write_raw(out: Path, rows: Sequence[Row], launches: Sequence[Row], profile: Sequence[Row]) -> None:
    """Every wave, what was launched how, and what traces said."""
    out.mkdir(parents=True, exist_ok=True)
    atomic_write_bytes(out / "waves.jsonl.gz", gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode(), mtime=0))
    kept = ("launch", "name", "depth", "rows", "forced_accept_len", "argv", "dummy", "ready_s", "differs", "died")
    atomic_write_text(out / "launches.jsonl", "".join(json.dumps({k: row[k] for k in kept if k in row}) + "\n" for row in launches))
    if profile:
        atomic_write_text(out / "profile.jsonl", "".join(json.dumps(row) + "\n" for row in profile))


def break_even_table(summary: Mapping[str, Any]) -> list[str]:
    entries = summary["break_even"]
    names = list(dict.fromkeys(e["name"] for e in sorted(entries, key=lambda e: e["rows"])))
    by_place = {(e["name"], e["concurrency"]): e for e in entries}
    rows = []
    for c in summary["concurrency"]:
        cells = [by_place.get((name, c)) for name in names]
        texts = [f"{e['accept_len']:.2f} ({e['accept_len_low']:.2f} to {e['accept_len_high']:.2f})" if e else "" for e in cells]
        rows.append([str(c), f"{1000 * summary['decode_step_s'][str(c)]['value']:.2f}", *texts])
    return table(["C", "T_ar, ms", *names], rows)


def text(title: str, about: Mapping[str, Any], summary: Mapping[str, Any], extra: Mapping[str, Any]) -> str:
    """report.md"""
    spread = summary["launch_scatter"]
    noise = f"launches of one kind scatter by {100 * spread['sd']:.1f} %, df {spread['df']}" if spread["df"] else summary["note"]
    lines = [
        f"# {title}: break-even on {device(about)}",
        "",
        f"SGLang 0.5.17, waves of {about['load']['tokens']} tokens. Needed accept_len with its 95 % interval; {noise}.",
        f"Made by `benchmarks/gpu/part.py` ({about['shape']}) and `benchmarks/gpu/breakeven_results.py`; each wave: `waves.jsonl.gz`.",
        *extra.get("notes", []),
        "",
        *break_even_table(summary),
    ]
    if predicted := extra.get("prediction"):
        lines += [
            "## Predicted and measured",
            "",
            f"Fitted to C {list(KEPT_CONCURRENCY)} and depths {list(KEPT_DEPTHS)}; {len(predicted['held_out'])} cells held "
            f"out: median error {100 * predicted['median_error']:.1f} %, worst {100 * predicted['worst_error']:.1f} %, "
            f"{100 * predicted['inside_interval']:.0f} % inside their 95 % interval.",
            "",
        ]
        worst = sorted(predicted["held_out"], key=lambda e: -abs(e["error"]))[:6]
        rows = [[e["concurrency"], e["depth"], 1000 * e["measured"], 1000 * e["value"], f"{100 * e['error']:+.1f} %"] for e in worst]
        lines += table(["C", "depth", "measured, ms", "predicted, ms", "error"], rows)
    for name, entries in extra["compared"].items():
        if entries:
            lines += [f"## {name}", "", *table(list(entries[0]), [list(entry.values()) for entry in entries])]
    return "\n".join(lines)


def nameless(value: Any) -> Any:
    """The same without the folders of the machine: a path is its last part."""
    if isinstance(value, str):
        return Path(value).name if value.startswith("/") else value
    if isinstance(value, list):
        return [nameless(one) for one in value]
    return {key: nameless(one) for key, one in value.items()} if isinstance(value, dict) else value


def together(folders: Sequence[Path], name: str) -> list[dict[str, Any]]:
    """The lines of all folders; launches of the second one are numbered from 100 on, and so forth."""
    return [row | {"launch": row["launch"] + 100 * place} for place, folder in enumerate(folders) for row in raw_lines(folder, name)]


def raw_lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """Of a part, or of a result that was made before."""
    packed = folder / f"{name}.gz"
    if packed.exists():
        return [json.loads(line) for line in gzip.decompress(packed.read_bytes()).splitlines()]
    return read_jsonl(folder / name)


def abouts_of(folder: Path) -> list[dict[str, Any]]:
    """Machine and load of a part, or of the parts of a result."""
    if (folder / "about.json").exists():
        return [nameless(json.loads((folder / "about.json").read_text()))]
    summary = json.loads((folder / "summary.json").read_text())
    return [summary["about"], *summary.get("about_others", [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, nargs="+", required=True)
    parser.add_argument("--set-aside", type=Path, help="a part that was disturbed: raw lines only")
    parser.add_argument("--note", action="append", default=[], help="a sentence that the page and report.md must say")
    parser.add_argument("--title", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    folders: list[Path] = arguments.measured
    abouts = [about for folder in folders for about in abouts_of(folder)]
    about = abouts[0]
    rows, launches = together(folders, "waves.jsonl"), nameless(together(folders, "launches.jsonl"))
    depths = {row["name"]: row["depth"] for row in rows}
    cells = timed(rows)
    shown = [row for row in rows if plain(row["name"])]
    summary = surface(shown, model=between(observations(timed(shown), chains_of(shown)), shape_of_config(about["target"])))
    summary["invalid"] += sorted({f"launch {row['launch']}, {row['name']}: {row['died']}" for row in launches if "died" in row})
    config = about["target"]
    extra: dict[str, Any] = {"compared": comparisons(cells, rows)}
    try:
        extra["prediction"] = prediction(cells_of(cells, depths), shape_of_config(config))
    except (InvalidMeasurement, UsageError) as error:  # too few cells, or one depth alone
        extra["no_prediction"] = error.message
    out: Path = arguments.out
    write_raw(out, rows, launches, together(folders, "profile.jsonl"))
    atomic_write_json(out / "summary.json", summary | extra | {"about": about, "about_others": abouts[1:]})
    moe = bool(num_experts(config))
    dummy = not any(row["dummy"] == [] for row in launches if row["name"] == "baseline" and "dummy" in row)
    facts = ("sglang==0.5.17", device(about), "random weights" if dummy else "the target's own weights")
    methods = tuple(sorted({row["method"] for row in rows if row["method"]}))
    subject = Subject(arguments.title, facts, methods, "moe" if moe else "dense", dummy=dummy, forced=True)
    write_page(out, summary, subject, [*arguments.note, *sentences(extra["compared"])])
    atomic_write_text(out / "report.md", text(arguments.title, about, summary, extra | {"notes": arguments.note}))
    if arguments.set_aside:
        set_aside(arguments.set_aside, out / "set-aside", cells)
    print((out / "report.md").read_text())


def comparisons(cells: Mapping[Key, Timed], rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """Everything that was measured beside the table, as far as it is there."""
    return {
        "Random weights against real ones, a decode step": compared(cells, "dummy baseline", "baseline"),
        "Random weights against real ones, a round of depth 3": compared(cells, "dummy depth 3", "depth 3"),
        "Break-even from random weights against real ones": dummy_bias(cells, "dummy baseline", "dummy depth 3"),
        "Random routers against even ones, a decode step": compared(cells, "routed baseline", "baseline"),
        "Random routers against even ones, a round of depth 3": compared(cells, "routed depth 3", "depth 3"),
        "Break-even from random routers against even ones": dummy_bias(cells, "routed baseline", "routed depth 3"),
        "All four tokens accepted against two of them": compared(cells, "depth 3, all accepted", "depth 3"),
        **other_weights(cells),
        "64 requests and graphs at most, a decode step": compared(cells, "baseline, 64 requests and graphs", "baseline"),
        "Around C = 64": phases(rows),
    }


def other_weights(cells: Mapping[Key, Timed]) -> dict[str, list[dict[str, Any]]]:
    """Without a depth 3 on real weights, full acceptance has only the one on random weights beside it: two differences at once."""
    if any(name == "depth 3" for name, _ in cells):
        return {}
    return {
        "All four tokens accepted on real weights against two on random ones": compared(cells, "depth 3, all accepted", "dummy depth 3")
    }


def sentences(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """The measured biases in words, for the page."""
    texts = []
    for name, entries in found.items():
        if entries and "ratio" in entries[0]:
            ratios = [entry["ratio"] for entry in entries]
            texts.append(f"Measured here: {name[0].lower()}{name[1:]}: {min(ratios):.3f} to {max(ratios):.3f} times.")
    return texts


if __name__ == "__main__":
    main()
