"""Looks: their joint error against a simulated Brownian motion; early reject; futility."""

import math

import numpy as np
import pytest

from draftsmith.measure.statistics import Interval
from draftsmith.measure.stopping import SPENT, Looks, accept_len_high, cannot_pay, is_futile, judge, nominal_levels
from draftsmith.metrics import Acceptance


@pytest.mark.parametrize(("first", "last"), [(2, 4), (3, 8), (2, 12)])
def test_the_levels_spend_exactly_what_they_may(first: int, last: int) -> None:
    """A Brownian motion, looked at after each pair, leaves the bounds in SPENT of all cases."""
    from scipy import stats

    rng = np.random.default_rng(first)
    path = np.cumsum(rng.normal(size=(200_000, last)), axis=1)
    crossed = np.zeros(len(path), bool)
    for pairs, level in zip(range(first, last + 1), nominal_levels(first, last), strict=True):
        crossed |= np.abs(path[:, pairs - 1]) / math.sqrt(pairs) > stats.norm.isf(level / 2)
    assert crossed.mean() == pytest.approx(SPENT, abs=0.0015)


def test_one_look_costs_nothing() -> None:
    assert Looks(3, 3).confidence(3) == 0.95
    assert "fixed: 3 pairs" in Looks(3, 3).rule
    looks = Looks(3, 8)
    assert looks.confidence(2) == looks.confidence(3) > 0.95  # an experiment of 2 pairs that was cut off is not promised 95 %
    assert all(0.95 < looks.confidence(pairs) < 0.99 for pairs in range(3, 9))


def test_judge() -> None:
    assert judge(Interval(1.2, 1.1, 1.3, 3), 1.0) == "above"
    assert judge(Interval(1.2, 1.1, 1.3, 3), 1.15) == "open"
    assert judge(Interval(1.2, 1.1, 1.3, 3), 1.4) == "below"


def test_futile_only_when_little_is_left_to_hope_for() -> None:
    looks = Looks(3, 8)
    nothing = Interval(1.001, 0.90, 1.113, 3, looks.confidence(3))
    close = Interval(1.06, 0.99, 1.135, 3, looks.confidence(3))
    assert is_futile(nothing, 1.0, 3, looks) and not is_futile(close, 1.0, 3, looks)
    assert not is_futile(nothing, 1.0, 2, looks) and not is_futile(nothing, 1.0, 8, looks)


def test_early_reject_needs_rounds_and_a_clear_gap() -> None:
    counted = Acceptance(400, (120, 40, 8))  # accept_len 1.42
    variance = (1 * 120 + 3 * 40 + 5 * 8) / 400 - 0.42**2
    assert accept_len_high(counted) == pytest.approx(1.42 + 2.3263 * math.sqrt(variance / 400), abs=1e-4)
    assert cannot_pay(counted, 1.6) and not cannot_pay(counted, 1.45)
    assert not cannot_pay(Acceptance(199, (10, 2, 0)), 1.6) and not cannot_pay(counted, None) and not cannot_pay(None, 1.6)
