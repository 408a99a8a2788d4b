"""A drafter without a format: named fields with where they came from, canonical tensor names, taps as boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from packaging.version import Version

Layout = Literal["eagle3", "eagle3_mla", "dflash", "dspark"]
Format = Literal["sglang", "vllm", "speculators", "zlab"]
WRAPPERS = ("eagle_config", "dflash_config", "transformer_layer_config", "draftsmith", "draftsmith.carried")
CARRIED = "draftsmith.carried."  # what a format has no place for and no engine reads: kept so that the way back loses nothing


@dataclass(frozen=True)
class Field:
    """A config value and the paths that said it in the source."""

    value: Any
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Taps:
    """Boundaries that training used; None: the default, and the number of the target's layers is not known."""

    boundaries: tuple[int, ...] | None
    given: bool  # False: the source names no ids, so that every engine falls back to its default
    sources: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # path -> ids, as written there
    where: str = "no ids: the default 2, N//2, N-3"


@dataclass(frozen=True)
class Drafter:
    """What was read. `tensors`: canonical name -> name in the source."""

    layout: Layout
    layer: Literal["llama", "qwen3", "mla"]
    found: str  # the source format, for people
    fields: Mapping[str, Field]
    tensors: Mapping[str, str]
    taps: Taps

    def value(self, name: str, default: Any = None) -> Any:
        return self.fields[name].value if name in self.fields else default

    @property
    def num_layers(self) -> int:
        return int(self.value("num_hidden_layers") or 1)


@dataclass(frozen=True)
class Asked:
    """Where to: the format, the engine version that will load it, and the target as far as it is known."""

    format: Format
    family: Literal["sglang", "vllm"]
    version: Version
    target: Mapping[str, Any]  # the text part of its config.json; {} when it was not given
    target_type: str | None
    source_version: Version | None = None  # of SGLang, for ids whose meaning changed
    taps: tuple[int, ...] | None = None  # boundaries given by the user
    vocabulary: str | None = None  # "offsets" or "absolute": what d2t holds
    verifier: str | None = None
    depth: int | None = None

    @property
    def num_target_layers(self) -> int | None:
        return self.target.get("num_hidden_layers")


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Paths to leaves: the wrappers are opened, everything else is one value."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, part: Mapping[str, Any]) -> None:
        for key, value in part.items():
            path = f"{prefix}{key}"
            if path in WRAPPERS and isinstance(value, Mapping) and value:
                walk(f"{path}.", value)
            else:
                flat[path] = value

    walk("", config)
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The config whose `flatten` is `flat`."""
    config: dict[str, Any] = {}
    for path, value in flat.items():
        part, rest = config, path
        for wrapper in sorted((name for name in WRAPPERS if path.startswith(f"{name}.")), key=len):
            key = wrapper.rpartition(".")[2]
            part, rest = part.setdefault(key, {}), path[len(wrapper) + 1 :]
        part[rest] = value
    return config
