"""Run by vLLM's own interpreter, `python load_vllm.py TARGET DRAFTER...`: its configuration and loader on folders, no engine."""

# the engine's packages exist in its own environment only
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import vllm.model_executor.model_loader.base_loader as base_loader
from loaded import compare, report
from vllm.compilation.backends import set_model_tag
from vllm.config import set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import get_model

DEPTHS = {"eagle3": 3, "dflash": 7}
SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "attention_bias")


def loaded(target: str, folder: Path, joined: bool) -> dict[str, Any]:
    """What the loader does before weights are packed for kernels. The method is told except where the folder tells it (speculators)."""
    method = folder.name.partition("-")[0]
    spec: dict[str, Any] = {"model": str(folder), "num_speculative_tokens": DEPTHS[method]}
    if not folder.name.endswith("-speculators"):
        spec["method"] = method
    about = {"skip_tokenizer_init": True, "max_model_len": 128, "dtype": "bfloat16", "enforce_eager": True}
    config = EngineArgs(model=target, speculative_config=spec, **about).create_engine_config()
    drafter = config.speculative_config.draft_model_config
    with set_current_vllm_config(config):
        if not joined:
            init_distributed_environment(1, 0, f"file://{tempfile.mkdtemp()}/meet", 0, "gloo")
            initialize_model_parallel(1, 1)
        with set_model_tag("eagle_head"):
            model = get_model(vllm_config=config, model_config=drafter)
    found = compare(model, folder, {"d2t": "draft_id_to_target_id", "t2d": ""})
    ids = getattr(drafter.hf_config, "eagle_aux_hidden_state_layer_ids", None)
    outputs = (getattr(drafter.hf_config, "dflash_config", None) or {}).get("target_layer_ids")
    boundaries = list(ids) if ids else [number + 1 for number in outputs or ()]
    switches = {name: bool(getattr(drafter.hf_config, name, False)) for name in SWITCHES}
    return {**found, "boundaries": boundaries, "switches": switches}


def main(target: str, *folders: str) -> None:
    torch.accelerator.empty_cache = lambda: None  # there is none
    base_loader.process_weights_after_loading = lambda *about, **more: None
    report({Path(folder).name: loaded(target, Path(folder), number > 0) for number, folder in enumerate(folders)})


if __name__ == "__main__":
    main(*sys.argv[1:])
