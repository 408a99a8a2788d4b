"""The DFlash reference: equal to an independent implementation in numpy, its walk to a decoder that runs it, and to counts made by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dflash_drafter import dflash_for, teach_dflash, without_layers
from draftsmith.decode.chain import draft_matches, generate, walk
from draftsmith.models.dflash import DFlashDrafter, View
from draftsmith.models.target import Target
from draftsmith.verify.replay.dflash import views
from tiny import VOCAB, tiny_target

torch.set_num_threads(1)
Weights = dict[str, np.ndarray]
EPS = 1e-6


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


# --- an independent implementation: one round, one slot, one head and one key at a time --------------------------------


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x) + EPS) * weight


def turned(x: np.ndarray, position: int, theta: float) -> np.ndarray:
    """Pairs (j, j + E/2) as complex numbers, turned by position * theta^(-2j/E)."""
    half = len(x) // 2
    numbers = (x[:half] + 1j * x[half:]) * np.exp(1j * position * theta ** (-2 * np.arange(half) / len(x)))
    return np.concatenate([numbers.real, numbers.imag])


def block_by_hand(drafter: DFlashDrafter, features: np.ndarray, tokens: list[int], row: int, slots: int) -> np.ndarray:
    """Logits [slots - 1, V] of the round at `row`."""
    shape = drafter.shape
    w: Weights = {name: value.detach().numpy() for name, value in drafter.state_dict().items()}
    embedding, head = drafter.embedding_VD.numpy(), drafter.head_WD.numpy()
    size, group = shape.head_size, shape.num_heads // shape.num_kv_heads
    context = [normed(w["fc.weight"] @ features[i], w["hidden_norm.weight"]) for i in range(row + 1)]
    states = [embedding[token] for token in [tokens[row + 1]] + [shape.mask_token] * (slots - 1)]
    for number, view in enumerate(shape.views):
        p = f"layers.{number}."
        inputs = [normed(state, w[p + "input_layernorm.weight"]) for state in states]
        sources = [(i, x) for i, x in enumerate(context)] + [(row + 1 + s, x) for s, x in enumerate(inputs)]  # position, what is projected
        new = []
        for s, x in enumerate(inputs):
            here, heads = row + 1 + s, []
            for n in range(shape.num_heads):
                q = normed((w[p + "self_attn.q_proj.weight"] @ x)[n * size : (n + 1) * size], w[p + "self_attn.q_norm.weight"])
                k_rows, logits, values = slice(n // group * size, (n // group + 1) * size), [], []
                for at, y in sources:
                    if (view.causal and at > here) or (view.window is not None and abs(here - at) >= view.window):
                        continue
                    k = normed((w[p + "self_attn.k_proj.weight"] @ y)[k_rows], w[p + "self_attn.k_norm.weight"])
                    logits.append(turned(q, here, shape.rope_theta) @ turned(k, at, shape.rope_theta) / np.sqrt(size))
                    values.append((w[p + "self_attn.v_proj.weight"] @ y)[k_rows])
                share = np.exp(np.array(logits) - max(logits))
                heads.append(share / share.sum() @ np.array(values))
            mixed = states[s] + w[p + "self_attn.o_proj.weight"] @ np.concatenate(heads)
            inner = normed(mixed, w[p + "post_attention_layernorm.weight"])
            gate = w[p + "mlp.gate_proj.weight"] @ inner
            new.append(mixed + w[p + "mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * (w[p + "mlp.up_proj.weight"] @ inner)))
        states = new
    return np.array([head @ normed(state, w["norm.weight"]) for state in states[1:]])


def stirred(drafter: DFlashDrafter) -> DFlashDrafter:
    """Norms that are not 1 and projections that are not small, so that every weight counts."""
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            parameter.normal_(std=0.3, generator=generator).add_(float("norm" in name))
    return drafter


@pytest.mark.parametrize(
    "views",
    [(View(), View()), (View(causal=True), View(causal=True)), (View(causal=True, window=4), View()), (View(window=3), View(window=5))],
    ids=["both ways", "causal", "sliding and full", "sliding both ways"],
)
def test_blocks_are_an_independent_implementations(target: Target, views: tuple[View, View]) -> None:
    drafter = stirred(dflash_for(target, views))
    tokens = torch.randint(0, VOCAB, (14,), generator=torch.Generator().manual_seed(1))
    features = target.states(tokens[None]).features_BTF[0]
    rows = torch.tensor([0, 4, 11])
    with torch.no_grad():
        ours = drafter.block(drafter.context(features), tokens[rows + 1], rows, depth=4)
    for row, logits in zip(rows.tolist(), ours.numpy(), strict=True):
        theirs = block_by_hand(drafter, features.numpy(), tokens.tolist(), row, slots=5)
        assert np.allclose(logits, theirs, atol=1e-9), (row, np.abs(logits - theirs).max())


def test_a_round_sees_nothing_behind_its_row_and_of_the_text_only_the_anchor(target: Target) -> None:
    drafter = stirred(dflash_for(target))
    tokens = torch.randint(0, VOCAB - 1, (12,), generator=torch.Generator().manual_seed(2))
    features = target.states(tokens[None]).features_BTF[0].clone()

    def logits() -> Tensor:
        with torch.no_grad():
            return drafter.block(drafter.context(features), tokens[torch.tensor([7])], torch.tensor([6]), 3)

    before = logits()
    features[7:], tokens[8:] = 9.0, 3
    assert torch.equal(logits(), before)
    tokens[7] += 1
    assert not torch.equal(logits(), before)
    tokens[7] -= 1
    features[6] += 1.0
    assert not torch.equal(logits(), before)


def test_many_rounds_at_once_propose_what_each_proposes_alone(target: Target) -> None:
    drafter = stirred(dflash_for(target))
    tokens = torch.randint(0, VOCAB, (80,), generator=torch.Generator().manual_seed(3))
    features = target.states(tokens[None]).features_BTF[0]
    together = drafter.proposed(features[:79], tokens, torch.arange(78), depth=5)
    alone = torch.stack([drafter.draft(features[: row + 1], tokens[: row + 2], 5) for row in range(78)])
    assert torch.equal(together, alone) and len(together.unique()) > 5


def taught(target: Target) -> DFlashDrafter:
    """Right often and wrong often on the target's greedy texts."""
    generator = torch.Generator().manual_seed(4)
    texts = []
    for length in (4, 6, 9):
        prompt = torch.randint(0, VOCAB - 1, (length,), generator=generator)
        whole = torch.cat([prompt, torch.tensor(generate(target, None, prompt, 24, 0)[0])])
        texts.append((target.states(whole[None]).features_BTF[0], whole, length))
    return teach_dflash(dflash_for(target, std=0.3), texts, depth=3, steps=15)


def test_greedy_block_speculation_is_plain_decoding_and_the_walk_counts_its_rounds(target: Target) -> None:
    drafter, accepted = taught(target), []
    for length in (4, 6, 9, 5):
        prompt = torch.randint(0, VOCAB - 1, (length,), generator=torch.Generator().manual_seed(length))
        plain, _ = generate(target, None, prompt, 28, 0)
        tokens, rounds = generate(target, drafter, prompt, 24, 3)
        assert tokens == plain[:24]
        whole = torch.cat([prompt, torch.tensor(plain)])
        features = target.states(whole[None]).features_BTF[0]
        assert walk(drafter, features, whole, length, 3)[: len(rounds)] == rounds
        accepted += rounds
    assert set(accepted) >= {0, 1} and sum(accepted) > 10, accepted


def constant(target: Target, token: int) -> DFlashDrafter:
    """Every slot says `token`: the layers add nothing, and the head looks for the mask's embedding."""
    drafter = without_layers(dflash_for(target))
    head = torch.zeros(VOCAB, target.config.hidden_size, dtype=torch.float64)
    head[token] = target.embedding_VH[drafter.shape.mask_token]
    drafter.lend(target.embedding_VH, head)
    return drafter


def test_the_walk_over_a_text_made_by_hand(target: Target) -> None:
    """Prompt 1 2; 5 comes from the prefill; the drafter always says 7 7 7."""
    text = torch.tensor([1, 2, 5, 7, 7, 4, 7, 7, 7, 7, 9, 8, 7])
    #    rounds:              ^ 7 7 and 4 | 7 7 7 and 7 | none, 9 | none, 8 | 7, then the text ends
    features = target.states(text[None]).features_BTF[0]
    drafter = constant(target, 7)
    assert walk(drafter, features, text, 2, 3) == [2, 3, 0, 0, 1]
    assert walk(drafter, features, text, 2, 1) == [1, 0, 1, 1, 0, 0, 1]
    assert draft_matches(drafter, features, text, 2, 3)[:2].tolist() == [[True, True, False], [True, False, True]]


def test_a_reduced_vocabulary_names_target_ids(target: Target) -> None:
    drafter, ids = stirred(dflash_for(target)), torch.tensor([3, 11, 12, 40])
    drafter.lend(target.embedding_VH, target.head_VH[ids], ids)
    features = target.states(torch.arange(9)[None]).features_BTF[0]
    assert set(drafter.proposed(features, torch.arange(9), torch.arange(8), 3).flatten().tolist()) <= set(ids.tolist())


def test_what_slots_see_is_read_as_the_engines_read_it() -> None:
    plain = {"num_hidden_layers": 2}
    assert views(plain) == (View(), View())
    mixed = {**plain, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
    assert views(mixed) == (View(True, 16), View())
    assert views({**mixed, "is_causal": False}) == (View(False, 16), View())
    assert views({**plain, "dflash_config": {"causal": True}}) == (View(True), View(True))
    assert views({**plain, "is_causal": False, "dflash_config": {"causal": True}}) == (View(), View())
