"""The draft vocabulary in all its forms, brought to one: d2t int64 offsets (target id - draft id), t2d bool over the vocabulary.

Suffixes: W draft vocabulary, V target vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Vocabulary:
    """Both tables, and how each came about ("" when it is as it was in the source)."""

    d2t_W: Tensor
    t2d_V: Tensor
    d2t_how: str = ""
    t2d_how: str = ""

    @property
    def target_ids_W(self) -> Tensor:
        return self.d2t_W + torch.arange(len(self.d2t_W))


class Contradiction(ValueError):
    """Tables that cannot be read as one vocabulary; the text says why."""


def is_map(ids_W: Tensor, vocab_size: int) -> bool:
    """Distinct ids inside the vocabulary."""
    return bool(ids_W.numel() and int(ids_W.min()) >= 0 and int(ids_W.max()) < vocab_size and len(ids_W.unique()) == len(ids_W))


def read_vocabulary(d2t_W: Tensor | None, t2d_V: Tensor | None, vocab_size: int, draft_size: int, form: str | None) -> Vocabulary:
    """One vocabulary from what a folder has. form: "offsets", "absolute", or None to find out. Raises Contradiction."""
    mask_V = None if t2d_V is None else as_mask(t2d_V, vocab_size)
    if d2t_W is None:
        if mask_V is None:
            raise Contradiction(f"the head has {draft_size} rows of {vocab_size} and the folder has neither d2t nor t2d")
        ids_W = mask_V.nonzero().flatten()
        how = "from t2d: its tokens in increasing order"
    else:
        if d2t_W.is_floating_point() or d2t_W.ndim != 1:
            raise Contradiction(f"d2t is {d2t_W.dtype} {list(d2t_W.shape)}, expected one integer per draft token")
        ids_W, how = target_ids(d2t_W.to(torch.int64), mask_V, vocab_size, form)
        if d2t_W.dtype != torch.int64:
            how = f"{how}; {d2t_W.dtype} to int64".lstrip("; ").replace("torch.", "")
    if len(ids_W) != draft_size:
        raise Contradiction(f"the vocabulary tables name {len(ids_W)} tokens, the head has {draft_size} rows")
    wanted_V = torch.zeros(vocab_size, dtype=torch.bool)
    wanted_V[ids_W] = True
    if mask_V is not None and not torch.equal(mask_V, wanted_V):
        raise Contradiction(
            f"t2d marks {int(mask_V.sum())} tokens and d2t names {len(ids_W)} others: the head belongs to one of the two tables"
        )
    t2d_how = (
        "from d2t: marks the tokens that it names" if t2d_V is None else ("" if t2d_V.dtype == torch.bool else f"{t2d_V.dtype} to bool")
    )
    return Vocabulary(ids_W - torch.arange(len(ids_W)), wanted_V, how, t2d_how.replace("torch.", ""))


def as_mask(t2d_V: Tensor, vocab_size: int) -> Tensor:
    """t2d as bool. Raises Contradiction for another size or values other than 0 and 1."""
    if tuple(t2d_V.shape) != (vocab_size,):
        raise Contradiction(f"t2d is {list(t2d_V.shape)}, the vocabulary has {vocab_size} tokens")
    if t2d_V.dtype != torch.bool and not bool(((t2d_V == 0) | (t2d_V == 1)).all()):
        raise Contradiction("t2d holds other values than 0 and 1: it is no mask")
    return t2d_V.bool()


def target_ids(d2t_W: Tensor, mask_V: Tensor | None, vocab_size: int, form: str | None) -> tuple[Tensor, str]:
    """Target ids from offsets or absolute ids, whichever fits the vocabulary and the mask."""
    readings = {"offsets": d2t_W + torch.arange(len(d2t_W)), "absolute": d2t_W}
    fits = [name for name, ids_W in readings.items() if is_map(ids_W, vocab_size) and fits_mask(ids_W, mask_V)]
    if form is not None:
        fits = [name for name in fits if name == form]
    if not fits:
        said = f"as {form}" if form else "neither as offsets nor as absolute ids"
        raise Contradiction(f"d2t cannot be read {said}: ids outside 0..{vocab_size - 1}, repeated, or other than t2d marks")
    if len(fits) == 2 and not torch.equal(readings["offsets"], readings["absolute"]):
        raise Contradiction("d2t can be read as offsets and as absolute ids, and there is no t2d; give --d2t offsets or --d2t absolute")
    return readings[fits[0]], "" if fits[0] == "offsets" else "absolute ids to offsets"


def fits_mask(ids_W: Tensor, mask_V: Tensor | None) -> bool:
    return mask_V is None or torch.equal(mask_V.nonzero().flatten(), ids_W.sort().values)
