"""What a break-even table says in words: when it pays, whether to train at all, and which times cannot be (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from draftsmith.breakeven.intervals import INSIDE
from draftsmith.settings import Gate

Stop = Literal["no", "unsure", "yes"]  # yes: do not train; unsure: the interval holds the bar
Entry = Mapping[str, Any]


def pays_if(entry: Entry, how: str = "") -> str:
    """The break-even in words. how: what drafts, where the depth alone does not say it."""
    depth, needed, ceiling = entry["depth"], entry["accept_len"], entry["ceiling"]
    drafts = f"{depth} draft{'s' if depth > 1 else ''} per round"
    where = f"at concurrency {entry['concurrency']} with {how or drafts}"
    bounds = f"{entry['accept_len_low']:.2f} to {entry['accept_len_high']:.2f}"
    bounds += f" {INSIDE}" if entry["interval"] == INSIDE else ""
    if needed >= ceiling:
        return f"{where}: cannot pay; {needed:.2f} tokens per round would be needed ({bounds}) and {ceiling} is the most there can be"
    return f"{where}: pays if accept_len is above {needed:.2f} ({bounds}; {ceiling} at most)"


def ceiling_speedup(entry: Entry) -> tuple[float, float, float]:
    """(value, low, high) of the speed-up if every draft were accepted."""
    ceiling = entry["ceiling"]
    return ceiling / entry["accept_len"], ceiling / entry["accept_len_high"], ceiling / entry["accept_len_low"]


def advice_for(
    entries: Sequence[Entry], min_speedup: float = 1.0, gates: Sequence[Gate] = (), predicted: Sequence[Entry] = ()
) -> tuple[Stop, str]:
    """Whether to train: stop when no drafter could reach the speed-up that is asked for (anywhere), or one of the gates at its place.

    predicted: what the cost model says where nothing was measured, for gates there. ("no", "") when full acceptance reaches all that is
    asked for.
    """
    found = [verdict_on(entries, min_speedup, "pay here" if min_speedup <= 1 else f"reach the {min_speedup:g}x that is asked for")]
    for gate in gates:
        there = at_place(entries, gate) or at_place(predicted, gate)
        what = f"pass the gate of {gate.min_speedup:g}x at concurrency {gate.concurrency}"
        found += [verdict_on(there, gate.min_speedup, what)] if there else []
    return next((one for stop in ("yes", "unsure") for one in found if one[0] == stop), ("no", ""))


def at_place(entries: Sequence[Entry], gate: Gate) -> list[Entry]:
    """What is known at a gate's concurrency."""
    return [entry for entry in entries if entry["concurrency"] == gate.concurrency]


def verdict_on(entries: Sequence[Entry], bar: float, what: str) -> tuple[Stop, str]:
    """One bar against the best ceiling of these entries."""
    best = max(entries, key=lambda entry: ceiling_speedup(entry)[0])
    value, low, high = ceiling_speedup(best)
    if value > bar:
        return "no", ""
    known = best.get("label", "measured")
    where = f"concurrency {best['concurrency']}, depth {best['depth']}" + ("" if known == "measured" else f", {known}")
    text = (
        f"No drafter of this shape can {what}: even with every draft accepted the best speed-up is {value:.2f}x "
        f"({low:.2f} to {high:.2f}; {where}). "
    )
    if max(ceiling_speedup(entry)[2] for entry in entries) > bar:
        return "unsure", text + "The interval allows more: measure again with more launches (replicates) before you train."
    return "yes", text + "Try a smaller drafter, a lower concurrency, or a target and engine whose verify step costs less; do not train."


def unknown_gates(entries: Sequence[Entry], gates: Sequence[Gate]) -> list[str]:
    """Gates at whose concurrency nothing is known, in words."""
    return [f"the gate {gate} is not judged: nothing is known at its concurrency" for gate in gates if not at_place(entries, gate)]


def implausible(concurrency: int, step: Mapping[str, Any], rounds: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Times that cannot be: a round that drafts more, or drafts at all, is never the quicker one. Shows the noise between launches."""
    found = []
    known = [("a decode step", step["value"]), *((f"a round of depth {d}", rounds[d]["value"]) for d in sorted(rounds))]
    for (less, less_s), (more, more_s) in pairwise(known):
        if more_s < less_s:
            found.append(
                f"concurrency {concurrency}: {more} took {1000 * more_s:.1f} ms, {less} {1000 * less_s:.1f} ms: "
                f"launches differ by {less_s / more_s - 1:.0%} or more for no reason of their own; give breakeven.replicates=2"
            )
    return found
