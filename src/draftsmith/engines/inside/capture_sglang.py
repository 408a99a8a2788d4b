"""Run by SGLang's own interpreter, as a plug-in (group `sglang.srt.plugins`): writes down what a drafter is given.

Hooks of SGLang's own registry, of the kind that runs before a method, sees its arguments and changes nothing. EAGLE-3: the `forward` of the
drafter class, whose batch carries the concatenated taps beside the token ids and positions that they meet; the drafter's further steps
(mode DECODE) have no features of the target and are not written. DFlash: the worker's method that puts features into the drafter's cache at
their positions (rows behind `commit_lens` are refused drafts that never enter it), and the `forward` that fills a block.

Read in SGLang 0.5.17. Its process tree: `sglang.launch_server` spawns one scheduler per GPU, which inherits the environment, loads the
plug-ins anew and runs target and drafter; the first of them writes.
"""

# the engine's packages exist in its own environment only
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import multiprocessing
import os
from typing import Any

from draftsmith_rows import write

METHOD = "DRAFTSMITH_DRAFTING"  # which of HOOKS


def install() -> None:
    """The entry point. In the launching process nothing is hooked: a hook imports its module, and no model runs there."""
    if multiprocessing.parent_process() is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in HOOKS[os.environ[METHOD]].items():
        HookRegistry.register(target, hook, HookType.BEFORE)


def eagle3_forward(drafter: Any, input_ids: Any, positions: Any, forward_batch: Any, *rest: Any, **named: Any) -> None:
    """Rows of a prefill or of a verified round. Behind the rows of features, ids and positions may be padding."""
    features = getattr(forward_batch.spec_info, "hidden_states", None)
    mode = forward_batch.forward_mode
    if features is None or mode.is_decode() or mode.is_idle() or not len(features):
        return
    rows = len(features)
    write(features=features, input_ids=input_ids[:rows], positions=positions[..., :rows])


def dflash_context(worker: Any, *, target_hidden: Any, positions: Any, commit_lens: Any = None, **named: Any) -> None:
    """Features on their way into the drafter's cache: all of a prefill, the accepted rows of each verified block."""
    if target_hidden is None or not len(target_hidden):
        return
    if commit_lens is not None:
        width = len(target_hidden) // len(commit_lens)
        places = positions.new_tensor(range(width)).expand(len(commit_lens), width)
        kept = (places < commit_lens.to(places.device)[:, None]).flatten()
        target_hidden, positions = target_hidden[kept], positions[kept]
    write(features=target_hidden, positions=positions)


def dflash_block(drafter: Any, input_ids: Any, positions: Any, forward_batch: Any, *rest: Any, **named: Any) -> None:
    """The block that is filled: the last token, then masks."""
    if len(input_ids):
        write(block_ids=input_ids, block_positions=positions)


# drafting method -> what is hooked; only that is imported
HOOKS = {
    "eagle3": {
        "sglang.srt.models.llama_eagle3.LlamaForCausalLMEagle3.forward": eagle3_forward,
        "sglang.srt.models.kimi_k25_eagle3.Eagle3DeepseekV2ForCausalLM.forward": eagle3_forward,
    },
    "dflash": {
        "sglang.srt.models.dflash.DFlashDraftModel.forward": dflash_block,
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc": dflash_context,
    },
}
