"""Accept rules, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence


def greedy_accept(drafts: Sequence[int], target_tokens: Sequence[int]) -> tuple[int, int]:
    """Longest prefix of `drafts` that the target would have emitted, and the token that follows it.

    target_tokens[i] is the target's argmax after the first i drafts: len(drafts) + 1 entries. Returns (accepted, bonus token); the
    round emits accepted + 1 tokens, exactly those of plain greedy decoding.
    """
    assert len(target_tokens) == len(drafts) + 1, (len(drafts), len(target_tokens))
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == target_tokens[accepted]:
        accepted += 1
    return accepted, target_tokens[accepted]
