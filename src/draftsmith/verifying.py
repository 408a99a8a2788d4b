"""The commands around verify that are not a stage of a recipe: verify wiring. They import what they need when they run."""

from __future__ import annotations

import argparse
from pathlib import Path

from draftsmith.commands import Answer, Commands, open_recipe, recipe_arguments
from draftsmith.errors import UsageError
from draftsmith.written import finite


def verify_wiring(args: argparse.Namespace) -> Answer:
    """One launch, and the sentence. A fault raises CheckFailed: exit code 4."""
    from draftsmith.runfolder import disk_errors_said_plainly, locked

    trained = boundaries(args.trained) if args.trained else None
    if args.tolerance is not None and args.tolerance <= 0:
        raise UsageError(f"--tolerance {args.tolerance:g}: expected a relative error above 0", hint="for example --tolerance 0.03")
    _, job = open_recipe(args)
    with disk_errors_said_plainly(job.run), locked(job.run):
        from draftsmith.verify.wiring.run import run, sentence

        result = run(job, args.drafter, trained, args.tolerance)
    return result, sentence(result), 0


def boundaries(text: str) -> tuple[int, ...]:
    """2,15,27. Raises UsageError."""
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise UsageError(f"--trained {text!r}: expected boundaries with commas between them", hint="for example --trained 2,15,27")
    return tuple(int(word) for word in words)


def wiring_options(command: argparse.ArgumentParser) -> None:
    recipe_arguments(command, "engine.flags.dtype=float32")
    command.add_argument("--drafter", metavar="DIR", type=Path, help="the drafter to serve (default: what the run exported)")
    command.add_argument(
        "--trained",
        metavar="2,15,27",
        help="boundaries that the drafter was trained on (default: what the run captured, or what the drafter's config says of itself)",
    )
    command.add_argument(
        "--tolerance",
        metavar="ERROR",
        type=finite,
        help="largest median relative error of equal features (default: by dtype, 0.03 in bfloat16); a quantised target needs more",
    )


COMMANDS: Commands = {
    "verify wiring": (
        "what does the running engine really hand to the drafter, and is it what training had?",
        verify_wiring,
        wiring_options,
        "verify wiring RECIPE",
    ),
}
