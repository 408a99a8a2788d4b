"""The cost model: planted terms come back, intervals cover, every number says how it is known, and where the common formula errs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from draftsmith.errors import InvalidMeasurement, UsageError
from draftsmith.measure.collectives import AllReduce
from draftsmith.measure.costmodel import accept_len, fit_cost_model, folk_speedup, held_out
from draftsmith.measure.costmodel_terms import Cell, Form, Points, Shape, expert_union

DENSE = Form(("floor", "row", "draft", "draft_slot"), 2.0, Shape())
TRUTH = np.array([5e-3, 4e-5, 5e-4, 2e-5])
CONCURRENCY, DEPTHS = (1, 2, 4, 8, 16, 32, 64), (0, 1, 3, 5)


def table(form: Form, values: np.ndarray, noise: float = 0.0, seed: int = 0, depths: Sequence[int] = DEPTHS) -> list[Cell]:
    """Cells of a planted machine, each off by a random share of itself."""
    draw = np.random.default_rng(seed)
    places = [(float(c), float(k), 0.0) for c in CONCURRENCY for k in depths]
    seconds = form.seconds(values, Points.of(places, form.shape, None)) * np.exp(draw.normal(0, noise, len(places)))
    return [Cell(int(c), int(k), float(second)) for (c, k, _), second in zip(places, seconds, strict=True)]


def test_exact_times_give_the_planted_terms_and_form() -> None:
    model = fit_cost_model(table(DENSE, TRUTH))
    assert (model.form.terms, model.form.sharpness) == (DENSE.terms, DENSE.sharpness)
    assert model.fit.values == pytest.approx(TRUTH, rel=1e-3)


def test_the_expert_term_comes_back() -> None:
    form = Form(("floor", "row", "draft", "expert"), 1.0, Shape(num_experts=128, top_k=8))
    values = np.array([3e-3, 2e-5, 4e-4, 2e-2])
    model = fit_cost_model(table(form, values), form.shape)
    assert dict(zip(model.fit.names, model.fit.values, strict=True)) == pytest.approx(dict(zip(form.terms, values, strict=True)), rel=0.01)


def test_intervals_cover_terms_and_new_measurements() -> None:
    runs, inside, covered = 100, 0, 0
    truth = float(DENSE.seconds(TRUTH, Points.of([(24, 4, 0)], Shape(), None))[0])
    draw = np.random.default_rng(1)
    for seed in range(runs):
        model = fit_cost_model(table(DENSE, TRUTH, noise=0.03, seed=seed), form=DENSE)
        floor, predicted = model.fit.interval("floor"), model.time(24, 4)
        inside += floor.low <= TRUTH[0] <= floor.high
        covered += predicted.low <= truth * math.exp(draw.normal(0, 0.03)) <= predicted.high
    assert 0.88 * runs <= inside <= runs and 0.88 * runs <= covered <= runs


def test_held_out_cells_are_predicted_within_the_noise() -> None:
    entries = held_out(table(DENSE, TRUTH, noise=0.02), lambda cell: cell.depth != 3 and cell.concurrency not in (4, 32))
    errors = [abs(entry["error"]) for entry in entries]
    assert len(errors) == 7 + 2 * 3 and np.median(errors) < 0.04 and max(errors) < 0.12


@pytest.mark.parametrize(("rows", "touched"), [(1, 8), (4, 31.0), (8, 59.5), (16, 110)])
def test_expert_union_of_kimi(rows: int, touched: float) -> None:
    assert 384 * expert_union(384, 8, rows) == pytest.approx(touched, rel=0.005)


def test_accept_len_sums_survival() -> None:
    assert accept_len([0.7, 0.4, 0.2], 2) == pytest.approx(2.1)
    with pytest.raises(UsageError, match="depth 4"):
        accept_len([0.7, 0.4, 0.2], 4)


def test_every_number_says_how_it_is_known() -> None:
    model = fit_cost_model(table(DENSE, TRUTH, noise=0.02))
    survival = [0.7, 0.5, 0.35, 0.25, 0.2, 0.1, 0.1]
    assert model.time(4, 3).label == "measured" and model.time(4, 2).label == "interpolated"
    assert model.time(5, 0).label == "interpolated" and model.time(128, 0).label == model.time(4, 7).label == "extrapolated"
    assert model.speedup(4, 3, survival).label == "measured"
    assert model.speedup(6, 3, survival).label == "interpolated"
    assert model.speedup(4, 7, survival).label == "extrapolated"
    own = next(cell.second for cell in model.cells if (cell.concurrency, cell.depth) == (4, 3))
    assert model.time(4, 3).value == pytest.approx(own)  # measured means the measurement, not the curve
    wide, narrow = model.time(512, 3), model.time(6, 3)
    assert wide.high / wide.low > narrow.high / narrow.low


def test_one_depth_says_nothing_about_another() -> None:
    model = fit_cost_model(table(DENSE, TRUTH, noise=0.02, depths=(0, 3)))
    assert model.time(5, 3).label == "interpolated"
    with pytest.raises(UsageError, match="second depth"):
        model.time(4, 5)


def test_speedup_is_accept_len_over_break_even() -> None:
    model, survival = fit_cost_model(table(DENSE, TRUTH)), [0.8, 0.6, 0.4]
    for concurrency, depth in ((1, 3), (6, 2), (64, 1)):
        expected = accept_len(survival, depth) / model.break_even(concurrency, depth).value
        assert model.speedup(concurrency, depth, survival).value == pytest.approx(expected)
    depth, best = model.best_depth(1, survival, 3)
    assert best is not None and best.value == max(model.speedup(1, k, survival).value for k in (1, 2, 3)) and depth in (1, 2, 3)
    assert model.best_depth(64, [0.05, 0.01, 0.0], 3) == (0, None)


def test_graph_buckets_pad_the_batch() -> None:
    shape = Shape(buckets=(1, 2, 4, 8))
    assert shape.padded(np.array([1.0, 3.0, 5.0, 9.0])).tolist() == [1, 4, 8, 9]
    form = Form(DENSE.terms, 1.0, shape)
    assert form.seconds(TRUTH, Points.of([(3, 3, 0)], shape, None)) == form.seconds(TRUTH, Points.of([(4, 3, 0)], shape, None))


def test_context_is_a_term_where_it_varies() -> None:
    cells = [
        Cell(c, k, 4e-3 + 3e-5 * c * (k + 1) + 4e-4 * k + 2e-9 * c * n, n) for c in (1, 8, 64) for k in (0, 3) for n in (500.0, 8000.0)
    ]
    model = fit_cost_model(cells)
    assert model.fit["kv"] == pytest.approx(2e-9, rel=0.05)
    assert model.time(8, 3, 4000).value == pytest.approx(4e-3 + 3e-5 * 32 + 1.2e-3 + 6.4e-5, rel=0.01)


def test_two_gpus_from_one() -> None:
    """By hand: half the weights, half of each row and request, the host as before, and all that 36 layers and 3 drafts send."""
    shape = Shape(layers=36, hidden=4096, vocab=150000, draft_vocab=32000)
    model = fit_cost_model(table(Form(DENSE.terms, 2.0, shape), TRUTH), shape, form=Form(DENSE.terms, 2.0, shape))
    link = AllReduce.given(2, 10e-6, 200e9)
    split = model.on_gpus(2, link, weights_s=4e-3, drafter_weights_s=2e-4)
    reduced = 73 * link.at(64, 4096) + 3 * (link.at(64, 4096) + 2 * link.at(16, 4096))  # the drafter's first pass has all 64 rows
    logits = 64 * 150000 + 64 * 32000 + 2 * 16 * 32000
    gathered = 4 * 10e-6 + logits / 200e9  # bf16, of which half moves
    by_hand = math.hypot(3e-3, 2e-5 * 64) + reduced + gathered + 3 * (4e-4 + 1e-5 * 16)
    predicted = split.time(16, 3)
    assert predicted.value == pytest.approx(by_hand, rel=1e-3) and predicted.label == "extrapolated"
    whole = model.on_gpus(2, link, weights_s=4e-3, drafter_weights_s=2e-4, host=("draft_slot",)).time(16, 3)
    assert whole.value == pytest.approx(by_hand + 3 * 1e-5 * 16, rel=1e-3)
    with pytest.raises(UsageError, match="reading weights"):
        model.on_gpus(2, link, weights_s=6e-3)


def test_the_common_formula_is_too_low_with_few_rows_and_too_high_with_many() -> None:
    shape, survival = Shape(layers=61, hidden=7168), [0.75, 0.55, 0.4]
    form = Form(("floor", "row", "draft"), 2.0, shape)
    link = AllReduce.given(8, 30e-6, 25e9)  # knee near 30 rows
    values = np.array([12e-3, 2e-5, 5e-4])
    places = [(float(c), float(k), 0.0) for c in CONCURRENCY for k in DEPTHS]
    seconds = form.seconds(values, Points.of(places, shape, link))
    model = fit_cost_model([Cell(int(c), int(k), float(s)) for (c, k, _), s in zip(places, seconds, strict=True)], shape, link, form)
    few, many = (model.speedup(c, 3, survival).value / model.folk(c, 3, survival) for c in (1, 64))
    assert few > 1.05 and many < 0.95
    assert folk_speedup(1.0, 0.0, 2.5) == pytest.approx(2.5) and folk_speedup(0.0, 1.0, 2.5) == pytest.approx(1.0)


def test_too_few_cells_are_refused() -> None:
    with pytest.raises(InvalidMeasurement, match="cannot decide"):
        fit_cost_model(table(DENSE, TRUTH)[:4])
    with pytest.raises(InvalidMeasurement, match="positive"):
        fit_cost_model([Cell(1, 0, 0.0)] * 8)
