"""The parts that drafters are made of.

Shapes: B batch, A query rows or rounds, S slots of a block, T key rows, D width, N heads, K key/value heads, E head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The type to compute norms, angles and softmax in."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in float32 at least."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(at_least_float32(x.dtype))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight.to(x.dtype)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Rotary:
    """Rotary position embedding, half-split order. Not a module: its float64 tables must not follow a cast of the drafter."""

    def __init__(self, head_size: int, max_position: int, theta: float) -> None:
        frequency = 1.0 / theta ** (torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
        angle = torch.outer(torch.arange(max_position, dtype=torch.float64), frequency)
        self.table = torch.stack([angle.cos(), angle.sin()])  # [2, max_position, E / 2]

    def __call__(self, x_BTNE: Tensor, position_BT: Tensor) -> Tensor:
        """Rotate queries or keys at the given positions; same shape and dtype out. A position past the table raises IndexError."""
        if self.table.device != x_BTNE.device:
            self.table = self.table.to(x_BTNE.device)
        cos, sin = self.table[:, position_BT].unsqueeze(3).to(at_least_float32(x_BTNE.dtype))  # [B, T, 1, E / 2] each
        first, second = x_BTNE.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x_BTNE.dtype)


class Projections(nn.Module):
    """q, k, v and o of a grouped-query attention whose input width may differ from its output width.

    norm_eps: queries and keys are normed head by head (Qwen3); None: they are not.
    """

    def __init__(
        self, width_in: int, width_out: int, num_heads: int, num_kv_heads: int, head_size: int, norm_eps: float | None = None
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_size = num_heads, num_kv_heads, head_size
        self.q_proj = nn.Linear(width_in, num_heads * head_size, bias=False)
        self.k_proj = nn.Linear(width_in, num_kv_heads * head_size, bias=False)
        self.v_proj = nn.Linear(width_in, num_kv_heads * head_size, bias=False)
        self.o_proj = nn.Linear(num_heads * head_size, width_out, bias=False)
        self.q_norm = RMSNorm(head_size, norm_eps) if norm_eps is not None else None
        self.k_norm = RMSNorm(head_size, norm_eps) if norm_eps is not None else None

    def query(self, x_BAD: Tensor) -> Tensor:
        """[B, A, D] -> [B, A, N, E]."""
        query_BANE = self.q_proj(x_BAD).unflatten(-1, (self.num_heads, self.head_size))
        return query_BANE if self.q_norm is None else self.q_norm(query_BANE)

    def key(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, K, E]."""
        key_BTKE = self.k_proj(x_BTD).unflatten(-1, (self.num_kv_heads, self.head_size))
        return key_BTKE if self.k_norm is None else self.k_norm(key_BTKE)

    def value(self, x_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, K, E]."""
        return self.v_proj(x_BTD).unflatten(-1, (self.num_kv_heads, self.head_size))


def context_and_own_attention(
    query_BANE: Tensor, context: tuple[Tensor, Tensor], own: list[tuple[Tensor, Tensor]], mask_BAT: Tensor
) -> Tensor:
    """Attention over committed context plus, per row, that row's own rollout (EAGLE-3 training-time test).

    query_BANE: rotated queries. context: rotated keys and values [B, T, K, E], seen where mask_BAT is true. own: for each
    rollout step so far, keys and values [B, A, K, E]; row a sees only entry a. One softmax (float32) over T + len(own) logits.
    Returns [B, A, N * E]. Source: EAGLE-3 (arXiv 2503.01840), section 3.
    """
    keys_BTKE, values_BTKE = context
    B, A, N, E = query_BANE.shape
    K = keys_BTKE.shape[2]
    query_BKGAE = query_BANE.reshape(B, A, K, N // K, E).permute(0, 2, 3, 1, 4)
    scale = E**-0.5
    logits = query_BKGAE @ keys_BTKE.permute(0, 2, 3, 1).unsqueeze(2) * scale  # [B, K, G, A, T]
    wide = at_least_float32(logits.dtype)
    logits = logits.to(wide).masked_fill(~mask_BAT[:, None, None], float("-inf"))
    own_logits = [(query_BKGAE * key.transpose(1, 2).unsqueeze(2)).sum(-1, keepdim=True).to(wide) * scale for key, _ in own]
    weights = torch.cat([logits, *own_logits], -1).softmax(-1).to(query_BANE.dtype)
    T = keys_BTKE.shape[1]
    out = weights[..., :T] @ values_BTKE.transpose(1, 2).unsqueeze(2)  # [B, K, G, A, E]
    for j, (_, value) in enumerate(own):
        out = out + weights[..., T + j, None] * value.transpose(1, 2).unsqueeze(2)
    return out.permute(0, 3, 1, 2, 4).reshape(B, A, N * E)


def context_and_block_attention(
    query_ASNE: Tensor, context: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], masks: tuple[Tensor, Tensor]
) -> Tensor:
    """Attention of each round's block over the committed context, which all rounds share, and over the block itself (DFlash).

    query_ASNE: rotated queries. context: rotated keys and values [T, K, E]. block: the same of each round's own slots [A, S, K, E].
    masks: what is seen of the context [A, S, T] and of the block [S, S]. One softmax (float32) over T + S logits.
    Returns [A, S, N * E]. Source: DFlash (arXiv 2602.06036), section 3.
    """
    (keys_TKE, values_TKE), (keys_ASKE, values_ASKE), (seen_AST, seen_SS) = context, block, masks
    A, S, N, E = query_ASNE.shape
    T, K = keys_TKE.shape[:2]
    query_AKGSE = query_ASNE.reshape(A, S, K, N // K, E).permute(0, 2, 3, 1, 4)
    logits_AKGST = query_AKGSE @ keys_TKE.permute(1, 2, 0).unsqueeze(1)
    own_AKGSS = query_AKGSE @ keys_ASKE.permute(0, 2, 3, 1).unsqueeze(2)
    logits = torch.cat([logits_AKGST, own_AKGSS], -1).to(at_least_float32(query_ASNE.dtype)) * E**-0.5
    seen = torch.cat([seen_AST, seen_SS.expand(A, S, S)], -1)[:, None, None]
    weights = logits.masked_fill(~seen, float("-inf")).softmax(-1).to(query_ASNE.dtype)
    out = weights[..., :T] @ values_TKE.transpose(0, 1).unsqueeze(1) + weights[..., T:] @ values_ASKE.transpose(1, 2).unsqueeze(2)
    return out.permute(0, 3, 1, 2, 4).reshape(A, S, N * E)
