"""Files of the finished stages -> the content of the report: plain JSON data with raw numbers. What is not there is None."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from draftsmith.job import Job
from draftsmith.manifest import Manifest
from draftsmith.metrics import Acceptance, relative_gap
from draftsmith.report.bench_section import SUMMARY, bench_section
from draftsmith.report.content import SCHEMA, normal
from draftsmith.report.files import Finished, acceptance, shaping
from draftsmith.report.look import data_section, tokenizer_of
from draftsmith.report.origin import command, provenance_section, times_section
from draftsmith.report.settings import ReportSettings

STAGES = ("check", "breakeven", "data", "capture", "train", "export", "verify", "serve", "bench")
Section = dict[str, Any] | None  # None: the stage has not finished
NO_VERDICT = "No verdict: the bench stage has not finished in this run."


def build(settings: ReportSettings, job: Job) -> dict[str, Any]:
    """Everything that the report shows. Raises EnvironmentFailed when a finished stage's file is missing or malformed."""
    done = Finished.read(job, STAGES)
    verdict = bench_section(job.folder("bench"), done.manifests["bench"]) if "bench" in done.manifests else None
    verify = verify_section(done, job.target)
    training = training_section(done)
    break_even = break_even_section(done, verdict)
    return normal(
        {
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
            "provenance": provenance_section(
                list(done.manifests.values()), job.engine.model_dump(mode="json"), job.drafter.model_dump(mode="json"), job.target.name
            ),
            "command": command(settings, job),
            "absent": [stage for stage in STAGES if stage not in done.manifests],
        }
    )


def build_bench(folder: Path, title: str) -> dict[str, Any]:
    """The report of a bench folder alone: everything else is absent. Raises EnvironmentFailed when its files are malformed."""
    manifest = Manifest.read(folder)
    verdict = bench_section(folder, manifest)
    config = manifest.config if manifest else {}
    told = verdict["conditions"] or {}
    engine, drafter = config.get("engine") or {"name": told.get("engine")}, config.get("drafter") or {}
    depth = config.get("depth") or json.loads((folder / SUMMARY).read_text()).get("depth")
    empty = dict.fromkeys(("break_even", "verify", "training", "data", "check", "capture", "export", "serve"))
    with shaping(folder / SUMMARY):
        return normal(
            {
                "schema": SCHEMA,
                "title": title,
                "subject": {
                    "target": served_model(verdict),
                    "engine": engine.get("name"),
                    "drafter": drafter.get("algorithm"),
                    "depth": depth,
                },
                "verdict": verdict,
                "acceptance": acceptance_series(None, None, verdict),
                "predicted_beside_measured": predictions(None, None, verdict, None, depth),
                **empty,
                "times": None,
                "provenance": provenance_section(
                    [manifest] if manifest else [], engine if engine["name"] else None, drafter or None, served_model(verdict)
                ),
                "command": {"line": verdict["command"], "recipe": None},
                "absent": [stage for stage in STAGES if stage != "bench"],
            }
        )


def served_model(verdict: dict[str, Any]) -> str | None:
    """Name of the target's folder, as the launches named it; None when they did not."""
    for launch in verdict["launches"]:
        for flag, value in pairwise(launch["argv"]):
            if flag in ("--model", "--model-path", "serve"):
                return Path(value).name
    return None


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


def foretold_speedup(break_even: Section, concurrency: int | None, depth: int | None, predicted: float) -> float | None:
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
        if cell["acceptance"]:
            found.append(("measured", f"bench {cell['label']}", f"served in bench, {cell['label']}", cell["acceptance"]))
    return [{"kind": kind, "short": short, "name": name, **counted} for kind, short, name, counted in found if counted]


def predictions(training: Section, verify: Section, verdict: Section, break_even: Section, depth: int | None) -> list[dict[str, Any]]:
    """Every number that was predicted before it was measured."""
    rows: list[tuple[str, str, float, float]] = []
    replayed, served = (accept_len(verify["replay"][side]) for side in ("predicted", "served")) if verify else (None, None)
    taught = accept_len(training["heldout"]) if training else None
    if replayed is not None and served is not None:
        rows.append(("accept_len, same prompts", "replay / served in verify", replayed, served))
    for cell in verdict["cells"] if verdict else []:
        at = cell["label"]
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
