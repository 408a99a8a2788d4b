"""What decoding and replay ask of a drafter, of whatever kind. Shapes: T tokens, F taps * H, A rows."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn


class Drafter(Protocol):
    """Row i of a round: the target's features of tokens 0..i are there, token i + 1 is out, draft k (from 0) is about token i + 2 + k."""

    fc: nn.Linear

    def proposed(self, features_TF: Tensor, token_ids_T: Tensor, row_A: Tensor, depth: int) -> Tensor:
        """Target ids [A, depth] of the rounds that begin at these rows of a text: what the drafter proposes, up to and including the first
        draft that is not the text's. features_TF: of the text's tokens up to the last row at least."""
        ...

    def draft(self, features_TF: Tensor, token_ids_T: Tensor, depth: int) -> Tensor:
        """Target ids [depth] of one round. token_ids_T: one token more than there are features; it is the one that the verify added."""
        ...
