"""The command `tune`: its arguments, and the run folder that it works in. It imports what it needs when it runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftsmith.commands import Answer, Commands, open_recipe, recipe_arguments
from draftsmith.errors import UsageError

if TYPE_CHECKING:
    from draftsmith.job import Job
    from draftsmith.recipe import Recipe
    from draftsmith.tune.command import Subject
    from draftsmith.tune.settings import TuneSettings


def tune(args: argparse.Namespace) -> Answer:
    """Exit code 0 when a way to draft pays somewhere, 1 when none does, 3 when that cannot be told."""
    from draftsmith.runfolder import disk_errors_said_plainly, locked
    from draftsmith.tune import command
    from draftsmith.tune.result import told

    args.overrides += [f"tune.env_sets.{name}={values}" for name, values in env_sets(args.env_set or ()).items()]
    recipe, job = open_recipe(args)
    settings = settings_of(recipe)
    for path in settings.files():
        if not path.is_file():
            raise UsageError(f"there is no file {path}", hint="tune.prompts: heldout, builtin, or a .jsonl or .parquet file")
    subject = command.subject_of(job, settings, args.drafter, fresh_stages(recipe, job))
    if args.dry_run:
        plan = command.plan(subject, settings)
        minutes = f"about {int(plan.seconds) // 60}:{int(plan.seconds) % 60:02d}"
        names = ", ".join(candidate.name for candidate in subject.candidates)
        text = f"candidates: {names}\n{plan.launches} launches, {minutes}; {plan.note}"
        return {"candidates": names.split(", "), "launches": plan.launches, "seconds": plan.seconds, "note": plan.note}, text, 0
    with locked(job.run), disk_errors_said_plainly(job.run):
        content = finished_or_run(subject, settings)
    page = job.folder(command.NAME) / "tune.html"
    return content, f"page: {page}\n{told(content)}", content["exit_code"]


def fresh_stages(recipe: Recipe, job: Job) -> frozenset[str]:
    """Stages that are finished for this recipe and lie where they belong."""
    from draftsmith.flow import survey
    from draftsmith.stages import STAGES

    return frozenset(
        name for name, found in survey(recipe, job, STAGES).items() if found.state == "finished" and found.place == job.folder(name)
    )


def finished_or_run(subject: Subject, settings: TuneSettings) -> Any:
    """The result of the work for these settings: as it was left, or measured now; half-done work goes on."""
    from draftsmith.keys import PARTS, target_identity
    from draftsmith.manifest import Manifest, hash_outputs, stage_key
    from draftsmith.runfolder import first_start, prepare, worked_s, working
    from draftsmith.tune import command

    job, name = subject.job, command.NAME
    folder = job.folder(name)
    config = {
        "settings": settings.model_dump(mode="json"),
        "target": target_identity(job.target),
        "engine": PARTS["engine"](job),
        "drafter": {"files": target_identity(subject.drafter.folder), "method": subject.drafter.method},
    }
    if prepare(folder, stage_key(name, config, {}), job.talk) is not None:
        job.talk.say("tune: finished before, nothing to do")
        return command.read_result(folder)
    before_s = worked_s(folder)
    job.talk.say("tune: goes on where it stopped" if before_s else f"tune: {len(subject.candidates)} candidates")
    with working(folder):
        content = command.run(subject, settings)
        outputs = hash_outputs(folder)
    summary = {"verdict": content["verdict"], "exit_code": content["exit_code"]}
    Manifest(name, config, {}, outputs, summary, started=first_start(folder), active_s=worked_s(folder)).write(folder)
    return content


def settings_of(recipe: Recipe) -> TuneSettings:
    """The recipe's section; what it does not say of the load is as its bench has it."""
    from pydantic import ValidationError

    from draftsmith.recipe import explain
    from draftsmith.tune.settings import LOAD, TuneSettings

    said = recipe.tune.model_dump(exclude_unset=True)
    bench: dict[str, Any] = {name: getattr(recipe.bench, name) for name in LOAD} | {"output_tokens": recipe.bench.lengths[0]}
    if "concurrency" in said and said["concurrency"] != recipe.bench.concurrency:  # these are numbers for each concurrency
        bench = {name: value for name, value in bench.items() if name not in ("requests", "warmup_requests")}
    if bench["prompts"] == "five" or not bench["concurrency"]:
        raise UsageError(
            f"bench has prompts {bench['prompts']}, concurrency {list(bench['concurrency'])}: tune needs its own",
            hint="tune.prompts=builtin tune.concurrency=[1,8]",
        )
    try:
        return TuneSettings.model_validate(bench | said)
    except ValidationError as error:
        raise UsageError(f"tune: {explain(error)}", hint="draftsmith tune --help") from None


def env_sets(words: Sequence[str]) -> dict[str, str]:
    """{"ll": "{NCCL_PROTO: 'LL', ...}"} from "ll:NCCL_PROTO=LL,NCCL_ALGO=Ring"; a word without = goes on with the value before it, as in
    NCCL_PROTO=LL,LL128. Raises UsageError."""
    import json
    import re

    found: dict[str, str] = {}
    for word in words:
        name, colon, rest = word.partition(":")
        pairs = [part.partition("=") for part in re.split(r",(?=[^,=]*=)", rest)]
        if not colon or not name or "." in name or name in found or not all(key.strip() and equals for key, equals, _ in pairs):
            raise UsageError(
                f"--env-set {word!r} is not NAME:VARIABLE=VALUE,... with a name of its own", hint="--env-set low-latency:NCCL_PROTO=LL"
            )
        found[name] = json.dumps({key.strip(): value for key, _, value in pairs})
    return found


def tune_options(command: argparse.ArgumentParser) -> None:
    """What `tune` takes; settings of the recipe's section `tune` are given as KEY=VALUE."""
    command.epilog = (
        "settings: tune.depths=[1,2,3,5] tune.trees=[3-4-16] tune.blocks=[4,8,16] tune.concurrency=[1,8,32] tune.keep=2 tune.rounds=2 "
        "tune.pairs=3 tune.pairs_max=6 tune.margin=0.02. Exit code: 0 a way to draft pays somewhere, 1 none does, 3 that cannot be told."
    )
    recipe_arguments(command, "tune.depths=[1,3,5]")
    command.add_argument("--drafter", metavar="DIR", type=Path, help="the drafter to tune (default: what the run exported)")
    command.add_argument(
        "--env-set",
        metavar="NAME:VAR=VALUE,...",
        action="append",
        help="a set of environment variables to try besides: low-latency:NCCL_PROTO=LL,NCCL_ALGO=Ring; may be repeated",
    )
    command.add_argument("--dry-run", action="store_true", help="print candidates, launches and time, and do nothing")


COMMANDS: Commands = {
    "tune": ("the best depth, tree or block at each concurrency, as the engine takes it", tune, tune_options, "tune RECIPE"),
}
