"""What a look at the wiring means, as findings whose first sentence names the mistake. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftsmith.findings import Finding
from draftsmith.verify.wiring.ids import what_to_write
from draftsmith.verify.wiring.rows import in_words, stray_findings

if TYPE_CHECKING:
    from draftsmith.verify.wiring.features import Tap, Wiring
    from draftsmith.verify.wiring.ids import Ids

SILENT = "the drafter reads other numbers than it was trained on, and no engine says so: acceptance falls, often to 1"
UNSERVED = "the drafter was trained on other numbers than any engine can pass"
RETRAIN = "capture and train on what this engine passes, or serve with an engine version that passes the trained ones"


def findings_of(wiring: Wiring, who: str, ids: Ids) -> list[Finding]:
    """All findings; none for correct wiring."""
    return [*tap_findings(wiring, who, ids), *stray_findings(wiring.strays, who, SILENT), *alignment_findings(wiring, who)]


def tap_findings(wiring: Wiring, who: str, ids: Ids) -> list[Finding]:
    """DS905 values, and what `list_finding` says of the boundaries."""
    if unknown := [tap for tap in wiring.taps if tap.kind == "unknown"]:
        return [value_finding(wiring, who, unknown)]
    doubtful = [tap for tap in wiring.taps if tap.kind == "doubtful"]
    findings = [value_finding(wiring, who, doubtful)] if doubtful else []
    if len(wiring.taps) != len(wiring.trained) or any(tap.kind == "other" for tap in wiring.taps):
        findings.append(list_finding(wiring, who, ids))
    return findings


def list_finding(wiring: Wiring, who: str, ids: Ids) -> Finding:
    """DS901 layer, DS902 final norm, DS903 order, DS904 number and slide: every tensor is known, and they are not the trained ones."""
    taps, trained, last = wiring.taps, list(wiring.trained), wiring.num_layers
    passed = [tap.nearest for tap in taps]
    names = ", ".join(name(number, last) for number in passed)
    fix = what_to_write(passed, trained, ids, last, RETRAIN)
    if len(taps) != len(trained):
        evidence = f"{who} concatenates {len(taps)} tensors ({names}), the drafter was trained on {len(trained)}: boundaries {trained}"
        return Finding("DS904", "error", evidence, SILENT, fix)
    numbers = numbers_of(taps)
    if last + 1 in passed:
        which = ", ".join(f"tap {k + 1}" for k, number in enumerate(passed) if number == last + 1)
        evidence = (
            f"{which} of {who} is the last hidden state AFTER the final norm; trained on boundaries {trained}, passed: {names}{numbers}"
        )
        return Finding("DS902", "error", evidence, SILENT, f"leave boundary {last} out of the taps, or {RETRAIN}")
    if sorted(passed) == sorted(trained):
        evidence = f"{who} passes the trained boundaries in another order: {passed} instead of {trained}{numbers}"
        return Finding("DS903", "error", evidence, SILENT, fix)
    for part, lost, way in ((trained[1:], trained[0], "one entry late"), (trained[:-1], trained[-1], "one entry early")):
        held = passed[:-1] if way == "one entry late" else passed[1:]
        if len(trained) > 1 and held == part:
            evidence = (
                f"the list of taps is {way}: trained on boundaries {trained}, {who} passes {passed}; {name(lost, last)} is missing{numbers}"
            )
            return Finding("DS904", "error", evidence, SILENT, fix)
    evidence = f"{layers_off(taps)}: trained on boundaries {trained}, {who} passes {passed}{numbers}"
    return Finding("DS901", "error", evidence, SILENT, fix)


def value_finding(wiring: Wiring, who: str, taps: Sequence[Tap]) -> Finding:
    """Tensors that are none of the target's: near the trained boundary, or near nothing. A warning when it may be rounding."""
    worst = max(taps, key=lambda tap: tap.error)
    found = f"relative error {worst.error:.3f}, cosine {worst.cosine:.4f}, allowed {wiring.tolerance:g}"
    severity = "warning" if all(tap.kind == "doubtful" for tap in taps) else "error"
    times = [f"tap {wiring.taps.index(tap) + 1} is boundary {tap.expected} times {tap.scale:.3g}" for tap in taps if tap.scale is not None]
    if len(times) == len(taps):
        evidence = f"{who} scales what it passes: {', '.join(times)}"
        fix = (
            "the engine and transformers scale the embedding or the features of this target differently: use another version of one of them"
        )
        return Finding("DS905", "error", evidence, SILENT, fix)
    if all(tap.nearest == tap.expected for tap in taps):
        evidence = f"{who} taps the trained boundaries, but the values are not this target's (boundary {worst.expected}: {found})"
        fix = "serve the target revision that the drafter was trained on, without quantisation or adapters that training did not have"
    else:
        nearest = name(worst.nearest, wiring.num_layers)
        evidence = f"{who} passes a tensor that is no boundary of this target; nearest is {nearest} ({found})"
        fix = "compare target, engine version and the drafter's config; the engine may scale or norm the features before the drafter"
    return Finding("DS905", severity, evidence, SILENT, fix)


def store_findings(wiring: Wiring) -> list[Finding]:
    """DS909: the store that the drafter was trained on does not hold this target's states."""
    wrong = [tap for tap in wiring.taps if tap.kind != "right"]
    fix = "the target's files have changed since capture, or capture read another layer: run the capture stage again, and train"
    if not wrong and not wiring.feature_shift:
        return [Finding("DS909", "error", f"the training store: {in_words(stray)}", UNSERVED, fix) for stray in wiring.strays]
    worst = max(wiring.taps, key=lambda tap: tap.expected_error)
    evidence = (
        f"the training store says boundaries {list(wiring.trained)}, but its values are not this target's "
        f"(boundary {worst.expected}: relative error {worst.expected_error:.3f}, allowed {wiring.tolerance:g}; nearest is "
        f"{name(worst.nearest, wiring.num_layers)} at {worst.error:.3f})"
    )
    severity = "warning" if not wiring.feature_shift and all(tap.kind == "doubtful" for tap in wrong) else "error"
    return [Finding("DS909", severity, evidence, UNSERVED, fix)]


def alignment_findings(wiring: Wiring, who: str) -> list[Finding]:
    """DS906 feature of another token, DS907 embedding of another token, DS908 positions."""
    findings = []
    fix = "use another engine version, and report it to the engine with this finding"
    if wiring.feature_shift:
        evidence = f"{who} hands the drafter, in the row of token p, the feature of token p {wiring.feature_shift:+d}"
        findings.append(Finding("DS906", "error", evidence, SILENT, fix))
    if wiring.token_share is not None and (wiring.token_shift != 1 or wiring.token_share < 1):
        share = f"{100 * wiring.token_share:.1f} % of {wiring.rows} rows"
        if wiring.token_shift is None:
            evidence = f"{who}: the embeddings that meet the features belong to no fixed neighbour of their token (best: {share})"
        elif wiring.token_shift != 1:
            evidence = f"{who}: the feature of token p meets the embedding of token p {wiring.token_shift:+d} instead of p + 1 ({share})"
        else:
            evidence = f"{who}: only in {share} the feature of token p meets the embedding of token p + 1"
        findings.append(Finding("DS907", "error", evidence, SILENT, fix))
    if wiring.positions_seen and wiring.position_offset != 0:
        offset = wiring.position_offset
        how = "are not numbered one by one" if offset is None else f"start at {offset} instead of 0"
        evidence = f"{who}: the drafter's positions {how}"
        findings.append(Finding("DS908", "error", evidence, "rotary embeddings turn otherwise than in training", fix))
    return findings


def layers_off(taps: Sequence[Tap]) -> str:
    """ "tap 2 is one layer late"."""
    off = {k + 1: tap.nearest - (tap.expected or 0) for k, tap in enumerate(taps) if tap.kind == "other"}
    if len(off) == len(taps) and len(set(off.values())) == 1:
        return f"every tap is {layers(off[1])}"
    return ", ".join(f"tap {number} is {layers(by)}" for number, by in off.items())


def layers(by: int) -> str:
    count = "one layer" if abs(by) == 1 else f"{abs(by)} layers"
    return f"{count} {'late' if by > 0 else 'early'}"


def numbers_of(taps: Sequence[Tap]) -> str:
    """The largest error of what was recognised, and the smallest against what was expected."""
    wrong = [tap for tap in taps if tap.kind == "other"]
    return (
        f" (relative error {max(tap.error for tap in wrong):.3g}; against the trained ones {min(tap.expected_error for tap in wrong):.3g})"
    )


def name(candidate: int, last: int) -> str:
    """A candidate in words."""
    if candidate == last + 1:
        return f"boundary {last} after the final norm"
    return "the embedding output" if candidate == 0 else f"boundary {candidate}"
