"""Run by vLLM's own interpreter, as a plug-in (group `vllm.general_plugins`): writes down what a drafter is given.

It registers, through vLLM's model registry, subclasses of vLLM's own drafter classes that look at their calls and change none. EAGLE-3:
`combine_hidden_states` gets the concatenated taps, and the `forward` after it the token ids and positions that they meet; the drafter's
further steps have no features of the target and are not written. DFlash: after `combine_hidden_states` come the positions under which the
features enter the drafter's cache (`precompute_and_store_context_kv`), then the block that it fills (`forward`).
"""

# the engine's packages exist in its own environment only
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import importlib
from typing import Any

from draftsmith_rows import write

# architecture in a drafter's config -> (module, class) that vLLM serves it with; read in 0.32.0
EAGLE3 = {
    "LlamaForCausalLMEagle3": ("llama_eagle3", "Eagle3LlamaForCausalLM"),
    "Eagle3LlamaForCausalLM": ("llama_eagle3", "Eagle3LlamaForCausalLM"),
    "Eagle3Qwen3ForCausalLM": ("qwen3_eagle3", "Eagle3Qwen3ForCausalLM"),
    "Eagle3DeepseekV2ForCausalLM": ("deepseek_eagle3", "Eagle3DeepseekV2ForCausalLM"),
    "Eagle3DeepseekV3ForCausalLM": ("deepseek_eagle3", "Eagle3DeepseekV2ForCausalLM"),
}
DFLASH = {"DFlashDraftModel": ("qwen3_dflash", "DFlashQwen3ForCausalLM")}


def install() -> None:
    """The entry point. Names classes and imports none: vLLM calls this in each of its processes, before it may touch a device."""
    from vllm import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for architecture, (_, name) in {**EAGLE3, **DFLASH}.items():
        if architecture in known:
            ModelRegistry.register_model(architecture, f"{__name__}:{name}")


def __getattr__(name: str) -> type:
    """The class is made when vLLM's registry asks for it."""
    for served, recorder in ((EAGLE3, eagle3), (DFLASH, dflash)):
        for module, class_name in served.values():
            if name == class_name:
                made = recorder(getattr(importlib.import_module(f"vllm.model_executor.models.{module}"), name))
                made.__name__ = made.__qualname__ = name
                return globals().setdefault(name, made)
    raise AttributeError(name)


def eagle3(drafter: Any) -> type:
    """vLLM's drafter class with an ear at its two entrances."""

    class Recorder(drafter):
        def combine_hidden_states(self, hidden_states: Any) -> Any:
            self.draftsmith_served = hidden_states.detach().to("cpu", copy=True)
            return super().combine_hidden_states(hidden_states)

        def forward(self, input_ids: Any, positions: Any, hidden_states: Any, inputs_embeds: Any = None) -> Any:
            served, self.draftsmith_served = getattr(self, "draftsmith_served", None), None
            if served is not None:
                rows = len(served)  # the buffers behind them are padding
                write(features=served, input_ids=input_ids[:rows], positions=positions[..., :rows])
            return super().forward(input_ids, positions, hidden_states, inputs_embeds)

    return Recorder


def dflash(drafter: Any) -> type:
    """The same with an ear at three entrances."""

    class Recorder(drafter):
        def combine_hidden_states(self, hidden_states: Any) -> Any:
            self.draftsmith_served = hidden_states.detach().to("cpu", copy=True)
            return super().combine_hidden_states(hidden_states)

        def precompute_and_store_context_kv(self, context_states: Any, context_positions: Any, *slots: Any, **named: Any) -> Any:
            served, self.draftsmith_served = getattr(self, "draftsmith_served", None), None
            self.draftsmith_block = served is not None
            if served is not None:
                rows = min(len(served), len(context_positions))
                write(features=served[:rows], positions=context_positions[:rows])
            return super().precompute_and_store_context_kv(context_states, context_positions, *slots, **named)

        def forward(self, input_ids: Any, positions: Any, inputs_embeds: Any = None) -> Any:
            if getattr(self, "draftsmith_block", False):
                self.draftsmith_block = False
                write(block_ids=input_ids, block_positions=positions)
            return super().forward(input_ids, positions, inputs_embeds)

    return Recorder
