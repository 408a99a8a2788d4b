"""Figures as pure functions: the numbers are in the picture, what is absent is not, the output is deterministic."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
import report_runs as runs

from draftsmith.report import figures_acceptance, figures_bench, figures_joined, figures_timeline, figures_training
from draftsmith.report.bench_parts import Cell, Counted, Moment
from draftsmith.report.formats import duration, ms, plain, rate, share, size
from draftsmith.report.render import HERE
from draftsmith.report.svg import ROLES, spread, themed


def cells(*concurrencies: int, **changed: Any) -> list[dict[str, Any]]:
    """Loads as the report holds them."""
    return [Cell.model_validate({**runs.cell(c), **changed}).model_dump(mode="json") for c in concurrencies]


def texts(svg: str) -> list[str]:
    """Text elements of an SVG that must parse as XML."""
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("}text") or element.tag == "text"]


def marks(svg: str, role: str) -> int:
    """How many marks are filled with this colour."""
    return len(re.findall(rf'<use [^>]*style="fill: var\(--{role}\)', svg))


def test_speedup_shows_every_ratio_its_verdict_and_the_line_at_one() -> None:
    found = cells(1, 64, 128)
    svg = figures_bench.speedup(found)
    assert [cell["verdict"] for cell in found] == ["pays", "pays", "does not pay"]
    assert {f"{cell['speedup']['ratio']:.2f}×" for cell in found} <= set(texts(svg))
    assert "1: as fast as without" in texts(svg) and "predicted by the cost model" in texts(svg)
    assert marks(svg, "pays") == 2 and marks(svg, "fails") == 1


def test_a_ratio_near_one_stands_on_a_patch_and_not_in_the_line() -> None:
    """Each value has a filled patch behind it; the line at 1 would run through the figure of a ratio near 1."""
    patches = [len(re.findall(r'<path [^>]*style="fill: var\(--surface\)', figures_bench.speedup(cells(*cs)))) for cs in ((1,), (1, 4))]
    assert patches[1] == patches[0] + 1


def test_speedup_draws_needed_beside_served_only_where_breakeven_was_measured() -> None:
    found = cells(1, 4)
    need = f"{found[0]['break_even_accept_len']['value']:.2f}"
    served = f"{found[0]['acceptance']['accept_len']:.2f}"
    assert {need, served} <= set(texts(figures_bench.speedup(found)))
    without = texts(figures_bench.speedup(cells(1, 4, break_even_accept_len=None)))
    assert not any("accept_len" in text for text in without) and need not in without


def test_pareto_has_a_point_for_each_load_and_arm_with_its_band() -> None:
    svg = figures_bench.pareto(cells(1, 4, 16))
    assert marks(svg, "baseline") == 3 + 1 and marks(svg, "speculative") == 3 + 1, "with one in the legend"
    assert texts(svg).count("C=1") == 2 and texts(svg).count("16") + texts(svg).count("C=16") == 2
    assert len(re.findall(r"fill: var\(--(?:baseline|speculative)\); opacity: 0\.16", svg)) == 2, "a band for each arm"
    no_bands = [{**cell, "per_user_tok_s": {arm: {**r, "low": None} for arm, r in cell["per_user_tok_s"].items()}} for cell in cells(1, 4)]
    assert "opacity: 0.16" not in figures_bench.pareto(no_bands)


def test_pareto_of_one_arm_draws_one_arm() -> None:
    one = cells(1, 4, per_user_tok_s={"baseline": runs.band(139.0, 0.02, 4), "speculative": None})
    svg = figures_bench.pareto(one)
    assert "baseline" in texts(svg) and "speculative" not in texts(svg)


def test_throughput_draws_a_ring_for_each_launch() -> None:
    svg = figures_bench.throughput(cells(1, 4))
    assert marks(svg, "surface") == 2 * 2 * 4
    assert "135.0" in texts(svg)


def test_long_labels_are_cut_and_turned() -> None:
    name = "mixed trace of the support desk, replayed at twice its speed"
    svg = figures_bench.throughput([{**cell, "label": f"{name} {i}", "concurrency": None} for i, cell in enumerate(cells(1, 4, 8))])
    assert all(len(text) <= 18 for text in texts(svg)) and "rotate(-30" in svg


def counted(kind: str, rounds: int, shift: float) -> dict[str, Any]:
    return {"kind": kind, "short": kind, "name": kind, **Counted.model_validate(runs.acceptance(rounds, shift=shift)).model_dump()}


def test_acceptance_by_position_labels_each_source_once() -> None:
    series = [counted("training", 9000, 1.1), counted("predicted", 900, 1), counted("measured", 800, 0.9), counted("measured", 800, 0.85)]
    survival, conditional = (figures_acceptance.by_position(series, key) for key in ("survival", "conditional"))
    for svg in (survival, conditional):
        assert {"training", "predicted", "bench, 2 loads"} <= set(texts(svg))
    assert survival != conditional
    assert "0.74, 0.67, 0.61, 0.58" in conditional and "0.74, 0.50, 0.30, 0.17" in survival


def test_categories_show_value_and_mean() -> None:
    rows = [
        {"category": "code", "accept_len": 2.92, "low": 2.8, "high": 3.0},
        {"category": "haiku", "accept_len": 2.35, "low": None, "high": None},
    ]
    assert {"code", "2.92", "haiku", "2.35", "all 2.71"} <= set(texts(figures_acceptance.by_category(rows, 2.71)))


def moments(**changed: Any) -> list[dict[str, Any]]:
    order = ["baseline", "speculative", "speculative", "baseline"]
    return [Moment.model_validate({**runs.moment(i, arm), **changed}).model_dump(mode="json") for i, arm in enumerate(order)]


def test_timeline_has_a_strip_for_each_sensor_that_said_something() -> None:
    told = texts(figures_timeline.timeline(moments(), 0.009))
    assert {"GPU clock, MHz", "GPU temperature, °C", "GPU power, W", "load of the host", "A/A noise"} <= set(told)
    quiet = texts(figures_timeline.timeline(moments(sensors=None), None))
    assert not {"GPU clock, MHz", "load of the host", "A/A noise"} & set(quiet)
    only_host = texts(figures_timeline.timeline(moments(sensors={"host_load": 1.5, "gpus": []}), None))
    assert "load of the host" in only_host and "GPU clock, MHz" not in only_host


def test_timeline_crosses_invalid_launches_and_leaves_them_out_of_the_median() -> None:
    rows = moments()
    assert "invalid" not in texts(figures_timeline.timeline(rows, None))
    rows[2] = {**rows[2], "invalid": ["errors"], "excluded": True, "canary_tok_s": 100.0}
    assert "invalid" in texts(figures_timeline.timeline(rows, None))
    shares = figures_timeline.canary_shares(rows)
    assert shares[1] == 0, "the only valid speculative launch is its arm's median"
    assert shares[2] == pytest.approx(100.0 / rows[1]["canary_tok_s"] - 1)


def test_forest_orders_as_it_is_told() -> None:
    found = cells(1, 128)
    rows = [{"run": f"run {i}", "verdict": cell["verdict"], "speedup": cell["speedup"]} for i, cell in enumerate(found)]
    svg = figures_joined.forest([*rows, {"run": "none", "verdict": "inconclusive", "speedup": None}], "forest", "C=1")
    assert [text for text in texts(svg) if text.startswith("run")] == ["run 0", "run 1"] and "none" not in texts(svg)


def test_break_even_without_a_measurement() -> None:
    row = {"concurrency": 1, "depth": 3, "accept_len": 1.28, "low": None, "high": None, "ceiling": 4, "measured": None}
    assert "measured" not in texts(figures_acceptance.break_even([row]))
    assert {"1.28", "1.91", "measured"} <= set(texts(figures_acceptance.break_even([{**row, "measured": 1.91}])))


def test_ids_colours_and_names_belong_to_the_page() -> None:
    drawn = f'<?xml?><svg x="1"><g id="a"><use href="#a" x="1.23456" style="fill: {ROLES["ink"]}; clip: url(#a)"/></g></svg>'
    svg = themed(drawn, "one", "say <this>", "and & that")
    assert 'id="one-a"' in svg and 'href="#one-a"' in svg and "url(#one-a)" in svg and "fill: var(--ink)" in svg and 'x="1.23"' in svg
    assert '<title id="one-title">say &lt;this&gt;</title>' in svg and '<desc id="one-desc">and &amp; that</desc>' in svg


@pytest.mark.parametrize("wanted", [[1.0, 1.0, 1.0], [0.0, 5.0, 0.2, 0.1], [3.0], []])
def test_labels_are_spread_but_keep_their_order(wanted: list[float]) -> None:
    places = spread(wanted, 1.0)
    assert sorted(range(len(wanted)), key=places.__getitem__) == sorted(range(len(wanted)), key=wanted.__getitem__)
    ordered = sorted(places)
    assert all(b - a >= 1 - 1e-9 for a, b in pairwise(ordered))
    assert sum(places) == pytest.approx(sum(wanted)), "none is pushed farther than the others need"


def luminance(colour: str) -> float:
    """WCAG 2: relative luminance of #rrggbb."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_has_contrast_in_both_schemes() -> None:
    css = (HERE.parent / "page.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", css, re.S))
    for scheme in (light, dark):
        pairs = [(ink, paper) for ink in ("ink", "muted", "pays", "fails", "unsure", "speculative") for paper in ("paper", "surface")]
        pairs += [(word, f"{word}-tint") for word in ("pays", "fails", "unsure")] + [("ink", "mark")]
        for ink, paper in pairs:
            one, other = sorted((luminance(scheme[ink]), luminance(scheme[paper])))
            assert (other + 0.05) / (one + 0.05) >= 4.5, (ink, paper)
        for mark in ("baseline", "predicted", "training"):  # WCAG asks 3 of graphics
            one, other = sorted((luminance(scheme[mark]), luminance(scheme["surface"])))
            assert (other + 0.05) / (one + 0.05) >= 3, mark


def test_running_mean_narrows_at_the_ends() -> None:
    assert figures_training.running_mean([1, 2, 6], 1) == [1.5, 3.0, 4.0]


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
        (rate(5431.4), "5,431"),
        (rate(97.04), "97.0"),
        (rate(0.104), "0.10"),
        (ms(0.00388), "3.88"),
        (ms(1.839), "1,839"),
        (share(0.009), "0.9 %"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert text == expected
