"""Which depth is worth training for: what a break-even length asks of a chain or block, and what one of a given quality gains (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ACCEPTED = (0.6, 0.75, 0.9)  # shares of its drafts that a drafter may get right


def chain_accept_len(accepted: float, depth: int) -> float:
    """Tokens per round when every draft is right with the same probability, given those before it: 1 + a + a^2 + ... + a^depth."""
    return sum(accepted**i for i in range(depth + 1))


def needed_share(accept_len: float, depth: int) -> float | None:
    """The constant share of right drafts at which a chain of `depth` has `accept_len`; None when no share below 1 gives it."""
    if accept_len >= depth + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chain_accept_len(middle, depth) < accept_len else (low, middle)
    return high


def worth_training(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For every concurrency: the depth that asks least of a drafter, and the best depth for drafters of three qualities (chains and blocks;
    a tree has more than one way to be right)."""
    found = []
    for concurrency in sorted({e["concurrency"] for e in entries}):
        chains = [e for e in entries if e["concurrency"] == concurrency and e["needed_share"] is not None]
        if not chains:
            found.append({"concurrency": concurrency, "easiest": None, "name": None, "needed_share": None, "best": {}})
            continue
        easiest = min(chains, key=lambda e: e["needed_share"])
        told = {"easiest": easiest["depth"], "name": name_of(easiest), "needed_share": easiest["needed_share"]}
        best = {str(share): best_for(share, chains) for share in ACCEPTED}
        found.append({"concurrency": concurrency, **told, "best": best})
    return found


def best_for(share: float, chains: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fastest chain or block for a drafter that gets `share` of its drafts right; depth 0 when that is plain decoding."""

    def speedup(entry: Mapping[str, Any]) -> float:
        return chain_accept_len(share, entry["depth"]) / entry["accept_len"]

    best = max(chains, key=speedup)
    if speedup(best) <= 1:
        return {"depth": 0, "name": "plain", "speedup": 1.0}
    return {"depth": best["depth"], "name": name_of(best), "speedup": speedup(best)}


def name_of(entry: Mapping[str, Any]) -> str:
    return entry.get("name", f"depth {entry['depth']}")
