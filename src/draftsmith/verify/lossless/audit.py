"""verify lossless: does speculation leave what the target says as it is? Greedy equality, equality of sampling, probes, one verdict.

Every part says what it would have found. "lossless" means: no fault, and every part that was asked had the power that it states.
Writes lossless.json, and the raw replies of each part beside it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from draftsmith.errors import InvalidMeasurement
from draftsmith.findings import Finding, errors
from draftsmith.job import Talk
from draftsmith.manifest import atomic_write_json, tool_versions
from draftsmith.measure.messages import Reply
from draftsmith.measure.prompts import Prompt
from draftsmith.verify.lossless import greedy as greedy_part
from draftsmith.verify.lossless.greedy import Greedy, Judge
from draftsmith.verify.lossless.logprobs import probe_logprobs
from draftsmith.verify.lossless.probes import Bench, Result, probe_json, probe_long, probe_stop, probe_tools
from draftsmith.verify.lossless.rates import RATIO
from draftsmith.verify.lossless.sampling import Sampled, equality_test, padded
from draftsmith.verify.lossless.settings import PROBES, Audit, Way
from draftsmith.verify.lossless.sides import Remote, Side, answer_of, request_for

FILE = "lossless.json"
Verdict = Literal["lossless", "fault", "inconclusive"]
EXIT: dict[Verdict, int] = {"lossless": 0, "fault": 4, "inconclusive": 3}
PROBE: dict[str, Callable[[Bench], Result]] = {
    "json": probe_json,
    "tools": probe_tools,
    "stop": probe_stop,
    "logprobs": probe_logprobs,
    "long": probe_long,
}
assert tuple(PROBE) == PROBES
LEAST_ACCEPTED = 10  # drafts; with fewer the greedy part says nothing about accepting them
MOST_ROUNDING = 2.0  # logits; a baseline that is known so coarsely proves nothing
FAILED_SHARE = 0.01  # of sampled answers; more are a finding


def run(a: Side, b: Remote, prompts: Sequence[Prompt], audit: Audit, judge: Judge, depth: int, folder: Path, talk: Talk) -> dict[str, Any]:
    """The whole audit; the content of lossless.json. depth: drafts per round, 0 when unknown. Raises InvalidMeasurement."""
    started = time.monotonic()
    prompts = list(prompts)[: audit.prompts]
    told: list[Finding] = []
    doubts: list[str] = []
    result: dict[str, Any] = {"verdict": "", "sentence": "", "settings": settings_of(audit), "depth": depth, "tools": tool_versions()}
    greedy = greedy_part.ask(a, b, prompts, audit, judge, depth)
    if "greedy" not in audit.skip:
        found = greedy_part.findings(greedy, audit)
        told += found
        doubts += greedy_doubts(greedy, audit)
        result["greedy"] = greedy_part.report(greedy, audit, judge.name)
        talk.say(greedy_line(greedy))
    if "sampling" not in audit.skip:
        result["sampling"] = []
        for number, way in enumerate(audit.ways):
            sampled, failures = sample(a, b, prompts, audit, way, number)
            told += [*failures, *sampling_findings(sampled, audit)]
            doubts += sampling_doubts(sampled, audit)
            result["sampling"].append(sampling_report(sampled))
            talk.say(sampling_line(sampled))
    audit = replace(audit, near_tie=greedy.near_tie)
    bench = Bench(a if isinstance(a, Remote) else None, b, prompts, audit, judge, greedy.replies)
    result["probes"] = {}
    for name, probe in PROBE.items():
        done = probe(bench) if name not in audit.skip else Result(name, "skipped", "as asked")
        told += done.findings
        doubts += [f"probe {name}: {done.evidence}"] if done.status == "inconclusive" else []
        result["probes"][name] = done.as_dict()
        talk.say(f"probe {name}: {done.status}: {done.evidence}")
    verdict: Verdict = "fault" if errors(told) else "inconclusive" if doubts else "lossless"
    result |= {
        "verdict": verdict,
        "doubts": doubts,
        "findings": [finding.as_dict() for finding in told],
        "seconds": time.monotonic() - started,
    }
    result["sentence"] = sentence(result)
    atomic_write_json(folder / FILE, result)
    return result


def settings_of(audit: Audit) -> dict[str, Any]:
    return {**asdict(audit), "skip": sorted(audit.skip)}


# --- greedy ----------------------------------------------------------------------------------------------------------


def greedy_doubts(greedy: Greedy, audit: Audit) -> list[str]:
    """Why equality of the greedy part would prove little."""
    found, doubts = greedy.speculative, []
    if found.count.tokens < audit.least_tokens:
        doubts.append(f"{found.count.tokens} greedy tokens were compared, fewer than {audit.least_tokens}")
    if found.of("unknown"):
        doubts.append(f"{len(found.of('unknown'))} divergences whose logit gap nobody knows")
    if greedy.near_tie > MOST_ROUNDING:
        what = f"the baseline parts from itself at gaps of up to {greedy.near_tie / RATIO:.3g} logits"
        doubts.append(f"{what}: that is more than rounding, and hides faults as large")
    if greedy.own_ends:
        doubts.append(f"{greedy.own_ends} answers of the baseline end elsewhere when they are asked for again")
    if greedy.acceptance is not None and greedy.acceptance.accepted < LEAST_ACCEPTED:
        what = f"{greedy.acceptance.accepted} drafts were accepted in {greedy.acceptance.rounds} rounds"
        doubts.append(f"{what} over the greedy answers, fewer than {LEAST_ACCEPTED}: the server hardly speculated")
    return doubts


def greedy_line(greedy: Greedy) -> str:
    found = greedy.speculative
    own = "" if greedy.again is None else f"; the baseline against itself parts in {len(greedy.again.parted)}"
    kinds = ", ".join(f"{len(found.of(kind))} {kind}" for kind in ("near-tie", "fault", "unknown") if found.of(kind))
    return f"greedy: {len(found.parted)} of {len(found.expected)} answers part ({kinds or 'none'}) in {found.count.tokens} tokens{own}"


# --- sampling --------------------------------------------------------------------------------------------------------


def sample(a: Side, b: Remote, prompts: Sequence[Prompt], audit: Audit, way: Way, number: int) -> tuple[Sampled, list[Finding]]:
    """Ask both sides for the same many samples and test. Raises InvalidMeasurement when the baseline gives none."""
    chosen = list(prompts)[: audit.sampled_prompts]
    extra = {"top_k": way.top_k or -1}
    if b.endpoint == "generate":
        extra = {"sampling_params": extra}
    more = {"temperature": way.temperature, "top_p": way.top_p, "stream": False, "extra": extra}
    requests = [request_for(prompt, audit.sampled_tokens, **more) for prompt in chosen for _ in range(audit.samples)]
    random.Random(audit.seed).shuffle(requests)
    label = f"sampling-{number + 1}"
    found = [by_prompt(side, side.replies(requests, audit.concurrency, label), chosen, audit.sampled_tokens) for side in (a, b)]
    failures = [1 - sum(map(len, each.values())) / len(requests) for each in found]
    if failures[0] > FAILED_SHARE:
        raise InvalidMeasurement(
            f"{100 * failures[0]:.0f} % of the samples of {a.name} failed", hint="raw replies are in the audit's folder"
        )
    told = []
    if failures[1] > FAILED_SHARE:
        evidence = f"{way.label}: {100 * failures[1]:.1f} % of the sampled replies are not whole, the baseline's {100 * failures[0]:.1f} %"
        told.append(
            Finding("DS707", "error", evidence, "replies are lost with speculation", "report it to the engine with the raw replies")
        )
    usable = [prompt.id for prompt in chosen if all(len(each.get(prompt.id, ())) > 1 for each in found)]
    if not usable:
        raise InvalidMeasurement(f"{way.label}: no prompt has samples of both servers", hint="raw replies are in the audit's folder")
    first, second = ([each[name] for name in usable] for each in found)
    return equality_test(way.label, first, second, audit.alpha, len(audit.ways), audit.seed), told


def by_prompt(side: Side, replies: Sequence[Reply], prompts: Sequence[Prompt], length: int) -> dict[str, np.ndarray]:
    """Tokens [samples, length] of each prompt; failed replies are left out."""
    named = {prompt.id: prompt for prompt in prompts}
    rows: dict[str, list[tuple[int, ...]]] = {}
    for reply in replies:
        if reply.ok:
            rows.setdefault(reply.id, []).append(answer_of(reply, named[reply.id]).tokens)
    return {name: padded(answers, length) for name, answers in rows.items()}


def sampling_findings(sampled: Sampled, audit: Audit) -> list[Finding]:
    """DS703 when one place differs after Holm."""
    clear = [place for place in sampled.places if place.adjusted < audit.alpha]
    if not clear:
        return []
    worst = min(clear, key=lambda place: place.p)
    apart = "" if worst.total_variation is None else f", total variation {worst.total_variation:.2g}"
    evidence = (
        f"{sampled.label}: {len(clear)} of {len(sampled.places)} tests find another distribution, clearest {worst.name} "
        f"(p {worst.p:.2g}, after Holm {worst.adjusted:.2g}{apart}; {sampled.prompts} prompts, {sampled.samples} samples each)"
    )
    fix = "accept thresholds below 1, an accept rule that leaves the draft's probability out, or another build; compare launch flags"
    return [Finding("DS703", "error", evidence, "sampled answers are not the target's distribution", fix)]


def sampling_doubts(sampled: Sampled, audit: Audit) -> list[str]:
    smallest = sampled.smallest_found
    if smallest is not None and smallest <= audit.largest_tv:
        return []
    found = "no shift that was tried" if smallest is None else f"only shifts of total variation {smallest:g} or more"
    return [f"{sampled.label}: {found} would be found with 80 % power (asked: {audit.largest_tv:g}); more --samples"]


def sampling_report(sampled: Sampled) -> dict[str, Any]:
    return {
        **{name: getattr(sampled, name) for name in ("label", "prompts", "samples", "tokens", "detectable")},
        "smallest_found": sampled.smallest_found,
        "worst": sampled.worst.as_dict(),
        "places": [place.as_dict() for place in sampled.places],
    }


def sampling_line(sampled: Sampled) -> str:
    smallest = "nothing" if sampled.smallest_found is None else f"a total variation of {sampled.smallest_found:g}"
    worst = sampled.worst
    return (
        f"sampling, {sampled.label}: smallest p {worst.adjusted:.2g} after Holm ({worst.name}); {smallest} would be found with 80 % power"
    )


# --- the verdict -----------------------------------------------------------------------------------------------------


def sentence(result: Mapping[str, Any]) -> str:
    """The verdict in words, with what it rests on."""
    wrong = [finding for finding in result["findings"] if finding["severity"] == "error"]
    if wrong:
        codes = ", ".join(dict.fromkeys(finding["code"] for finding in wrong))
        return f"not lossless: {codes}: {wrong[0]['evidence']}"
    absent = [name for name, probe in result["probes"].items() if probe["status"] == "not offered"]
    left = f"; not offered: {', '.join(absent)}" if absent else ""
    if result["doubts"]:
        return f"inconclusive: {'; '.join(result['doubts'])}{left}"
    basis = []
    if greedy := result.get("greedy"):
        ties = f" except at {greedy['near-tie']} near-ties" if greedy["near-tie"] else ""
        share = greedy["unseen_fault_rate"]
        drafts = f", {sum(greedy['acceptance']['reached'])} of them accepted drafts" if greedy["acceptance"] else ""
        basis.append(
            f"{greedy['tokens']} greedy tokens equal{ties}{drafts} (a fault in 1 of {1 / share:.0f} tokens would be seen with 95 %)"
        )
    for part in result.get("sampling", ()):
        basis.append(f"{part['label']}: no difference, one of total variation {part['smallest_found']:g} would be found with 80 %")
    passed = [name for name, probe in result["probes"].items() if probe["status"] == "passed"]
    basis += [f"probes passed: {', '.join(passed)}"] if passed else []
    return f"lossless: {'; '.join(basis)}{left}"
