"""The head and the vocabulary: own or borrowed from the target, reduced or full, tied or not; what each format makes of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftsmith.convert.drafter import Asked, Drafter
from draftsmith.convert.ledger import Ledger
from draftsmith.convert.source import Source
from draftsmith.convert.vocabulary import Contradiction, read_vocabulary

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Vocab:
    """Sizes and tensors of the head. `tables`: d2t and t2d of the result; `copied_head`: the embedding, as lm_head."""

    vocab_size: int
    draft_size: int
    own_head: bool
    tied: bool  # the result says tie_word_embeddings
    tables: dict[str, Tensor]
    copied_head: bool = False

    @property
    def reduced(self) -> bool:
        return self.draft_size < self.vocab_size


def read_head(drafter: Drafter, source: Source, asked: Asked, ledger: Ledger) -> Vocab:
    """What head the result has. Contradictions and what the format cannot say are entered as impossible."""
    vocab_size = vocabulary_size(drafter, source, asked, ledger)
    said = drafter.value("draft_vocab_size")
    own = HEAD in drafter.tensors
    rows = source.shapes[drafter.tensors[HEAD]][0] if own else int(said or vocab_size)
    if own and said is not None and rows != said:
        ledger.impossible("tensor", drafter.tensors[HEAD], f"it has {rows} rows, draft_vocab_size is {said}")
    if not own and rows < vocab_size:
        ledger.impossible(
            "tensor", None, f"the vocabulary is reduced to {rows} and the folder has no lm_head: engines would use another head"
        )
    tables = vocabulary_tables(drafter, source, asked, ledger, (vocab_size, rows))
    tied, copied = tie(drafter, source, asked, ledger)
    if (copied or tied) and rows < vocab_size:
        ledger.impossible(
            "config", "tie_word_embeddings", f"a head tied to the embedding has {vocab_size} rows, draft_vocab_size is {rows}"
        )
    return Vocab(vocab_size, rows, own or copied, tied, tables, copied)


def vocabulary_size(drafter: Drafter, source: Source, asked: Asked, ledger: Ledger) -> int:
    """Rows of the target's vocabulary: from the config, t2d, the embedding or the target."""
    if size := drafter.value("vocab_size"):
        return int(size)
    for name in ("t2d", EMBEDDING):
        if name in drafter.tensors:
            return source.shapes[drafter.tensors[name]][0]
    if size := asked.target.get("vocab_size"):
        return int(size)
    ledger.impossible("config", "vocab_size", "neither the config nor a tensor says how large the vocabulary is; give --target")
    return 0


def vocabulary_tables(drafter: Drafter, source: Source, asked: Asked, ledger: Ledger, sizes: tuple[int, int]) -> dict[str, Tensor]:
    """d2t and t2d of the result; {} for a full vocabulary."""
    vocab_size, rows = sizes
    names = {name: drafter.tensors.get(name) for name in ("d2t", "t2d")}
    d2t, t2d = (source.load(name) if name else None for name in names.values())
    if rows >= vocab_size:
        identity = d2t is None or torch.equal(d2t.to(torch.int64), torch.zeros(rows, dtype=torch.int64))
        identity = identity or (d2t is not None and torch.equal(d2t.to(torch.int64), torch.arange(rows)))
        if not identity:
            ledger.impossible("tensor", names["d2t"], "it permutes a full vocabulary: vLLM and speculators have no table for that")
        for name in filter(None, names.values()):
            ledger.add("tensor", "dropped", name, None, "the vocabulary is full: the table says nothing, and vLLM stops at it")
        return {}
    try:
        read = read_vocabulary(d2t, t2d, vocab_size, rows, asked.vocabulary)
    except Contradiction as error:
        ledger.impossible("tensor", names["d2t"] or names["t2d"], str(error))
        return {}
    for name, how in (("d2t", read.d2t_how), ("t2d", read.t2d_how)):
        ledger.add("tensor", "computed" if how else "kept" if names[name] == name else "renamed", names[name], name, how)
    return {"d2t": read.d2t_W, "t2d": read.t2d_V}


def tie(drafter: Drafter, source: Source, asked: Asked, ledger: Ledger) -> tuple[bool, bool]:
    """(the result is tied, lm_head is a copy of the embedding). SGLang honours tie_word_embeddings; vLLM and speculators do not look."""
    if drafter.layout not in ("eagle3", "eagle3_mla") or not drafter.value("tie_word_embeddings"):
        return False, False
    path = drafter.fields["tie_word_embeddings"].sources[0]
    if HEAD in drafter.tensors:
        names = [drafter.tensors.get(name) for name in (HEAD, EMBEDDING)]
        if names[1] is None or not torch.equal(source.load(str(names[0])), source.load(names[1])):
            reason = "the config ties the head to the embedding and the folder has another lm_head: SGLang uses the first, vLLM the second"
            ledger.impossible("config", path, f"{reason}; write tie_word_embeddings: false if lm_head was trained")
        return False, False
    if asked.format == "sglang":
        return True, False
    if EMBEDDING in drafter.tensors:
        return False, True
    if not asked.target.get("tie_word_embeddings"):
        known = "the target's head is another" if asked.target else "give --target"
        ledger.impossible("config", path, f"{asked.format} borrows the target's head, not its embedding; {known}")
    return False, False
