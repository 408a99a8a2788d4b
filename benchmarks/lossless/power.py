"""How often verify lossless finds planted faults, and how often it cries wolf: many tiny worlds, each with another target and drafter.

    python benchmarks/lossless/power.py [SEEDS]      writes benchmarks/lossless/power.json

The worlds are those of the tests (tests/unit/lossless_world.py): a random torch network as target, a drafter that reads less of the
context, bf16 logits with noise that depends on the shape of the batch, a speculative server with or without a fault. Sizes are the
command's defaults, without the probes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests" / "unit")]

from lossless_world import ACCEPT, FAULTS, SINGLE, SURE, Engine, InProcess, prompts  # noqa: E402

from draftsmith.job import Talk  # noqa: E402
from draftsmith.verify.lossless.audit import run  # noqa: E402
from draftsmith.verify.lossless.judges import ServerJudge  # noqa: E402
from draftsmith.verify.lossless.settings import PROBES, Audit  # noqa: E402

AUDIT = Audit(skip=frozenset(PROBES))
NOISE, DEPTH, FIRST_SEED = 0.02, 3, 1000
OUT = Path(__file__).with_name("power.json")


def audited(seed: int, fault: str, folder: Path) -> dict[str, Any]:
    """One audit: its verdict, codes, near-ties, and the sampling part."""
    baseline = InProcess("baseline", Engine(seed, 0, "", NOISE), folder)
    speculative = InProcess("speculative", Engine(seed, DEPTH, fault, NOISE), folder)
    asked = prompts(AUDIT.prompts, seed)
    found = run(baseline, speculative, asked, AUDIT, ServerJudge(baseline, asked), DEPTH, folder, Talk(quiet=True))
    sampled = found["sampling"][0]
    return {
        "seed": seed,
        "verdict": found["verdict"],
        "codes": sorted({f["code"] for f in found["findings"] if f["severity"] == "error"}),
        "tokens": found["greedy"]["tokens"],
        "near_ties": found["greedy"]["near-tie"],
        "baseline_parts": found["greedy"]["budget"]["baseline"]["divergences"],
        "accept_len": found["greedy"]["acceptance"]["accept_len"],
        "smallest_found": sampled["smallest_found"],
        "largest_tv": max(place["total_variation"] or 0.0 for place in sampled["places"]),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Over the seeds."""
    return {
        "seeds": len(rows),
        "verdicts": dict(Counter(row["verdict"] for row in rows)),
        "codes": dict(Counter(code for row in rows for code in row["codes"])),
        **{f"median_{name}": float(np.median([row[name] for row in rows])) for name in ("tokens", "near_ties", "accept_len", "largest_tv")},
        "smallest_found": sorted({row["smallest_found"] for row in rows}),
    }


def main(seeds: int) -> None:
    result: dict[str, Any] = {
        "planted": {"sure": SURE, "threshold_single": SINGLE, "threshold_acc": ACCEPT, "noise": NOISE, "depth": DEPTH},
        "worlds": {},
    }
    for fault in ("", *FAULTS):
        started, rows = time.monotonic(), []
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(FIRST_SEED, FIRST_SEED + seeds):
                rows.append(audited(seed, fault, Path(folder)))
        result["worlds"][fault or "right"] = {**summary(rows), "rows": rows}
        print(fault or "right", summary(rows), f"{time.monotonic() - started:.0f} s", flush=True)
    OUT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
