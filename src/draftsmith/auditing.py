"""The command `verify lossless`: two running servers, one and the local target, or a recipe. It imports what it needs when it runs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftsmith.commands import Answer, Commands, open_recipe, recipe_arguments
from draftsmith.errors import UsageError
from draftsmith.written import finite

if TYPE_CHECKING:
    from draftsmith.verify.lossless.settings import Audit

NUMBERS = {  # option: what it is; the defaults stand in verify/lossless/settings.py
    "num_prompts": "prompts of the greedy part (default 24)",
    "output_tokens": "tokens of each greedy answer (default 128)",
    "concurrency": "requests in flight (default 8)",
    "sampled_prompts": "prompts that are sampled (default 8)",
    "samples": "samples per prompt and server (default 400)",
    "sampled_tokens": "tokens of each sample (default 6)",
    "long_tokens": "tokens of the long reply, cut at the context (default 2048)",
    "context": "tokens that the servers have room for (default: as they tell)",
    "seed": "of the order of the samples and of the permutations (default 0)",
}


def verify_lossless(args: argparse.Namespace) -> Answer:
    """The audit. Exit code 0 lossless, 4 fault, 3 inconclusive."""
    audit = audit_from(args)
    if (args.recipe is None) == (args.url is None):
        hint = "draftsmith verify lossless --url A --url B | --url B --target FOLDER | RECIPE"
        raise UsageError("say what to audit: running servers, or a recipe", hint=hint)
    return of_recipe(args, audit) if args.recipe is not None else of_urls(args, audit)


def of_urls(args: argparse.Namespace, audit: Audit) -> Answer:
    from draftsmith.engines.targets import target_folder
    from draftsmith.job import Talk
    from draftsmith.runfolder import disk_errors_said_plainly, locked
    from draftsmith.verify.lossless import run as lossless_run

    if len(args.url) > 2 or (len(args.url) == 1 and args.target is None):
        hint = "two: first the server without speculation; or one, and --target FOLDER"
        raise UsageError(f"{len(args.url)} --url given", hint=hint)
    if args.overrides or args.run_folder is not None:
        raise UsageError("settings and --run-folder are for a recipe", hint="--out DIR says where the audit of servers goes")
    if args.prompts == "heldout":
        raise UsageError("--prompts heldout is for a recipe", hint="builtin, five, or a .jsonl or .parquet file")
    target = target_folder(str(args.target)) if args.target is not None else None
    folder = args.out or Path("runs") / "lossless-url"
    with locked(folder, "--out"), disk_errors_said_plainly(folder, "--out"):
        talk = Talk(quiet=args.quiet)
        source = args.prompts or "builtin"
        return told(lossless_run.of_urls(args.url, target, source, args.endpoint, audit, folder, talk), folder)


def of_recipe(args: argparse.Namespace, audit: Audit) -> Answer:
    from draftsmith.runfolder import disk_errors_said_plainly, locked

    if args.target is not None:
        raise UsageError("--target is for a running server", hint="a recipe names its target")
    _, job = open_recipe(args)
    if args.near_tie is None and job.engine.flags.get("dtype") in ("float32", "float"):
        audit = replace(audit, near_tie=1e-3)
    folder = args.out or job.folder("lossless")
    with disk_errors_said_plainly(job.run), locked(job.run):
        from draftsmith.verify.lossless import run as lossless_run

        folder.mkdir(parents=True, exist_ok=True)
        return told(lossless_run.of_recipe(job, args.prompts or "heldout", args.endpoint, audit, folder), folder)


def told(result: dict[str, Any], folder: Path) -> Answer:
    """Findings that are no information, where the numbers are, and the verdict as the last line."""
    from draftsmith.findings import Finding
    from draftsmith.verify.lossless.audit import EXIT, FILE

    lines = [Finding(**finding).line() for finding in result["findings"] if finding["severity"] != "info"]
    code = EXIT[result["verdict"]]
    return {**result, "exit_code": code}, "\n".join([*lines, f"written: {folder / FILE}", result["sentence"]]), code


def audit_from(args: argparse.Namespace) -> Audit:
    """Audit from the options. Raises UsageError."""
    from draftsmith.verify.lossless.settings import Audit, Way

    values: dict[str, Any] = {name: getattr(args, name) for name in NUMBERS if getattr(args, name) is not None}
    if "num_prompts" in values:
        values["prompts"] = values.pop("num_prompts")
    values |= {name: getattr(args, name) for name in ("near_tie", "largest_tv") if getattr(args, name) is not None}
    if args.sampling:
        values["ways"] = tuple(Way.of(text) for text in args.sampling)
    return Audit(**values, skip=frozenset(args.skip or ()))


def options(command: argparse.ArgumentParser) -> None:
    command.usage = (
        "draftsmith verify lossless --url A --url B [options] | --url B --target FOLDER [options] | RECIPE [KEY=VALUE ...] [options]"
    )
    recipe_arguments(command, "engine.flags.dtype=float32", "a recipe that was run as far as export: starts both servers", optional=True)
    command.add_argument("--url", action="append", help="a server that runs: first the one without speculation, then the one with it")
    command.add_argument(
        "--target", metavar="FOLDER", type=Path, help="the local target: renders prompts, judges gaps, replaces the baseline"
    )
    command.add_argument(
        "--prompts", metavar="FILE", help="builtin (default with --url), five, heldout (default of a recipe), .jsonl or .parquet"
    )
    command.add_argument("--endpoint", choices=["completions", "chat", "generate"], help="default: chat for messages, else token ids")
    for name, text in NUMBERS.items():
        command.add_argument(f"--{name.replace('_', '-')}", metavar="N", type=int, help=text)
    command.add_argument(
        "--sampling", metavar="WAY", action="append", help="temperature=1 (default), with top_p=.. and top_k=..; may be repeated"
    )
    command.add_argument(
        "--near-tie",
        metavar="LOGITS",
        type=finite,
        help="gap below which rounding may decide (default 0.5; for float32 servers give 0.001)",
    )
    command.add_argument("--largest-tv", metavar="TV", type=finite, help="shift that sampling must find with 80 %% power (default 0.25)")
    command.add_argument(
        "--skip", metavar="PART", action="append", help="greedy, sampling, json, tools, stop, logprobs or long; may be repeated"
    )
    command.add_argument("--out", metavar="DIR", type=Path, help="where lossless.json and the raw replies go (default runs/lossless-url)")


COMMANDS: Commands = {
    "verify lossless": (
        "do two servers give the same answers? greedy, sampled, structured, cut, long",
        verify_lossless,
        options,
        "verify lossless",
    ),
}
