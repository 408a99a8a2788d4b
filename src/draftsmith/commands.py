"""What each command does, and the arguments that many have. A handler returns (JSON document, text for stdout, exit code) and imports what
it needs; the modules beside this one (serving, measuring, ...) have theirs in a table `COMMANDS`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftsmith.errors import UsageError

if TYPE_CHECKING:
    from draftsmith.flow import Outcome, Planned
    from draftsmith.job import Job
    from draftsmith.recipe import Recipe

Answer = tuple[Any, str, int]
Handler = Callable[[argparse.Namespace], Answer]
Arguments = Callable[[argparse.ArgumentParser], None]
Commands = dict[str, tuple[str, Handler, Arguments, str]]  # name: (what it does, its handler, its arguments, how it is called)

# --- recipes ---------------------------------------------------------------------------------------------------------

RECIPE_FILE = "a recipe file, for example recipes/smollm2-cpu.yaml"


def recipe_arguments(command: argparse.ArgumentParser, example: str, recipe: str = RECIPE_FILE, optional: bool = False) -> None:
    """RECIPE, KEY=VALUE and --run-folder, which `open_recipe` reads. example: a setting that this command makes use of; recipe: what the
    help says of RECIPE."""
    command.add_argument("recipe", metavar="RECIPE", nargs="?" if optional else None, type=Path, help=recipe)
    command.add_argument("overrides", metavar="KEY=VALUE", nargs="*", default=[], help=f"another setting than the recipe's: {example}")
    command.add_argument(
        "--run-folder", metavar="DIR", type=Path, help="where the stages leave their files (default: runs/<the recipe's name>)"
    )


def open_recipe(args: argparse.Namespace) -> tuple[Recipe, Job]:
    """The recipe with its overrides, and the job in its run folder."""
    from draftsmith.flow import make_job
    from draftsmith.job import Talk
    from draftsmith.recipe import load_recipe

    recipe = load_recipe(args.recipe, args.overrides)
    return recipe, make_job(recipe, args.run_folder or Path("runs") / recipe.name, Talk(quiet=args.quiet))


def run_recipe(args: argparse.Namespace) -> Answer:
    from draftsmith import flow

    recipe, job = open_recipe(args)
    if args.dry_run:
        return show_plan(flow.plan(recipe, job, flow.selection(args.until)))
    return show_outcome(flow.run(recipe, job, args.until))


def run_stage(args: argparse.Namespace) -> Answer:
    from draftsmith import flow

    recipe, job = open_recipe(args)
    if args.dry_run:
        return show_plan(flow.plan(recipe, job, [args.command]))
    return show_outcome(flow.run_one(args.command, recipe, job))


def check(args: argparse.Namespace) -> Answer:
    """A recipe, a launch command, or the meaning of a code."""
    if args.explain:
        from draftsmith.check.codes import explain, explained

        entry = explain(args.explain)
        return entry, explained(entry), 0
    names = ("engine", "target", "drafter", "concurrency", "context_length", "gpus", "gpu_memory", "config")
    if args.recipe is not None:
        if args.pasted:
            raise UsageError("a recipe and a launch command at once", hint="give one of the two")
        if given := [name for name in names if getattr(args, name) is not None]:
            hint = "in a recipe: engine.name, target.model, check.concurrency, check.context_length, as KEY=VALUE too"
            raise UsageError(f"--{given[0].replace('_', '-')} is for a launch command", hint=hint)
        return run_stage(args)
    if args.dry_run or args.run_folder is not None:
        raise UsageError("--dry-run and --run-folder are for a recipe", hint="draftsmith check RECIPE")
    from draftsmith.check.command import Asked, check_launch

    return check_launch(Asked(**{name: getattr(args, name) for name in names}), args.pasted)


def report(args: argparse.Namespace) -> Answer:
    """The stage of a recipe; or, of folders and report.json files, one report, several side by side."""
    named = [args.recipe, *map(Path, args.overrides)]
    if not any(place.is_dir() or place.suffix == ".json" for place in named):
        if args.output is not None:
            raise UsageError("--output is for runs that are named; a recipe's report lies in its run folder", hint="draftsmith report RUN")
        return run_stage(args)
    if args.dry_run or args.run_folder is not None:
        raise UsageError("--dry-run and --run-folder are for a recipe", hint="draftsmith report RUN [RUN ...] [--output DIR]")
    from draftsmith.report.write import report_of
    from draftsmith.runfolder import disk_errors_said_plainly

    output = args.output or Path("draftsmith-report")
    with disk_errors_said_plainly(output, "--output"):
        return report_of(named, output)


def show_outcome(outcome: Outcome) -> Answer:
    """Folders of what was made, the gate, and the verdict as the last line."""
    lines = []
    if outcome.exit_code:
        bench = outcome.summary("bench")
        lines.append(f"gate {bench['gate']}: exit code {outcome.exit_code}" if bench else outcome.summary("breakeven")["advice"])
    if outcome.verdict:
        lines.append(f"report: {outcome.run / 'report' / 'report.html'}")
        lines.append(outcome.verdict)
    return outcome.as_dict(), "\n".join(lines), outcome.exit_code


def show_plan(lines: Sequence[Planned]) -> Answer:
    """A table with one line per stage and the total."""
    costs = [{"launches": line.plan.launches, "bytes": line.plan.bytes, "seconds": line.plan.seconds} for line in lines]
    total = {name: sum(cost[name] for cost in costs) for name in ("launches", "bytes", "seconds")}
    text = [f"{'stage':10} {'state':9} {'launches':>8} {'disk':>10} {'time':>6}  note"]
    text += [row(line.stage, line.state, cost, line.plan.note) for line, cost in zip(lines, costs, strict=True)]
    text.append(row("total", "", total, "estimates; nothing was done"))
    plan = [{"stage": line.stage, "state": line.state, **cost, "note": line.plan.note} for line, cost in zip(lines, costs, strict=True)]
    return {"plan": plan, "total": total}, "\n".join(text), 0


def row(stage: str, state: str, cost: Mapping[str, float], note: str) -> str:
    """One line of the plan; what costs nothing is left blank."""
    disk = f"{cost['bytes'] / 2**20:.1f} MiB" if cost["bytes"] else ""
    time = f"{int(cost['seconds']) // 60}:{int(cost['seconds']) % 60:02d}" if cost["seconds"] else ""
    return f"{stage:10} {state:9} {cost['launches'] or '':>8} {disk:>10} {time:>6}  {note}".rstrip()


def show_data(args: argparse.Namespace) -> Answer:
    from draftsmith.data import show

    document, text = show.show(args.run_folder, args.n)
    return document, text, 0


# --- engines and targets ---------------------------------------------------------------------------------------------


def add_engine(args: argparse.Namespace) -> Answer:
    from draftsmith.engines import environments
    from draftsmith.job import Talk

    made = environments.add(args.name, Talk(quiet=args.quiet), args.check_only)
    return made, json.dumps(made, indent=2), 0


def list_engines(args: argparse.Namespace) -> Answer:
    from draftsmith.engines import environments

    rows = environments.list_engines()
    text = [f"{row['name']:24} {row['state']:9} {row['bytes'] / 2**20:6.0f} MiB  {row['folder']}" for row in rows]
    known, check_only = environments.known_locks(), environments.known_locks(check_only=True)
    text += [f"can be added: {', '.join(known)}", f"with --check-only: {', '.join(check_only)}"]
    return {"made": rows, "known": known, "check_only": check_only}, "\n".join(text), 0


def probe_engine(args: argparse.Namespace) -> Answer:
    from draftsmith.engines import environments, resolution

    if args.target is None:
        if args.drafter is not None or args.pasted:
            raise UsageError("flags without a target", hint="--target DIR: a folder with the target's config.json")
        found = environments.probe(args.name)
        return found, json.dumps(found, indent=2), 0
    answer = environments.resolve(args.name, resolution.Case(args.target, args.drafter, tuple(args.pasted), gpu=args.gpu or "h100"))
    return answer, resolution.told(answer), 4 if "error" in answer else 0


def remove_engine(args: argparse.Namespace) -> Answer:
    from draftsmith.engines import environments

    folder = environments.remove(args.name, args.check_only)
    return {"removed": str(folder)}, f"removed {folder}", 0


def fetch_target(args: argparse.Namespace) -> Answer:
    from draftsmith.engines import environments
    from draftsmith.job import Talk

    folder = environments.fetch_target(args.name, Talk(quiet=args.quiet))
    return {"name": args.name, "folder": str(folder)}, str(folder), 0


def list_targets(args: argparse.Namespace) -> Answer:
    from draftsmith.engines import environments

    rows = environments.listed_targets()
    return rows, "\n".join(f"{row['name']:24} {row['state']}" for row in rows), 0
