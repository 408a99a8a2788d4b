"""The coverage table of the guide is what the committed simulation says, and no better than the text beside it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    spec = importlib.util.spec_from_file_location("breakeven_coverage", ROOT / "benchmarks" / "coverage" / "breakeven.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["breakeven_coverage"] = module
    spec.loader.exec_module(module)
    return module


def test_the_guide_has_the_committed_table(coverage: ModuleType) -> None:
    rows = json.loads((ROOT / "benchmarks" / "coverage" / "breakeven.json").read_text())["rows"]
    assert "\n".join(coverage.table(rows)) in (ROOT / "docs" / "guides" / "breakeven.md").read_text()
    told = {row["world"]["name"]: row["ways"]["ours"] for row in rows}
    assert [row["world"]["name"] for row in rows] == [world.name for world in coverage.WORLDS]
    off = {"the baseline scatters twice as much", "one launch of each"}
    assert all(told[name]["least"] > 0.94 and told[name]["most"] < 0.97 for name in told.keys() - off)
    assert told["the baseline scatters twice as much"]["least"] > 0.9 and told["one launch of each"]["least"] < 0.5


def test_the_simulation_says_the_same_on_fewer_experiments(coverage: ModuleType) -> None:
    """The committed figures are this code's: 60 experiments of a world with uneven scatter."""
    found = coverage.covered(coverage.WORLDS[3], 60, seed=1)
    assert found["ours"]["least"] > 0.88 and found["pooled"]["least"] < 0.9 < found["pooled"]["most"]
