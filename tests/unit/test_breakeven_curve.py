"""The numbers below the break-even curve."""

from __future__ import annotations

import math

from draftsmith.breakeven.curve import apart


def test_numbers_that_would_run_into_each_other_are_left_out() -> None:
    def x(c: float) -> float:
        return 70 * math.log2(c)

    assert apart([1, 2, 4, 8, 16, 32, 48, 56, 64, 72], x) == [1, 2, 4, 8, 16, 32, 56, 72]
    assert apart([1], x) == [1] and apart([1, 1000], x) == [1, 1000] and apart([60, 64], x) == [60, 64]
