"""Fixtures and markers that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`gpu` tests need a GPU. Everything else runs everywhere; torch is imported only when such a test was collected."""
    wanted = [item for item in items if item.get_closest_marker("gpu")]
    if wanted:
        import torch

        if not torch.cuda.is_available():
            for item in wanted:
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def child_env() -> dict[str, str]:
    """Environment for child processes that import draftsmith from this checkout."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])}
