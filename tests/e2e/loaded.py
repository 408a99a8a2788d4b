"""What an engine's own loader made of a drafter folder, beside its tensors. For scripts that the engines' interpreters run."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

FUSED = {"q_proj": ("qkv_proj", 0), "k_proj": ("qkv_proj", 1), "v_proj": ("qkv_proj", 2), "gate_proj": ("gate_up_proj", 0)}
FUSED |= {"up_proj": ("gate_up_proj", 1)}
NOT_STORED = ("rotary", "cache", "_scale", "mask_embedding")  # buffers that no drafter's folder has


def fill_with_nan(model: torch.nn.Module) -> None:
    """What the loader leaves alone is then seen."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data.fill_(float("nan"))


def compare(model: torch.nn.Module, folder: Path, names: dict[str, str]) -> dict[str, Any]:
    """missing: tensors of the folder that the model has no place for. different: that it holds otherwise. unset: left alone.

    names: what the engine calls a table of the folder; "" for one that it does not read.
    """
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    parts: defaultdict[str, dict[int, torch.Tensor]] = defaultdict(dict)
    for name, value in load_file(folder / "model.safetensors").items():
        plain = names.get(name, name.replace("midlayer.", "layers.0."))
        module = next((module for module in FUSED if f".{module}." in plain), None)
        if module is not None:
            fused, place = FUSED[module]
            parts[plain.replace(module, fused)][place] = value
        elif plain:
            parts[plain][0] = value
    missing, different, used = [], [], set()
    for name, pieces in parts.items():
        wanted = torch.cat([pieces[place] for place in sorted(pieces)])
        spelled = [name, f"model.{name}", name.replace("layers.0.", "midlayer."), f"model.{name.replace('layers.0.', 'midlayer.')}"]
        found = next((spelling for spelling in spelled if spelling in held), None)
        if found is None:
            missing.append(name)
            continue
        used.add(found)
        value = held[found].data[: len(wanted)]  # a head is padded to a rounder number of rows
        if value.shape != wanted.shape or not torch.equal(value, wanted.to(value.dtype)):
            different.append(name)
    rest = [name for name in held if name not in used and not any(part in name for part in NOT_STORED)]
    return {"class": type(model).__name__, "missing": missing, "different": different, "unset": sorted(rest)}


def report(answers: dict[str, Any]) -> None:
    """The last line of stdout."""
    print(json.dumps(answers))
