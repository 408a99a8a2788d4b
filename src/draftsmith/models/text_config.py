"""The language model's part of a target's config.json, read without torch or transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftsmith.errors import EnvironmentFailed
from draftsmith.models.config_keys import read_config_file

EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")  # how configs name them


def text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """A multimodal wrapper's config with the keys of its `text_config` on top; any other config as it is."""
    return {**config, **(config.get("text_config") or {})}


def num_experts(config: Mapping[str, Any]) -> int:
    """Experts that a layer of a target chooses from, by its text config; 0 for a dense one."""
    return next((config[name] for name in EXPERTS if config.get(name)), 0)


def read_text_config(folder: Path) -> dict[str, Any]:
    """The same of a Hugging Face folder. Raises EnvironmentFailed for a config.json that nothing could use."""
    return text_part(read_config(folder))


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a Hugging Face folder as it stands. Raises EnvironmentFailed for one that nothing could use."""
    try:
        return read_config_file(folder / "config.json")
    except (OSError, ValueError) as error:
        raise EnvironmentFailed(f"cannot use {folder}: {error}", hint="copy or download the folder again") from None
