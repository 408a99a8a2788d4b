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
            found.append({"concurrency": concurrency, "easiest": None, "needed_share": None, "best": {}})
            continue
        easiest = min(chains, key=lambda e: e["needed_share"])
        best = {}
        for share in ACCEPTED:
            speedups = {e["depth"]: chain_accept_len(share, e["depth"]) / e["accept_len"] for e in chains}
            depth = max(speedups, key=lambda d: speedups[d])
            best[str(share)] = {"depth": depth if speedups[depth] > 1 else 0, "speedup": max(speedups[depth], 1.0)}
        found.append({"concurrency": concurrency, "easiest": easiest["depth"], "needed_share": easiest["needed_share"], "best": best})
    return found
