"""Run by SGLang's own interpreter, `python sglang_hooks.py EAGLE3_FOLDER DFLASH_FOLDER`: the plug-in of verify wiring in its real modules.

SGLang loads its plug-ins as a scheduler process does, and the hooked methods of its real classes are called on stand-ins of the objects
that they belong to: kernels and weights are not there, entry points, signatures, modes and inputs are real.
"""

# the engine's packages exist in its own environment only
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src" / "draftsmith" / "engines" / "inside"))
import stand_ins

NOT_NEEDED = ("triton", "sgl_kernel", "flashinfer", "deep_gemm", "xgrammar", "outlines", "llguidance", "setproctitle", "uvloop", "cuda")


def eagle3() -> None:
    """A prefill of 3 tokens, a step of the rollout, a verified round of 2 rows; then nothing at all."""
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.models.kimi_k25_eagle3 import Eagle3DeepseekV2ForCausalLM
    from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
    from sglang.srt.speculative.eagle_info import EagleDraftExtendInput, EagleDraftInput

    pp_group = SimpleNamespace(is_last_rank=False)
    drafter = SimpleNamespace(model=lambda *about, **more: ("hidden", ["aux"]), capture_aux_hidden_states=True, pp_group=pp_group)
    features = torch.arange(36.0).reshape(3, 12)
    ids, positions = torch.tensor([7, 8, 9]), torch.tensor([0, 1, 2])

    def batch(mode: Any, spec_info: Any) -> Any:
        return SimpleNamespace(forward_mode=mode, spec_info=spec_info)

    prefill = batch(ForwardMode.EXTEND, EagleDraftExtendInput(hidden_states=features))
    assert LlamaForCausalLMEagle3.forward(drafter, ids, positions, prefill) == "hidden"
    rollout = batch(ForwardMode.DECODE, EagleDraftInput(hidden_states=features[:1, :4]))
    LlamaForCausalLMEagle3.forward(drafter, ids[:1], positions[:1], rollout)
    verified = batch(ForwardMode.DRAFT_EXTEND_V2, EagleDraftExtendInput(hidden_states=features[:2] + 100))
    LlamaForCausalLMEagle3.forward(drafter, torch.tensor([5, 6]), torch.tensor([3, 4]), verified)
    idle = batch(ForwardMode.IDLE, EagleDraftExtendInput(hidden_states=features[:0]))
    LlamaForCausalLMEagle3.forward(drafter, ids[:0], positions[:0], idle)
    assert hasattr(Eagle3DeepseekV2ForCausalLM.forward, "__wrapped__")


def dflash() -> None:
    """A prefill of 3 tokens, the block behind it, and its verified rows, of which 2 are kept."""
    import torch
    from sglang.srt.models.dflash import DFlashDraftModel
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    projected: list[Any] = []
    drafter = SimpleNamespace(
        layers=[], norm=lambda hidden: hidden, project_target_hidden=lambda hidden: projected.append(hidden) or hidden
    )
    about = {"_use_fused_kv_materialize": False, "_fused_kv_helper": None, "_append_target_hidden_sequential": lambda **named: None}
    worker = SimpleNamespace(draft_model=drafter, model_runner=SimpleNamespace(device=torch.device("cpu")), **about)
    append = DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc
    features, places, slots = torch.arange(36.0).reshape(3, 12), torch.tensor([0, 1, 2]), torch.tensor([10, 11, 12])
    append(worker, target_hidden=features, cache_loc=slots, positions=places)
    block = torch.tensor([9, 2, 2])
    filled = DFlashDraftModel.forward(drafter, block, places + 3, None, input_embeds=torch.ones(3, 4))
    assert filled.hidden_states.shape == (3, 4)
    lens = torch.tensor([2], dtype=torch.int32)
    append(worker, target_hidden=features + 100, cache_loc=slots, positions=places + 3, cache_loc_2d=slots[None], commit_lens=lens)
    assert len(projected) == 2  # the originals ran


def main() -> None:
    stand_ins.torchvision_operators()
    stand_ins.kernels_not_there(stand_ins.stand_in(NOT_NEEDED))
    import transformers  # noqa: F401

    multiprocessing.parent_process = lambda: multiprocessing.current_process()  # a child of the launching process
    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry

    for method, play, folder in (("eagle3", eagle3, sys.argv[1]), ("dflash", dflash, sys.argv[2])):
        os.environ |= {"DRAFTSMITH_DRAFTING": method, "DRAFTSMITH_FEATURES": folder}
        if method == "eagle3":
            load_plugins()
        else:  # a process loads them once
            sys.modules["draftsmith_features"].install()
            HookRegistry.apply_hooks()
        play()


if __name__ == "__main__":
    main()
