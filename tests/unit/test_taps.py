"""Boundaries and their renderings: golden cases from what the engines read."""

import pytest
from packaging.version import Version

from draftsmith.errors import CheckFailed
from draftsmith.models.taps import (
    check_taps,
    default_taps,
    render_sglang,
    render_vllm,
    sglang_boundaries,
    sglang_version,
    sglang_versions,
)


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
    assert render_sglang(boundaries, 61, model_type) == sglang


VERSIONS = [Version(text) for text in ("0.5.3", "0.5.6", "0.5.12", "0.5.13", "0.5.16", "0.5.17", "0.5.23")]
KINDS = ("llama", "qwen3_moe", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "gpt_oss", "minimax_m3_vl")


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_back_as_the_boundaries(kind: str, version: Version) -> None:
    """For every version and target class that was read: writer and reader are one table."""
    for boundaries in ((2, 12, 21), (3, 12, 21), (0, 12, 23), (2, 12, 24), (5, 9), (4,)):
        assert sglang_boundaries(render_sglang(boundaries, 24, kind, version), 24, kind, version) == boundaries


@pytest.mark.parametrize(
    ("boundaries", "kind", "version", "ids", "read_by"),
    [
        ((2, 30, 58), "kimi_k2", "0.5.17", [1, 29, 57], "0.5.3 to 0.5.23"),
        ((3, 30, 58), "kimi_k2", "0.5.17", [3, 30, 58], "0.5.13 to 0.5.23"),  # a class that reads boundaries since 0.5.13
        ((3, 30, 58), "kimi_k2", "0.5.12", [2, 29, 57], "0.5.3 to before 0.5.13"),
        ((1, 30, 58), "kimi_k2", "0.5.12", [0, 29, 57], "0.5.3 to before 0.5.13"),  # cannot be said since 0.5.13
        ((2, 20, 40, 58), "llama", "0.5.17", [1, 19, 39, 57], "0.5.12 to 0.5.23"),  # before, room for three only
        ((2, 30, 61), "gpt_oss", "0.5.17", [1, 29, 60], "0.5.3 to 0.5.23"),
    ],
)
def test_which_versions_read_the_ids(boundaries: tuple[int, ...], kind: str, version: str, ids: list[int], read_by: str) -> None:
    assert render_sglang(boundaries, 61, kind, Version(version)) == ids
    assert sglang_versions(ids, boundaries, 61, kind) == read_by


def test_ids_that_some_versions_only_take_for_boundaries() -> None:
    """gpt-oss: a list that ends in the number of layers, raw since 0.5.17; and ids that no version takes for these boundaries."""
    assert sglang_versions([2, 30, 61], (2, 30, 61), 61, "gpt_oss") == "0.5.17 to 0.5.23"
    assert sglang_versions([2, 30, 58], (2, 30, 58), 61, "llama") == "none"


def test_the_version_to_write_for() -> None:
    assert sglang_version("sglang==0.5.12") == Version("0.5.12")
    assert sglang_version("vllm==0.26.0") == sglang_version("sglang==nightly") == sglang_version("") == Version("0.5.23")


def test_sglang_cannot_tap_boundary_1_first_on_deepseek() -> None:
    with pytest.raises(CheckFailed, match="boundary 1"):
        render_sglang((1, 30, 58), 61, "deepseek_v3")


@pytest.mark.parametrize("taps", [(), (5, 3, 1), (2, 2, 3), (-1, 2, 3), (2, 3, 7)])
def test_bad_taps(taps: tuple[int, ...]) -> None:
    with pytest.raises(CheckFailed):
        check_taps(taps, 6)
