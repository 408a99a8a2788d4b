"""The commands around measurements that are not a stage of a recipe: bench of running servers, bench --summarise, compare."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftsmith.errors import UsageError

if TYPE_CHECKING:
    from draftsmith.bench.settings import BenchSettings
    from draftsmith.commands import Answer

Arguments = Callable[[argparse.ArgumentParser], None]
URL_ONLY = ("prompts", "concurrency", "requests", "output_tokens", "reasoning", "endpoint", "load", "pairs", "pairs_max", "out")


# --- bench -----------------------------------------------------------------------------------------------------------


def bench(args: argparse.Namespace) -> Answer:
    """A recipe's stage; or two running servers; or a summary computed anew."""
    from draftsmith.commands import run_stage

    ways = [args.recipe is not None, args.url is not None, args.summarise is not None]
    if sum(ways) != 1:
        raise UsageError("say what to measure", hint="one of: draftsmith bench RECIPE | bench --url A --url B | bench --summarise DIR")
    if args.url is None:
        unused = [name for name in URL_ONLY if getattr(args, name) is not None]
        if unused:
            option = f"--{unused[0].replace('_', '-')}"
            raise UsageError(f"{option} is for running servers (--url)", hint=f"in a recipe: bench.{unused[0]}=...")
    if args.summarise is not None:
        return summarise(args)
    if args.url is not None:
        return bench_running(args)
    if args.min_speedup:
        args.overrides.append(f"bench.gates=[{', '.join(args.min_speedup)}]")
    return run_stage(args)


def summarise(args: argparse.Namespace) -> Answer:
    """summary.json from the raw lines."""
    from draftsmith.bench.compare import bench_folder
    from draftsmith.bench.summary import write_summary

    folder = bench_folder(args.summarise)
    return told(write_summary(folder), folder)


def bench_running(args: argparse.Namespace) -> Answer:
    """Two servers that somebody else started."""
    from draftsmith.bench.prompting import of_servers
    from draftsmith.bench.urls import bench_urls
    from draftsmith.job import Talk
    from draftsmith.runfolder import disk_errors_said_plainly, locked

    if len(args.url) != 2:
        raise UsageError(f"{len(args.url)} --url given", hint="two: first the server without speculation, then the one with it")
    settings = settings_from(args)
    if args.dry_run:
        requests = len(settings.lengths) * sum(n for _, n, _ in settings.shapes())
        requests += sum(load.requests * (len(settings.lengths) if load.file is None else 1) for load in settings.loads)
        text = f"{2 * settings.last_pair} blocks of {requests} requests, in the order A B B A; nothing was done"
        return {"blocks": 2 * settings.last_pair, "requests": requests}, text, 0
    folder = args.out or Path("runs") / "bench-url"
    command = f"draftsmith bench {shlex.join(words_of(args))}"
    for path in settings.files():
        if not path.is_file():
            raise UsageError(f"there is no file {path}", hint="--prompts: builtin, five, or a .jsonl or .parquet file; --load trace:FILE")
    with locked(folder, "--out"), disk_errors_said_plainly(folder, "--out"):
        summary = bench_urls((args.url[0], args.url[1]), settings, of_servers(settings), folder, Talk(quiet=args.quiet), command)
    return told(summary, folder)


def told(summary: dict[str, Any], folder: Path) -> Answer:
    """Findings, gate and verdict; the gate's exit code."""
    from draftsmith.flow import GATE_EXIT

    code = GATE_EXIT[summary["gate"]]
    lines = [f"note: {finding}" for finding in summary["findings"]]
    lines += [f"gate {summary['gate']}: {summary['gate_reason']}", f"written: {folder / 'summary.json'}", summary["verdict_sentence"]]
    return summary, "\n".join(lines), code


def settings_from(args: argparse.Namespace) -> BenchSettings:
    """BenchSettings from the options. Raises UsageError."""
    from pydantic import ValidationError

    from draftsmith.bench.settings import BenchSettings
    from draftsmith.recipe import explain
    from draftsmith.settings import numbers

    loads = [load_from_text(text) for text in args.load or ()]
    concurrency = numbers("--concurrency", args.concurrency) if args.concurrency else (() if loads else (1, 4))
    values: dict[str, Any] = {"concurrency": concurrency, "loads": loads, "prompts": args.prompts or "builtin", "pairs": args.pairs or 4}
    values["endpoint"] = args.endpoint or "chat"
    if args.requests:
        asked = numbers("--requests", args.requests)
        values["requests"] = asked * len(concurrency) if len(asked) == 1 else asked
    if args.output_tokens:
        lengths = list(numbers("--output-tokens", args.output_tokens))
        values["output_tokens"] = lengths if len(lengths) > 1 else lengths[0]
    values |= {name: getattr(args, name) for name in ("reasoning", "pairs_max") if getattr(args, name) is not None}
    if args.min_speedup:
        values["gates"] = tuple(args.min_speedup)
    try:
        return BenchSettings.model_validate(values)
    except ValidationError as error:
        raise UsageError(explain(error), hint="draftsmith bench --help") from None


def load_from_text(text: str) -> dict[str, Any]:
    """poisson:2 or trace:FILE. Raises UsageError."""
    kind, _, rest = text.partition(":")
    if kind == "poisson" and rest.replace(".", "", 1).isdigit():
        return {"kind": "poisson", "rate": float(rest)}
    if kind == "trace" and rest:
        return {"kind": "trace", "file": rest}
    raise UsageError(f"--load {text!r} is not known", hint="poisson:RATE (requests a second), or trace:FILE")


def words_of(args: argparse.Namespace) -> list[str]:
    """The options again, as they would be typed."""
    words: list[str] = []
    for name in ("url", "load", "min_speedup"):
        for value in getattr(args, name) or ():
            words += [f"--{name.replace('_', '-')}", value]
    for name in URL_ONLY:
        value = getattr(args, name)
        if value is not None and name != "load":
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def bench_options(command: argparse.ArgumentParser) -> None:
    """What `bench` takes besides a recipe."""
    command.usage = "draftsmith bench RECIPE [options] | bench --url A --url B [options] | bench --summarise DIR"
    command.add_argument(
        "--min-speedup", metavar="X@C", action="append", help="gate: at concurrency C the lower bound must be above X; may be repeated"
    )
    command.add_argument("--summarise", metavar="DIR", type=Path, help="compute summary.json of a bench folder anew from its raw lines")
    command.add_argument("--url", action="append", help="a server that runs: first the one without speculation, then the one with it")
    command.add_argument("--prompts", metavar="FILE", help="with --url: builtin (default), five, or a .jsonl or .parquet file")
    command.add_argument("--concurrency", metavar="N,N", help="with --url: requests in flight of each cell (default 1,4)")
    command.add_argument("--requests", metavar="N,N", help="with --url: per block, for each concurrency (default 10 x concurrency)")
    command.add_argument("--output-tokens", metavar="N,N", help="with --url: most tokens of an answer, thinking included (default 96)")
    command.add_argument(
        "--reasoning",
        choices=["template", "on", "off"],
        help="with --url: ask the chat template to think, or not to",
    )
    command.add_argument(
        "--endpoint",
        choices=["completions", "chat", "generate"],
        help="with --url: default chat, where the server renders the prompts; the others need a file with token_ids",
    )
    command.add_argument("--load", metavar="KIND:X", action="append", help="with --url: poisson:RATE or trace:FILE; may be repeated")
    command.add_argument("--pairs", metavar="N", type=int, help="with --url: pairs of blocks (default 4)")
    command.add_argument(
        "--pairs-max", metavar="N", type=int, help="with --url: look after each pair from --pairs on, and end when it is clear"
    )
    command.add_argument("--out", metavar="DIR", type=Path, help="with --url: where the raw lines go (default runs/bench-url)")


# --- compare ---------------------------------------------------------------------------------------------------------


def compare_runs(args: argparse.Namespace) -> Answer:
    from draftsmith.bench.compare import compare
    from draftsmith.bench.context import named

    found = compare(args.first, args.second, args.of, args.allow or ())
    lines = [f"differ: {named([row])}" for row in found["differences"]]
    return found, "\n".join([*lines, found["verdict_sentence"]]), 0


def compare_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("first", metavar="RUN_A", type=Path, help="a run folder, or its bench folder")
    command.add_argument("second", metavar="RUN_B", type=Path, help="the other one")
    command.add_argument("--of", choices=["speedup", "tok_s"], default="speedup", help="what is compared (default: the speed-ups)")
    command.add_argument("--allow", metavar="KEY", action="append", help="a condition that may differ because it is the question: engine")


# name: (what it does, its handler, its arguments, how it is called)
COMMANDS: dict[str, tuple[str, Callable[[argparse.Namespace], Any], Arguments, str]] = {
    "compare": (
        "is the drafter (or engine version) of one bench faster than another's?",
        compare_runs,
        compare_options,
        "compare RUN_A RUN_B",
    ),
}
