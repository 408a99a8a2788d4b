"""The hierarchical bootstrap against cases that can be worked out."""

import numpy as np
import pytest

from draftsmith.measure.bootstrap import LaunchTimes, hierarchical_bootstrap


def launches(rng: np.random.Generator, ratio: float, between: float, prompts: int = 30) -> list[LaunchTimes]:
    tokens = rng.integers(50, 200, prompts)
    pace = np.exp(rng.normal(0, 0.5, prompts))  # some prompts are slow, in every launch
    return [
        LaunchTimes(place % 2 == 1, tokens, tokens / 30 * pace / (ratio if place % 2 else 1.0) * np.exp(rng.normal(0, between)))
        for place in range(8)
    ]


def test_what_is_particular_to_a_prompt_cancels() -> None:
    found = hierarchical_bootstrap(launches(np.random.default_rng(0), 1.3, between=0.0))
    assert found is not None
    assert (found.ratio, found.low, found.high) == pytest.approx((1.3, 1.3, 1.3))


def test_noise_between_launches_is_in_the_interval() -> None:
    rng = np.random.default_rng(1)
    found = [hierarchical_bootstrap(launches(rng, 1.3, between=0.03), seed=i) for i in range(60)]
    held = np.mean([row is not None and row.low <= 1.3 <= row.high for row in found])
    assert held >= 0.88


def test_too_little_to_draw_from() -> None:
    some = launches(np.random.default_rng(2), 1.3, 0.01)
    assert hierarchical_bootstrap([]) is None
    assert hierarchical_bootstrap(some[:3]) is None  # one speculative launch
    assert hierarchical_bootstrap([LaunchTimes(row.speculative, row.tokens[:1], row.seconds[:1]) for row in some]) is None
