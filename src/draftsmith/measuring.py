"""The commands around measurements that are not a stage of a recipe: bench of running servers, bench --summarise, compare."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftsmith.commands import Answer, Commands, run_stage
from draftsmith.errors import UsageError
from draftsmith.written import finite

if TYPE_CHECKING:
    from draftsmith.bench.settings import BenchSettings

LISTS = ("load", "slo")  # options of running servers that may be repeated
ONCE = ("prompts", "concurrency", "requests", "output_tokens", "reasoning", "endpoint", "pairs", "pairs_max", "noise_blocks", "out")
URL_ONLY = (*ONCE, *LISTS)
PAIRS = 4


# --- bench -----------------------------------------------------------------------------------------------------------


def bench(args: argparse.Namespace) -> Answer:
    """A recipe's stage; or two running servers; or a summary computed anew."""
    ways = [args.recipe is not None, args.url is not None, args.summarise is not None]
    if sum(ways) != 1:
        raise UsageError("say what to measure", hint="one of: draftsmith bench RECIPE | bench --url A --url B | bench --summarise DIR")
    if args.url is None:
        unused = [name for name in URL_ONLY if getattr(args, name) is not None]
        if unused:
            option = f"--{unused[0].replace('_', '-')}"
            key = {"load": "loads", "noise_blocks": "noise_launches"}.get(unused[0], unused[0])
            hint = "in a recipe: --run-folder" if key == "out" else f"in a recipe: bench.{key}=..."
            raise UsageError(f"{option} is for running servers (--url)", hint=hint)
    if args.recipe is None and args.run_folder is not None:
        raise UsageError("--run-folder is for a recipe", hint="--url: --out DIR; --summarise names the folder itself")
    if args.summarise is not None:
        if args.dry_run or args.min_speedup:
            raise UsageError("--summarise computes anew with the settings of the bench", hint="leave --dry-run and --min-speedup out")
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
    from draftsmith.runfolder import disk_errors_said_plainly

    folder = bench_folder(args.summarise)
    with disk_errors_said_plainly(folder, "--summarise"):
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
        blocks = settings.noise_launches + 2 * settings.last_pair
        noise = f" after {settings.noise_launches} of the noise floor" if settings.noise_launches else ""
        text = f"{blocks} blocks of {requests} requests, in the order A B B A{noise}; nothing was done"
        return {"blocks": blocks, "requests": requests}, text, 0
    folder = args.out or Path("runs") / "bench-url"
    command = f"draftsmith bench {shlex.join(words_of(args))}"
    for path in settings.files():
        if not path.is_file():
            raise UsageError(f"there is no file {path}", hint="--prompts: builtin, five, or a .jsonl or .parquet file; --load trace:FILE")
    with disk_errors_said_plainly(folder, "--out"), locked(folder, "--out"):
        summary = bench_urls((args.url[0], args.url[1]), settings, of_servers(settings), folder, Talk(quiet=args.quiet), command)
    return told(summary, folder)


def told(summary: dict[str, Any], folder: Path) -> Answer:
    """Findings, gate and verdict; the gate's exit code."""
    from draftsmith.flow import GATE_EXIT

    code = GATE_EXIT[summary["gate"]]
    lines = [f"note: {finding}" for finding in summary["findings"]]
    if summary["stops_paying_above"] is not None:
        lines.append(f"stops paying above concurrency {summary['stops_paying_above']}")
    lines += [f"gate {summary['gate']}: {summary['gate_reason']}", f"written: {folder / 'summary.json'}", summary["verdict_sentence"]]
    return summary, "\n".join(lines), code


def settings_from(args: argparse.Namespace) -> BenchSettings:
    """BenchSettings from the options. Raises UsageError."""
    from pydantic import ValidationError

    from draftsmith.bench.settings import BenchSettings
    from draftsmith.recipe import explain
    from draftsmith.settings import numbers

    loads = [load_from_text(text) for text in args.load or ()]
    concurrency = numbers("--concurrency", args.concurrency) if args.concurrency is not None else (() if loads else (1, 4))
    values: dict[str, Any] = {"concurrency": concurrency, "loads": loads, "prompts": "builtin" if args.prompts is None else args.prompts}
    values["pairs"] = args.pairs if args.pairs is not None else max(2, min(PAIRS, args.pairs_max or PAIRS))
    values["endpoint"] = args.endpoint or "chat"
    values["slo"] = dict(limit_from_text(text) for text in args.slo or ())
    if args.requests is not None:
        asked = requests_of_each(numbers("--requests", args.requests), len(concurrency), len(loads))
        values["requests"] = asked[: len(concurrency)] or None
        for load, count in zip(loads, asked[len(concurrency) :], strict=False):
            load["requests"] = count
    if args.output_tokens is not None:
        lengths = list(numbers("--output-tokens", args.output_tokens))
        values["output_tokens"] = lengths if len(lengths) > 1 else lengths[0]
    values |= {name: getattr(args, name) for name in ("reasoning", "pairs_max") if getattr(args, name) is not None}
    if args.noise_blocks is not None:
        values["noise_launches"] = args.noise_blocks
    if args.min_speedup:
        values["gates"] = tuple(args.min_speedup)
    try:
        return BenchSettings.model_validate(values)
    except ValidationError as error:
        raise UsageError(explain(error), hint="draftsmith bench --help") from None


def requests_of_each(asked: tuple[int, ...], closed: int, loads: int) -> tuple[int, ...]:
    """The numbers of --requests, closed loops first: one for all, one for each closed loop, or one for every load. Raises UsageError."""
    if len(asked) == 1:
        return asked * (closed + loads)
    if len(asked) not in (closed, closed + loads):
        hint = f"one number, or one for each of {closed} concurrencies" + (f" and {loads} loads" if loads else "")
        raise UsageError(f"--requests has {len(asked)} numbers", hint=hint)
    return asked


def limit_from_text(text: str) -> tuple[str, float]:
    """ttft_s=0.5. Raises UsageError."""
    name, _, value = text.partition("=")
    try:
        return name, finite(value)
    except argparse.ArgumentTypeError:
        raise UsageError(f"--slo {text!r} is not LIMIT=SECONDS", hint="for example --slo ttft_s=0.5 --slo tpot_s=0.05") from None


def load_from_text(text: str) -> dict[str, Any]:
    """poisson:2 or trace:FILE. Raises UsageError."""
    kind, _, rest = text.partition(":")
    if kind == "poisson" and rest.replace(".", "", 1).isdecimal():
        return {"kind": "poisson", "rate": float(rest)}
    if kind == "trace" and rest:
        return {"kind": "trace", "file": rest}
    raise UsageError(f"--load {text!r} is not known", hint="poisson:RATE (requests a second), or trace:FILE")


def words_of(args: argparse.Namespace) -> list[str]:
    """The options again, as they would be typed."""
    words: list[str] = []
    for name in ("url", *LISTS, "min_speedup"):
        for value in getattr(args, name) or ():
            words += [f"--{name.replace('_', '-')}", value]
    for name in ONCE:
        value = getattr(args, name)
        if value is not None:
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
    command.add_argument("--requests", metavar="N,N", help="with --url: per block, for all or each (default 10 x concurrency)")
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
    command.add_argument(
        "--slo", metavar="LIMIT=S", action="append", help="with --url: a limit for goodput, like ttft_s=0.5 or tpot_s=0.05; may be repeated"
    )
    command.add_argument("--pairs", metavar="N", type=int, help="with --url: pairs of blocks (default 4)")
    command.add_argument(
        "--pairs-max", metavar="N", type=int, help="with --url: look after each pair from --pairs on, and end when it is clear"
    )
    command.add_argument(
        "--noise-blocks", metavar="N", type=int, help="with --url: blocks at the first server before the pairs: what equal blocks differ by"
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


COMMANDS: Commands = {
    "compare": (
        "is the drafter (or engine version) of one bench faster than another's?",
        compare_runs,
        compare_options,
        "compare RUN_A RUN_B",
    ),
}
