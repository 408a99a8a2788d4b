"""The language model's part of a target's config.json, read without torch or transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """A multimodal wrapper's config with the keys of its `text_config` on top; any other config as it is."""
    return {**config, **(config.get("text_config") or {})}


def read_text_config(folder: Path) -> dict[str, Any]:
    """The same of a Hugging Face folder."""
    return text_part(json.loads((folder / "config.json").read_text()))
