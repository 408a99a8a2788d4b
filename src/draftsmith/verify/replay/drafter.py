"""A drafter folder of any origin, in the plain layout that vLLM loads, as our reference computes it; or why it cannot be replayed.

Folders in another layout are converted first (the command does it). Suffixes: W draft vocabulary, V target vocabulary, D drafter width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from draftsmith.errors import CheckFailed, EnvironmentFailed, UsageError
from draftsmith.models.checkpoint import WEIGHTS, load_strictly
from draftsmith.models.config_keys import read_config_file
from draftsmith.models.eagle3 import Eagle3Drafter, Eagle3Shape
from draftsmith.models.taps import KEY, check_taps
from draftsmith.models.target import Target

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
EAGLE3 = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM", "Qwen3Eagle3Model")
NORMS = ("norm_before_fc", "fc_norm", "norm_output")
SWITCHES = {  # what changes the network and our reference does not compute
    "parallel_drafting": "it drafts in parallel (P-EAGLE)",
}


@dataclass(frozen=True)
class Folder:
    """An opened plain folder."""

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @classmethod
    def open(cls, path: Path) -> Folder:
        """Raises EnvironmentFailed when config.json or the weights are missing or damaged."""
        if not (path / "config.json").is_file() or not (path / WEIGHTS).is_file():
            raise EnvironmentFailed(f"no drafter at {path}: config.json or {WEIGHTS} is missing", hint="draftsmith export RECIPE")
        try:
            config = read_config_file(path / "config.json")
            return cls(path, config, load_file(path / WEIGHTS))
        except (OSError, ValueError, SafetensorError) as error:
            raise EnvironmentFailed(f"{path} is damaged: {error}", hint="copy it again, or run the export stage again") from error

    @property
    def has_own_embedding(self) -> bool:
        return EMBEDDING in self.tensors


def taps_of(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """The boundaries that a plain folder says it was trained on. Raises UsageError when it says nothing, CheckFailed for wrong ones."""
    said = (config.get("draftsmith") or {}).get("tap_boundaries") or config.get(KEY)
    if not said:
        raise UsageError("nothing says which layers this drafter was trained on", hint="--taps 2,15,27: the boundaries, in order")
    check_taps(said, num_layers)
    return tuple(int(boundary) for boundary in said)


def check_network(folder: Folder, vocab_size: int) -> None:
    """Raises CheckFailed with every reason why our reference does not compute this network. vocab_size: the target's."""
    if reasons := list(refusals(folder, vocab_size)):
        raise CheckFailed(f"{folder.path} cannot be replayed: {'; '.join(reasons)}", hint="`verify wiring` and a bench say what it does")


def refusals(folder: Folder, vocab_size: int) -> Iterator[str]:
    """Why our reference does not compute this network, one reason after the other."""
    config, names = folder.config, folder.tensors
    architecture = str((config.get("architectures") or ["absent"])[0])
    if architecture not in EAGLE3:
        block = "DFlash" in architecture or "DSpark" in architecture or "dflash_config" in config
        yield "it is a block drafter (DFlash or DSpark), of which there is no reference yet" if block else f"its class is {architecture}"
        return
    if config.get("quantization_config") or any(str(value.dtype).startswith("torch.float8") for value in names.values()):
        yield "it is quantised"
    if (layers := int(config.get("num_hidden_layers") or 1)) != 1:
        yield f"it has {layers} layers, the reference has one"
    for name, reason in SWITCHES.items():
        if config.get(name) or (config.get("eagle_config") or {}).get(name):
            yield f"{reason} ({name})"
    if (config.get("eagle_config") or {}).get("use_aux_hidden_state") is False:
        yield "it reads the last hidden state only (use_aux_hidden_state: false)"
    if (kind := rope_type(config)) != "default":
        yield f"its rotary embedding is scaled ({kind})"
    if config.get("partial_rotary_factor") not in (None, 1, 1.0):
        yield "its rotary embedding turns a part of each head only"
    if "sliding_attention" in (config.get("layer_types") or ()):
        yield "its attention has a sliding window"
    if config.get("hidden_act", "silu") != "silu":
        yield f"its activation is {config['hidden_act']}"
    if any(name.endswith(("q_norm.weight", "k_norm.weight")) for name in names):
        yield "its queries and keys are normed"
    if biases := sorted(name for name in names if name.endswith(".bias")):
        yield f"it has biases ({biases[0]})"
    if (vocabulary := config.get("vocab_size")) not in (None, vocab_size):
        yield f"its vocabulary has {vocabulary} tokens, the target's {vocab_size}"


def rope_type(config: Mapping[str, Any]) -> str:
    """ "default", or the kind of scaling."""
    for name in ("rope_scaling", "rope_parameters"):
        part = config.get(name) or {}
        if (kind := part.get("rope_type") or part.get("type") or "default") != "default":
            return str(kind)
    return "default"


def load_plain(folder: Folder, target: Target, taps: Sequence[int], dtype: torch.dtype = torch.float32) -> Eagle3Drafter:
    """The drafter, with its own embedding if it has one, else the target's. Raises CheckFailed with every reason why it cannot be."""
    check_network(folder, target.config.vocab_size)
    tensors = dict(folder.tensors)
    embedding_VD = tensors.pop(EMBEDDING, None)
    try:
        shape = shape_of(folder, target, len(taps))
    except KeyError as error:
        raise CheckFailed(f"{folder.path / 'config.json'} has no {error.args[0]!r}", hint="the folder is not whole") from None
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
    wanted = (shape.vocab_size, shape.hidden_size)
    lent_VD = target.embedding_VH if embedding_VD is None else embedding_VD
    if tuple(lent_VD.shape) != wanted:
        whose = "the target's" if embedding_VD is None else "its own"
        raise CheckFailed(
            f"{folder.path} needs an embedding of {list(wanted)}, {whose} is {list(lent_VD.shape)}", hint="is --target the right one?"
        )
    drafter.set_embedding(lent_VD.to(dtype))
    return drafter.eval().requires_grad_(False)


def shape_of(folder: Folder, target: Target, num_taps: int) -> Eagle3Shape:
    """From config and tensors. Raises KeyError for a missing field, CheckFailed when fc takes another number of tapped states."""
    config = folder.config
    heads, width = config["num_attention_heads"], config["hidden_size"]
    target_width = config.get("target_hidden_size") or target.config.hidden_size
    columns = folder.tensors["fc.weight"].shape[1] if "fc.weight" in folder.tensors else 0
    if columns != num_taps * target_width or target_width != target.config.hidden_size:
        raise CheckFailed(
            f"{folder.path}: fc.weight takes {columns} values per token, {num_taps} taps of this target give "
            f"{num_taps * target.config.hidden_size}",
            hint="is this the drafter's target? else --taps with the boundaries that it was trained on",
        )
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
