"""The drafter's maths against independent, slower computations in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from draftsmith.decode.accept import greedy_accept
from draftsmith.decode.chain import draft_matches, generate, walk
from draftsmith.models.eagle3 import Eagle3Drafter
from draftsmith.models.target import Target
from tiny import VOCAB, tiny_drafter, tiny_target


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def rotate(x_NE: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding of one token's heads, pair by pair."""
    out = x_NE.clone()
    half = x_NE.shape[-1] // 2
    for e in range(half):
        angle = position * theta ** (-2 * e / (2 * half))
        a, b = x_NE[:, e], x_NE[:, e + half]
        out[:, e], out[:, e + half] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
    return out


class StepByStep:
    """An engine's view: one token at a time, a cache of committed keys and values, drafts appended and thrown away."""

    def __init__(self, drafter: Eagle3Drafter) -> None:
        self.d, self.layer = drafter, drafter.midlayer
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def run(self, feature_D: Tensor, token: int, position: int, commit: bool) -> Tensor:
        """State of one token. Its key and value stay in the cache when `commit`."""
        shape, attention = self.d.shape, self.layer.self_attn
        eps, E = shape.rms_norm_eps, shape.head_size
        e = rms(self.d.embedding_VD[token], self.layer.input_layernorm.weight, eps)
        g = rms(feature_D, self.layer.hidden_norm.weight, eps)
        x = torch.cat([e, g])
        q = rotate((attention.q_proj.weight @ x).view(shape.num_heads, E), position, shape.rope_theta)
        k = rotate((attention.k_proj.weight @ x).view(shape.num_kv_heads, E), position, shape.rope_theta)
        v = (attention.v_proj.weight @ x).view(shape.num_kv_heads, E)
        keys, values = [*self.keys, k], [*self.values, v]
        heads = []
        for n in range(shape.num_heads):
            kv = n // (shape.num_heads // shape.num_kv_heads)
            scores = torch.stack([q[n] @ key[kv] for key in keys]) / math.sqrt(E)
            weights = scores.softmax(0)
            heads.append(sum(w * value[kv] for w, value in zip(weights, values, strict=True)))
        h = feature_D + attention.o_proj.weight @ torch.cat(heads)
        m = rms(h, self.layer.post_attention_layernorm.weight, eps)
        mlp = self.layer.mlp
        h = h + mlp.down_proj.weight @ (torch.nn.functional.silu(mlp.gate_proj.weight @ m) * (mlp.up_proj.weight @ m))
        if commit:
            self.keys, self.values = keys, values
        return h

    def logits(self, state_D: Tensor) -> Tensor:
        return self.d.lm_head.weight @ rms(state_D, self.d.norm.weight, self.d.shape.rms_norm_eps)


def rollout_step_by_step(drafter: Eagle3Drafter, features_TF: Tensor, tokens: list[int], row: int, steps: int) -> list[Tensor]:
    """Logits of each step of a round at `row`: commit rows 0..row with target features, then feed the text's tokens."""
    engine = StepByStep(drafter)
    state = torch.empty(0)
    for i in range(row + 1):
        state = engine.run(drafter.fc.weight @ features_TF[i], tokens[i + 1], i, commit=True)
    logits = [engine.logits(state)]
    for k in range(1, steps):
        state = engine.run(state, tokens[row + 1 + k], row + k, commit=True)
        logits.append(engine.logits(state))
    return logits


@torch.no_grad()
def test_training_time_test_equals_step_by_step_rollout() -> None:
    """The parallel attention mask gives what a cache-based engine computes, at every row and step."""
    target = tiny_target()
    drafter = tiny_drafter(target)
    tokens = torch.randint(0, VOCAB, (2, 9 + 4))
    features = torch.randn(2, 9, 3 * 32, dtype=torch.float64)
    rows = torch.tensor([[0, 3, 7], [2, 5, 8]])
    parallel = drafter.rollout(features, tokens, rows, steps=4)
    for b in range(2):
        for a, row in enumerate(rows[b].tolist()):
            reference = rollout_step_by_step(drafter, features[b], tokens[b].tolist(), row, 4)
            for k in range(4):
                torch.testing.assert_close(parallel[k][b, a], reference[k], rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_draft_equals_rollout_on_its_own_tokens() -> None:
    target = tiny_target()
    drafter = tiny_drafter(target)
    tokens = torch.randint(0, VOCAB, (11,))
    features = target.states(tokens[None, :10]).features_BTF[0]
    drafts = drafter.draft(features, tokens, 4)
    extended = torch.cat([tokens, drafts])
    logits = drafter.rollout(features[None], extended[None], torch.tensor([[9]]), steps=4)
    assert [int(drafter.target_ids_W[step[0, 0].argmax()]) for step in logits] == drafts.tolist()


def test_padding_does_not_change_real_rows() -> None:
    """Right padding of a batch is invisible to the rows before it, in target and drafter."""
    target = tiny_target()
    drafter = tiny_drafter(target)
    tokens = torch.randint(0, VOCAB, (1, 8))
    padded = torch.cat([tokens, torch.zeros(1, 5, dtype=torch.int64)], 1)
    short, long = target.states(tokens), target.states(padded)
    torch.testing.assert_close(short.features_BTF, long.features_BTF[:, :8], rtol=1e-10, atol=1e-12)
    rows = torch.tensor([[1, 4]])
    with torch.no_grad():
        one = drafter.rollout(short.features_BTF[:, :7], padded[:, :9], rows, 2)
        two = drafter.rollout(long.features_BTF[:, :12], padded, rows, 1)
    torch.testing.assert_close(one[0], two[0], rtol=1e-10, atol=1e-12)


def test_boundaries_are_hugging_face_hidden_states() -> None:
    """Boundary j is hidden_states[j]; boundary N is the input of the final norm, which hidden_states[N] is not."""
    target = tiny_target()
    tokens = torch.randint(0, VOCAB, (1, 7))
    with torch.no_grad():
        out = target.model(tokens, output_hidden_states=True)
    states = target.states(tokens)
    torch.testing.assert_close(states.features_BTF, torch.cat([out.hidden_states[j] for j in (1, 3, 5)], -1))
    torch.testing.assert_close(target.final_norm(states.last_BTH), out.hidden_states[-1])
    torch.testing.assert_close(target.logits(states.last_BTH), out.logits)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_greedy_speculation_is_plain_decoding(depth: int) -> None:
    """Whatever the drafter says, the emitted tokens are those of plain greedy decoding; and the walk on that text gives the rounds."""
    target = tiny_target()
    drafter = tiny_drafter(target, draft_vocab_size=VOCAB)
    prompt = teach(drafter, target)
    plain, _ = generate(target, None, prompt, 24, depth)
    speculative, rounds = generate(target, drafter, prompt, 24, depth)
    assert speculative == plain
    assert max(rounds) > 0, "a drafter that is never right would not test the accept path"
    text = torch.cat([prompt, torch.tensor(plain)])
    walked = walk(drafter, target.states(text[None]).features_BTF[0], text, len(prompt), depth)
    assert walked[:-1] == rounds[: len(walked) - 1]
    assert walked[-1] <= rounds[len(walked) - 1]  # the end of the text may cut the last round


def teach(drafter: Eagle3Drafter, target: Target) -> Tensor:
    """A few steps of training on the target's own greedy text, so that some drafts are right. A prompt of that text."""
    generator = torch.Generator().manual_seed(3)
    optimizer = torch.optim.Adam(drafter.parameters(), lr=1e-2)
    prompts = [torch.randint(0, VOCAB, (4,), generator=generator) for _ in range(4)]
    texts = [torch.cat([prompt, torch.tensor(generate(target, None, prompt, 20, 1)[0])]) for prompt in prompts]
    for _ in range(40):
        loss = torch.zeros((), dtype=torch.float64)
        for text in texts:
            features = target.states(text[None]).features_BTF.clone()
            logits = drafter.draft_logits(features, text[None])[0, :-1]
            loss = loss + torch.nn.functional.cross_entropy(logits, text[2:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return prompts[0]


def test_walk_against_brute_force() -> None:
    """Hop by hop with the step-by-step drafter."""
    target = tiny_target()
    drafter = tiny_drafter(target, draft_vocab_size=VOCAB)
    prompt = teach(drafter, target)
    text = torch.cat([prompt, torch.tensor(generate(target, None, prompt, 20, 1)[0])])
    features = target.states(text[None]).features_BTF[0]
    expected, bonus = [], len(prompt)
    while bonus < len(text) - 1:
        drafts = drafter.draft(features[:bonus], text[: bonus + 1], 3).tolist()
        run = 0
        while run < 3 and bonus + 1 + run < len(text) and drafts[run] == text[bonus + 1 + run]:
            run += 1
        expected.append(run)
        bonus += run + 1
    assert walk(drafter, features, text, len(prompt), 3) == expected


def test_walk_of_a_text_too_short_for_a_round() -> None:
    target = tiny_target()
    drafter = tiny_drafter(target)
    text = torch.randint(0, VOCAB, (5,))
    features = target.states(text[None]).features_BTF[0]
    assert walk(drafter, features, text, 4, 3) == []
    assert draft_matches(drafter, features, text, 4, 3).shape == (0, 3)


@pytest.mark.parametrize(
    ("drafts", "target_tokens", "accepted", "bonus"),
    [([5, 6, 7], [5, 6, 7, 8], 3, 8), ([5, 6, 7], [5, 9, 7, 8], 1, 9), ([5], [4, 0], 0, 4), ([], [3], 0, 3)],
)
def test_greedy_accept(drafts: list[int], target_tokens: list[int], accepted: int, bonus: int) -> None:
    assert greedy_accept(drafts, target_tokens) == (accepted, bonus)
