"""A drafter folder of any origin, in the plain layout that vLLM loads, as our reference computes it; or why it cannot be replayed.

Folders in another layout are converted first (the command does it). Suffixes: W draft vocabulary, V target vocabulary, D drafter width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from draftsmith.errors import CheckFailed
from draftsmith.models.checkpoint import WEIGHTS, load_strictly
from draftsmith.models.drafter import Drafter
from draftsmith.models.eagle3 import Eagle3Drafter, Eagle3Shape
from draftsmith.models.target import Target
from draftsmith.verify.replay.dflash import DFLASH, DSPARK_CLASSES, block_refusals, load_dflash
from draftsmith.verify.replay.folder import EMBEDDING, HEAD, Folder, check_fc, common_refusals, lent_embedding

EAGLE3 = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM", "Qwen3Eagle3Model")
NORMS = ("norm_before_fc", "fc_norm", "norm_output")
SWITCHES = {  # what changes the network and our reference does not compute
    "parallel_drafting": "it drafts in parallel (P-EAGLE)",
}


def check_network(folder: Folder, vocab_size: int) -> None:
    """Raises CheckFailed with every reason why our reference does not compute this network. vocab_size: the target's."""
    if reasons := list(refusals(folder, vocab_size)):
        raise CheckFailed(f"{folder.path} cannot be replayed: {'; '.join(reasons)}", hint="`verify wiring` and a bench say what it does")


def refusals(folder: Folder, vocab_size: int) -> Iterator[str]:
    """Why our reference does not compute this network, one reason after the other."""
    config, architecture = folder.config, folder.architecture
    if architecture in DSPARK_CLASSES:
        yield "it is a DSpark: of its heads (Markov, confidence) and of a slot that is read at the anchor there is no reference yet"
        return
    if architecture == DFLASH:
        yield from block_refusals(folder, vocab_size)
        return
    if architecture not in EAGLE3:
        yield f"its class is {architecture}"
        return
    if (layers := int(config.get("num_hidden_layers") or 1)) != 1:
        yield f"it has {layers} layers, the reference has one"
    for name, reason in SWITCHES.items():
        if config.get(name) or (config.get("eagle_config") or {}).get(name):
            yield f"{reason} ({name})"
    if (config.get("eagle_config") or {}).get("use_aux_hidden_state") is False:
        yield "it reads the last hidden state only (use_aux_hidden_state: false)"
    if "sliding_attention" in (config.get("layer_types") or ()):
        yield "its attention has a sliding window"
    if any(name.endswith(("q_norm.weight", "k_norm.weight")) for name in folder.tensors):
        yield "its queries and keys are normed"
    yield from common_refusals(folder, vocab_size)


def load_plain(folder: Folder, target: Target, taps: Sequence[int], dtype: torch.dtype = torch.float32) -> Drafter:
    """The drafter, with its own embedding if it has one, else the target's. Raises CheckFailed with every reason why it cannot be."""
    check_network(folder, target.config.vocab_size)
    load = load_dflash if folder.architecture == DFLASH else load_eagle3
    try:
        return load(folder, target, taps, dtype)
    except KeyError as error:
        raise CheckFailed(f"{folder.path / 'config.json'} has no {error.args[0]!r}", hint="the folder is not whole") from None


def load_eagle3(folder: Folder, target: Target, taps: Sequence[int], dtype: torch.dtype) -> Eagle3Drafter:
    """See `load_plain`. Raises KeyError for a field that the config lacks."""
    tensors = {name: value for name, value in folder.tensors.items() if name != EMBEDDING}
    shape = shape_of(folder, target, len(taps))
    if HEAD not in tensors:
        if shape.draft_vocab_size != shape.vocab_size or target.head_VH.shape[1] != shape.hidden_size:
            raise CheckFailed(f"{folder.path}: no {HEAD}, and the target's head does not fit", hint="the folder is not whole")
        tensors[HEAD] = target.head_VH.detach().float()
    if shape.draft_vocab_size == shape.vocab_size and "d2t" not in tensors:
        tensors["d2t"] = torch.zeros(shape.vocab_size, dtype=torch.int64)
        tensors["t2d"] = torch.ones(shape.vocab_size, dtype=torch.bool)
    drafter = Eagle3Drafter(shape)
    on = {name: bool(folder.config.get(name) or (folder.config.get("eagle_config") or {}).get(name)) for name in NORMS}
    drafter.add_norms(on["norm_before_fc"], on["fc_norm"], on["norm_output"])
    drafter = load_strictly(drafter, tensors, folder.path / WEIGHTS)
    drafter.midlayer.norm_before_residual = bool(folder.config.get("norm_before_residual"))
    drafter.to(dtype)
    drafter.set_embedding(lent_embedding(folder, target, (shape.vocab_size, shape.hidden_size)).to(dtype))
    return drafter.eval().requires_grad_(False)


def shape_of(folder: Folder, target: Target, num_taps: int) -> Eagle3Shape:
    """From config and tensors. Raises KeyError for a missing field, CheckFailed when fc takes another number of tapped states."""
    config = folder.config
    heads, width = config["num_attention_heads"], config["hidden_size"]
    target_width = config.get("target_hidden_size") or target.config.hidden_size
    check_fc(folder, target, num_taps)
    rope = config.get("rope_parameters") or {}
    vocabulary = int(config.get("vocab_size") or target.config.vocab_size)
    rows = folder.tensors[HEAD].shape[0] if HEAD in folder.tensors else int(config.get("draft_vocab_size") or vocabulary)
    return Eagle3Shape(
        hidden_size=width,
        target_hidden_size=target_width,
        intermediate_size=config["intermediate_size"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or width // heads,
        vocab_size=vocabulary,
        draft_vocab_size=rows,
        num_taps=num_taps,
        rope_theta=float(config.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        rms_norm_eps=config["rms_norm_eps"],
        max_position=max(config["max_position_embeddings"], target.config.max_position_embeddings),  # engines go on past the drafter's
    )
