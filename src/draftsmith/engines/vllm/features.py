"""The launch of a vLLM whose drafter writes down what it is given."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from draftsmith.engines.flags import without
from draftsmith.engines.protocol import Launch
from draftsmith.engines.served import FOLDER, INSIDE, PLUGIN, plugin_folder

SCRIPT, GROUP = INSIDE / "capture_vllm.py", "vllm.general_plugins"


def with_features(launch: Launch, folder: Path) -> Launch:
    """The launch whose drafter writes down its input in `folder`: eager, and without prefix caching, so that every row is computed."""
    before = launch.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    env = {FOLDER: str(folder.resolve()), "PYTHONPATH": os.pathsep.join(filter(None, (str(plugin_folder(folder, SCRIPT, GROUP)), before)))}
    chosen = launch.env.get("VLLM_PLUGINS", os.environ.get("VLLM_PLUGINS"))
    if chosen is not None:  # only the named ones are loaded
        env["VLLM_PLUGINS"] = f"{chosen},{PLUGIN}"
    flags = without(launch.flags, "enforce-eager", "enable-prefix-caching")
    return replace(launch, flags={**flags, "enforce-eager": True, "enable-prefix-caching": False}, env={**launch.env, **env})
