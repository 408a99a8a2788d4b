"""benchmarks/coverage on a small scale: the interval holds what it promises, and its committed figures are those of the script."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from draftsmith.measure.protocol import launch_arms
from draftsmith.measure.statistics import Measured, speedup_interval

EXPERIMENTS = 2000
BREAKS = "sinusoidal drift 4 %"  # the drift is larger than what a few pairs can see through


@pytest.fixture(scope="module")
def script(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("coverage_simulation", root / "benchmarks" / "coverage" / "simulate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(script: ModuleType) -> dict[str, Any]:
    return script.simulate(EXPERIMENTS, seed=1)


def test_our_interval_holds_the_truth_as_often_as_it_says(found: dict[str, Any]) -> None:
    for row in found["scenarios"]:
        name = row["machine"]["name"]
        if name.startswith(BREAKS):
            assert row["pairs"]["3"]["coverage"] < 0.9, "no longer breaks: say so in the guide"
            continue
        for pairs in ("3", "4", "8"):
            assert 0.925 <= row["pairs"][pairs]["coverage"] <= 0.99, (name, pairs)
            assert abs(row["pairs"][pairs]["bias"]) < 0.003, (name, pairs)
        if "drift" not in name and "outliers" not in name:
            assert row["pairs"]["4"]["coverage"] <= 0.97, name


def test_three_then_three_does_not(found: dict[str, Any]) -> None:
    by_name = {row["machine"]["name"]: row["three_then_three"] for row in found["scenarios"]}
    assert by_name["restart noise 2 %"]["coverage"] < 0.6
    assert by_name["linear drift -8 %, restart 1 %"]["bias"] < -0.04


def test_looking_after_every_pair_costs_no_more_than_promised(found: dict[str, Any]) -> None:
    for row in found["sequential"]["false_positives"]:
        assert row["says_pays"] + row["says_does_not_pay"] < 0.05 + 3 * (0.05 * 0.95 / EXPERIMENTS) ** 0.5, row["machine"]
    power = {(row["machine"], row["true"]): row for row in found["sequential"]["power"]}
    clear = power["restart noise 2 %", 1.1]
    assert clear["says_pays"] > 0.98 and clear["mean_pairs"] < 4


def test_the_vectorised_experiments_go_through_the_interval_of_bench(script: ModuleType) -> None:
    """One of them by hand: same rates, same interval."""
    machine = script.MACHINES[1]
    arms = launch_arms(4)
    speculative = np.array([arm == "speculative" for arm in arms], float)
    y = script.log_rates(np.random.default_rng(5), machine, speculative, 300, 1.1)
    intervals = [
        speedup_interval([Measured(i, arm, float(np.exp(v))) for i, (arm, v) in enumerate(zip(arms, row, strict=True))]) for row in y
    ]
    held = np.mean([found.low <= 1.1 <= found.high for found in intervals])
    assert script.paired(np.random.default_rng(5), machine, 4, 300)["coverage"] == pytest.approx(held)


def test_the_committed_figures_are_the_scripts(script: ModuleType, root: Path) -> None:
    committed = json.loads((root / "benchmarks" / "coverage" / "coverage.json").read_text())
    assert committed["experiments"] >= 2000
    assert [row["machine"] for row in committed["scenarios"]] == json.loads(json.dumps([vars(machine) for machine in script.MACHINES]))
    assert (root / "benchmarks" / "coverage" / "coverage.svg").stat().st_size > 10_000


def test_the_plot(script: ModuleType, found: dict[str, Any], tmp_path: Path) -> None:
    script.draw(found, tmp_path / "plot.svg")
    assert "three trials, then three trials" in (tmp_path / "plot.svg").read_text() or (tmp_path / "plot.svg").stat().st_size > 10_000
