"""EAGLE-3 drafter (arXiv 2503.01840, section 3): one decoder layer over [embedding; feature], a reduced output vocabulary.

Shapes: B batch, T tokens, A answer rows (the rows that are queried), D drafter width, H target width, F taps * H, V target
vocabulary, W draft vocabulary. Alignment: row i holds the target's features of token i and the embedding of token i + 1, and
predicts token i + 2. Rollout step k at row i holds the drafter's own state, the embedding of token i + 1 + k, and predicts i + 2 + k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from draftsmith.models.blocks import Projections, RMSNorm, Rotary, SwiGLU, context_and_own_attention


@dataclass(frozen=True)
class Eagle3Shape:
    """Everything that fixes the drafter's tensors."""

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    draft_vocab_size: int
    num_taps: int
    rope_theta: float
    rms_norm_eps: float
    max_position: int


class Eagle3Layer(nn.Module):
    """The decoder layer. Its residual is the un-normed feature, unless `norm_before_residual`, which SGLang does not implement."""

    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        D, eps = shape.hidden_size, shape.rms_norm_eps
        self.input_layernorm = RMSNorm(D, eps)  # of the embedding
        self.hidden_norm = RMSNorm(D, eps)  # of the feature
        self.self_attn = Projections(2 * D, D, shape.num_heads, shape.num_kv_heads, shape.head_size)
        self.post_attention_layernorm = RMSNorm(D, eps)
        self.mlp = SwiGLU(D, shape.intermediate_size)
        self.norm_before_residual = False  # true only for a head from elsewhere that was trained so (models/checkpoint.py writes none)

    def merge(self, embedding_BTD: Tensor, feature_BTD: Tensor) -> Tensor:
        """[norm(embedding); norm(feature)], the input of q, k and v: [B, T, 2D]."""
        return torch.cat([self.input_layernorm(embedding_BTD), self.hidden_norm(feature_BTD)], -1)

    def finish(self, feature_BAD: Tensor, attended_BAX: Tensor) -> Tensor:
        """Output projection, residuals and MLP: the row's new state [B, A, D]."""
        residual_BAD = self.hidden_norm(feature_BAD) if self.norm_before_residual else feature_BAD
        state = residual_BAD + self.self_attn.o_proj(attended_BAX)
        return state + self.mlp(self.post_attention_layernorm(state))


class Eagle3Drafter(nn.Module):
    """Parameters are named as SGLang and vLLM load them. The embedding is the target's, frozen, and never saved."""

    embedding_VD: Tensor
    d2t: Tensor
    t2d: Tensor

    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(shape.num_taps * shape.target_hidden_size, shape.hidden_size, bias=False)
        self.midlayer = Eagle3Layer(shape)
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.draft_vocab_size, bias=False)
        self.rotary = Rotary(shape.head_size, shape.max_position, shape.rope_theta)
        self.register_buffer("d2t", torch.zeros(shape.draft_vocab_size, dtype=torch.int64))  # target id - draft id
        self.register_buffer("t2d", torch.zeros(shape.vocab_size, dtype=torch.bool))
        self.register_buffer("embedding_VD", torch.empty(0), persistent=False)
        self.input_norm: RMSNorm | None = None
        self.fc_norm: nn.ModuleList | None = None
        self.norm_output = False

    def add_norms(self, before_fc: bool, by_tap: bool, output: bool) -> None:
        """EAGLE-3.1, as speculators trains it: the features normed together or each, and the own state normed before it is fed back."""
        shape = self.shape
        if before_fc:
            self.input_norm = RMSNorm(shape.num_taps * shape.target_hidden_size, shape.rms_norm_eps)
        if by_tap:
            self.fc_norm = nn.ModuleList(RMSNorm(shape.target_hidden_size, shape.rms_norm_eps) for _ in range(shape.num_taps))
        self.norm_output = output

    def set_embedding(self, embedding_VH: Tensor) -> None:
        """Borrow the target's embedding table; its width must be the drafter's."""
        assert embedding_VH.shape == (self.shape.vocab_size, self.shape.hidden_size), (embedding_VH.shape, self.shape)
        self.embedding_VD = embedding_VH.detach()

    def set_vocabulary(self, target_ids_W: Tensor) -> None:
        """Set the draft vocabulary from strictly increasing target ids [W]."""
        W = self.shape.draft_vocab_size
        assert target_ids_W.shape == (W,), (target_ids_W.shape, W)
        assert bool((target_ids_W.diff() > 0).all()), "draft vocabulary ids must be strictly increasing"
        self.d2t = target_ids_W - torch.arange(W)
        self.t2d = torch.zeros(self.shape.vocab_size, dtype=torch.bool)
        self.t2d[target_ids_W] = True

    @property
    def target_ids_W(self) -> Tensor:
        """Target id of each draft id."""
        return torch.arange(self.shape.draft_vocab_size, device=self.d2t.device) + self.d2t

    def embed(self, token_ids_BT: Tensor, dtype: torch.dtype) -> Tensor:
        return nn.functional.embedding(token_ids_BT, self.embedding_VD).to(dtype)

    def combine(self, features_BTF: Tensor) -> Tensor:
        """Tapped target features -> drafter width [B, T, D]."""
        if self.input_norm is not None:
            features_BTF = self.input_norm(features_BTF)
        if self.fc_norm is not None:
            parts = features_BTF.chunk(len(self.fc_norm), -1)
            features_BTF = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(features_BTF)

    def head(self, state_BAD: Tensor, candidates_S: Tensor | None = None) -> Tensor:
        """Draft logits of states before the final norm: [B, A, W], or [B, A, S] for some draft ids only."""
        normed_BAD = self.norm(state_BAD)
        return self.lm_head(normed_BAD) if candidates_S is None else nn.functional.linear(normed_BAD, self.lm_head.weight[candidates_S])

    def context(self, features_BTF: Tensor, next_ids_BT: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Committed rows: combined features, merged inputs, and rotated keys with values.

        features_BTF: target features of tokens 0..T-1. next_ids_BT: tokens 1..T. Row i sits at position i.
        """
        B, T, F = features_BTF.shape
        assert next_ids_BT.shape == (B, T), (features_BTF.shape, next_ids_BT.shape)
        assert self.fc.in_features == F, (F, self.fc.in_features)
        feature_BTD = self.combine(features_BTF)
        merged = self.midlayer.merge(self.embed(next_ids_BT, feature_BTD.dtype), feature_BTD)
        position_BT = torch.arange(T, device=merged.device).expand(B, T)
        attention = self.midlayer.self_attn
        return feature_BTD, merged, (self.rotary(attention.key(merged), position_BT), attention.value(merged))

    def rollout(self, features_BTF: Tensor, token_ids_BT: Tensor, row_BA: Tensor, steps: int) -> list[Tensor]:
        """Training-time test: draft logits of every step at the chosen rows, fed with the text's own tokens.

        token_ids_BT: [B, T + steps] ground-truth tokens (padded past the end); features_BTF: [B, T, F]; row_BA: which rows i < T
        are queried, [B, A]. Returns `steps` tensors [B, A, W]; entry k at row i predicts token i + 2 + k.
        """
        T = features_BTF.shape[1]
        rollout = Rollout(self, features_BTF, token_ids_BT[:, 1 : T + 1], row_BA)
        return [self.head(rollout.step(token_ids_BT.gather(1, row_BA + 1 + k))) for k in range(steps)]

    def proposed(self, features_TF: Tensor, token_ids_T: Tensor, row_A: Tensor, depth: int) -> Tensor:
        """Target ids [A, depth] that rounds beginning at these rows propose, each draft given the text's own tokens before it: up to and
        including the first one that is not the text's, this is what the drafter proposes by itself."""
        padded = torch.cat([token_ids_T, token_ids_T.new_zeros(depth)])
        logits = self.rollout(features_TF[None], padded[None], row_A[None], depth)
        return torch.stack([self.target_ids_W[step[0].argmax(-1)] for step in logits], -1)

    @torch.inference_mode()
    def draft(self, features_TF: Tensor, token_ids_T: Tensor, depth: int) -> Tensor:
        """Greedy chain of `depth` target ids, as an engine drafts it after a verify.

        features_TF: target features of the committed tokens 0..T-1. token_ids_T: T + 1 tokens, the last is the bonus token,
        whose features do not exist yet. Returns [depth] target ids.
        """
        T = features_TF.shape[0]
        assert token_ids_T.shape == (T + 1,), (features_TF.shape, token_ids_T.shape)
        rollout = Rollout(self, features_TF[None], token_ids_T[None, 1:], torch.full((1, 1), T - 1, device=token_ids_T.device))
        drafts = [token_ids_T[-1]]
        for _ in range(depth):
            logits_BAW = self.head(rollout.step(drafts[-1].view(1, 1)))
            drafts.append(self.target_ids_W[logits_BAW[0, 0].argmax()])
        return torch.stack(drafts[1:])

    def draft_logits(self, features_BTF: Tensor, token_ids_BT: Tensor) -> Tensor:
        """First-step draft logits [B, T-1, W] of every row that has a next token."""
        B, T = token_ids_BT.shape
        row_BA = torch.arange(T - 1, device=token_ids_BT.device).expand(B, T - 1)
        return self.rollout(features_BTF[:, : T - 1], token_ids_BT, row_BA, steps=1)[0]


class Rollout:
    """Rounds that begin at chosen rows and go on step by step, each on the drafter's own states.

    Step 0 sees rows j <= i of the committed context; step k adds row i's own states of steps 1..k only.
    """

    def __init__(self, drafter: Eagle3Drafter, features_BTF: Tensor, next_ids_BT: Tensor, row_BA: Tensor) -> None:
        self.drafter = drafter
        feature_BTD, merged, self.committed = drafter.context(features_BTF, next_ids_BT)
        self.row_BA = row_BA
        self.mask_BAT = torch.arange(features_BTF.shape[1], device=row_BA.device) <= row_BA[..., None]
        self.state_BAD, self.merged_BAX = pick(feature_BTD, row_BA), pick(merged, row_BA)
        self.own: list[tuple[Tensor, Tensor]] = []
        self.k = 0

    def step(self, token_BA: Tensor) -> Tensor:
        """State [B, A, D] of the next step, for `head`. token_BA: the newest token of each round (i + 1 + k)."""
        layer, rotary = self.drafter.midlayer, self.drafter.rotary
        attention, position_BA = layer.self_attn, self.row_BA + self.k
        if self.k:
            self.merged_BAX = layer.merge(self.drafter.embed(token_BA, self.state_BAD.dtype), self.state_BAD)
            self.own.append((rotary(attention.key(self.merged_BAX), position_BA), attention.value(self.merged_BAX)))
        query_BANE = rotary(attention.query(self.merged_BAX), position_BA)
        attended = context_and_own_attention(query_BANE, self.committed, self.own, self.mask_BAT)
        state_BAD = layer.finish(self.state_BAD, attended)
        self.state_BAD = self.drafter.norm(state_BAD) if self.drafter.norm_output else state_BAD
        self.k += 1
        return state_BAD

    def narrow(self, index_BA: Tensor) -> None:
        """Go on with some of the rows only: index_BA [B, A'] into the present rows."""
        self.row_BA = self.row_BA.gather(1, index_BA)
        self.mask_BAT, self.state_BAD = pick(self.mask_BAT, index_BA), pick(self.state_BAD, index_BA)
        self.own = [
            (pick(key.flatten(2), index_BA).unflatten(2, key.shape[2:]), pick(value.flatten(2), index_BA).unflatten(2, value.shape[2:]))
            for key, value in self.own
        ]


def pick(x_BTD: Tensor, row_BA: Tensor) -> Tensor:
    """Rows of x: [B, T, D], [B, A] -> [B, A, D]."""
    return x_BTD.gather(1, row_BA[..., None].expand(-1, -1, x_BTD.shape[-1]))


def shape_for(config: Any, draft_vocab_size: int, num_taps: int, intermediate_size: int | None = None) -> Eagle3Shape:
    """The drafter shape that fits a target's text config (Hugging Face fields)."""
    heads = config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    return Eagle3Shape(
        hidden_size=config.hidden_size,
        target_hidden_size=config.hidden_size,
        intermediate_size=intermediate_size or config.intermediate_size,
        num_heads=heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab_size=config.vocab_size,
        draft_vocab_size=min(draft_vocab_size, config.vocab_size),
        num_taps=num_taps,
        rope_theta=float(rope.get("rope_theta") or getattr(config, "rope_theta", 10000.0)),
        rms_norm_eps=config.rms_norm_eps,
        max_position=config.max_position_embeddings,
    )
