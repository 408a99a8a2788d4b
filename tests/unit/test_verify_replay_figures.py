"""verify replay: the figures of the drafter alone are the trainer's on the same rows, and the walk is the engine's."""

from __future__ import annotations

import pytest
import torch
from replay_world import DEPTH, trained_figure
from torch import Tensor

from draftsmith.decode.chain import walk
from draftsmith.job import Talk
from draftsmith.metrics import Acceptance
from draftsmith.models.eagle3 import Eagle3Drafter
from draftsmith.models.target import Target
from draftsmith.store import StoredSample
from draftsmith.train.loop import Run, evaluate
from draftsmith.train.objective import Shortcut, Teacher, target_index
from draftsmith.train.settings import TrainSettings
from draftsmith.verify.replay.figures import Hits, all_hits, counted, figures, teacher_forced, top1, walked, with_places
from tiny import VOCAB, tiny_drafter, tiny_target

torch.set_num_threads(1)
QUIET = Talk(quiet=True)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


def samples(target: Target, masks: str, dtype: torch.dtype = torch.float64) -> list[StoredSample]:
    """Random texts of several lengths. masks: "answer" (all behind the prompt) or "turns" (two answers in one text)."""
    generator = torch.Generator().manual_seed(6)
    found = []
    for number, length in enumerate((9, 30, 17, 5, 24)):
        ids = torch.randint(3, VOCAB, (length,), generator=generator)
        states = target.states(ids[None])
        mask = torch.arange(length) >= 4
        if masks == "turns":
            mask &= ~((torch.arange(length) >= 10) & (torch.arange(length) < 14))
        found.append(StoredSample(f"s{number}", 4, ids, mask, states.features_BTF[0].to(dtype), states.last_BTH[0].to(dtype)))
    return found


def often_right(target: Target, rows: list[StoredSample], seed: int) -> tuple[Eagle3Drafter, list[StoredSample]]:
    """The drafter, and the same texts with many tokens replaced by what it drafts there, so that hits and misses of every length occur."""
    drafter = tiny_drafter(target, seed=seed)
    changed = []
    for row in rows:
        ids = row.token_ids_T.clone()
        for at in range(row.num_prompt_tokens + 1, len(ids)):
            if at % 5:
                features_TF = target.states(ids[None, : at - 1]).features_BTF[0]
                ids[at] = drafter.draft(features_TF, ids[:at], 1)[0]
        states = target.states(ids[None])
        changed.append(StoredSample(row.id, row.num_prompt_tokens, ids, row.loss_mask_T, states.features_BTF[0], states.last_BTH[0]))
    return drafter, changed


@pytest.mark.parametrize("masks", ["answer", "turns"])
@pytest.mark.parametrize("depth", [1, 3])
def test_every_count_is_the_trainers(target: Target, masks: str, depth: int) -> None:
    drafter, rows = often_right(target, samples(target, masks), seed=1)
    expected = trained_figure(drafter, target, rows, depth)
    assert expected.accepted > 10 and expected.accepted < expected.rounds * depth, "the case must have hits and misses"
    assert teacher_forced(all_hits(drafter, rows, depth, QUIET), depth) == expected
    deeper = all_hits(drafter, rows, depth + 2, QUIET)  # looked at deeper than training counts: the same rows, the same counts
    assert teacher_forced(deeper, depth) == expected


def test_the_figure_of_a_bfloat16_store_is_the_trainers_to_a_rounding(target: Target, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The trainer's own held-out evaluation, which computes in bfloat16, on the store's rows."""
    drafter, rows = often_right(target, samples(target, "answer"), seed=1)
    drafter.float()
    drafter.set_embedding(target.embedding_VH.float())
    low = [
        StoredSample(row.id, row.num_prompt_tokens, row.token_ids_T, row.loss_mask_T, row.features_TF.bfloat16(), row.last_TH.bfloat16())
        for row in rows
    ]
    wide = tiny_target(torch.float32)
    teacher = Teacher(wide.final_norm, wide.head_VH, drafter.target_ids_W)
    settings = TrainSettings(ttt_steps=DEPTH, tokens_per_batch=4)
    expected = evaluate(
        Run(tmp_path_factory.mktemp("train"), settings, QUIET, drafter, teacher, Shortcut(), low, low), target_index(drafter)
    )
    found = teacher_forced(all_hits(drafter, low, DEPTH, QUIET), DEPTH)
    assert found.rounds == expected.rounds and expected.accepted > 10
    assert max(abs(a - b) for a, b in zip(found.reached, expected.reached, strict=True)) <= 1


def test_the_walk_is_the_engines_where_the_text_tells_how_far_a_round_went(target: Target) -> None:
    drafter, rows = often_right(target, samples(target, "answer"), seed=1)
    for row, one in zip(rows, all_hits(drafter, rows, DEPTH, QUIET), strict=True):
        plain = list(with_places(walk(drafter, row.features_TF, row.token_ids_T, row.num_prompt_tokens, DEPTH)))
        whole = [round_ for round_ in plain if row.num_prompt_tokens + round_.place + DEPTH <= len(row.token_ids_T)]
        assert list(walked(one).rounds) == whole


def hand(hit: list[list[int]], there: list[list[int]]) -> Hits:
    ids = torch.arange(len(hit) + 3)
    sample = StoredSample("x", 2, ids, ids >= 2, torch.empty(0), torch.empty(0))
    return Hits(sample, torch.arange(len(hit)) + 1, torch.tensor(hit).bool(), torch.tensor(there).bool())


def test_a_case_by_hand() -> None:
    """Five rows, two drafts. Row 1: both right; row 3 is skipped over by it; row 4 misses; row 5 has one token left."""
    one = hand([[1, 1], [0, 1], [1, 0], [0, 1], [1, 0]], [[1, 1], [1, 1], [1, 1], [1, 1], [1, 0]])
    assert top1([one]) == (3 / 5, 3 / 4)
    assert teacher_forced([one], 2) == Acceptance(4, (2, 1))
    answer = walked(one, "code")
    assert [(round_.place, round_.accepted) for round_ in answer.rounds] == [(1, 2), (4, 0)]
    assert counted([answer], 2) == Acceptance(2, (1, 1)) == figures([one], 2).walked
    assert (answer.prompt_tokens, answer.answer_tokens, answer.category) == (2, 6, "code")


def test_a_sample_without_a_supervised_row_counts_nothing(target: Target) -> None:
    [row, *_] = samples(target, "answer")
    empty = StoredSample(row.id, 8, row.token_ids_T, torch.zeros_like(row.loss_mask_T), row.features_TF, row.last_TH)
    found = all_hits(tiny_drafter(target), [empty, row], DEPTH, QUIET)
    assert len(found[0].hit_AK) == 0 and walked(found[0]).rounds == ()
    assert teacher_forced(found, DEPTH) == teacher_forced(found[1:], DEPTH)


def test_only_rows_under_the_mask_start_a_round(target: Target) -> None:
    [_, row, *_] = samples(target, "turns")
    [one] = all_hits(tiny_drafter(target), [row], DEPTH, QUIET)
    mask: Tensor = row.loss_mask_T
    assert one.row_A.tolist() == [i for i in range(len(mask) - 2) if mask[i + 1] and mask[i + 2]]
    assert one.there_AK[:, 1].tolist() == [bool(i + 3 < len(mask) and mask[i + 3]) for i in one.row_A.tolist()]
