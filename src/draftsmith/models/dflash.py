"""DFlash drafter (arXiv 2602.06036, section 3): one pass fills a block of masks behind the last token.

Shapes: T committed tokens, A rounds, S slots of a block, D drafter width, H target width, F taps * H, K key/value heads, E head size,
V target vocabulary, W draft vocabulary. Alignment: a round at row i has the target's features of tokens 0..i as context, at their own
positions; its block is token i + 1 (the anchor) and S - 1 masks, at positions i + 1..i + S. Slot s >= 1 predicts the token of its own
position, so that draft k (from 0) is slot k + 1, about token i + 2 + k. The features meet no embedding, no query and no MLP: each layer
makes keys and values of the same normed fc output, by the projections that it uses for the slots' normed states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from draftsmith.models.blocks import Projections, RMSNorm, Rotary, SwiGLU, context_and_block_attention

ROUNDS_AT_ONCE = 32  # of a text: the logits of their blocks are in memory together


@dataclass(frozen=True)
class View:
    """What a slot sees. causal: no later slots of its block. window: only keys less than so many positions away; None: all."""

    causal: bool = False
    window: int | None = None

    def masks(self, position_AS: Tensor, num_context: int) -> tuple[Tensor, Tensor]:
        """True where a slot sees the context [A, S, T] and its block [S, S]. Context at or behind the anchor is never seen."""
        S, place_T = position_AS.shape[1], torch.arange(num_context, device=position_AS.device)
        back_AST = position_AS[..., None] - place_T
        back_SS = torch.arange(S)[:, None] - torch.arange(S)
        seen_AST = (place_T < position_AS[:, :1, None]).expand_as(back_AST)
        seen_SS = back_SS >= 0 if self.causal else torch.ones(S, S, dtype=torch.bool)
        if self.window is not None:
            seen_AST, seen_SS = seen_AST & (back_AST < self.window), seen_SS & (back_SS.abs() < self.window)
        return seen_AST, seen_SS.to(position_AS.device)


@dataclass(frozen=True)
class DFlashShape:
    """Everything that fixes the drafter's tensors, and what fills a block. views: one a layer."""

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    num_taps: int
    rope_theta: float
    rms_norm_eps: float
    max_position: int
    mask_token: int
    views: tuple[View, ...]


class DFlashLayer(nn.Module):
    """A Qwen3 layer over the block, whose attention reads the context's keys and values too."""

    def __init__(self, shape: DFlashShape, view: View) -> None:
        super().__init__()
        D, eps = shape.hidden_size, shape.rms_norm_eps
        self.view = view
        self.input_layernorm = RMSNorm(D, eps)
        self.self_attn = Projections(D, D, shape.num_heads, shape.num_kv_heads, shape.head_size, eps)
        self.post_attention_layernorm = RMSNorm(D, eps)
        self.mlp = SwiGLU(D, shape.intermediate_size)

    def forward(self, state_ASD: Tensor, context: tuple[Tensor, Tensor], position_AS: Tensor, rotary: Rotary) -> Tensor:
        """The slots' new states. context: rotated keys and values [T, K, E] of this layer."""
        normed, attention = self.input_layernorm(state_ASD), self.self_attn
        block = rotary(attention.key(normed), position_AS), attention.value(normed)
        masks = self.view.masks(position_AS, len(context[0]))
        attended = context_and_block_attention(rotary(attention.query(normed), position_AS), context, block, masks)
        state_ASD = state_ASD + attention.o_proj(attended)
        return state_ASD + self.mlp(self.post_attention_layernorm(state_ASD))


class DFlashDrafter(nn.Module):
    """Parameters are named as z-lab, SGLang and vLLM load them. Embedding and head are lent (`lend`), most often the target's."""

    embedding_VD: Tensor
    head_WD: Tensor
    target_ids_W: Tensor

    def __init__(self, shape: DFlashShape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(shape.num_taps * shape.target_hidden_size, shape.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)  # of the context
        self.layers: Any = nn.ModuleList(DFlashLayer(shape, view) for view in shape.views)
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.rotary = Rotary(shape.head_size, shape.max_position, shape.rope_theta)
        for name in ("embedding_VD", "head_WD", "target_ids_W"):
            self.register_buffer(name, torch.empty(0), persistent=False)

    def lend(self, embedding_VD: Tensor, head_WD: Tensor, target_ids_W: Tensor | None = None) -> None:
        """Tables that are not trained. target_ids_W: of a reduced vocabulary, the target id of each row of the head."""
        V, D = self.shape.vocab_size, self.shape.hidden_size
        ids_W = torch.arange(V) if target_ids_W is None else target_ids_W
        assert embedding_VD.shape == (V, D) and head_WD.shape == (len(ids_W), D), (embedding_VD.shape, head_WD.shape, V, D)
        self.embedding_VD, self.head_WD, self.target_ids_W = embedding_VD.detach(), head_WD.detach(), ids_W

    def seeing(self, causal: bool) -> DFlashDrafter:
        """The same weights with slots that look back only, or both ways, in every layer."""
        views = tuple(replace(view, causal=causal) for view in self.shape.views)
        other = DFlashDrafter(replace(self.shape, views=views))
        other.load_state_dict(self.state_dict(), strict=True, assign=True)
        other.lend(self.embedding_VD, self.head_WD, self.target_ids_W)
        return other.eval()

    def context(self, features_TF: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Rotated keys and values [T, K, E] of the committed tokens 0..T-1, layer by layer."""
        assert features_TF.shape[-1] == self.fc.in_features, (features_TF.shape, self.fc.in_features)
        context_1TD = self.hidden_norm(self.fc(features_TF))[None]
        position_1T = torch.arange(len(features_TF), device=features_TF.device)[None]
        attentions = [layer.self_attn for layer in self.layers]
        return [(self.rotary(one.key(context_1TD), position_1T)[0], one.value(context_1TD)[0]) for one in attentions]

    def block(self, context: Sequence[tuple[Tensor, Tensor]], anchor_A: Tensor, row_A: Tensor, depth: int) -> Tensor:
        """Draft logits [A, depth, W] of rounds that begin at rows i with the anchors i + 1. A round reads no context behind its row."""
        anchor_A1, masks_AK = anchor_A[:, None], anchor_A.new_full((len(anchor_A), depth), self.shape.mask_token)
        position_AS = row_A[:, None] + 1 + torch.arange(depth + 1, device=row_A.device)
        state_ASD = nn.functional.embedding(torch.cat([anchor_A1, masks_AK], 1), self.embedding_VD).to(self.fc.weight.dtype)
        for layer, seen in zip(self.layers, context, strict=True):
            state_ASD = layer(state_ASD, seen, position_AS, self.rotary)
        return nn.functional.linear(self.norm(state_ASD[:, 1:]), self.head_WD)

    @torch.inference_mode()
    def proposed(self, features_TF: Tensor, token_ids_T: Tensor, row_A: Tensor, depth: int) -> Tensor:
        """Target ids [A, depth] that rounds beginning at these rows propose, each in one pass that sees no token behind its anchor."""
        context = self.context(features_TF)
        drafts = [self.block(context, token_ids_T[rows + 1], rows, depth).argmax(-1) for rows in row_A.split(ROUNDS_AT_ONCE)]
        return self.target_ids_W[torch.cat(drafts)]

    def draft(self, features_TF: Tensor, token_ids_T: Tensor, depth: int) -> Tensor:
        """Target ids [depth] of one round, as an engine drafts it after a verify.

        features_TF: target features of the committed tokens 0..T-1. token_ids_T: T + 1 tokens, the last is the anchor.
        """
        T = len(features_TF)
        assert token_ids_T.shape == (T + 1,), (features_TF.shape, token_ids_T.shape)
        return self.proposed(features_TF, token_ids_T, torch.tensor([T - 1], device=token_ids_T.device), depth)[0]
