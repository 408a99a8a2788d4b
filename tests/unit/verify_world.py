"""A tiny real world for verify's tests: a random Llama target, a random drafter, and an independent speculative server loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftsmith.models.drafter import Drafter
from draftsmith.models.eagle3 import Eagle3Drafter, shape_for
from draftsmith.models.target import Target, load_target

torch.set_num_threads(1)  # threads only get in each other's way on tensors this small

NUM_LAYERS = 8
TAPS = (2, 4, 5)
VOCAB = 24
DRAFT_VOCAB = 16
EOS = 23


def save_target(folder: Path, seed: int = 0) -> Path:
    """A random Llama folder with weights that bf16 holds exactly, stored in bf16."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=EOS,
        initializer_range=0.12,
    )
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def make_target(folder: Path, dtype: torch.dtype = torch.float32) -> Target:
    return load_target(folder, TAPS, dtype)


def make_drafter(target: Target, seed: int = 1) -> Eagle3Drafter:
    """Random float32 weights; the draft vocabulary leaves out a third of the tokens."""
    torch.manual_seed(seed)
    drafter = Eagle3Drafter(shape_for(target.config, DRAFT_VOCAB, len(TAPS)))
    drafter.set_vocabulary(torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values)
    drafter.set_embedding(target.embedding_VH)
    return drafter.eval()


def teach(drafter: Eagle3Drafter, target: Target, steps: int = 60) -> Eagle3Drafter:
    """A few steps towards the target's own next token on random text, so that some drafts are right and some are wrong."""
    generator = torch.Generator().manual_seed(3)
    tokens_BT = torch.randint(0, EOS, (16, 20), generator=generator)
    states = target.states(tokens_BT)
    labels = target.logits(states.last_BTH)[:, 1:].argmax(-1).clone()  # after token i + 1, for row i
    known = drafter.t2d[labels]
    draft_ids = torch.searchsorted(drafter.target_ids_W, labels[known])
    features_BTF = states.features_BTF.clone()
    optimizer = torch.optim.Adam(drafter.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(drafter.draft_logits(features_BTF, tokens_BT)[known], draft_ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return drafter.requires_grad_(False)


@torch.inference_mode()
def greedy(target: Target, tokens: list[int]) -> int:
    """The target's next token."""
    return int(target.model(torch.tensor([tokens])).logits[0, -1].argmax())


@torch.inference_mode()
def serve(target: Target, drafter: Drafter, prompt: list[int], max_tokens: int, depth: int) -> tuple[list[int], list[int]]:
    """(output tokens, accepted drafts of every round) as vLLM runs them: verify all drafts, count, then cut at max_tokens or EOS."""
    tokens, rounds = [*prompt, greedy(target, prompt)], []
    while len(tokens) - len(prompt) < max_tokens and tokens[-1] != EOS:
        features_TF = target.states(torch.tensor([tokens[:-1]])).features_BTF[0]
        drafts = drafter.draft(features_TF, torch.tensor(tokens), depth).tolist()
        wanted = target.model(torch.tensor([[*tokens, *drafts]])).logits[0, -depth - 1 :].argmax(-1).tolist()
        accepted = []
        while len(accepted) < depth and wanted[len(accepted)] == drafts[len(accepted)]:
            accepted.append(drafts[len(accepted)])
        rounds.append(len(accepted))
        for token in [*accepted, wanted[len(accepted)]]:
            tokens.append(token)
            if token == EOS or len(tokens) - len(prompt) == max_tokens:
                break
    return tokens[len(prompt) :], rounds


def prompts(count: int, seed: int = 2) -> list[list[int]]:
    """Random prompts of 3 to 12 tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 13, (count,), generator=generator).tolist()
    return [torch.randint(0, EOS, (n,), generator=generator).tolist() for n in lengths]
