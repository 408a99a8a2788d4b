"""An opened drafter folder in the plain layout that vLLM loads, and what no reference of ours computes, whatever the kind of drafter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from draftsmith.errors import CheckFailed, EnvironmentFailed, UsageError
from draftsmith.models.checkpoint import WEIGHTS
from draftsmith.models.config_keys import read_config_file
from draftsmith.models.taps import KEY, check_taps
from draftsmith.models.target import Target

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


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
    def architecture(self) -> str:
        return str((self.config.get("architectures") or ["absent"])[0])


def taps_of(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """The boundaries that a plain folder says it was trained on. Raises UsageError when it says nothing, CheckFailed for wrong ones."""
    said = (config.get("draftsmith") or {}).get("tap_boundaries") or config.get(KEY)
    if not said:
        raise UsageError("nothing says which layers this drafter was trained on", hint="--taps 2,15,27: the boundaries, in order")
    check_taps(said, num_layers)
    return tuple(int(boundary) for boundary in said)


def common_refusals(folder: Folder, vocab_size: int) -> Iterator[str]:
    """Reasons that hold for every kind of drafter. vocab_size: the target's."""
    config, names = folder.config, folder.tensors
    if config.get("quantization_config") or any(str(value.dtype).startswith("torch.float8") for value in names.values()):
        yield "it is quantised"
    if (kind := rope_type(config)) != "default":
        yield f"its rotary embedding is scaled ({kind})"
    if config.get("partial_rotary_factor") not in (None, 1, 1.0):
        yield "its rotary embedding turns a part of each head only"
    if config.get("hidden_act", "silu") != "silu":
        yield f"its activation is {config['hidden_act']}"
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


def check_fc(folder: Folder, target: Target, num_taps: int) -> None:
    """Raises CheckFailed when fc takes another number of tapped states than there are taps."""
    width = folder.config.get("target_hidden_size") or target.config.hidden_size
    columns = folder.tensors["fc.weight"].shape[1] if "fc.weight" in folder.tensors else 0
    if columns != num_taps * width or width != target.config.hidden_size:
        raise CheckFailed(
            f"{folder.path}: fc.weight takes {columns} values per token, {num_taps} taps of this target give "
            f"{num_taps * target.config.hidden_size}",
            hint="is this the drafter's target? else --taps with the boundaries that it was trained on",
        )


def lent_embedding(folder: Folder, target: Target, wanted: tuple[int, int]) -> Tensor:
    """The drafter's own embedding, or the target's. Raises CheckFailed when it is not [V, D] as wanted."""
    own_VD = folder.tensors.get(EMBEDDING)
    lent_VD = target.embedding_VH if own_VD is None else own_VD
    if tuple(lent_VD.shape) != wanted:
        whose = "the target's" if own_VD is None else "its own"
        raise CheckFailed(
            f"{folder.path} needs an embedding of {list(wanted)}, {whose} is {list(lent_VD.shape)}", hint="is --target the right one?"
        )
    return lent_VD
