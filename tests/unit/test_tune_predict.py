"""Pruning by prediction: on a table whose truth is known, for trees, and where nothing can be predicted."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tune_world import SURVIVAL, break_even, optimum, survival, table, true_speedup

from draftsmith.errors import UsageError
from draftsmith.measure.costmodel import Prediction, fit_cost_model
from draftsmith.measure.costmodel_terms import Shape, shape_of
from draftsmith.metrics import Acceptance
from draftsmith.tune.candidates import Candidate
from draftsmith.tune.predict import Knowledge, accept_len_interval, accepted_by, costs_of, fitted, predict, prune, prune_at

DEPTHS = (1, 2, 3, 4, 5, 6, 7)
CHAINS = [Candidate("chain", depth, depth + 1) for depth in DEPTHS]
TREE = Candidate("tree", 3, 16, 4)
COUNTED = Acceptance(100_000, tuple(round(100_000 * s) for s in survival(7)))
KNOWN = Knowledge(COUNTED, fit_cost_model(table()), {}, {})


def test_the_best_of_a_known_table_survives_alone_and_all_others_are_listed() -> None:
    fates = prune(CHAINS, (1, 4, 8, 32), KNOWN, keep=1)
    assert len(fates) == 4 * len(CHAINS)
    for concurrency in (1, 4, 8, 32):
        here = [fate for fate in fates if fate.concurrency == concurrency]
        assert [f.candidate.depth for f in here if f.state == "measured"] == [optimum(concurrency, DEPTHS)]
        for fate in here:
            assert fate.predicted is not None and fate.reason
            assert fate.predicted.value == pytest.approx(true_speedup(concurrency, fate.candidate.depth), rel=0.01)
            assert fate.predicted.low < fate.predicted.value < fate.predicted.high
    assert len({optimum(c, DEPTHS) for c in (1, 4, 8, 32)}) > 1, "the world must ask for different depths"


@pytest.mark.parametrize(("concurrency", "depth", "label"), [(8, 3, "measured"), (4, 2, "interpolated"), (8, 7, "extrapolated")])
def test_every_prediction_says_how_it_is_known(concurrency: int, depth: int, label: str) -> None:
    predicted = predict(KNOWN, Candidate("chain", depth, depth + 1), concurrency)
    assert predicted is not None and predicted.label == label


def test_what_cannot_pay_and_what_cannot_be_the_best_says_so() -> None:
    good, worse, lost = (Candidate("chain", depth, depth + 1) for depth in (1, 2, 3))
    predicted = {
        good: Prediction(1.5, 1.4, 1.6, "measured"),
        worse: Prediction(1.2, 1.1, 1.3, "measured"),
        lost: Prediction(0.8, 0.7, 0.9, "interpolated"),
    }
    fates = {fate.candidate: fate for fate in prune_at(8, predicted, keep=3, why="")}
    assert fates[good].state == "measured"
    assert fates[worse].state == "pruned" and "chain 1 has at least 1.40x" in fates[worse].reason
    assert fates[lost].state == "pruned" and fates[lost].reason == "cannot pay: at most 0.90x"


def test_the_best_is_measured_even_when_it_seems_not_to_pay() -> None:
    one = Candidate("chain", 1, 2)
    assert [fate.state for fate in prune_at(8, {one: Prediction(0.8, 0.7, 0.9, "measured")}, keep=1, why="")] == ["measured"]


def test_without_a_model_everything_is_measured_and_the_reason_is_said() -> None:
    model, why = fitted(table(concurrency=(1,), depths=(3,)), Shape())
    assert model is None
    fates = prune(CHAINS, (1,), Knowledge(COUNTED, model, {}, {}, why), keep=1)
    assert {fate.state for fate in fates} == {"measured"} and all("2 cells" in fate.reason for fate in fates)


def test_one_depth_alone_does_not_tell_another() -> None:
    model, _ = fitted(table(concurrency=(1, 2, 4, 8, 16), depths=(3,)), Shape())
    assert model is not None
    known = Knowledge(COUNTED, model, {}, {})
    assert predict(known, Candidate("chain", 3, 4), 8) is not None
    assert predict(known, Candidate("chain", 5, 6), 8) is None


def test_experts_of_the_target_are_told_to_the_model(tmp_path: Path) -> None:
    assert shape_of(tmp_path) == Shape()
    (tmp_path / "config.json").write_text('{"n_routed_experts": 384, "num_experts_per_tok": 8}')
    assert shape_of(tmp_path) == Shape(384, 8)


# --- acceptance ------------------------------------------------------------------------------------------------------


def test_the_interval_of_accept_len_is_the_binomial_one_at_depth_1() -> None:
    value, low, high = accept_len_interval(Acceptance(400, (100,)))
    half = 1.959964 * math.sqrt(0.25 * 0.75 / 400)
    assert (value, low, high) == pytest.approx((1.25, 1.25 - half, 1.25 + half))


def test_a_tree_lies_between_its_chain_and_independent_tries() -> None:
    chain = accepted_by(Candidate("chain", 3, 4), COUNTED)
    value, low, high = accepted_by(TREE, COUNTED)
    best = 1 + sum((1 - (1 - SURVIVAL) ** 4) ** i for i in (1, 2, 3))
    assert low == pytest.approx(chain[1]) and high == pytest.approx(best, rel=1e-3) and chain[0] < value < best


def test_a_tree_costs_more_than_its_chain_and_is_extrapolated() -> None:
    tree, chain = predict(KNOWN, TREE, 32), predict(KNOWN, Candidate("chain", 3, 4), 32)
    assert tree is not None and chain is not None
    assert tree.label == "extrapolated" and tree.value < chain.value  # 16 rows a request at 32 at a time


def test_a_tree_that_breakeven_measured_is_taken_from_there() -> None:
    entries = [
        *break_even(),
        {
            **{"name": "tree 3-4-16", "concurrency": 8, "depth": 3, "decode_step_s": 0.01, "round_s": 0.03},
            **{"accept_len": 3.0, "accept_len_low": 2.9, "accept_len_high": 3.1},
        },
    ]
    cells, measured = costs_of(entries)
    assert len(cells) == 9 and measured["tree 3-4-16", 8].value == 3.0
    predicted = predict(Knowledge(COUNTED, fit_cost_model(cells), measured, {}), TREE, 8)
    assert predicted is not None and predicted.value == pytest.approx(accepted_by(TREE, COUNTED)[0] / 3.0)


def test_acceptance_is_not_made_up_beyond_what_was_counted() -> None:
    with pytest.raises(UsageError, match="known for 7 drafts"):
        accepted_by(Candidate("chain", 8, 9), COUNTED)
