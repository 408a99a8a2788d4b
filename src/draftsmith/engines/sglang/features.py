"""The launch of an SGLang whose drafter writes down what it is given. Read in 0.5.12, 0.5.15, 0.5.17 and 0.5.23."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from draftsmith.engines.flags import without
from draftsmith.engines.protocol import Launch
from draftsmith.engines.served import FOLDER, INSIDE, PLUGIN, plugin_folder

SCRIPT, GROUP = INSIDE / "capture_sglang.py", "sglang.srt.plugins"
METHOD = "DRAFTSMITH_DRAFTING"
SINCE = {"eagle3": Version("0.5.12"), "dflash": Version("0.5.15")}  # 0.5.9 has no plug-ins; 0.5.12 has another DFlash worker
EAGER = ("disable-cuda-graph", "disable-radix-cache")
# what goes before --disable-cuda-graph and would capture graphs all the same
GRAPHS = (
    "cuda-graph-config",
    "cuda-graph-backend-decode",
    "cuda-graph-backend-prefill",
    "enable-breakable-cuda-graph",
    "enforce-piecewise-cuda-graph",
    "enable-torch-compile",
)


def with_features(launch: Launch, folder: Path) -> Launch:
    """The launch whose drafter writes down its input in `folder`: no CUDA graphs, and no prefix cache, so that every row is computed."""
    assert launch.drafting is not None, launch
    before = launch.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    path = os.pathsep.join(filter(None, (str(plugin_folder(folder, SCRIPT, GROUP)), before)))
    env = {FOLDER: str(folder.resolve()), METHOD: launch.drafting.method, "PYTHONPATH": path}
    chosen = launch.env.get("SGLANG_PLUGINS", os.environ.get("SGLANG_PLUGINS"))
    if chosen:  # only the named ones are loaded; an empty list means all
        env["SGLANG_PLUGINS"] = f"{chosen},{PLUGIN}"
    flags = without(launch.flags, *EAGER, *GRAPHS)
    return replace(launch, flags={**flags, **dict.fromkeys(EAGER, True)}, env={**launch.env, **env})
