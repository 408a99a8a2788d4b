"""The command `verify replay`: its arguments, and drafters from elsewhere brought into the layout that verify reads. It imports what it
needs when it runs."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from draftsmith.commands import Answer, Commands, open_recipe, recipe_arguments
from draftsmith.errors import UsageError
from draftsmith.written import finite

if TYPE_CHECKING:
    from draftsmith.verify.replay.run import Sources, Subject

OUTPUT_TOKENS = 64
DEPTH = 3  # without a recipe and without --depth; a block drafter drafts its block


def verify_replay(args: argparse.Namespace) -> Answer:
    """A recipe's run, or a target and a drafter without one."""
    from draftsmith.job import Talk
    from draftsmith.runfolder import disk_errors_said_plainly, locked
    from draftsmith.verify.replay.run import run

    subject, sources, out, option = of_recipe(args) if args.recipe is not None else of_folders(args)
    place = sources.run or out
    with disk_errors_said_plainly(place, option), locked(place, option), plain(args, subject) as ready:
        result, lines, code = run(ready, sources, out, Talk(quiet=args.quiet))
    return {**result, "exit_code": code}, "\n".join(lines), code


def of_recipe(args: argparse.Namespace) -> tuple[Subject, Sources, Path, str]:
    """(what is replayed, where things come from, where the result goes, the option that chooses the folder)."""
    from draftsmith.models.text_config import read_text_config
    from draftsmith.verify.replay.run import Subject
    from draftsmith.verify.stage import served_dtype

    _, job = open_recipe(args)
    if args.target is not None:
        raise UsageError("a recipe and --target at once", hint="the recipe names its target")
    dtype = args.dtype or served_dtype(job.engine.flags.get("dtype", "auto"), read_text_config(job.target))
    folder = args.drafter or job.folder("export")
    depth = args.depth or drafts_of(folder) or job.drafter.depth
    own = args.drafter is None or args.drafter.resolve() == job.folder("export").resolve()
    subject = Subject(job.target, folder, str(folder), depth, dtype, own, job.trust_remote_code)
    return subject, sources_of(args, job.run, depth), args.out or job.folder("replay"), "--run-folder"


def of_folders(args: argparse.Namespace) -> tuple[Subject, Sources, Path, str]:
    """Without a recipe. Raises UsageError when something that is needed is not said."""
    from draftsmith.engines.targets import target_folder
    from draftsmith.models.text_config import read_text_config
    from draftsmith.verify.replay.run import Subject
    from draftsmith.verify.stage import served_dtype

    if args.target is None or args.drafter is None:
        usage = "verify replay RECIPE, or verify replay --target DIR --drafter DIR with --rows, --served or both"
        raise UsageError("say what to replay", hint=usage)
    if args.rows is None and args.served is None:
        raise UsageError("nothing to replay on", hint="--rows STORE or FILE, and --served FILE or --url URL to compare with")
    if args.served in ("verify", "bench"):
        raise UsageError(f"--served {args.served} is for a recipe's run", hint="--served FILE: a JSONL file of replies")
    target = target_folder(str(args.target))
    dtype = args.dtype or served_dtype("auto", read_text_config(target))
    depth = args.depth or drafts_of(args.drafter) or DEPTH
    subject = Subject(target, args.drafter, str(args.drafter), depth, dtype)
    return subject, sources_of(args, None, depth), args.out or Path("runs") / "replay", "--out"


def drafts_of(folder: Path) -> int | None:
    """Drafts per round of a block drafter: its block without the anchor. None for another drafter."""
    from draftsmith.verify.replay.dflash import block_size

    size = block_size(folder)
    return size - 1 if size else None


def sources_of(args: argparse.Namespace, run: Path | None, depth: int) -> Sources:
    """The options about rows and served replies. Raises UsageError for a file that is not there, or a number that cannot be meant."""
    from draftsmith.verify.replay.run import Sources
    from draftsmith.verify.replay.served import Asking

    for name in ("prompts", "output_tokens", "depth"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected 1 or more", hint="draftsmith verify replay --help")
    if args.temperature < 0:
        raise UsageError(f"--temperature {args.temperature:g}: expected 0 (greedy) or more", hint="as the server samples; 0 is the default")
    if args.rows is not None and not args.rows.exists():
        raise UsageError(f"--rows {args.rows} does not exist", hint="a capture store (a folder), or a .jsonl or .parquet file")
    if args.url is not None and args.served is not None:
        raise UsageError("--served and --url at once", hint="give one of the two")
    asking = None
    if args.url is not None:
        asking = Asking(args.url, args.output_tokens or OUTPUT_TOKENS, args.temperature, depth)
    elif args.output_tokens is not None:
        raise UsageError("--output-tokens is for a server that is asked (--url)", hint="add --url URL, or leave it out")
    return Sources(run, args.rows, args.split, args.prompts, args.served, asking, args.temperature)


@contextmanager
def plain(args: argparse.Namespace, subject: Subject) -> Iterator[Subject]:
    """The subject with its folder in the plain layout: as it is when Draftsmith exported it, else converted into a temporary folder.

    Raises what the converter raises: UsageError, EnvironmentFailed, CheckFailed with the reasons (quantised, contradictions).
    """
    from dataclasses import replace

    if args.taps is None and exported(subject.folder):
        yield subject
        return
    with tempfile.TemporaryDirectory(prefix="draftsmith-replay-") as scratch:
        yield replace(subject, folder=converted(args, subject, Path(scratch) / "drafter"))


def exported(folder: Path) -> bool:
    """Is it a folder that the export stage wrote, or nothing that a converter could do more about?"""
    from draftsmith.models.config_keys import read_config_file

    file = folder / "config.json"
    if not file.is_file():
        return True
    try:
        config = read_config_file(file)
    except (OSError, ValueError):
        return True
    own = bool((config.get("draftsmith") or {}).get("tap_boundaries"))
    return own and config.get("architectures") == ["LlamaForCausalLMEagle3"] and (folder / "model.safetensors").is_file()


def converted(args: argparse.Namespace, subject: Subject, folder: Path) -> Path:
    """The drafter as vLLM's plain layout, which says the most. Nothing is checked against an engine: it will not be served."""
    from draftsmith.convert.command import convert
    from draftsmith.convert.drafter import Asked
    from draftsmith.converting import NEWEST, boundaries, engine_version
    from draftsmith.models.text_config import read_config, text_part

    target = read_config(subject.target)
    kind = str(target.get("model_type"))
    kind = kind if kind == "minimax_m3_vl" else str(text_part(target).get("model_type") or kind)
    family, version = engine_version(NEWEST["vllm"], "--engine")
    source = engine_version(args.source_engine, "--source-engine")[1] if args.source_engine else None
    taps = boundaries(args.taps) if args.taps else None
    asked = Asked("vllm", family, version, text_part(target), kind, source, taps, args.d2t)
    return convert(subject.folder, folder, asked, lambda *_: []).folder


def arguments(command: argparse.ArgumentParser) -> None:
    command.usage = (
        "draftsmith verify replay RECIPE [KEY=VALUE ...] [options]\n"
        "       draftsmith verify replay --target DIR --drafter DIR [--rows STORE|FILE] [--served FILE | --url URL] [options]"
    )
    command.epilog = "Exit code 0: as training measured and as served. 4: not so. 3: nothing to compare with. 2: the words cannot be meant."
    recipe_arguments(command, "engine.flags.dtype=float32", optional=True)
    command.add_argument("--target", metavar="DIR", type=Path, help="without a recipe: the target's folder, or the name of a fetched one")
    command.add_argument("--drafter", metavar="DIR", type=Path, help="the drafter, in a format that `convert` reads (default: the export)")
    command.add_argument("--rows", metavar="PATH", type=Path, help="a capture store, or a file with tokens of prompts and answers")
    command.add_argument("--split", metavar="NAME", default="heldout", help="split of the store (default heldout)")
    command.add_argument("--prompts", metavar="N", type=int, help="at most so many rows, spread evenly")
    command.add_argument("--served", metavar="WHAT", help="verify (default, if there), bench, or a JSONL file of replies")
    command.add_argument("--url", metavar="URL", help="ask a server that runs; its counters are read before and after")
    command.add_argument("--output-tokens", metavar="N", type=int, help=f"with --url: most tokens of an answer (default {OUTPUT_TOKENS})")
    command.add_argument("--temperature", metavar="T", type=finite, default=0.0, help="of the server's sampling (default 0: greedy)")
    command.add_argument("--depth", metavar="N", type=int, help=f"drafts per round (default: block - 1, else the recipe's, else {DEPTH})")
    command.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="that is served (default: as the engine's)")
    command.add_argument("--taps", metavar="LIST", help="boundaries that training used, when the drafter does not say: 2,15,27")
    command.add_argument("--source-engine", metavar="sglang==VERSION", help="whose numbering the drafter's tap ids are, where it changed")
    command.add_argument("--d2t", choices=("offsets", "absolute"), help="what d2t holds, when its values do not tell")
    command.add_argument("--out", metavar="DIR", type=Path, help="where replay.json goes (default: replay/ of the run, or runs/replay)")


COMMANDS: Commands = {
    "verify replay": (
        "does the drafter alone reach what training measured and what is served; where not, why",
        verify_replay,
        arguments,
        "verify replay RECIPE",
    ),
}
