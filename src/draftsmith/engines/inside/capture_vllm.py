"""Run by vLLM's own interpreter, as a plug-in (group `vllm.general_plugins`): writes down what an EAGLE-3 drafter is given.

It registers, through vLLM's model registry, a subclass of vLLM's own drafter class that looks at two calls and changes neither:
`combine_hidden_states` gets the concatenated taps, and the `forward` after it the token ids and positions that they meet. Each pair
becomes one file in $DRAFTSMITH_FEATURES. The drafter's further steps have no features of the target and are not written.
"""

# the engine's packages exist in its own environment only
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

FOLDER = "DRAFTSMITH_FEATURES"
ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")  # names under which vLLM serves the class that is subclassed here
NUMBERS = count()


def install() -> None:
    """The entry point. Names a class and imports nothing: vLLM calls this in each of its processes, before it may touch a device."""
    from vllm import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for architecture in ARCHITECTURES:
        if architecture in known:
            ModelRegistry.register_model(architecture, f"{__name__}:Eagle3Recorder")


def recorder() -> type:
    """vLLM's drafter class with an ear at its two entrances."""
    from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

    class Eagle3Recorder(Eagle3LlamaForCausalLM):
        def combine_hidden_states(self, hidden_states: Any) -> Any:
            self.draftsmith_served = hidden_states.detach().to("cpu", copy=True)
            return super().combine_hidden_states(hidden_states)

        def forward(self, input_ids: Any, positions: Any, hidden_states: Any, inputs_embeds: Any = None) -> Any:
            served, self.draftsmith_served = getattr(self, "draftsmith_served", None), None
            if served is not None:
                write(served, input_ids, positions)
            return super().forward(input_ids, positions, hidden_states, inputs_embeds)

    return Eagle3Recorder


def __getattr__(name: str) -> type:
    """The class is made when vLLM's registry asks for it."""
    if name == "Eagle3Recorder":
        return globals().setdefault(name, recorder())
    raise AttributeError(name)


def write(served_TF: Any, input_ids_T: Any, positions_T: Any) -> None:
    """One file: features as served, and the token id and position of each row (rows behind them are padding). First rank only."""
    import torch
    from safetensors.torch import save_file

    if torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
        return
    rows = len(served_TF)
    tensors = {
        "features": served_TF.contiguous(),
        "input_ids": input_ids_T[:rows].to("cpu", torch.int64).contiguous(),
        "positions": positions_T.reshape(-1)[:rows].to("cpu", torch.int64).contiguous(),
    }
    path = Path(os.environ[FOLDER]) / f"call-{next(NUMBERS):06d}.safetensors"
    save_file(tensors, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)
