"""Break-even from waves: exact cases, and the coverage of the interval when launches differ."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftsmith.breakeven.depths import chain_accept_len, needed_share
from draftsmith.breakeven.intervals import Timed, break_even, scatter, scatter_at
from draftsmith.breakeven.page import Subject, render
from draftsmith.breakeven.surface import chains_of, surface, timed
from draftsmith.errors import InvalidMeasurement


def row(launch: int, depth: int, concurrency: int, seconds: float, **more: object) -> dict:
    times = {"decode_step_s": seconds / 2, "round_s": seconds} if depth else {"decode_step_s": seconds, "round_s": None}
    head = {"launch": launch, "name": f"depth {depth}" if depth else "baseline", "method": "eagle3" if depth else None, "depth": depth}
    return head | {"rows": depth + 1, "phase": "cell", "concurrency": concurrency} | times | more


def waves(launch: int, depth: int, concurrency: int, *seconds: float) -> list[dict]:
    return [row(launch, depth, concurrency, value) for value in seconds]


def test_the_break_even_is_the_ratio_and_the_deeper_chain_can_be_the_harder_one() -> None:
    rows = [*waves(0, 0, 1, 0.010, 0.010), *waves(1, 1, 1, 0.012, 0.012), *waves(2, 3, 1, 0.024, 0.024)]
    found = surface(rows)
    by_depth = {entry["depth"]: entry for entry in found["break_even"]}
    assert by_depth[1]["accept_len"] == pytest.approx(1.2) and by_depth[3]["accept_len"] == pytest.approx(2.4)
    assert by_depth[1]["needed_share"] == pytest.approx(0.2)
    [worth] = found["depth_worth_training"]
    assert worth["easiest"] == 1 and worth["best"]["0.6"]["depth"] == 1
    assert worth["best"]["0.9"]["speedup"] == pytest.approx(max(1.9 / 1.2, chain_accept_len(0.9, 3) / 2.4))
    assert "launched twice" in found["note"] and found["advice"] == ""


def test_a_gate_that_no_acceptance_reaches_advises_against_training() -> None:
    rows = [*waves(0, 0, 1, 0.010, 0.010), *waves(1, 1, 1, 0.012, 0.012)]
    assert surface(rows, min_speedup=1.6)["advice"] == ""
    advice = surface(rows, min_speedup=1.7)["advice"]
    assert "1.7x" in advice and "1.67x" in advice and "do not train" in advice


def test_invalid_waves_and_other_phases_do_not_count() -> None:
    rows = [*waves(0, 0, 1, 0.01, 0.01), row(0, 0, 1, 9.0, invalid="x"), row(0, 0, 1, 9.0, phase="warmup")]
    assert timed(rows)["baseline", 1].seconds == pytest.approx(0.01)
    for without_rounds in (rows, []):
        with pytest.raises(InvalidMeasurement, match="no valid round"):
            surface(without_rounds)


def test_needed_share_inverts_the_geometric_length() -> None:
    assert needed_share(chain_accept_len(0.7, 5), 5) == pytest.approx(0.7)
    assert needed_share(1.0, 3) == pytest.approx(0.0, abs=1e-12)
    assert needed_share(4.0, 3) is None


def test_the_interval_holds_when_launches_differ() -> None:
    """Two launches of each kind, 2 % apart by luck: 95 of 100 intervals hold the true 2.0 (600 draws)."""
    draw = np.random.default_rng(0)
    held = 0
    for _ in range(600):
        rows: list[dict] = []
        for launch, depth in enumerate((0, 3, 3, 0)):
            luck = math.exp(draw.normal(0, 0.02))
            rows += waves(launch, depth, 1, *((0.02 if depth else 0.01) * luck * math.exp(draw.normal(0, 0.003)) for _ in range(4)))
        [entry] = surface(rows)["break_even"]
        held += entry["accept_len_low"] <= 2.0 <= entry["accept_len_high"]
    assert 0.92 < held / 600 < 0.975


@pytest.mark.parametrize("noisy", [1, 64])
def test_the_interval_holds_at_each_concurrency_where_one_is_noisier(noisy: int) -> None:
    """Four times the scatter at one of two concurrencies, two launches of three kinds: pooled over both it would hold in 80 %."""
    draw = np.random.default_rng(0)
    held = dict.fromkeys((1, 64), 0)
    for _ in range(400):
        cells = {
            (name, c): Timed(tuple(math.exp(draw.normal(0, 0.04 if c == noisy else 0.01)) for _ in range(2)), ())
            for name in ("baseline", "depth 1", "depth 3")
            for c in held
        }
        for c in held:
            found = break_even(cells["depth 3", c], cells["baseline", c], scatter_at(cells, c))
            held[c] += found.low <= 1 <= found.high
    assert all(0.925 < count / 400 < 0.98 for count in held.values()), held


def test_a_concurrency_where_nothing_was_launched_twice_borrows_the_scatter_of_the_others() -> None:
    cells = {("baseline", 1): Timed((1.0, 1.1), ()), ("depth 1", 1): Timed((1.2, 1.3), ()), ("baseline", 4): Timed((1.0,), (1.0, 1.0))}
    assert scatter_at(cells, 4) == scatter(cells) == scatter_at(cells, 1)


def test_blocks_have_a_depth_worth_training_and_trees_have_none() -> None:
    rows = [*waves(0, 0, 1, 0.010, 0.010)]
    rows += [r | {"method": "dflash", "name": "block 8"} for r in waves(1, 7, 1, 0.014, 0.014)]
    rows += [r | {"name": "tree 3-4-16", "rows": 16} for r in waves(2, 3, 1, 0.020, 0.020)]
    found = surface(rows)
    [worth] = found["depth_worth_training"]
    assert worth["easiest"] == 7 and worth["best"]["0.75"]["depth"] == 7
    assert chains_of(rows) == {"baseline": 0, "block 8": 7}
    assert chains_of([*rows, *waves(3, 7, 1, 0.02)]) == {"baseline": 0, "depth 7": 7}  # not fitted together
    page = render(found, Subject("t", (), ("dflash",)))
    assert "none can pay" not in page and "<td>block 8</td>" in page


def test_the_canary_is_told_by_launch() -> None:
    rows = [row(0, 0, 1, seconds, phase="canary") for seconds in (0.01, 0.02)]
    rows += [*waves(0, 0, 1, 0.01, 0.01), *waves(1, 1, 1, 0.012, 0.012)]
    found = surface(rows)
    assert found["canary"] == [{"launch": 0, "name": "baseline", "tok_s": [pytest.approx(100), pytest.approx(50)]}]
    page = render(found, Subject("t", ()))
    assert "100.0, 50.0" in page and "One launch of each kind" in page


def test_what_repeated_tokens_do_is_said_where_a_router_feels_it() -> None:
    rows = [*waves(0, 0, 1, 0.01, 0.01), *waves(1, 1, 1, 0.012, 0.012)]
    rows = [r | {"tokens": 100, "distinct_ids": 3 if r["depth"] else 80} for r in rows]
    found = surface(rows)
    assert found["distinct"] == {"baseline": pytest.approx(0.8), "depth 1": pytest.approx(0.03)}
    moe = render(found, Subject("t", (), family="moe", forced=True))
    assert "80.0% with baseline, 3.0% with depth 1" in moe and "too low, a baseline too high" in moe
    assert "A dense target computes the same" in render(found, Subject("t", (), forced=True))
    assert "repeat themselves" not in render(found, Subject("t", (), family="moe", forced=True, dummy=True))  # experts are drawn there


def test_a_bar_below_1_and_nothing_that_pays_is_still_a_page() -> None:
    found = surface([*waves(0, 0, 1, 0.010, 0.010), *waves(1, 1, 1, 0.022, 0.022)], min_speedup=0.8)
    assert found["stop"] == "no" and "Nothing can pay here" in render(found, Subject("t", ()))
