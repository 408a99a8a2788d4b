"""Files of the finished stages -> the content of the report: plain JSON data with raw numbers. What is not there is None."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from draftsmith.job import Job
from draftsmith.metrics import Acceptance, relative_gap
from draftsmith.report.files import Finished, acceptance, shaping
from draftsmith.report.look import data_section, tokenizer_of
from draftsmith.report.origin import command, provenance_section, times_section
from draftsmith.report.settings import ReportSettings

SCHEMA = 1
STAGES = ("check", "breakeven", "data", "capture", "train", "export", "verify", "serve", "bench")
Section = dict[str, Any] | None  # None: the stage has not finished
NO_VERDICT = "No verdict: the bench stage has not finished in this run."


def build(settings: ReportSettings, job: Job) -> dict[str, Any]:
    """Everything that the report shows. Raises EnvironmentFailed when a finished stage's file is missing or malformed."""
    done = Finished.read(job, STAGES)
    verdict = verdict_section(done)
    verify = verify_section(done, job.target)
    training = training_section(done)
    break_even = break_even_section(done, verdict)
    content = {
        "schema": SCHEMA,
        "title": settings.title or job.run.name,
        "subject": {"target": job.target.name, "engine": job.engine.name, "drafter": job.drafter.algorithm, "depth": job.drafter.depth},
        "verdict": verdict,
        "acceptance": acceptance_series(training, verify, verdict),
        "predicted_beside_measured": predictions(training, verify, verdict, break_even, job.drafter.depth),
        "break_even": break_even,
        "verify": verify,
        "training": training,
        "data": data_section(done, job.target, settings.samples_shown),
        "check": done.json("check", "check.json"),
        "capture": done.summary("capture"),
        "export": done.summary("export"),
        "serve": done.json("serve", "serve.json"),
        "times": times_section(done, STAGES),
        "provenance": provenance_section(done, job),
        "command": command(settings, job),
        "absent": [stage for stage in STAGES if stage not in done.manifests],
    }
    return without_nan(content)


def without_nan(content: Any) -> Any:
    """JSON has no nan or infinity: they become null, which is shown as absent."""
    if isinstance(content, dict):
        return {key: without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_nan(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


# --- verdict ---------------------------------------------------------------------------------------------------------


def verdict_section(done: Finished) -> Section:
    """bench/summary.json with acceptance recomputed from its counts, and the launches."""
    summary = done.json("bench", "summary.json")
    if summary is None:
        return None
    manifest = done.manifests["bench"]
    with shaping(done.path("bench", "summary.json")):
        cells = [bench_cell(cell) for cell in summary["cells"]]
        section = {
            "sentence": str(summary["verdict_sentence"]),
            "gate": manifest.summary.get("gate"),
            "gate_concurrency": manifest.config["settings"].get("gate_concurrency"),
            "cells": cells,
            "order": summary.get("order"),
            "gate_reason": summary.get("gate_reason"),
            "findings": summary.get("findings") or [],
            "invalid": [{"launch": row["launch"], "reason": str(row["reason"])} for row in summary["invalid"]],
            "canary": [{"launch": row["launch"], "arm": row["arm"], "tok_s": row["tok_s"]} for row in summary.get("canary") or []],
            "accept_len_by_source": summary.get("accept_len_by_source"),
        }
    with shaping(done.path("bench", "launches.jsonl")):
        section["launches"] = [launch_row(row) for row in done.lines("bench", "launches.jsonl") or []]
    return section


def bench_cell(cell: dict[str, Any]) -> dict[str, Any]:
    """One concurrency. Raises ValueError on a verdict that is none of the three."""
    if cell["verdict"] not in ("pays", "does not pay", "inconclusive"):
        raise ValueError(f"verdict {cell['verdict']!r} at concurrency {cell['concurrency']}")
    return {
        "concurrency": int(cell["concurrency"]),
        "verdict": cell["verdict"],
        "baseline_tok_s": rate(cell["baseline_tok_s"]),
        "speculative_tok_s": rate(cell["speculative_tok_s"]),
        "speedup": cell["speedup"] and {key: cell["speedup"][key] for key in ("ratio", "low", "high", "pairs", "method")},
        "acceptance": acceptance(cell.get("acceptance")),
        "predicted_speedup": cell.get("predicted_speedup"),
    }


def rate(content: dict[str, Any]) -> dict[str, Any]:
    """Mean and single launches; the mean is None when no launch of the arm was valid."""
    return {"mean": content["mean"], "launches": [float(value) for value in content["launches"]]}


def launch_row(row: dict[str, Any]) -> dict[str, Any]:
    """One launch with its throughput per concurrency (None where requests failed)."""
    cells = [
        {"concurrency": cell["concurrency"], "tok_s": cell.get("tok_s"), "acceptance": acceptance(cell.get("acceptance"))}
        for cell in row["cells"]
    ]
    return {key: row[key] for key in ("launch", "pair", "arm", "ready_s", "argv", "env", "canary_tok_s")} | {"cells": cells}


# --- the other stages ------------------------------------------------------------------------------------------------


def training_section(done: Finished) -> Section:
    """Summary, steps and evaluations of train."""
    rows = done.lines("train", "metrics.jsonl")
    if rows is None:
        return None
    with shaping(done.path("train", "metrics.jsonl")):
        keys = ("step", "epoch", "elapsed_s", "loss", "tokens_s", "lr")
        steps = [{key: row[key] for key in keys} for row in rows if not row.get("evaluation")]
        evaluations = [
            {"elapsed_s": row["elapsed_s"], "step": row["step"], "loss": row.get("loss"), "acceptance": acceptance(row["acceptance"])}
            for row in rows
            if row.get("evaluation")
        ]
    with shaping(done.path("train", "manifest.json")):
        summary = dict(done.manifests["train"].summary)
        heldout = acceptance(summary.pop("heldout", None))
    return {"summary": summary, "heldout": heldout, "steps": steps, "evaluations": [row for row in evaluations if row["acceptance"]]}


def verify_section(done: Finished, target: Path) -> Section:
    """verify/verify.json; lossless by dtype with the tokens of a divergence as text, replay with recomputed acceptance."""
    content = done.json("verify", "verify.json")
    if content is None:
        return None
    decoder = tokenizer_of(target)
    with shaping(done.path("verify", "verify.json")):
        lossless = [
            {
                "dtype": dtype,
                "prompts": int(found["prompts"]),
                "tokens": int(found["tokens"]),
                "identical": int(found["identical"]),
                "lossless": bool(found["lossless"]),
                "divergences": [divergence(row, decoder) for row in found["divergences"]],
            }
            for dtype, found in content["lossless"].items()
        ]
        replay = content["replay"]
        replay = {**replay, "predicted": acceptance(replay["predicted"]), "served": acceptance(replay["served"])}
        return {"export": content["export"], "lossless": lossless, "replay": replay, "findings": content["findings"]}


def divergence(row: dict[str, Any], decoder: Tokenizer | None) -> dict[str, Any]:
    """Where two greedy answers part; the tokens also as text when the target has a tokenizer.json."""
    shown = {key: row[key] for key in ("id", "position", "reference", "served", "logit_gap", "explained")}
    for arm in ("reference", "served"):
        shown[f"{arm}_text"] = None if decoder is None or row[arm] is None else decoder.decode([row[arm]], skip_special_tokens=False)
    return shown


def break_even_section(done: Finished, verdict: Section) -> Section:
    """breakeven/summary.json, with the measured accept_len at the same concurrency and depth beside each row."""
    content = done.json("breakeven", "summary.json")
    if content is None:
        return None
    keys = ("concurrency", "depth", "decode_step_s", "round_s", "accept_len", "ceiling", "pays_if")
    with shaping(done.path("breakeven", "summary.json")):
        rows = [
            {key: row[key] for key in keys}
            | {"low": row.get("accept_len_low"), "high": row.get("accept_len_high")}
            | {"measured": measured_at(verdict, row["concurrency"], row["depth"])}
            for row in content["break_even"]
        ]
        told = {key: content.get(key) or None for key in ("source", "advice", "note", "invalid")}
    return {"rows": rows, **told}


def measured_at(verdict: Section, concurrency: int, depth: int) -> float | None:
    """accept_len that bench counted, cut to `depth` (exact for a chain); None when it was not measured there or not as deep."""
    for cell in verdict["cells"] if verdict else []:
        if cell["concurrency"] == concurrency and cell["acceptance"]:
            counted = Acceptance.from_dict(cell["acceptance"])
            return counted.at_depth(depth).accept_len if depth <= counted.depth else None
    return None


# --- predicted beside measured ---------------------------------------------------------------------------------------


def foretold_speedup(break_even: Section, concurrency: int, depth: int, predicted: float) -> float | None:
    """A * T_ar / T_round with A as replay predicted it before bench; None where breakeven did not measure this cell."""
    for row in break_even["rows"] if break_even else []:
        if (row["concurrency"], row["depth"]) == (concurrency, depth):
            return predicted / row["accept_len"]
    return None


def acceptance_series(training: Section, verify: Section, verdict: Section) -> list[dict[str, Any]]:
    """Survival by depth from every source, in the order in which a run meets them."""
    found: list[tuple[str, str, str, dict[str, Any] | None]] = []
    if training:
        found.append(("training", "training", "training, held out, teacher-forced", training["heldout"]))
    replay = verify["replay"] if verify else None
    if replay is not None:
        found.append(("predicted", "replay", "replay: real acceptance walk, predicted", replay["predicted"]))
        found.append(("served", "verify", "served on the replayed prompts (verify)", replay["served"]))
    for cell in verdict["cells"] if verdict else []:
        at = f"C = {cell['concurrency']}"
        if cell["acceptance"]:
            found.append(("measured", f"bench {at}", f"served in bench, {at}", cell["acceptance"]))
    return [{"kind": kind, "short": short, "name": name, **counted} for kind, short, name, counted in found if counted]


def predictions(training: Section, verify: Section, verdict: Section, break_even: Section, depth: int) -> list[dict[str, Any]]:
    """Every number that was predicted before it was measured."""
    rows: list[tuple[str, str, float, float]] = []
    replayed, served = (accept_len(verify["replay"][side]) for side in ("predicted", "served")) if verify else (None, None)
    taught = accept_len(training["heldout"]) if training else None
    if replayed is not None and served is not None:
        rows.append(("accept_len, same prompts", "replay / served in verify", replayed, served))
    for cell in verdict["cells"] if verdict else []:
        at = f"C = {cell['concurrency']}"
        measured = accept_len(cell["acceptance"])
        if measured is not None and replayed is not None:
            rows.append((f"accept_len, {at}", "replay / bench", replayed, measured))
        if measured is not None and taught is not None:
            rows.append((f"accept_len, {at}", "training, teacher-forced / bench", taught, measured))
        ratio = cell["speedup"]["ratio"] if cell["speedup"] else None
        foretold = None if replayed is None else foretold_speedup(break_even, cell["concurrency"], depth, replayed)
        if ratio is not None and foretold is not None:
            rows.append((f"speed-up, {at}", "cost model with replay's accept_len / bench", foretold, ratio))
        if ratio is not None and cell["predicted_speedup"] is not None:
            rows.append((f"speed-up, {at}", "cost model with bench's accept_len / bench", cell["predicted_speedup"], ratio))
    return [
        {"quantity": quantity, "source": source, "predicted": predicted, "measured": measured, "gap": relative_gap(predicted, measured)}
        for quantity, source, predicted, measured in rows
    ]


def accept_len(counted: dict[str, Any] | None) -> float | None:
    """Of an Acceptance dict, or None."""
    return counted["accept_len"] if counted else None
