"""verify, the pure parts: where answers part, what a near-tie explains, which rounds an engine counts, what becomes an error."""

from __future__ import annotations

import json
import math

import pytest
import torch

from draftsmith.errors import UsageError
from draftsmith.findings import Finding
from draftsmith.metrics import Acceptance
from draftsmith.verify.judge import equality_findings, lossless_report, replay_findings
from draftsmith.verify.reference import logit_gap
from draftsmith.verify.replay.rounds import Replay, counted_rounds
from draftsmith.verify.sequences import Answer, Divergence, divergences, first_difference, known_continuation
from draftsmith.verify.servers import Served
from draftsmith.verify.stage import served_dtype


def answer(*tokens: int, name: str = "p", finish: str = "length") -> Answer:
    return Answer(name, (1, 2), tokens, finish)


def codes(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in findings]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([5], [6], 0), ([1, 2], [1], 1), ([], [1], 0)],
)
def test_first_difference(a: list[int], b: list[int], expected: int | None) -> None:
    assert first_difference(a, b) == expected


def test_a_wrong_token_is_found_with_its_position_and_both_tokens() -> None:
    good, bad = answer(3, 4, 5, 6), answer(3, 4, 9, 6)
    assert divergences([good], [bad], 64) == [Divergence("p", 2, 5, 9)]
    assert divergences([good], [bad], 2) == []


def test_a_longer_reference_is_cut_to_the_asked_tokens() -> None:
    assert divergences([answer(3, 4, 5, 6, 7)], [answer(3, 4)], 2) == []


def test_an_answer_that_stops_early_diverges_but_one_cut_by_its_own_limit_does_not() -> None:
    stopped = answer(3, 4, finish="stop")
    assert divergences([answer(3, 4, 5, finish="stop")], [stopped], 64) == [Divergence("p", 2, 5, None)]
    assert divergences([stopped], [answer(3, 4, 5, finish="stop")], 64) == [Divergence("p", 2, None, 5)]
    assert divergences([answer(3, 4)], [answer(3, 4, 5, finish="stop")], 64) == []


def test_arms_with_different_prompts_are_not_compared() -> None:
    with pytest.raises(AssertionError):
        divergences([answer(1, name="a")], [answer(1, name="b")], 4)


def test_logit_gap_is_measured_from_the_best_logit() -> None:
    logits = torch.tensor([1.0, 4.0, 3.75, -2.0])
    assert logit_gap(logits, 1, 2) == pytest.approx(0.25)
    assert logit_gap(logits, 0, 3) == pytest.approx(6.0), "two bad tokens close to each other are no near-tie"
    assert logit_gap(logits, 1, None) == math.inf


@pytest.mark.parametrize(("gap", "explained"), [(0.0, True), (0.499, True), (0.5, False), (math.inf, False), (math.nan, False)])
def test_classification(gap: float, explained: bool) -> None:
    assert Divergence("p", 0, 1, 2).judged(gap, 0.5).explained is explained


def test_divergences_are_json() -> None:
    assert json.loads(json.dumps(Divergence("p", 3, 1, None).as_dict()))["logit_gap"] is None
    assert json.loads(json.dumps(Divergence("p", 3, 1, 2).judged(0.25, 0.5).as_dict()))["logit_gap"] == 0.25


def test_known_continuation() -> None:
    assert known_continuation(answer(3, 4, 5, 6), answer(3, 4)) == (5, 6)
    assert known_continuation(answer(3, 9, 5, 6), answer(3, 4)) == ()
    assert known_continuation(answer(3), answer(3, 4)) == ()


@pytest.mark.parametrize(
    ("accepted", "num_served", "kept"),
    [
        ([], 1, []),  # one token: the prefill's
        ([2, 0, 1], 1, []),
        ([2, 0, 1], 2, [2]),
        ([2, 0, 1], 4, [2]),  # 1 + 3
        ([2, 0, 1], 5, [2, 0]),
        ([2, 0, 3], 6, [2, 0, 3]),  # cut inside the last round: all its drafts count
    ],
)
def test_counted_rounds(accepted: list[int], num_served: int, kept: list[int]) -> None:
    assert counted_rounds(accepted, num_served) == kept


def test_a_walk_that_ends_before_the_answer_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        counted_rounds([0, 0], 10)


# --- findings --------------------------------------------------------------------------------------------------------


def test_unexplained_divergence_is_an_error_and_a_near_tie_is_not() -> None:
    tie = Divergence("a", 3, 1, 2).judged(0.2, 0.5)
    fault = Divergence("b", 7, 1, 2).judged(2.0, 0.5)
    assert codes(equality_findings("bfloat16", [tie], 24, 0.5)) == [("DS702", "info")]
    found = equality_findings("bfloat16", [tie, fault], 24, 0.5)
    assert codes(found) == [("DS701", "error"), ("DS702", "info")]
    assert "b at output token 7" in found[0].evidence and "1 of 24" in found[0].evidence
    assert equality_findings("float32", [], 24, 1e-3) == []


def replay(predicted: list[int], served: list[int]) -> Replay:
    return Replay(Acceptance.from_rounds(predicted, 3), Acceptance.from_rounds(served, 3), 4)


def test_replay_within_and_beyond_the_limit() -> None:
    assert replay_findings("bfloat16", replay([1, 2, 0, 1], [1, 2, 0, 1]), 0.05) == []
    found = replay_findings("bfloat16", replay([3, 2, 0, 1], [1, 2, 0, 1]), 0.05)
    assert ("DS801", "error") in codes(found) and ("DS802", "warning") in codes(found)
    assert ("DS801", "error") in codes(replay_findings("bfloat16", replay([0, 1, 0, 1], [1, 2, 0, 1]), 0.05))


def test_a_server_that_accepts_nothing_or_does_not_speculate_is_an_error() -> None:
    assert codes(replay_findings("float32", replay([0, 0], [0, 0]), 0.05)) == [("DS803", "error")]
    assert codes(replay_findings("float32", replay([1, 0], []), 0.05)) == [("DS803", "error")]


def test_lossless_report_counts() -> None:
    parted = [Divergence("p", 1, 4, 9).judged(0.1, 0.5)]
    record = {"acceptance": {"rounds": 1, "reached": [0]}, "ready_s": 1.0, "answer_s": 2.0}
    report = lossless_report([answer(3, 4)], Served([answer(3, 9, 1)], Acceptance(1, (0,)), record), parted, 2)
    assert {key: report[key] for key in ("prompts", "tokens", "identical", "equal", "lossless")} == {
        "prompts": 1,
        "tokens": 2,
        "identical": 0,
        "equal": False,
        "lossless": True,
    }


@pytest.mark.parametrize(
    ("flag", "config", "expected"),
    [
        ("bfloat16", {}, "bfloat16"),
        ("float", {}, "float32"),
        ("half", {}, "float16"),
        ("auto", {"torch_dtype": "bfloat16"}, "bfloat16"),
        ("auto", {"dtype": "float16"}, "float16"),
    ],
)
def test_served_dtype(flag: str, config: dict[str, str], expected: str) -> None:
    assert served_dtype(flag, config) == expected


@pytest.mark.parametrize(("flag", "config"), [("auto", {}), ("auto", {"torch_dtype": "float32"}), ("fp8", {})])
def test_a_dtype_that_cannot_be_known_is_refused(flag: str, config: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=flag):
        served_dtype(flag, config)
