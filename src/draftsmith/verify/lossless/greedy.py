"""Greedy equality: the same prompts to both sides and, for the budget of near-ties, to the baseline once more.

The second time the baseline gets them in reverse and with as many in flight as a verify pass has rows, so that its batches have other
shapes. A divergence is judged by its logit gap on the common prefix: the local target's in float32, else the baseline's own
log-probabilities, whose differences are those of logits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from draftsmith.errors import InvalidMeasurement
from draftsmith.findings import Finding
from draftsmith.measure.messages import Reply
from draftsmith.measure.prompts import Prompt
from draftsmith.metrics import Acceptance
from draftsmith.verify.lossless.depth import Concentration, concentrations, sentence, shifted
from draftsmith.verify.lossless.rates import RATIO, Count, Races, compared, detectable_ratio, excess_p, fault_bound, races
from draftsmith.verify.lossless.settings import Audit
from draftsmith.verify.lossless.sides import Remote, Side, answer_of, request_for
from draftsmith.verify.sequences import Answer, Divergence, divergences

COUNTER_LAG_S = 3.0
Row = dict[str, Any]


class Judge(Protocol):
    """Says how far the worse of the two tokens lies below the best one, in logits; nan when it cannot tell on which side of `limit`."""

    name: str

    def gaps(self, parted: Sequence[Divergence], expected: Sequence[Answer], served: Sequence[Answer], limit: float) -> list[float]: ...


@dataclass(frozen=True)
class Comparison:
    """Two sets of answers to the same prompts."""

    expected: list[Answer]
    served: list[Answer]
    parted: list[Divergence]
    count: Count

    def of(self, kind: str) -> list[Divergence]:
        return [d for d in self.parted if kind_of(d) == kind]

    @property
    def largest_gap(self) -> float | None:
        return max((d.logit_gap for d in self.parted if math.isfinite(d.logit_gap)), default=None)


@dataclass(frozen=True)
class Greedy:
    """What both sides said. again: the baseline against itself, None with a local reference. acceptance: over `replies`.

    near_tie: the gap up to which rounding may decide: as asked, or more where the baseline parts from itself at more.
    """

    speculative: Comparison
    again: Comparison | None
    baseline_replies: list[Reply]
    replies: list[Reply]
    acceptance: Acceptance | None
    places: list[Concentration]
    near_tie: float

    @property
    def races(self) -> Races | None:
        """The budget of near-ties; None without a second time of the baseline."""
        return None if self.again is None else races(self.speculative.expected, self.speculative.parted, self.again.parted)

    @property
    def own_ends(self) -> int:
        """Answers of the baseline that ended elsewhere the second time."""
        return 0 if self.again is None else sum(math.isinf(d.logit_gap) for d in self.again.parted)


def kind_of(divergence: Divergence) -> str:
    """near-tie, fault, or unknown when nobody could tell the gap."""
    return "near-tie" if divergence.explained else "unknown" if math.isnan(divergence.logit_gap) else "fault"


def ask(a: Side, b: Remote, prompts: Sequence[Prompt], audit: Audit, judge: Judge, depth: int) -> Greedy:
    """Ask and compare. depth: drafts per round, 0 when unknown. Raises InvalidMeasurement when the baseline does not answer."""
    requests = [request_for(prompt, audit.output_tokens) for prompt in prompts]
    baseline = a.replies(requests, audit.concurrency, "greedy")
    first = answers(a.name, baseline, prompts)
    again: Comparison | None = None
    if isinstance(a, Remote):
        rows = min(len(requests), audit.concurrency * (max(depth, 1) + 1))
        second = answers(a.name, a.replies(requests[::-1], rows, "greedy-again")[::-1], prompts)
        again = compare(first, second, judge, audit)
    limit = audit.near_tie if again is None else max(audit.near_tie, RATIO * (again.largest_gap or 0.0))
    before = b.acceptance()
    replies = b.replies(requests, audit.concurrency, "greedy")
    counted = settled(b, before)
    served = [answer_of(reply, prompt) for reply, prompt in zip(replies, prompts, strict=True)]
    if not any(answer.tokens for answer in served):
        raise InvalidMeasurement(f"{b.name} answered nothing: {replies[0].error}", hint="raw replies are in the audit's folder")
    speculative = compare(first, served, judge, replace(audit, near_tie=limit))
    places = concentrations(speculative.parted, served, replies, audit.output_tokens, depth)
    return Greedy(speculative, again, baseline, replies, counted, places, limit)


def settled(b: Remote, before: Acceptance | None) -> Acceptance | None:
    """What the counters grew by; an engine may publish them a moment after the last token."""
    stop, seen = time.monotonic() + COUNTER_LAG_S, b.acceptance()
    while seen is not None and seen == before and time.monotonic() < stop:
        time.sleep(0.1)
        seen = b.acceptance()
    return seen if seen is None or before is None else seen - before


def answers(name: str, replies: Sequence[Reply], prompts: Sequence[Prompt]) -> list[Answer]:
    """The baseline's answers. Raises InvalidMeasurement when one failed: nothing can be held against it."""
    if bad := [reply for reply in replies if not reply.ok]:
        raise InvalidMeasurement(
            f"{len(bad)} of {len(replies)} replies of {name} failed, first {bad[0].id}: {bad[0].error}",
            hint="the audit needs a baseline that answers; raw replies are in its folder",
        )
    return [answer_of(reply, prompt) for reply, prompt in zip(replies, prompts, strict=True)]


def compare(expected: list[Answer], served: list[Answer], judge: Judge, audit: Audit) -> Comparison:
    """First divergences with their gaps. Answers that are empty (failed) are not compared."""
    pairs = [(a, b) for a, b in zip(expected, served, strict=True) if b.tokens]
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    parted = divergences(left, right, audit.output_tokens)
    gaps = judge.gaps(parted, left, right, audit.near_tie) if parted else []
    parted = [d.judged(gap, audit.near_tie) for d, gap in zip(parted, gaps, strict=True)]
    return Comparison(left, right, parted, compared(left, right, parted, audit.output_tokens))


# --- what it means ---------------------------------------------------------------------------------------------------


def report(greedy: Greedy, audit: Audit, judge: str) -> Row:
    """Its part of lossless.json."""
    found, own = greedy.speculative, greedy.again
    budget: Row | None = None
    if own is not None and greedy.races is not None:
        ratio = detectable_ratio(own.count, len(found.expected), audit.alpha)
        budget = {
            "baseline": own.count.as_dict(),
            "speculative": found.count.as_dict(),
            "largest_gap_of_baseline": own.largest_gap,
            "allowed_ratio": RATIO,
            "first_to_part": greedy.races.as_dict(),
            "p": excess_p(greedy.races),
            "alpha": audit.alpha,
            "ratio_found_with_80_percent": ratio if math.isfinite(ratio) else None,
            "divergences": rows_of(own.parted),
        }
    return {
        "prompts": len(found.expected),
        "tokens": found.count.tokens,
        "identical": len(found.expected) - len(found.parted),
        **{kind: len(found.of(kind)) for kind in ("near-tie", "fault", "unknown")},
        "near_tie_limit": greedy.near_tie,
        "judge": judge,
        "unseen_fault_rate": fault_bound(found.count.tokens),
        "budget": budget,
        "places": [place.as_dict() for place in greedy.places],
        "acceptance": None if greedy.acceptance is None else greedy.acceptance.as_dict(),
        "divergences": rows_of(found.parted),
    }


def rows_of(parted: Sequence[Divergence]) -> list[Row]:
    """JSON form; a gap that is unknown, or of a token that is missing, is null."""
    return [{**d.as_dict(), "kind": kind_of(d), "logit_gap": d.logit_gap if math.isfinite(d.logit_gap) else None} for d in parted]


def findings(greedy: Greedy, audit: Audit) -> list[Finding]:
    """DS701 faults, DS702 near-ties, DS707 replies that are not whole, DS708 where in the round, DS709 beyond the budget."""
    found = greedy.speculative
    faults, ties, unknown = found.of("fault"), found.of("near-tie"), found.of("unknown")
    told: list[Finding] = []
    if faults:
        told.append(fault_finding(found, faults, greedy.near_tie))
    if ties:
        gap = max(d.logit_gap for d in ties)
        evidence = f"{len(ties)} of {len(found.expected)} greedy answers part at a near-tie, largest logit gap {gap:.3g}"
        consequence = "rounding depends on the shape of the batch; both answers are the target's"
        told.append(Finding("DS702", "info", evidence, consequence, "nothing"))
    if greedy.near_tie > audit.near_tie and greedy.again is not None:
        own = greedy.again.largest_gap
        evidence = f"the baseline parts from itself at logit gaps up to {own:.3g}, more than the {audit.near_tie:g} of a near-tie"
        consequence = f"gaps below {greedy.near_tie:.3g} are taken as rounding, here as there; smaller faults stay unseen"
        told.append(Finding("DS702", "warning", evidence, consequence, "serve both in a finer dtype to see more"))
    if unknown:
        evidence = f"{len(unknown)} of {len(found.expected)} greedy answers part where no logit gap is known"
        fix = "give --target FOLDER, or a baseline that tells log-probabilities"
        told.append(Finding("DS702", "warning", evidence, "a fault cannot be told from a near-tie there", fix))
    if greedy.races is not None and (p := excess_p(greedy.races)) < audit.alpha:
        first = greedy.races
        evidence = (
            f"in {first.speculative} of {first.prompts} answers speculation is the first to part, in {first.baseline} the baseline asked "
            f"again (p {p:.2g} that this is at most {RATIO:g} times its rate)"
        )
        fix = "look at the gaps in lossless.json: an accept rule that lets near-ties through, or kernels that round much more coarsely"
        told.append(Finding("DS709", "error", evidence, "rounding alone does not part answers so often", fix))
    told += [place_finding(greedy, place, bool(faults)) for place in greedy.places if place.clear]
    return told + reply_findings(greedy)


def fault_finding(found: Comparison, faults: Sequence[Divergence], limit: float) -> Finding:
    """The worst one, and how many are a missing or doubled token."""
    worst = max(faults, key=lambda d: d.logit_gap)
    pairs = {a.id: (a, b) for a, b in zip(found.expected, found.served, strict=True)}
    shifts = [shifted(*pairs[d.id], d.position) for d in faults]
    more = "".join(
        f"; in {shifts.count(name)} a token is {name} and the same text goes on" for name in ("missing", "doubled") if name in shifts
    )
    evidence = (
        f"{len(faults)} of {len(found.expected)} greedy answers part without a near-tie, worst {worst.id} at output token "
        f"{worst.position}: {worst.reference} became {worst.served}, logit gap {worst.logit_gap:.3g} (near-tie: below {limit:g}){more}"
    )
    fix = "use another engine version, accept rule or attention backend, and report it to the engine with the raw replies"
    return Finding("DS701", "error", evidence, "speculation changes the answers", fix)


def place_finding(greedy: Greedy, place: Concentration, with_faults: bool) -> Finding:
    fix = "look at the cache of accepted drafts and at the last token of a block; the divergences are in lossless.json"
    return Finding("DS708", "error" if with_faults else "warning", sentence(place), "the fault depends on the depth of the round", fix)


def reply_findings(greedy: Greedy) -> list[Finding]:
    """Counts that do not fit: usage against tokens, prompt tokens, failed replies."""
    bad = [reply for reply in greedy.replies if not reply.ok]
    told = []
    if bad:
        evidence = f"{len(bad)} of {len(greedy.replies)} replies are not whole, first {bad[0].id}: {bad[0].error}"
        told.append(Finding("DS707", "error", evidence, "tokens are lost or counted that are not there", "report it to the engine"))
    prompts = {reply.id: reply.prompt_tokens for reply in greedy.baseline_replies if reply.prompt_tokens}
    other = [r for r in greedy.replies if r.prompt_tokens and prompts.get(r.id, r.prompt_tokens) != r.prompt_tokens]
    if other:
        evidence = (
            f"{len(other)} prompts have another length for both, first {other[0].id}: {prompts[other[0].id]} and {other[0].prompt_tokens}"
        )
        told.append(Finding("DS707", "error", evidence, "the servers do not read the same prompt", "compare tokenizer and chat template"))
    return told
