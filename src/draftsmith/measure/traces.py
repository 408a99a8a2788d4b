"""Traces: requests with the times at which users sent them.

Two kinds of JSONL rows. Own prompts: {"at_s": 1.5, "prompt" | "messages" | "token_ids": ..., "max_tokens": 256}. Mooncake's open
traces: {"timestamp": ms, "input_length": n, "output_length": m, "hash_ids": [...]}, which hold no text: each hash stands for a block of
512 prompt tokens, equal hashes for equal blocks. Those prompts are filled with real text (`filler`), since random tokens are harder to
draft than anything users send, and equal hashes get equal tokens, so a prefix cache finds exactly what it found in the trace.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftsmith.errors import UsageError
from draftsmith.measure.messages import Request
from draftsmith.measure.prompts import COLUMNS, Prompt, prompt_from, rows_of

HASH_BLOCK = 512  # prompt tokens per hash id in Mooncake's traces
MOONCAKE = ("timestamp", "input_length", "output_length")


def read_trace(path: Path, filler: Sequence[int] = (), render: Any = None, ignore_eos: bool | None = None) -> list[Request]:
    """The requests of a trace, by time. `ignore_eos`: forced lengths; None: forced where the trace gives the output length.

    filler: token ids of real text for traces without prompts. render: Prompt -> Prompt with token ids (Renderer.render), where the
    endpoint needs them. Raises UsageError with the file and the row.
    """
    rows = rows_of(path)
    if not rows:
        raise UsageError(f"{path} holds no requests", hint=f"rows need at_s and one of {', '.join(COLUMNS)}, or {', '.join(MOONCAKE)}")
    requests = []
    for number, row in enumerate(rows, start=1):
        where, name = f"{path}, row {number}", f"{path.stem}-{number:05d}"
        if "timestamp" in row and "input_length" in row:
            requests.append(mooncake_request(row, where, name, filler, ignore_eos is not False))
        else:
            requests.append(own_request(row, where, name, render, bool(ignore_eos)))
    return sorted(requests, key=lambda request: request.at_s or 0.0)


def number_in(row: Mapping[str, Any], name: str, where: str, least: float) -> float:
    """A number of at least `least`. Raises UsageError."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
        raise UsageError(f"{where}: {name} is {value!r}", hint=f"expected a number from {least:g} up")
    return value


def own_request(row: Mapping[str, Any], where: str, name: str, render: Any, ignore_eos: bool) -> Request:
    """A row with its own prompt."""
    at_s, max_tokens = number_in(row, "at_s", where, 0), int(number_in(row, "max_tokens", where, 1))
    prompt: Prompt = prompt_from(row, where, name)
    if render is not None:
        prompt = render(prompt)
    return Request(
        prompt.id, prompt.token_ids, max_tokens, ignore_eos=ignore_eos, category=prompt.category, messages=prompt.messages, at_s=at_s
    )


def mooncake_request(row: Mapping[str, Any], where: str, name: str, filler: Sequence[int], ignore_eos: bool) -> Request:
    """A row of lengths and hashes."""
    if not filler:
        raise UsageError(f"{where} has lengths but no prompt", hint="give prompts whose text fills it (a tokenizer is needed)")
    at_s = number_in(row, "timestamp", where, 0) / 1000
    length, output = int(number_in(row, "input_length", where, 1)), int(number_in(row, "output_length", where, 1))
    hashes = row.get("hash_ids") or []
    if not isinstance(hashes, list) or not all(isinstance(i, int) for i in hashes):
        raise UsageError(f"{where}: hash_ids is {hashes!r}", hint="expected a list of whole numbers")
    hashes = [*hashes, *(f"{name}-{i}" for i in range(len(hashes), -(-length // HASH_BLOCK)))]  # blocks that nobody shares
    ids = [token for block in hashes for token in block_of(block, filler)][:length]
    return Request(name, tuple(ids), output, ignore_eos=ignore_eos, category="trace", at_s=at_s)


def block_of(block: int | str, filler: Sequence[int]) -> list[int]:
    """HASH_BLOCK tokens that depend on the hash alone: a piece of the filler from a random place on, after a few tokens of its own."""
    draw = random.Random(str(block))
    own = [draw.choice(filler) for _ in range(8)]
    start = draw.randrange(len(filler))
    return (own + [filler[(start + i) % len(filler)] for i in range(HASH_BLOCK)])[:HASH_BLOCK]
