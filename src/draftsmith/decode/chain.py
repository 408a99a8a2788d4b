"""Speculation along a chain outside an engine: the acceptance walk on a given text, and a plain reference decoder.

The drafts of a round are verified one behind the other, whether the drafter made them one by one (EAGLE-3) or as a block (DFlash).
Shapes: T tokens, F taps * H, A rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftsmith.decode.accept import greedy_accept
from draftsmith.models.drafter import Drafter
from draftsmith.models.target import Target


@torch.inference_mode()
def draft_matches(drafter: Drafter, features_TF: Tensor, token_ids_T: Tensor, start: int, depth: int) -> Tensor:
    """Would draft k of a round that begins at row i be the text's token i + 2 + k? bool [A, depth] for rows start - 1 .. T - 3.

    Right up to and including the first mismatch of a row, where the drafter's own tokens are the text's. Positions past the end of the
    text do not match.
    """
    T = len(token_ids_T)
    assert 1 <= start <= T - 1 and features_TF.shape[0] >= T - 1, (start, T, features_TF.shape)
    rows = torch.arange(start - 1, T - 2)
    if len(rows) == 0:
        return torch.zeros(0, depth, dtype=torch.bool)
    proposed_AK = drafter.proposed(features_TF[: T - 1], token_ids_T, rows, depth)
    padded = torch.cat([token_ids_T, token_ids_T.new_zeros(depth)])
    at_AK = rows[:, None] + 2 + torch.arange(depth)
    return (proposed_AK == padded[at_AK]) & (at_AK < T)


def walk(drafter: Drafter, features_TF: Tensor, token_ids_T: Tensor, start: int, depth: int) -> list[int]:
    """Accepted drafts of each round of greedy speculative decoding that emits token_ids_T[start:].

    start: number of prompt tokens; token `start` comes from the prefill, so rounds begin after it. features_TF: target features of
    tokens 0..T-2 at least. A round that reaches the end of the text counts the drafts inside the text only.
    """
    matches = draft_matches(drafter, features_TF, token_ids_T, start, depth).tolist()
    rounds, row = [], 0
    while row < len(matches):
        run = matches[row]
        accepted = run.index(False) if False in run else depth
        rounds.append(accepted)
        row += accepted + 1
    return rounds


def generate(target: Target, drafter: Drafter | None, prompt_T: Tensor, max_tokens: int, depth: int) -> tuple[list[int], list[int]]:
    """Greedy decoding, speculative when a drafter is given: (emitted tokens, accepted drafts per round).

    The readable reference: everything is recomputed each round, no cache. Stops at max_tokens only.
    """
    tokens = prompt_T.tolist()
    tokens.append(next_tokens(target, tokens, 1)[0])
    rounds: list[int] = []
    while len(tokens) - len(prompt_T) < max_tokens:
        drafts: list[int] = []
        if drafter is not None:
            features_TF = target.states(torch.tensor([tokens[:-1]])).features_BTF[0]
            drafts = drafter.draft(features_TF.to(drafter.fc.weight.dtype), torch.tensor(tokens), depth).tolist()
        accepted, bonus = greedy_accept(drafts, next_tokens(target, tokens + drafts, len(drafts) + 1))
        tokens += [*drafts[:accepted], bonus]
        rounds.append(accepted)
    return tokens[len(prompt_T) : len(prompt_T) + max_tokens], rounds


def next_tokens(target: Target, tokens: list[int], count: int) -> list[int]:
    """The target's greedy tokens after each of the last `count` positions."""
    last = target.states(torch.tensor([tokens])).last_BTH[:, -count:]
    return target.logits(last)[0].argmax(-1).tolist()
