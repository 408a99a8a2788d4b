"""Between the measured cells of a break-even table: planted times come back, every number has a label, and the all-reduce is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftsmith.breakeven.intervals import Timed
from draftsmith.breakeven.model import all_reduce_of, between, depths_between, observations
from draftsmith.breakeven.page import Subject, render
from draftsmith.breakeven.surface import surface
from draftsmith.errors import UsageError
from draftsmith.measure.costmodel_terms import Cell, Shape
from draftsmith.settings import Gate

FLOOR_S, ROW_S, DRAFT_S = 5e-3, 2e-5, 3e-4


def seconds(concurrency: int, depth: int) -> float:
    """A form of the model."""
    return FLOOR_S + ROW_S * concurrency * (depth + 1) + DRAFT_S * depth


def rows(concurrency: tuple[int, ...] = (1, 8, 32), depths: tuple[int, ...] = (1, 3, 5)) -> list[dict]:
    found = []
    for launch, depth in enumerate((0, *depths)):
        head = {"launch": launch, "name": f"depth {depth}" if depth else "baseline", "method": "eagle3" if depth else None, "depth": depth}
        for c in concurrency:
            times = {"decode_step_s": seconds(c, depth), "round_s": seconds(c, depth) if depth else None}
            found += [head | {"rows": depth + 1, "phase": "cell", "concurrency": c} | times] * 2
    return found


@pytest.fixture(scope="module")
def model() -> dict:
    cells = [Cell(c, depth, seconds(c, depth)) for c in (1, 8, 32) for depth in (0, 1, 3, 5)]
    return between(cells, Shape(), extra=(5,))


def test_planted_times_come_back_between_and_beyond_with_their_label(model: dict) -> None:
    places = {(e["concurrency"], e["depth"]): e for e in model["break_even"]}
    assert {c for c, _ in places} == {1, 2, 4, 5, 8, 16, 32, 64} and {depth for _, depth in places} == {1, 2, 3, 4, 5}
    for (c, depth), e in places.items():
        assert e["accept_len"] == pytest.approx(seconds(c, depth) / seconds(c, 0), rel=1e-3), e
        assert e["accept_len_low"] <= e["accept_len"] <= e["accept_len_high"] and e["ceiling"] == depth + 1
        beyond, known = c == 64, c in (1, 8, 32) and depth in (1, 3, 5)
        assert e["label"] == ("extrapolated" if beyond else "measured" if known else "interpolated")
    assert model["parameters"]["floor"]["value"] == pytest.approx(FLOOR_S, rel=1e-3)


def test_a_gate_between_the_measured_places_asks_the_model_and_the_page_shows_it(model: dict) -> None:
    found = surface(rows(), gates=[Gate(min_speedup=6.0, concurrency=5)], model=model)
    assert found["stop"] == "yes" and "concurrency 5, depth 5, interpolated" in found["advice"] and found["gates"] == ["6@5"]
    assert not found["findings"]
    page = render(found, Subject("t", ()))
    assert 'class="interpolated"' in page and 'class="extrapolated"' in page and "64 at a time" in page and "draft_slot" in page


def test_a_gate_that_nothing_is_known_of_is_said_to_be_open() -> None:
    found = surface(rows(), gates=[Gate(min_speedup=6.0, concurrency=7)])
    assert found["stop"] == "no" and found["findings"] == ["the gate 6@7 is not judged: nothing is known at its concurrency"]


def test_too_few_cells_say_why_and_one_depth_tells_no_other() -> None:
    model = between([Cell(1, 0, 0.01), Cell(1, 3, 0.02)], Shape())
    assert "cannot decide" in model["why"]
    assert "No cost model" in render(surface(rows(), model=model), Subject("t", ()))
    one = between([Cell(c, depth, seconds(c, depth)) for c in (1, 4, 16, 64) for depth in (0, 3)], Shape())
    assert {e["depth"] for e in one["break_even"]} == {3}


def test_every_launch_is_an_observation_and_trees_are_left_out() -> None:
    cells = {("baseline", 1): Timed((0.01, 0.011), ()), ("depth 3", 1): Timed((0.02,), ()), ("tree 3-4-16", 1): Timed((0.03,), ())}
    assert observations(cells, {"baseline": 0, "depth 3": 3}) == [Cell(1, 0, 0.01), Cell(1, 0, 0.011), Cell(1, 3, 0.02)]
    assert depths_between([Cell(1, depth, 1.0) for depth in (0, 3, 7, 15)]) == [3, 5, 7, 11, 15]


def test_the_all_reduce_is_given_or_a_probes_and_belongs_to_the_engines_gpus(tmp_path: Path) -> None:
    assert all_reduce_of(None, {}) is None
    found = all_reduce_of("30us,50GB/s", {"tp_size": 8})
    assert found is not None and found.ranks == 8
    assert found.at(1, 7168) == pytest.approx(30e-6 + 2 * 7 / 8 * 7168 * 2 / 50e9, rel=0.01)
    points = [{"rows": rows, "hidden": 4096, "graph": [1e-5 * rows]} for rows in (1, 2, 4)]
    arms = [{"name": "default", "ranks": 2, "points": points}, {"name": "p2p-off", "ranks": 2, "points": []}]
    path = tmp_path / "collectives.json"
    path.write_text(json.dumps({"arms": arms}))
    told = all_reduce_of(str(path), {"tensor-parallel-size": 2})
    assert told is not None and told.at(2, 4096) == pytest.approx(2e-5)
    for text, flags, said in (
        (str(path), {}, "one GPU"),
        (str(path), {"tp-size": 4}, "on 2 GPUs, the engine is split over 4"),
        (f"{path}:p2p-off", {"tp-size": 2}, "no all-reduce of arm 'p2p-off'"),
        ("nowhere.json", {"tp-size": 2}, "nowhere.json"),
    ):
        with pytest.raises(UsageError, match=said):
            all_reduce_of(text, flags)


def test_collectives_are_a_known_term_of_the_model() -> None:
    """Times with an all-reduce in them: told of it, the model finds the other terms."""
    reduced = all_reduce_of("40us,20GB/s", {"tp-size": 4})
    assert reduced is not None
    shape = Shape(layers=30, hidden=4096)

    def whole(c: int, depth: int) -> float:
        whole_rows, own_rows = reduced.at(c * (depth + 1), 4096), reduced.at(c, 4096)
        drafts = 3 * whole_rows + 3 * (depth - 1) * own_rows if depth else 0.0  # the first over all rows of the round
        return seconds(c, depth) + 61 * whole_rows + drafts

    cells = [Cell(c, depth, whole(c, depth)) for c in (1, 8, 32) for depth in (0, 1, 3)]
    found = between(cells, shape, reduced)
    assert found["collectives"] and found["parameters"]["floor"]["value"] == pytest.approx(FLOOR_S, rel=0.01)
    assert found["parameters"]["row"]["value"] == pytest.approx(ROW_S, rel=0.02)
