"""serve: which counters pass for a drafter at work."""

from __future__ import annotations

import pytest

from draftsmith.errors import CheckFailed, InvalidMeasurement
from draftsmith.metrics import Acceptance
from draftsmith.serve.stage import judge


@pytest.mark.parametrize(("rounds", "reached"), [(35, (20, 6, 2)), (33, (20, 8, 4)), (20, (16, 15, 14))])
def test_counters_that_account_for_the_reply_pass(rounds: int, reached: tuple[int, ...]) -> None:
    judge(Acceptance(rounds, reached), tokens=64, min_rounds=8)  # up to depth tokens of the last round may be cut off


@pytest.mark.parametrize(("rounds", "reached"), [(35, (20, 6, 1)), (40, (20, 6, 2)), (0, (0, 0, 0))])
def test_counters_that_do_not_add_up_are_no_measurement(rounds: int, reached: tuple[int, ...]) -> None:
    with pytest.raises(InvalidMeasurement, match="the reply has 64"):
        judge(Acceptance(rounds, reached), tokens=64, min_rounds=8)


def test_accepting_nothing_is_not_slow_but_wrong() -> None:
    with pytest.raises(CheckFailed, match=r"exactly 1\.00 over 63 rounds"):
        judge(Acceptance(63, (0, 0, 0)), tokens=64, min_rounds=8)


def test_too_few_rounds_to_judge() -> None:
    with pytest.raises(InvalidMeasurement, match="only 3 rounds"):
        judge(Acceptance(3, (0, 0, 0)), tokens=4, min_rounds=8)
