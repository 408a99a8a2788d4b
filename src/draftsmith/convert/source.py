"""A drafter folder as it is on disk: config.json, tensor headers, files. Tensors are read when they are asked for."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftsmith.errors import CheckFailed, EnvironmentFailed, UsageError
from draftsmith.models.config_keys import read_config_file
from draftsmith.written import is_file_name

INDEX = "model.safetensors.index.json"
OLD_WEIGHTS = "pytorch_model.bin"
OLD_INDEX = f"{OLD_WEIGHTS}.index.json"
AGAIN = "copy or download the folder again"
QUANTISED = (
    "weight_packed",
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_zero_point",
)


@dataclass(frozen=True)
class Source:
    """An opened folder. `places`: tensor name -> the file that holds it; `loaded`: tensors of old pickled weights."""

    folder: Path
    config: dict[str, Any]
    places: Mapping[str, Path]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    loaded: Mapping[str, Tensor] = field(default_factory=dict)

    def load(self, name: str) -> Tensor:
        """One tensor, as stored."""
        if name in self.loaded:
            return self.loaded[name]
        with safe_open(str(self.places[name]), framework="pt") as file:
            return file.get_tensor(name)


def read_config(path: Path, what: str) -> dict[str, Any]:
    """config.json of a folder, or a file itself. Raises UsageError where there is none, EnvironmentFailed where it is not JSON."""
    file = path / "config.json" if path.is_dir() else path
    if not os.path.exists(path):
        raise UsageError(f"{what} {path} does not exist", hint="give a folder with config.json and *.safetensors")
    if not file.is_file():
        raise UsageError(f"{what} {path} has no config.json", hint="point at the folder that holds config.json and the weights")
    try:
        return read_config_file(file)
    except OSError as error:
        raise EnvironmentFailed(f"{file} cannot be read: {error.strerror}", hint=AGAIN) from None
    except ValueError as error:
        raise EnvironmentFailed(str(error), hint=AGAIN) from None


def open_source(folder: Path) -> Source:
    """Read config and headers. Raises UsageError, EnvironmentFailed (missing or damaged files), CheckFailed (quantised)."""
    config = read_config(folder, "SRC")
    if not folder.is_dir():
        raise UsageError(f"SRC {folder} is a file", hint="give the folder: the weights are needed as well as config.json")
    files = weight_files(folder)
    if not files:
        return unquantised(open_old(folder, config))
    places, shapes, dtypes = {}, {}, {}
    for path in files:
        try:
            with safe_open(str(path), framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    piece = file.get_slice(name)
                    places[name], shapes[name], dtypes[name] = path, tuple(piece.get_shape()), piece.get_dtype()
        except (SafetensorError, OSError) as error:
            raise EnvironmentFailed(f"{path} is damaged or not whole: {error}", hint=AGAIN) from None
    lost = sorted(name for name in read_index(folder) if name not in places)
    if lost:
        raise EnvironmentFailed(f"{len(lost)} tensors of {INDEX} are in no shard, first {lost[0]}", hint=AGAIN)
    return unquantised(Source(folder, config, places, shapes, dtypes))


def read_index(folder: Path, name: str = INDEX) -> dict[str, str]:
    """Tensor -> shard of the index; {} when there is none."""
    path = folder / name
    if not path.is_file():
        return {}
    try:
        weight_map = dict(json.loads(path.read_text())["weight_map"])
        if wrong := [name for name, shard in weight_map.items() if not is_file_name(shard)]:
            raise ValueError(f"{wrong[0]!r} has no file")
        return weight_map
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise EnvironmentFailed(f"{path} is not an index of tensors: {error!r}", hint=AGAIN) from None


def weight_files(folder: Path, index_name: str = INDEX, pattern: str = "*.safetensors") -> list[Path]:
    """The files of one kind of weights, all of them there."""
    index = read_index(folder, index_name)
    files = sorted({folder / shard for shard in index.values()}) if index else sorted(folder.glob(pattern))
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise EnvironmentFailed(f"{folder}: {index_name} names {', '.join(missing)}, which is not there", hint=AGAIN)
    return files


def open_old(folder: Path, config: dict[str, Any]) -> Source:
    """pytorch_model.bin, as EAGLE's own repository writes it, or its shards; unpickled without running code."""
    files = weight_files(folder, OLD_INDEX, OLD_WEIGHTS)
    if not files:
        raise UsageError(f"{folder} has no *.safetensors and no {OLD_WEIGHTS}", hint="point at the folder that holds the drafter's weights")
    tensors: dict[str, Tensor] = {}
    places: dict[str, Path] = {}
    for path in files:
        found = unpickled(path)
        tensors, places = tensors | found, places | dict.fromkeys(found, path)
    lost = sorted(name for name in read_index(folder, OLD_INDEX) if name not in places)
    if lost:
        raise EnvironmentFailed(f"{len(lost)} tensors of {OLD_INDEX} are in no shard, first {lost[0]}", hint=AGAIN)
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    dtypes = {name: str(value.dtype).removeprefix("torch.") for name, value in tensors.items()}
    return Source(folder, config, places, shapes, dtypes, tensors)


def unpickled(path: Path) -> dict[str, Tensor]:
    """The state dict of one file. Raises EnvironmentFailed."""
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
        raise EnvironmentFailed(f"{path} cannot be read: {str(error).splitlines()[0]}", hint=AGAIN) from None
    if not isinstance(tensors, dict) or not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in tensors.items()):
        raise EnvironmentFailed(f"{path} does not hold tensors by name", hint="convert a folder with a state dict")
    return tensors


def unquantised(source: Source) -> Source:
    """The source. Raises CheckFailed when its weights are quantised, or when its config says so and they are not."""
    found = [name for name, dtype in source.dtypes.items() if dtype.startswith("F8") or name.rpartition(".")[2] in QUANTISED]
    said = source.config.get("quantization_config")
    method = said.get("quant_method") or said.get("quant_algo") or "no method" if isinstance(said, dict) else "not said"
    if found:
        raise CheckFailed(
            f"{source.folder} is a quantised drafter ({method}; {len(found)} tensors, first {found[0]}, {source.dtypes[found[0]]}): "
            "scales and packed weights are not converted",
            hint="convert the unquantised drafter and quantise the result",
        )
    if said:
        raise CheckFailed(
            f"{source.folder}: config.json has quantization_config ({method}), and no weight is quantised",
            hint="it was copied from the target; remove it from the drafter's config.json, engines would look for scales",
        )
    return source
