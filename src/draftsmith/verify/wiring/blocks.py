"""What a DFlash drafter is asked to fill: one block per round, the last token and then masks, right behind the features it was given.

arXiv 2602.06036, section 3. Features enter its cache at their own positions and meet no embedding, so that this is what can be misaligned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftsmith.engines.served import Block
from draftsmith.findings import Finding

SHIFTS = (0, -1, 1)
FIX = "use another engine version, and report it to the engine with this finding"


@dataclass(frozen=True)
class Blocks:
    """Shares are of all blocks. anchor_shift: a block at position p begins with token p + shift (right: 0); None: no shift fits half."""

    number: int
    anchor_shift: int | None
    anchor_share: float
    mask_token: int | None  # as the drafter's config says; None: it does not, then any one token will do
    mask_share: float  # filled with nothing but masks behind the first token
    line_share: float  # positions go up one by one
    lacking: int  # the most features that were still missing when a block was filled

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def look_at_blocks(requests: Sequence[tuple[Sequence[int], Sequence[Block]]], mask_token: int | None) -> Blocks | None:
    """(tokens, blocks) of every request; None without blocks. Positions count from the first one that the request was given."""
    told = [(tokens, block) for tokens, blocks in requests for block in blocks]
    if not told:
        return None
    shares = {shift: sum(begins_with(tokens, block, shift) for tokens, block in told) / len(told) for shift in SHIFTS}
    best = max(SHIFTS, key=lambda shift: shares[shift])
    filling = {token for _, block in told for token in block.ids[1:]}
    masks = {mask_token} if mask_token is not None else set(list(filling)[:1])
    return Blocks(
        number=len(told),
        anchor_shift=best if shares[best] >= 0.5 else None,
        anchor_share=shares[best],
        mask_token=mask_token,
        mask_share=sum(set(block.ids[1:]) <= masks for _, block in told) / len(told),
        line_share=sum(in_line(block.positions) for _, block in told) / len(told),
        lacking=max(max(0, block.positions[0] - block.context) for _, block in told),
    )


def begins_with(tokens: Sequence[int], block: Block, shift: int) -> bool:
    place = block.positions[0] + shift
    return 0 <= place < len(tokens) and block.ids[0] == tokens[place]


def in_line(positions: Sequence[int]) -> bool:
    return list(positions) == list(range(positions[0], positions[0] + len(positions)))


def block_findings(blocks: Blocks, who: str, silent: str) -> list[Finding]:
    """DS906 features that lag behind the block, DS907 its tokens, DS908 its positions."""
    findings = []
    if blocks.lacking:
        features = "the feature" if blocks.lacking == 1 else f"the features of the {blocks.lacking} tokens"
        evidence = f"{who} has a block filled without {features} before it: the drafter reads older ones only"
        findings.append(Finding("DS906", "error", evidence, silent, FIX))
    if blocks.anchor_shift != 0 or blocks.anchor_share < 1:
        share = f"{100 * blocks.anchor_share:.1f} % of {blocks.number} blocks"
        if blocks.anchor_shift is None:
            evidence = f"{who}: blocks begin with tokens that are not those of their positions (right: {share})"
        elif blocks.anchor_shift:
            evidence = f"{who}: a block at position p begins with token p {blocks.anchor_shift:+d} instead of p ({share})"
        else:
            evidence = f"{who}: only {share} begin with the token of their position"
        findings.append(Finding("DS907", "error", evidence, silent, FIX))
    if blocks.mask_share < 1:
        mask = "one mask token" if blocks.mask_token is None else f"the mask token {blocks.mask_token}"
        evidence = f"{who}: only {100 * blocks.mask_share:.1f} % of {blocks.number} blocks are filled with {mask}"
        fix = "write the mask token of training as mask_token_id under dflash_config in the drafter's config.json"
        findings.append(Finding("DS907", "error", evidence, silent, fix))
    if blocks.line_share < 1:
        evidence = f"{who}: the positions of {100 * (1 - blocks.line_share):.1f} % of {blocks.number} blocks are not numbered one by one"
        findings.append(Finding("DS908", "error", evidence, "rotary embeddings turn otherwise than in training", FIX))
    return findings
