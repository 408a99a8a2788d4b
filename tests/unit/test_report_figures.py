"""Figures as pure functions: the numbers are in the picture, the output is deterministic."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from draftsmith.report import figures
from draftsmith.report.render import duration, plain, size
from draftsmith.report.svg import ROLES, themed


def cell(concurrency: int, ratio: float, verdict: str) -> dict:
    rate = {"mean": 30.0, "launches": [29.0, 31.0]}
    return {
        "concurrency": concurrency,
        "verdict": verdict,
        "baseline_tok_s": rate,
        "speculative_tok_s": {**rate, "mean": 30 * ratio},
        "speedup": {"ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1, "pairs": 2, "method": ""},
        "predicted_speedup": None,
    }


CELLS = [cell(1, 1.53, "pays"), cell(4, 1.02, "inconclusive"), cell(8, 0.71, "does not pay")]


def texts(svg: str) -> list[str]:
    """Text elements of an SVG that must parse as XML."""
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]


def test_speedup_shows_every_ratio_in_its_colour() -> None:
    svg = figures.speedup(CELLS)
    assert {"1.53×", "1.02×", "0.71×", "break-even"} <= set(texts(svg))
    assert all(f"var(--{role})" in svg for role in ("pays", "fails", "unsure"))
    assert "predicted by the cost model" not in texts(svg)


def test_throughput_draws_a_ring_for_each_launch() -> None:
    svg = figures.throughput(CELLS)
    assert texts(svg).count("30.0") == 3 and "45.9" in texts(svg)
    rings = [path for path in ElementTree.fromstring(svg).iter() if path.tag.endswith("use") and "var(--surface)" in path.get("style", "")]
    assert len(rings) == 2 * sum(len(c["baseline_tok_s"]["launches"]) for c in CELLS)


def test_invalid_launches_are_crossed() -> None:
    canary = [{"launch": i, "arm": arm, "tok_s": 30.0 + i} for i, arm in enumerate(["baseline", "speculative", "speculative", "baseline"])]
    assert "invalid" not in texts(figures.launches(canary, []))
    assert "invalid" in texts(figures.launches(canary, [{"launch": 2, "reason": "errors"}]))


def test_break_even_without_a_measurement() -> None:
    row = {"concurrency": 1, "depth": 3, "accept_len": 1.28, "low": None, "high": None, "ceiling": 4, "measured": None}
    assert "measured" not in texts(figures.break_even([row]))
    assert {"1.28", "1.91", "measured"} <= set(texts(figures.break_even([{**row, "measured": 1.91}])))


def test_ids_and_colours_belong_to_the_page() -> None:
    svg = themed(f'<?xml?><svg x="1"><g id="a"><use href="#a" style="fill: {ROLES["ink"]}; clip: url(#a)"/></g></svg>', "one", 'say "this"')
    assert 'id="one-a"' in svg and 'href="#one-a"' in svg and "url(#one-a)" in svg and "fill: var(--ink)" in svg
    assert 'aria-label="say &quot;this&quot;"' in svg


def test_running_mean_narrows_at_the_ends() -> None:
    assert figures.running_mean([1, 2, 6], 1) == [1.5, 3.0, 4.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (plain(True), "yes"),
        (plain(12345), "12,345"),
        (plain({"max-model-len": 1024, "eager": True}), "max-model-len 1024, eager true"),
        (plain([]), "none"),
        (size(3 * 2**30), "3.00 GiB"),
        (size(100), "100 B"),
        (duration(12.34), "12.3 s"),
        (duration(125), "02:05"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert text == expected
