"""Where in a round do answers part? Faults of a cache or of the end of a block sit right behind accepted drafts. Pure.

A streamed chunk of a speculating server is a round: accepted drafts, then the token that the target adds. A token's index in its
chunk is therefore the number of drafts accepted before it in the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from scipy import stats

from draftsmith.measure.messages import Reply
from draftsmith.verify.lossless.rates import RATIO
from draftsmith.verify.sequences import Answer, Divergence

ALPHA = 0.001
SHIFT_TOKENS = 4  # that must go on equally; a server that loses a token a round has few between two losses


@dataclass(frozen=True)
class Concentration:
    """Divergences at one kind of place. p: one-sided, of a rate above RATIO times that of all other places."""

    place: str
    divergences: int
    of: int
    share_of_tokens: float
    p: float

    @property
    def clear(self) -> bool:
        return self.p < ALPHA

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def chunk_sizes(reply: Reply) -> list[int]:
    """Tokens of each chunk of a streamed reply, from its usage."""
    counts = [tokens for _, tokens in reply.arrivals or ()]
    return [now - before for before, now in pairwise([0, *counts])]


def rounds(reply: Reply, length: int) -> tuple[list[int], list[int]]:
    """(index in its chunk, size of the chunk before) of each of the first `length` tokens; the chunk before the first has size 1."""
    indices: list[int] = []
    before: list[int] = []
    previous = 1
    for size in chunk_sizes(reply):
        indices += range(size)
        before += [previous] * size
        previous = size
    return indices[:length], before[:length]


def concentrations(
    parted: Sequence[Divergence], served: Sequence[Answer], replies: Sequence[Reply], num_tokens: int, depth: int
) -> list[Concentration]:
    """Divergences against places in the round; by position modulo depth + 1 when the reply shows no rounds. Empty without divergences.

    Every compared token up to the first divergence is one that could have parted.
    """
    at = {d.id: d.position for d in parted}
    inside: dict[str, list[bool]] = {"behind an accepted draft": [], "first after a round of the full size": []}
    apart: list[list[bool]] = [[], []]
    full = max(
        (size for reply in replies for size in chunk_sizes(reply)), default=1
    )  # a server that loses the last token has a smaller one
    shown = full > 1
    positions: list[int] = []
    hit_positions: list[int] = []
    for answer, reply in zip(served, replies, strict=True):
        length = min(at.get(answer.id, len(answer.tokens) - 1) + 1, num_tokens, len(answer.tokens))
        positions += range(length)
        hit_positions += [at[answer.id]] if answer.id in at else []
        indices, before = rounds(reply, length)
        if not shown or len(indices) < length:
            continue
        places = ([i > 0 for i in indices], [i == 0 and size == full for i, size in zip(indices, before, strict=True)])
        for found, hits, place in zip(inside.values(), apart, places, strict=True):
            found += place
            if answer.id in at:
                hits.append(place[-1])
    if not parted:
        return []
    if shown:
        return [place_of(name, found, hits, tests=2) for (name, found), hits in zip(inside.items(), apart, strict=True)]
    return modulo(positions, hit_positions, depth + 1) if depth else []


def place_of(name: str, tokens: Sequence[bool], hits: Sequence[bool], tests: int) -> Concentration:
    """tokens: is each compared token at this place; hits: is each divergence. `tests` places are looked at (Bonferroni)."""
    share = sum(tokens) / len(tokens) if tokens else 0.0
    number = sum(hits)
    odds = RATIO * share / (RATIO * share + 1 - share) if share else 0.0
    p = min(1.0, tests * float(stats.binom.sf(number - 1, len(hits), odds))) if number and share < 1 else 1.0
    return Concentration(name, number, len(hits), share, p)


def modulo(positions: Sequence[int], hits: Sequence[int], block: int) -> list[Concentration]:
    """The residue class of positions that has the most divergences."""
    found = [
        place_of(
            f"position {residue} modulo {block}", [p % block == residue for p in positions], [p % block == residue for p in hits], block
        )
        for residue in range(block)
    ]
    return [min(found, key=lambda place: place.p)]


def shifted(reference: Answer, served: Answer, position: int) -> str:
    """ "missing" when the served answer goes on as the reference does one token later, "doubled" one earlier, else ""."""
    for name, a, b in (("missing", position + 1, position), ("doubled", position, position + 1)):
        left, right = reference.tokens[a : a + SHIFT_TOKENS], served.tokens[b : b + SHIFT_TOKENS]
        if len(left) == SHIFT_TOKENS and left == right and len(set(left)) > 1:
            return name
    return ""


def sentence(place: Concentration) -> str:
    """What was found at a place."""
    share = f"{100 * place.share_of_tokens:.0f} %"
    return f"{place.divergences} of {place.of} divergences are {place.place}, where {share} of the tokens are (p {place.p:.2g})"
