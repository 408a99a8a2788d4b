"""bench in its two modes that need GPUs, with a drafter that was trained before: arms that swap two sets of GPUs, and servers that sleep.

    python benchmarks/gpu/modes.py sets --trained DIR --kit DIR --out DIR
    python benchmarks/gpu/modes.py sleep --trained DIR --kit DIR --out DIR KEY=VALUE...

`--trained` is a run folder of the same service that has data/ and export/ (recipes/smollm2-cpu.yaml leaves one); everything else comes from
recipes/smollm2-h200-sglang.yaml. OUT/run/bench gets what bench writes, as from `draftsmith bench`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from draftsmith.bench import stage
from draftsmith.flow import make_job
from draftsmith.job import Job, Talk
from draftsmith.manifest import atomic_write_json
from draftsmith.recipe import Recipe, load_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "smollm2-h200-sglang.yaml"
FEW = [
    "engine.flags.max-running-requests=32",
    "engine.flags.cuda-graph-max-bs=32",
    "bench.concurrency=[1,8,32]",
    "bench.requests=[20,96,384]",
    "bench.warmup_requests=[4,16,64]",
]
MODES = {
    "sets": [*FEW, "bench.gpu_sets=[[0],[1]]", "bench.pairs=3"],
    "sleep": [*FEW, "bench.mode=sleep", "bench.start_together=false", "bench.pairs=4"],
}


def here(kit: Path) -> list[str]:
    """Settings of a machine where the engine lies in a kit."""
    return [f"target.model={kit / 'model'}", f"engine.python={sys.executable}", f"engine.env.PYTHONPATH={kit / 'site'}"]


def adopt(trained: Path, run: Path) -> None:
    """A run folder that has data and export of another one, and no break-even."""
    for name in ("data", "export"):
        shutil.copytree(trained / name, run / name, dirs_exist_ok=True)
    if not (run / "breakeven" / "summary.json").exists():
        (run / "breakeven").mkdir(parents=True, exist_ok=True)
        atomic_write_json(run / "breakeven" / "summary.json", {"break_even": []})


def parser_of(text: str | None, modes: Iterable[str] = ()) -> argparse.ArgumentParser:
    """What these drivers are told. text: the driver's docstring; modes: of which it takes one, if there are any."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    if modes:
        parser.add_argument("mode", choices=modes)
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--trained", type=Path, required=True)
    parser.add_argument("--kit", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", default=[])
    return parser


def opened(arguments: argparse.Namespace, settings: list[str]) -> tuple[Recipe, Job, list[str]]:
    """Recipe, job with what was trained before, and the overrides of both. settings: the driver's own, before the caller's."""
    overrides = [*here(arguments.kit), *settings, *arguments.overrides]
    recipe = load_recipe(arguments.recipe, overrides)
    job = make_job(recipe, arguments.out / "run", Talk())
    adopt(arguments.trained, job.run)
    return recipe, job, overrides


def main() -> int:
    arguments = parser_of(__doc__, MODES).parse_intermixed_args()
    recipe, job, _ = opened(arguments, MODES[arguments.mode])
    summary = stage.run(recipe.bench, job)
    print(summary["verdict_sentence"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
