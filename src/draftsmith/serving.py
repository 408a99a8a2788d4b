"""The commands of long-lived servers: serve start, status, logs, stop, unit, profile. They import what they need when they run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftsmith.commands import Answer, Commands, open_recipe, recipe_arguments
from draftsmith.written import finite

if TYPE_CHECKING:
    from draftsmith.serve.records import Record
    from draftsmith.serve.service import Plan

UNWELL = 4  # a server that is not healthy


# --- from a recipe to a launch ---------------------------------------------------------------------------------------


def make_plan(args: argparse.Namespace, trace_folder: Path | None = None) -> Plan:
    """What the recipe and the options ask for. Raises UsageError, EnvironmentFailed when the drafter is not there."""
    from draftsmith.engines.protocol import Drafting, Launch
    from draftsmith.engines.registry import engine_for
    from draftsmith.errors import EnvironmentFailed
    from draftsmith.serve.environment import read_env_file
    from draftsmith.serve.service import Plan

    recipe, job = open_recipe(args)
    engine, python = engine_for(job.engine)
    drafting = None
    if args.arm == "speculative":
        folder = (args.drafter or job.folder("export")).absolute()
        if not (folder / "config.json").is_file():
            hint = "draftsmith export RECIPE, or --drafter DIR, or --arm baseline"
            raise EnvironmentFailed(f"no drafter at {folder}: it has no config.json", hint=hint)
        drafting = Drafting(job.drafter.algorithm, folder, job.drafter.depth)
    launch = Launch(args.arm, job.target, job.engine.flags, job.engine.env, drafting, job.trust_remote_code)
    if trace_folder is not None:
        launch = engine.with_profiler(launch, trace_folder)
    name = args.name or (recipe.name if args.arm == "speculative" else f"{recipe.name}-baseline")
    secrets = read_env_file(args.env_file) if args.env_file else {}
    return Plan(name, job.engine.name, engine, python, launch, args.recipe.absolute(), job.engine.ready_timeout_s, secrets, trace_folder)


def check_first(plan: Plan, args: argparse.Namespace) -> None:
    """The rules of `check` on what the engine would get; warnings are said. Raises CheckFailed. With --no-check: nothing."""
    import os

    from draftsmith.check.command import refuse
    from draftsmith.engines.flags import fixed_port
    from draftsmith.engines.secrets import refuse_secret_flags
    from draftsmith.job import Talk
    from draftsmith.serve.environment import DEFAULT_PORT

    refuse_secret_flags(plan.launch)  # a finding may name a flag with its value
    if args.no_check:
        return
    argv = plan.engine.argv(plan.python, plan.launch, fixed_port(plan.launch.flags) or DEFAULT_PORT)
    talk = Talk(quiet=args.quiet)
    for finding in refuse(plan.engine_name, plan.python, argv, {**os.environ, **plan.engine.env(plan.launch)}):
        if finding.severity == "warning":
            talk.say(finding.line())


def start_server(args: argparse.Namespace) -> Answer:
    from draftsmith.job import Talk
    from draftsmith.serve import service

    trace_folder = args.trace_dir.absolute() if args.trace_dir else None
    plan = make_plan(args, trace_folder)
    check_first(plan, args)
    record = service.start(plan, Talk(quiet=args.quiet), args.foreground)
    return public(record), f"{record.name} {record.url}", 0


def public(record: Record) -> dict[str, Any]:
    """A record as `--json` shows it."""
    from dataclasses import asdict

    return asdict(record)


# --- looking after servers -------------------------------------------------------------------------------------------


def show_status(args: argparse.Namespace) -> Answer:
    from draftsmith.serve import records, state

    rows = [state.status(record) for record in records.named(args.name)]
    code = 0 if all(row["state"] == "healthy" for row in rows) else UNWELL
    return {"servers": rows}, "\n".join(map(status_lines, rows)) or "no servers", code


def status_lines(row: Mapping[str, Any]) -> str:
    """One server for people: its state and what speaks for it."""
    memory = f"  {row['rss_bytes'] / 2**30:.1f} GiB in {len(row['processes'])} processes" if "rss_bytes" in row else ""
    lines = [f"{row['name']:32} {row['state']:9} {row['url']}  {row['engine']} {row['arm']}{memory}"]
    if "phase" in row:
        lines.append(f"  in {row['phase']}; /health: {row['health']}")
    lines += [f"  {line}" for line in row.get("changed", [])]
    if "cause" in row:
        status = f"exit status {row['exit_status']}: " if row["exit_status"] is not None else ""
        lines.append(f"  {status}{row['cause']}")
        if row.get("first_to_end", row["cause"]) not in row["cause"]:
            lines.append(f"  first to end: {row['first_to_end']}")
        lines.append(f"  hint: {row['hint']}")
    if "systemd" in row:
        told = row["systemd"]
        parts = (
            [told["error"]]
            if "error" in told
            else [f"{key} {told[key]}" for key in ("ActiveState", "SubState", "NRestarts") if key in told]
        )
        lines.append(f"  systemd: {', '.join(parts)}")
        lines += [f"  journal: {line}" for line in row["journal"][-1:]]
    return "\n".join(lines)


def one(name: str | None) -> Record:
    """The server of that name, or the only one. Raises UsageError."""
    from draftsmith.errors import UsageError
    from draftsmith.serve import records

    found = records.named(name)
    if not found:
        raise UsageError("no server is known", hint="draftsmith serve start RECIPE")
    if len(found) > 1:
        raise UsageError("which server?", hint=f"name one of: {', '.join(record.name for record in found)}")
    return found[0]


def show_logs(args: argparse.Namespace) -> Answer:
    from draftsmith.errors import EnvironmentFailed, UsageError
    from draftsmith.serve import service, systemd

    if args.lines < 1:
        raise UsageError(f"-n {args.lines}: expected 1 or more", hint="-f goes on as the log grows")
    record = one(args.name)
    if record.unit and args.follow:
        raise UsageError(
            f"{record.name} is run by systemd, and its log is the journal", hint=systemd.follow_command(record.unit, record.user_unit)
        )
    if not record.unit and not Path(record.log).exists():
        raise EnvironmentFailed(f"the log {record.log} is gone", hint="it was deleted; stop the server and start it again")
    if args.follow:
        assert sys.__stdout__ is not None
        for text in service.follow(record):  # as it comes: the answer of a command is printed at its end
            sys.__stdout__.write(text)
            sys.__stdout__.flush()
        return {"name": record.name, "log": record.log}, "", 0
    lines = systemd.journal(record.unit, record.user_unit) if record.unit else Path(record.log).read_text(errors="replace").splitlines()
    if record.unit and not lines:
        hint = f"is it installed and started? {systemd.follow_command(record.unit, record.user_unit)}"
        raise EnvironmentFailed(f"the journal has no line of {record.unit}", hint=hint)
    lines = service.phase_lines(record, lines) if args.phase else lines[-args.lines :]
    return {"name": record.name, "log": record.log, "lines": lines}, "\n".join(lines), 0


def stop_server(args: argparse.Namespace) -> Answer:
    from draftsmith.errors import DraftsmithError, EnvironmentFailed, UsageError
    from draftsmith.serve import records, service

    known = records.names()
    if bool(args.name) == args.all:
        raise UsageError("name one server, or give --all", hint=f"known: {', '.join(known) or 'none'}")
    done: list[dict[str, Any]] = []
    failed: list[DraftsmithError] = []
    for name in [args.name] if args.name else known:
        try:
            done.append(service.stop(name))
        except DraftsmithError as error:  # a damaged record must not keep the others running
            if args.name:
                raise
            failed.append(error)
    if failed:
        others = f"; the others: {', '.join(row['said'] for row in done) or 'none'}"
        raise EnvironmentFailed("; ".join(error.message for error in failed) + others, hint=failed[0].hint)
    return {"servers": done}, "\n".join(row["said"] for row in done) or "no servers", UNWELL if any(row["runs"] for row in done) else 0


# --- a unit, a profile -----------------------------------------------------------------------------------------------


def make_unit(args: argparse.Namespace) -> Answer:
    from draftsmith.serve import environment

    plan = make_plan(args)
    check_first(plan, args)
    text, record = environment.service_unit(plan, args.env_file, args.user, args.run_as, args.out)
    if args.out:
        hint = environment.install_hint(args.out, str(record.unit), args.user)
        return {"unit": record.unit, "file": str(args.out), "text": text}, hint, 0
    return {"unit": record.unit, "text": text}, text.rstrip(), 0


def profile_server(args: argparse.Namespace) -> Answer:
    from draftsmith.errors import UsageError
    from draftsmith.job import Talk
    from draftsmith.serve import profile

    if bool(args.name) == bool(args.url):
        hint = "`draftsmith serve status` lists those that are known; --url is for a server that somebody else started"
        raise UsageError("give the NAME of a server, or --url with --engine", hint=hint)
    load = profile.Load(args.concurrency, args.requests, args.output_tokens, args.watch)
    if args.url:
        subject = profile.Subject(args.url, args.engine, args.trace_dir)
    else:
        record = one(args.name)
        folder = Path(record.trace_folder) if record.trace_folder else None
        subject = profile.Subject(record.url, record.engine.partition("==")[0], folder)
    found = profile.profile(subject, load, Talk(quiet=args.quiet))
    return found, profile.as_text(found), 0


# --- arguments -------------------------------------------------------------------------------------------------------


def recipe_options(command: argparse.ArgumentParser) -> None:
    """What start and unit share."""
    recipe_arguments(command, "engine.flags.port=8000")
    command.add_argument("--arm", choices=["speculative", "baseline"], default="speculative", help="with the drafter (default), or without")
    command.add_argument("--drafter", metavar="DIR", type=Path, help="folder of an exported drafter (default: export/ of the run folder)")
    command.add_argument("--name", metavar="NAME", help="what to call the server (default: the recipe's name)")
    command.add_argument("--env-file", metavar="FILE", type=Path, help="NAME=VALUE lines with secrets, such as VLLM_API_KEY")
    command.add_argument("--no-check", action="store_true", help="skip `check`, which otherwise refuses a launch that cannot work")


def start_options(command: argparse.ArgumentParser) -> None:
    recipe_options(command)
    command.add_argument("--foreground", action="store_true", help="stay until it ends; Ctrl-C stops it")
    command.add_argument(
        "--trace-dir", metavar="DIR", type=Path, help="switch the engine's profiler on, for `serve profile`; traces go here"
    )


def status_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", nargs="?", help="a server (default: all that `serve start` and `serve unit --out` made)")
    command.epilog = (
        "states: healthy; changed (it answers, and a setting or a variable is not as planned any more); starting; unhealthy (it runs and"
        " does not answer); failing (a process of it has ended, and the rest will follow); died (with the cause); stopped"
    )


def logs_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", nargs="?", help="a server (default: the only one)")
    command.add_argument("-f", "--follow", action="store_true", help="go on as the log grows, until the server ends")
    command.add_argument("--phase", action="store_true", help="only the lines that begin a phase of the start")
    command.add_argument("-n", "--lines", metavar="N", type=int, default=200, help="how many of the last lines (default 200)")


def stop_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", nargs="?", help="the server to end")
    command.add_argument("--all", action="store_true", help="every server")


def unit_options(command: argparse.ArgumentParser) -> None:
    recipe_options(command)
    command.add_argument("--user", action="store_true", help="for the user's own service manager, not the machine's")
    command.add_argument(
        "--run-as", metavar="USER", help="the account that a service of the machine runs as (default: yours, unless you are root)"
    )
    command.add_argument("--out", metavar="FILE", type=Path, help="write it there, do not print it, and let `serve status` know of it")


def profile_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", nargs="?", help="a server that `serve start` started")
    command.add_argument("--url", help="a server that somebody else started, instead of NAME")
    command.add_argument("--engine", choices=["vllm", "sglang"], default="vllm", help="what answers at --url (default vllm)")
    command.add_argument("--trace-dir", metavar="DIR", type=Path, help="where the profiler of the server at --url writes")
    command.add_argument("--concurrency", metavar="N", type=int, default=1, help="requests in flight (default 1)")
    command.add_argument("--requests", metavar="N", type=int, default=4, help="requests of each part (default 4)")
    command.add_argument("--output-tokens", metavar="N", type=int, default=96, help="tokens of each answer (default 96)")
    command.add_argument("--watch", metavar="SECONDS", type=finite, help="send nothing; count what others ask for so long")


COMMANDS: Commands = {
    "serve start": (
        "start a server that stays, and wait until it is ready",
        start_server,
        start_options,
        "serve start RECIPE",
    ),
    "serve status": ("how the servers are; exit code 4 unless all are healthy", show_status, status_options, "serve status [NAME]"),
    "serve logs": ("what a server printed", show_logs, logs_options, "serve logs [NAME]"),
    "serve stop": ("end a server with all its processes", stop_server, stop_options, "serve stop NAME"),
    "serve unit": ("print a systemd service file that runs the same server", make_unit, unit_options, "serve unit RECIPE"),
    "serve profile": (
        "what a round is spent on: draft, verify, host",
        profile_server,
        profile_options,
        "serve profile NAME",
    ),
}
