"""Boundaries and their renderings: golden cases from what the engines read."""

import pytest

from draftsmith.errors import CheckFailed
from draftsmith.models.taps import check_taps, default_taps, render_sglang, render_vllm


@pytest.mark.parametrize(("layers", "taps"), [(61, (2, 30, 58)), (30, (2, 15, 27)), (36, (2, 18, 33)), (32, (2, 16, 29))])
def test_default_taps(layers: int, taps: tuple[int, ...]) -> None:
    assert default_taps(layers) == taps


def test_too_shallow_for_the_default() -> None:
    with pytest.raises(CheckFailed, match="too shallow"):
        default_taps(5)


@pytest.mark.parametrize(
    ("boundaries", "model_type", "vllm", "sglang"),
    [
        ((2, 30, 58), "kimi_k2", [2, 30, 58], [1, 29, 57]),  # first id 1: SGLang adds 1 on every target class
        ((3, 30, 58), "deepseek_v3", [3, 30, 58], [3, 30, 58]),  # DeepSeek classes read other lists as boundaries
        ((3, 16, 29), "llama", [3, 16, 29], [2, 15, 28]),
        ((0, 3, 31), "qwen3", [0, 3, 31], [-1, 2, 30]),  # the embedding output
    ],
)
def test_renderings(boundaries: tuple[int, ...], model_type: str, vllm: list[int], sglang: list[int]) -> None:
    assert render_vllm(boundaries) == vllm
    assert render_sglang(boundaries, model_type) == sglang


def test_sglang_cannot_tap_boundary_1_first_on_deepseek() -> None:
    with pytest.raises(CheckFailed, match="boundary 1"):
        render_sglang((1, 30, 58), "deepseek_v3")


@pytest.mark.parametrize("taps", [(), (5, 3, 1), (2, 2, 3), (-1, 2, 3), (2, 3, 7)])
def test_bad_taps(taps: tuple[int, ...]) -> None:
    with pytest.raises(CheckFailed):
        check_taps(taps, 6)
