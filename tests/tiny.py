"""A tiny random target and drafter, for tests of the maths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftsmith.models.eagle3 import Eagle3Drafter, shape_for
from draftsmith.models.target import Target

VOCAB, LAYERS, WIDTH = 48, 6, 32


def tiny_config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )


def tiny_target(dtype: torch.dtype = torch.float64, seed: int = 0) -> Target:
    """Six random layers; larger weights than the default, so that greedy text is not one repeated token."""
    torch.manual_seed(seed)
    model: Any = LlamaForCausalLM(tiny_config())
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "embed" not in name:
            parameter.data.normal_(std=0.3)
        elif "embed" in name:
            parameter.data.normal_(std=1.0)
    return Target(model.to(dtype), (1, 3, 5))


def tiny_drafter(target: Target, dtype: torch.dtype = torch.float64, draft_vocab_size: int = 32, seed: int = 1) -> Eagle3Drafter:
    """A random drafter that fits; its vocabulary leaves out every third token or so."""
    torch.manual_seed(seed)
    drafter = Eagle3Drafter(shape_for(target.config, draft_vocab_size, len(target.taps)))
    drafter.set_vocabulary(torch.randperm(VOCAB)[:draft_vocab_size].sort().values)
    drafter.to(dtype)
    drafter.set_embedding(target.embedding_VH.to(dtype))
    return drafter


def save_tiny_target(folder: Path, seed: int = 0) -> Path:
    """The tiny target as a Hugging Face folder (float32)."""
    target = tiny_target(torch.float32, seed)
    target.model.save_pretrained(folder)
    return folder
