"""Start the drafter from the target: output rows, final norm, the last decoder layer, and fc as a copy of the last tap."""

from __future__ import annotations

import torch
from torch import Tensor

from draftsmith.models.eagle3 import Eagle3Drafter
from draftsmith.models.target import Target


@torch.no_grad()
def warm_start(drafter: Eagle3Drafter, target: Target, embedding_share: float = 0.2, noise: float = 0.02) -> None:
    """Copy what fits. Needs a Llama-like last layer of the drafter's own shape; whatever differs in shape keeps its random start.

    The hidden half of q, k, v is the target's; the embedding half is the same matrix scaled by `embedding_share`. fc is the
    identity on the last tap plus normal noise of deviation noise / sqrt(inputs).
    """
    D = drafter.shape.hidden_size
    source = dict(target.layers[-1].named_parameters())
    layer = drafter.midlayer
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = source.get(f"self_attn.{name}.weight")
        mine: Tensor = getattr(layer.self_attn, name).weight
        if weight is not None and weight.shape == (mine.shape[0], D):
            mine.copy_(torch.cat([embedding_share * weight.float(), weight.float()], 1))
    copies = {
        "self_attn.o_proj.weight": layer.self_attn.o_proj.weight,
        "mlp.gate_proj.weight": layer.mlp.gate_proj.weight,
        "mlp.up_proj.weight": layer.mlp.up_proj.weight,
        "mlp.down_proj.weight": layer.mlp.down_proj.weight,
        "input_layernorm.weight": layer.hidden_norm.weight,
        "post_attention_layernorm.weight": layer.post_attention_layernorm.weight,
    }
    for name, mine in copies.items():
        if name in source and source[name].shape == mine.shape:
            mine.copy_(source[name].float())
    final = getattr(target.final_norm, "weight", None)
    if final is not None and final.shape == drafter.norm.weight.shape:
        drafter.norm.weight.copy_(final.float())
    if target.head_VH.shape[1] == D:
        drafter.lm_head.weight.copy_(target.head_VH[drafter.target_ids_W].float())
    drawn = torch.empty(drafter.fc.weight.shape).normal_(std=noise * drafter.fc.in_features**-0.5)  # on the CPU: the same everywhere
    if drafter.shape.target_hidden_size == D:
        drawn[:, -D:] += torch.eye(D)
    drafter.fc.weight.copy_(drawn)
