"""From a drafter without a format to the config and tensors of a format. Every field and tensor is settled here, once."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from draftsmith.convert.drafter import CARRIED, Asked, Drafter
from draftsmith.convert.heads import EMBEDDING, HEAD, Vocab, read_head
from draftsmith.convert.ledger import Ledger
from draftsmith.convert.limits import enter_limits
from draftsmith.convert.read import OUTSIDE
from draftsmith.convert.source import Source
from draftsmith.convert.tapping import render_taps
from draftsmith.convert.write_plain import finish_plain
from draftsmith.convert.write_speculators import LAYER, finish_speculators
from draftsmith.convert.writing import Config, Written

# fields that formats say differently: write_plain and write_speculators settle them
SETTLED = (
    "architectures",
    "causal",
    "sliding_window_non_causal",
    "draft_vocab_size",
    "tie_word_embeddings",
    "sample_from_anchor",
    "model_type",
)
LATER_NORM = re.compile(r"(layers\.[1-9]\d*\.)(input_layernorm|hidden_norm)(\.weight)$")


def write_drafter(drafter: Drafter, source: Source, asked: Asked, ledger: Ledger) -> Written:
    """Config and tensors of the asked format. What cannot be said is in the ledger as impossible."""
    enter_limits(drafter, asked, ledger)
    vocab = read_head(drafter, source, asked, ledger)
    config = Config(ledger)
    place_fields(drafter, asked, config)
    place_taps(drafter, asked, config)
    finish = finish_speculators if asked.format == "speculators" else finish_plain
    finish(drafter, source, asked, config, vocab)
    return Written(config.built(), write_tensors(drafter, source, asked, ledger, vocab))


# --- config ----------------------------------------------------------------------------------------------------------


def place(name: str, drafter: Drafter, asked: Asked) -> str:
    """The path of a field in the asked format."""
    if name == "target_model_type":
        return "draftsmith.target_model_type"
    if name == "num_taps":
        name = "num_aux_hidden_states"
    if asked.format != "speculators":
        if name.startswith("speculators."):
            return f"{CARRIED}{name}"
        return "dflash_config.mask_token_id" if name == "mask_token_id" and drafter.layout == "dflash" else name
    if name.startswith("speculators.layer."):
        return LAYER + name.removeprefix("speculators.layer.")
    if name.startswith("speculators."):
        return name.removeprefix("speculators.")
    if name.startswith(("eagle_config.", "dflash_config.")):
        return f"{CARRIED}{name}"
    return name if name in OUTSIDE or name.startswith("draftsmith.") else LAYER + name


def place_fields(drafter: Drafter, asked: Asked, config: Config) -> None:
    """All fields that mean the same in every format."""
    for name, field in drafter.fields.items():
        if name not in SETTLED:
            path = place(name, drafter, asked)
            config.put(path, field.value, field.sources, "no place in this format, and no effect" if path.startswith(CARRIED) else "")


def place_taps(drafter: Drafter, asked: Asked, config: Config) -> None:
    """Tap ids in the spellings that the engine reads, and the boundaries themselves as a note."""
    paths = render_taps(drafter, asked, config.ledger)
    taps = drafter.taps
    shown = f"boundaries {list(taps.boundaries)}" if taps.boundaries is not None else "the default of every engine"
    if taps.boundaries is not None:
        paths["draftsmith.tap_boundaries"] = list(taps.boundaries)
    for path, ids in paths.items():
        same = ids is not None and taps.sources.get(path) == tuple(ids)
        config.put(path, ids, [path] if path in taps.sources else [], shown, same)
    for path in taps.sources:
        if path not in paths:
            config.ledger.add("config", "computed", path, next(iter(paths), None), f"{shown}, in this format's numbering")
    if asked.target_type:
        config.ensure("draftsmith.target_model_type", asked.target_type, "a note: the numbering of nested ids depends on it")


# --- tensors ---------------------------------------------------------------------------------------------------------


def write_tensors(drafter: Drafter, source: Source, asked: Asked, ledger: Ledger, vocab: Vocab) -> dict[str, str | Tensor]:
    """Name in the result -> name in the source, or a new tensor."""
    tensors: dict[str, str | Tensor] = {}
    for canonical, name in drafter.tensors.items():
        if canonical in ("d2t", "t2d") or (drafter.layout == "eagle3" and LATER_NORM.match(canonical)):
            continue
        written = spelled(canonical, drafter, asked)
        ledger.add("tensor", "kept" if written == name else "renamed", name, written, tensor_note(canonical, drafter, asked))
        tensors[written] = name
    if drafter.layout == "eagle3":
        tensors |= later_norms(drafter, source, asked, ledger)
        tensors |= output_biases(drafter, source, asked, ledger)
    if vocab.copied_head:
        tensors[HEAD] = source.load(drafter.tensors[EMBEDDING]).clone()
        ledger.add("tensor", "computed", drafter.tensors[EMBEDDING], HEAD, "a copy of the embedding, to which the source ties its head")
    return tensors | vocab.tables


def output_biases(drafter: Drafter, source: Source, asked: Asked, ledger: Ledger) -> dict[str, str | Tensor]:
    """Llama's layer in vLLM and speculators has a bias behind o_proj when q, k and v have one, and leaves it unset when there is none."""
    tensors: dict[str, str | Tensor] = {}
    if asked.format == "sglang" or drafter.layer != "llama" or not drafter.value("attention_bias"):
        return tensors
    for number in range(drafter.num_layers):
        bias, weight = (f"layers.{number}.self_attn.o_proj.{kind}" for kind in ("bias", "weight"))
        if f"layers.{number}.self_attn.q_proj.bias" in drafter.tensors and bias not in drafter.tensors and weight in drafter.tensors:
            written = spelled(bias, drafter, asked)
            like = source.load(drafter.tensors[weight])
            tensors[written] = torch.zeros(like.shape[0], dtype=like.dtype)
            ledger.add("tensor", "computed", None, written, "zeros: the engine has a bias there as well, and would leave it unset")
    return tensors


def spelled(canonical: str, drafter: Drafter, asked: Asked) -> str:
    """The one layer of an EAGLE-3 head is midlayer, which every version of both engines reads; speculators and deeper heads count."""
    if asked.format != "speculators" and drafter.layout in ("eagle3", "eagle3_mla") and drafter.num_layers == 1:
        return canonical.replace("layers.0.", "midlayer.", 1) if canonical.startswith("layers.0.") else canonical
    return canonical


def tensor_note(canonical: str, drafter: Drafter, asked: Asked) -> str:
    if canonical == EMBEDDING and asked.family == "sglang":
        return "SGLang puts the target's embedding in its place"
    if canonical == HEAD and drafter.layout == "dspark" and asked.family == "sglang":
        return "SGLang takes the target's head instead"
    if canonical in (EMBEDDING, HEAD) and drafter.layout in ("dflash", "dspark") and asked.format == "speculators":
        return "speculators fills a full one from the target when it loads"
    return ""


def later_norms(drafter: Drafter, source: Source, asked: Asked, ledger: Ledger) -> dict[str, str | Tensor]:
    """The input norm of layers after the first: SGLang reads it as hidden_norm, vLLM and speculators as input_layernorm."""
    tensors: dict[str, str | Tensor] = {}
    for prefix in sorted({match[1] for name in drafter.tensors if (match := LATER_NORM.match(name))}):
        own, other = f"{prefix}input_layernorm.weight", f"{prefix}hidden_norm.weight"
        found = [drafter.tensors[name] for name in (own, other) if name in drafter.tensors]
        if len(found) == 2 and not torch.equal(source.load(found[0]), source.load(found[1])):
            ledger.impossible(
                "tensor", found[0], f"it differs from {found[1]}: vLLM norms the layer's input with the first, SGLang with the second"
            )
        wanted = [own, other] if asked.format == "sglang" else [own]
        for name in wanted:
            kept = drafter.tensors.get(name)
            moved = kept is None and not set(wanted) & drafter.tensors.keys()
            tensors[name] = kept or (found[0] if moved and name == own else source.load(found[0]).clone())
            action = "computed" if isinstance(tensors[name], Tensor) else "kept" if kept == name else "renamed"
            ledger.add("tensor", action, kept or found[0], name, "" if kept else "the same norm under this engine's name")
        if len(found) == 2 and other not in wanted:
            ledger.add("tensor", "dropped", found[1], None, "the same values as input_layernorm, which this engine reads")
    return tensors
