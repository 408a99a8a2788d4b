"""What bench leaves, made up for the tests of the report: every key of its summary, from a cost model and fixed wobbles, not measured."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftsmith.manifest import Manifest, append_jsonl, atomic_write_json
from draftsmith.metrics import Acceptance

Row = dict[str, Any]
ARMS = ("baseline", "speculative")
CHANCES = (0.74, 0.67, 0.61, 0.58)  # of each draft, given those before it
CATEGORIES = {"code": 1.12, "arithmetic": 1.05, "json": 1.18, "chat": 0.88, "haiku": 0.79}
STARTED = 1_796_000_000.0
WOBBLE = (0.004, -0.006, 0.002, -0.001, 0.007, -0.003, 0.001, -0.004)
GPU = "NVIDIA H200, 143771 MiB, 580.159.04"


def acceptance(rounds: int, depth: int = 4, shift: float = 1.0) -> Row:
    """Counts over so many rounds."""
    reached, left = [], float(rounds)
    for chance in CHANCES[:depth]:
        left *= min(0.99, chance * shift)
        reached.append(int(left))
    return Acceptance(rounds, tuple(reached)).as_dict()


def band(value: float, share: float, launches: int) -> Row:
    """A rate with its interval and its launches."""
    return {
        "mean": value,
        "low": value * (1 - share),
        "high": value * (1 + share),
        "launches": [value * (1 + WOBBLE[i % len(WOBBLE)]) for i in range(launches)],
    }


def percentiles(centre_s: float, tail: float) -> Row:
    return {"p50": centre_s, "p90": centre_s * (1 + tail), "p99": centre_s * (1 + 2.4 * tail), "mean": centre_s * (1 + 0.2 * tail)}


def cell(concurrency: int, pairs: int = 4, depth: int = 4, load: Row | None = None) -> Row:
    """One load. A round costs as much as 1.5 steps alone and grows faster with the number of users than a step does."""
    step_s = 0.0071 * (1 + 0.012 * concurrency)
    round_s = 1.45 * step_s * (1 + 0.011 * concurrency)
    counted = acceptance(1200 + 160 * concurrency, depth)
    accept_len = float(counted["accept_len"])
    user = {"baseline": 1 / step_s, "speculative": accept_len / round_s}
    ratio = user["speculative"] / user["baseline"]
    half = 0.025 + 0.012 * (concurrency == 32)
    low, high = ratio * (1 - half), ratio * (1 + half)
    row: Row = {
        "concurrency": concurrency,  # of an open load: how it warmed up
        "load": load or {"kind": "closed", "concurrency": concurrency},
        "label": f"C={concurrency}" if load is None else f"{load['rate']:g} req/s",
        "verdict_reason": "",
        "speedup_over_prompts": {"ratio": ratio, "low": 0.9 * ratio, "high": 1.1 * ratio, "prompts": 40},
        "speedup_bootstrap": {"ratio": ratio, "low": 0.96 * ratio, "high": 1.04 * ratio, "launches": 8, "prompts": 40},
        "verdict": "pays" if low > 1 else "does not pay" if high < 1 else "inconclusive",
        "speedup": {"ratio": ratio, "low": low, "high": high, "pairs": pairs, "df": 2 * pairs - 3, "confidence": 0.95},
        "per_user_tok_s": {arm: band(user[arm], 0.02, pairs) for arm in ARMS},
        "latency": {arm: latency(user[arm], concurrency, arm) for arm in ARMS},
        "goodput": {arm: {"share": min(1.0, user[arm] / 150), "requests_s": 0.1 * concurrency, "slo": {"ttft_s": 1.0}} for arm in ARMS},
        "finish": {"baseline": {"stop": 118, "length": 42}, "speculative": {"stop": 117, "length": 43}},
        "reasoning": None,
        "acceptance": counted,
        "acceptance_by_category": {
            name: {"rounds": 300, "accept_len": 1 + (accept_len - 1) * shift, "survival": None} for name, shift in CATEGORIES.items()
        },
        "break_even_accept_len": {"value": round_s / step_s, "low": 0.97 * round_s / step_s, "high": 1.03 * round_s / step_s},
        "predicted_speedup": ratio * 1.02,
        "prediction_gap": 0.02,
        "output_tokens": {"baseline": 40960, "speculative": 40811},
    }
    row["speedup"]["method"] = "t interval on log tok/s over launches, scatter pooled over both arms, linear drift fitted"
    return row | {f"{arm}_tok_s": band(0.97 * concurrency * user[arm], 0.018, pairs) for arm in ARMS}


def latency(user_tok_s: float, concurrency: int, arm: str) -> Row:
    """All but TTFO, which only reasoning models have."""
    chunk = 1 / user_tok_s * (2.7 if arm == "speculative" else 1)
    return {
        "ttft_s": percentiles(0.041 + 0.002 * concurrency, 0.5),
        "ttfo_s": None,
        "tpot_s": percentiles(1 / user_tok_s, 0.12),
        "inter_chunk_s": percentiles(chunk, 0.2),
        "e2e_s": percentiles(256 / user_tok_s, 0.3),
    }


def moment(index: int, arm: str, invalid: Sequence[str] = ()) -> Row:
    """One launch of the timeline, on a GPU that warms up a little."""
    warm = 1 - math.exp(-index / 3)
    clock, hot = 1980 - 25 * warm, 52 + 11 * warm
    gpu = {
        "index": 0,
        "clock_mhz": {"min": clock - 40, "mean": clock, "max": 1980},
        "temperature_c": {"min": hot - 6, "mean": hot, "max": hot + 3},
        "power_w": {"min": 210, "mean": 480 + 40 * warm, "max": 640},
        "throttle": ["power cap"] if invalid else [],
    }
    canary = (141.0 if arm == "baseline" else 238.0) * (1 + WOBBLE[index % 8]) * (0.86 if invalid else 1)
    return {
        "launch": index,
        "pair": index // 2,
        "arm": arm,
        "name": arm,
        "started": STARTED + 412 * index,
        "ready_s": 96 + 3 * WOBBLE[index % 8],
        "measured_s": 290,
        "canary_tok_s": canary,
        "canary_end_tok_s": 0.998 * canary,
        "sensors": {"host_load": 2.0 + WOBBLE[index % 8], "foreign_cpu": 0.01, "other_processes": 0, "gpus": [gpu]},
        "invalid": list(invalid),
        "excluded": bool(invalid),
    }


def summary(cells: Sequence[Row], pairs: int = 4, depth: int = 4, invalid: dict[int, str] | None = None) -> Row:
    """bench/summary.json with every key."""
    order = [ARMS[(i + i // 2) % 2] for i in range(2 * pairs)]
    reasons = invalid or {}
    timeline = [moment(i, arm, [reasons[i]] if i in reasons else []) for i, arm in enumerate(order)]
    return {
        "cells": list(cells),
        "depth": depth,
        "launches": 2 * pairs,
        "launches_used": 2 * pairs - len(reasons),
        "invalid": [{"launch": i, "arm": order[i], "reason": reason} for i, reason in reasons.items()],
        "findings": ["C=1: the speculative arm's answers are 0.4 % shorter than the baseline's"],
        "canary": [{"launch": row["launch"], "arm": row["arm"], "tok_s": row["canary_tok_s"]} for row in timeline],
        "accept_len_by_source": {},
        "order": "".join("A" if arm == "baseline" else "B" for arm in order),
        "tok_s": "output tokens from usage / second, from the first send until a slot finds the queue empty",
        "acceptance_source": "difference of the server's counters over each cell, summed over launches",
        "gate": "passed",
        "gate_reason": "at concurrency 4 the interval lies above 1.1",
        "gates": [{"concurrency": 4, "min_speedup": 1.1, "result": "passed", "reason": "the interval lies above 1.1"}],
        "verdict_sentence": "EAGLE-3 with 4 drafts: " + "; ".join(f"{one['verdict']} at {one['label']}" for one in cells),
        "noise_floor": {"ratio": 1.002, "low": 0.993, "high": 1.011, "launches": 4, "max_abs_log_ratio": 0.009}
        | {"scatter": 0.004, "detectable": 1.012, "label": "C=1", "source": "A/A launches"},
        "stopping": {"rule": "sequential, at most 8 pairs", "reason": "every load is decided", "pairs_done": pairs, "pairs_max": 8},
        "stops_paying_above": None,
        "timeline": timeline,
        "differences": [
            {
                "key": "speculative-config",
                "baseline": None,
                "speculative": {"method": "eagle3", "num_speculative_tokens": 4},
                "matters": False,
            }
        ],
        "command": "draftsmith bench recipes/llama-eagle3.yaml",
        "arms": {arm: {"argv": ["vllm", "serve", "/models/llama-3.1-8b-instruct"], "env": {"HF_TOKEN": "hf_abc"}} for arm in ARMS},
    }


def write_conditions(folder: Path, **changed: Any) -> None:
    """conditions.json beside a bench."""
    conditions = {
        "engine": "vllm==0.32.0",
        "target": "t" * 64,
        "prompts": "p" * 64,
        "sampling": "temperature 0, seed None",
        "endpoint": "completions",
        "gpu": ["NVIDIA H200"],
        "cpu": "Intel Xeon, 16 cores",
        "driver": "580.159.04",
        "draftsmith": "0.2.0",
        "flag max-model-len": 8192,
    }
    atomic_write_json(folder / "conditions.json", {"schema": 1, "conditions": conditions | changed})


def write_bench(folder: Path, found: Row, engine: str = "vllm==0.32.0", gpu: str = GPU, target: str = "t" * 64) -> Path:
    """A finished bench folder with this summary."""
    atomic_write_json(folder / "summary.json", found)
    for row in found.get("timeline") or [moment(c["launch"], c["arm"]) for c in found["canary"]]:
        cells = [
            {"concurrency": one["concurrency"], "label": one.get("label"), "tok_s": one[f"{row['arm']}_tok_s"]["mean"]}
            for one in found["cells"]
        ]
        argv = ["python", "-m", "vllm", "--model", "/models/llama-3.1-8b-instruct", "--api-key", "sk-secret"]
        append_jsonl(folder / "launches.jsonl", {**row, "argv": argv, "env": {"HF_TOKEN": "hf_abc"}, "rss_bytes": 1e9, "cells": cells})
    config = {
        "settings": {"gate_concurrency": 4, "output_tokens": 256, "temperature": 0.0},
        "target": {"files": target, "trust_remote_code": False},
        "engine": {"name": engine, "python": None, "url": None, "flags": {"max-model-len": 8192}, "env": {}},
        "drafter": {"algorithm": "eagle3", "taps": None},
        "depth": found["depth"],
    }
    manifest = Manifest("bench", config, {}, {}, {"gate": found["gate"]}, started=STARTED)
    manifest.write(folder)
    content = json.loads((folder / "manifest.json").read_text())
    content["provenance"]["hardware"] = {"cpu": "Intel Xeon", "cores": 16, "memory_gib": 125.9, "gpus": [gpu] if gpu else [], "os": "Linux"}
    content["finished"] = STARTED + 3600
    atomic_write_json(folder / "manifest.json", content)
    return folder
