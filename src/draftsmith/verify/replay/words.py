"""What a replay means: findings from figures side by side, and the lines of the answer. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from draftsmith.findings import Finding
from draftsmith.metrics import Acceptance, relative_gap
from draftsmith.verify.judge import replay_findings
from draftsmith.verify.replay.bootstrap import Difference
from draftsmith.verify.replay.causes import Cause, Trained, causes, falling, where_drafts_part
from draftsmith.verify.replay.figures import Walked
from draftsmith.verify.replay.rounds import Replay
from draftsmith.verify.replay.suspects import Fit, fitting, straight

LARGEST_GAP = 0.05  # of accept_len, replayed against served
TRAINED_GAP = 0.01  # of accept_len and of each share: the export rounds the weights that the trainer measured
CODES = {"place": "DS806", "length": "DS806", "prompt": "DS806", "category": "DS807"}
MOST_CAUSES = 4
CAUSAL = "say with is_causal in the drafter's config what training had, and serve with an engine that reads it (SGLang from 0.5.18)"
LOOK = "`draftsmith verify wiring` says what the engine passes (vLLM)"


def trained_findings(replayed: Acceptance, trained: Acceptance) -> list[Finding]:
    """Is the exported drafter what training measured, on the same rows?"""
    gaps = [abs(a - b) for a, b in zip(replayed.survival, trained.survival, strict=True)]
    gap = relative_gap(replayed.accept_len, trained.accept_len)
    if replayed.rounds == trained.rounds and abs(gap) <= TRAINED_GAP and max(gaps) <= TRAINED_GAP:
        return []
    evidence = (
        f"training measured accept_len {trained.accept_len:.3f} in {trained.rounds} rounds of the held-out rows, the exported drafter "
        f"reaches {replayed.accept_len:.3f} in {replayed.rounds} ({100 * gap:+.1f} %)"
    )
    if replayed.rounds != trained.rounds:
        return [Finding("DS804", "error", evidence, "these are not the rows that training measured", "run capture, train and export again")]
    first = next((number for number, one in enumerate(gaps, start=1) if one > TRAINED_GAP), 1)
    consequence = f"the exported folder is not the drafter that was trained: they part at draft {first}"
    return [Finding("DS804", "error", evidence, consequence, "run export again; a folder from elsewhere: look at --taps and its embedding")]


def served_findings(label: str, replay: Replay, fits: Sequence[Fit], lies: str = "", block: bool = False) -> list[Finding]:
    """Replayed and served on the same tokens. fits: the suspects, when they were tried. lies: in which answers the gap lies. block: the
    drafter fills blocks."""
    findings = replay_findings(label, replay, LARGEST_GAP)
    for place, finding in enumerate(findings):
        if finding.code not in ("DS801", "DS803") or not replay.served.rounds:
            continue
        said = [where_drafts_part(replay.predicted, replay.served, block), lies]
        fix = LOOK
        if found := fitting(fits) if fits else []:
            ways = ", or when ".join(f"{fit.suspect.says} (accept_len {fit.predicted.accept_len:.3f})" for fit in found[:3])
            said.append(f"what was served is what this drafter reaches when {ways}")
            wanted = straight(fits).suspect.taps
            fix = f"make the engine pass boundaries {list(wanted)}; {LOOK}" if found[0].suspect.causal is None else f"{CAUSAL}; {LOOK}"
        findings[place] = replace(finding, evidence="; ".join(filter(None, [finding.evidence, *said])), fix=fix)
    return findings


def population_finding(heldout: Difference, explained: Sequence[str]) -> list[Finding]:
    """Are the served prompts accepted as the held-out ones are? heldout: theirs minus the served, both replayed."""
    gap = relative_gap(heldout.a, heldout.b)
    if not heldout.sure or abs(gap) <= LARGEST_GAP:
        return []
    evidence = (
        f"replayed accept_len is {heldout.a:.2f} on the held-out answers and {heldout.b:.2f} on the served ones "
        f"(difference {min(abs(heldout.low), abs(heldout.high)):.2f} to {max(abs(heldout.low), abs(heldout.high)):.2f} over prompts)"
    )
    why = "; ".join(explained) or "no cause is sure: neither lengths, categories, temperature nor the template account for it"
    fix = "train on prompts, lengths and a template like those that are served"
    return [Finding("DS805", "error", f"{evidence}: {why}", "training's figure does not hold for this traffic", fix)]


def cause_finding(cause: Cause, where: str) -> Finding:
    """A place where acceptance is low. No fault by itself."""
    fixes = {
        "place": "train on longer answers (data.max_answer_tokens)",
        "length": "train on longer conversations",
        "prompt": "train on longer prompts",
        "category": "train on more such prompts",
    }
    worse = cause.difference.b < cause.difference.a
    fix = fixes[cause.split.kind] if worse else "nothing: the rest is what training has to reach"
    return Finding(CODES[cause.split.kind], "info", f"{where}: {cause.sentence()}", "the mean depends on the mix", fix)


def local_findings(answers: Sequence[Walked], depth: int, trained: Trained, where: str, elsewhere: Sequence[Walked] = ()) -> list[Finding]:
    """Where acceptance is low among these answers, surely."""
    found = [cause_finding(cause, where) for cause in causes(answers, trained, elsewhere)[:MOST_CAUSES]]
    return [*found, *depth_finding(falling(answers, depth, trained), where, trained.block)]


def depth_finding(text: str, where: str, block: int | None) -> list[Finding]:
    fix = "serve shorter blocks" if block else "unroll more drafts in training (train.ttt_steps), or draft less deep"
    return [Finding("DS808", "info", f"{where}: {text}", "each further draft costs time and is accepted less", fix)] if text else []


def heat_finding(text: str) -> list[Finding]:
    fix = "compare at the temperature that is served; train on answers sampled at it (data.temperature)"
    return [Finding("DS809", "info", text, "greedy figures are too high for sampled answers", fix)] if text else []


def frame_finding(text: str) -> list[Finding]:
    consequence = "target and drafter see other text than in training"
    return [Finding("DS810", "warning", text, consequence, "render prompts with the target's chat template")] if text else []


# --- the answer ------------------------------------------------------------------------------------------------------


def shares(values: Sequence[float]) -> str:
    """0.62 0.24 0.11"""
    return " ".join("-" if math.isnan(value) else f"{value:.2f}" for value in values)


def lines(result: Mapping[str, Any]) -> list[str]:
    """What was replayed, what it is beside, findings, and the verdict as the last line."""
    block = f", blocks of {result['block']}: the last token and {result['block'] - 1} masks" if result["block"] else ""
    found = [f"drafter: {result['drafter']} (boundaries {result['taps']}{block})"]
    if rows := result["rows"]:
        forced, walked = rows["figures"]["teacher_forced"], rows["figures"]["walked"]
        found.append(f"rows: {rows['source']}, {rows['samples']} samples; top-1 by depth {shares(rows['figures']['top1'])}")
        for name, part in (("every row a round", forced), ("as an engine walks", walked)):
            found.append(f"{name}: accept_len {part['accept_len']:.3f}, survival {shares(part['survival'])}, {part['rounds']} rounds")
    if trained := result["trained"]:
        found.append(f"training said {trained['accept_len']:.3f} of the same rows ({100 * result['trained_gap']:+.2f} %)")
    if served := result["served"]:
        both = served["replay"]
        predicted, counted = both["predicted"]["accept_len"], both["served"]["accept_len"]
        heat = f", temperature {served['temperature']:g}" if served["temperature"] else ""
        found.append(
            f"served ({served['source']}, {served['dtype']}{heat}, {both['prompts']} answers): accept_len {counted:.3f}; "
            f"replayed on the same tokens {predicted:.3f} ({100 * both['gap']:+.1f} %)"
        )
    for finding in result["findings"]:
        shown = Finding(**finding)
        found.append(f"{shown.code} {shown.severity}: {shown.evidence}; {shown.consequence}")
        if shown.severity != "info":
            found.append(f"  fix: {shown.fix}")
    return [*found, result["verdict"]]


def verdict(result: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """One sentence."""
    wrong = [finding.code for finding in findings if finding.severity == "error"]
    beside = [name for name in ("trained", "served") if result[name]]
    if wrong:
        return f"disagreement: {', '.join(dict.fromkeys(wrong))}"
    if not beside:
        return "nothing to compare with: no figure of training on these rows, and no served replies"
    words = {"trained": "what training measured", "served": "what was served"}
    return f"agreement: the drafter alone reaches {' and '.join(words[name] for name in beside)}"
