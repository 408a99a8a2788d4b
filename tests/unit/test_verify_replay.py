"""verify, part 3: the replayed acceptance equals, count by count, what an independent speculative loop reached."""

from __future__ import annotations

import pytest
import torch
from verify_world import EOS, greedy, make_drafter, make_target, prompts, save_target, serve, teach

from draftsmith.metrics import Acceptance
from draftsmith.models.eagle3 import Eagle3Drafter
from draftsmith.models.target import Target
from draftsmith.verify.reference import continued, features, last_logits
from draftsmith.verify.replay.rounds import predict
from draftsmith.verify.sequences import Answer

COUNT = 8


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return make_target(save_target(tmp_path_factory.mktemp("target")))


@pytest.fixture(scope="module")
def drafter(target: Target) -> Eagle3Drafter:
    return teach(make_drafter(target), target)


def test_batched_logits_and_features_do_not_depend_on_the_padding(target: Target) -> None:
    rows = prompts(10)
    together = last_logits(target, rows)
    assert together.argmax(-1).tolist() == [greedy(target, row) for row in rows]
    for row, logits_V, features_TF in zip(rows, together, features(target, rows), strict=True):
        alone = target.states(torch.tensor([row]))
        torch.testing.assert_close(logits_V, target.logits(alone.last_BTH)[0, -1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(features_TF, alone.features_BTF[0], rtol=1e-4, atol=1e-4)


def test_rows_are_continued_with_the_known_tokens_first_and_the_targets_own_after_them(target: Target) -> None:
    rows = prompts(5)
    known = [[7, 8, 9, 10], [7, 8, 9], [7], [], []]
    for row, more, longer in zip(rows, known, continued(target, rows, known, 3), strict=True):
        expected = [*row, *more[:3]]
        while len(expected) < len(row) + 3:
            expected.append(greedy(target, expected))
        assert longer == expected


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("max_tokens", [1, 2, 16])
def test_predicted_counts_are_the_served_counts(target: Target, drafter: Eagle3Drafter, depth: int, max_tokens: int) -> None:
    answers, rounds = [], []
    for number, prompt in enumerate(prompts(COUNT)):
        tokens, accepted = serve(target, drafter, prompt, max_tokens, depth)
        answers.append(Answer(str(number), tuple(prompt), tuple(tokens), "stop" if tokens[-1] == EOS else "length"))
        rounds += accepted
    served = Acceptance.from_rounds(rounds, depth)
    assert predict(drafter, target, answers, [()] * COUNT, depth) == served
    if max_tokens == 16:
        assert served.accepted > 5 and served.accepted < served.rounds * depth, "the case must have hits and misses"


def test_a_drafter_with_one_wrong_tensor_is_predicted_otherwise(target: Target, drafter: Eagle3Drafter) -> None:
    """The replay must be able to disagree: serve with one drafter, predict with another."""
    answers, rounds = [], []
    for number, prompt in enumerate(prompts(COUNT)):
        tokens, accepted = serve(target, drafter, prompt, 16, 3)
        answers.append(Answer(str(number), tuple(prompt), tuple(tokens), "length"))
        rounds += accepted
    other = make_drafter(target, seed=5)
    assert predict(other, target, answers, [()] * COUNT, 3) != Acceptance.from_rounds(rounds, 3)
