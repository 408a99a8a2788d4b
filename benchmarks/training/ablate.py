"""What moves held-out acceptance in a fixed training time: the train stage on one captured store, one variant after the other.

    python benchmarks/training/ablate.py RUN_FOLDER --seconds 120 --out FILE base tokens_per_batch=256 epochs=2

A variant is a comma-separated list of train or drafter settings. RUN_FOLDER must have a finished capture stage; nothing in it is changed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import yaml

from draftsmith.engines.targets import target_folder
from draftsmith.job import Job, Talk
from draftsmith.manifest import hardware, tool_versions
from draftsmith.metrics import Acceptance
from draftsmith.settings import DrafterSettings, EngineSettings
from draftsmith.train import stage
from draftsmith.train.settings import TrainSettings


def parse(variant: str) -> dict[str, Any]:
    """ "a=1,b=2" as a dict; "base" is empty."""
    pairs = [part.partition("=") for part in variant.split(",") if part != "base"]
    return {key: yaml.safe_load(value) for key, _, value in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--target", default="smollm2-135m-instruct")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = []
    for variant in arguments.variants:
        overrides = parse(variant)
        shape = {key: overrides.pop(key) for key in list(overrides) if key in DrafterSettings.model_fields}
        settings = TrainSettings(**{"budget_s": arguments.seconds, "epochs": 1000, "checkpoint_every_s": 1e9, **overrides})
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder)
            (run / "capture").symlink_to((arguments.run / "capture").resolve())
            job = Job(run, target_folder(arguments.target), EngineSettings(name="none==0"), DrafterSettings(**shape), Talk(every_s=60))
            summary = stage.run(settings, job)
        heldout = Acceptance.from_dict(summary["heldout"])
        rows.append({"variant": variant, "settings": settings.model_dump(), "drafter": shape, "summary": summary})
        survival = ", ".join(f"{share:.3f}" for share in heldout.survival)
        rate, steps = summary["tokens_s"], summary["steps"]
        print(f"{variant}: accept_len {heldout.accept_len:.3f} (survival {survival}) after {steps} steps, {rate:.0f} tokens/s", flush=True)
        arguments.out.write_text(json.dumps({"tools": tool_versions(), "hardware": hardware(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
