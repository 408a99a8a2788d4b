"""Several runs side by side: ranked by what is sure, and only where the same question was asked of the same machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs
from report_pages import Page, check_page

from draftsmith import cli
from draftsmith.errors import UsageError
from draftsmith.manifest import Manifest
from draftsmith.report.join import Joined
from draftsmith.report.write import report_of

RESULT = Path(__file__).parents[2] / "results" / "smollm2-135m-instruct_eagle3_2-core-cpu_2026-11-29"


def run(folder: Path, name: str, ratios: dict[int, tuple[float, float, float]], **conditions: str) -> Path:
    """A measured run with these speed-ups (low, ratio, high) by concurrency."""
    cells = []
    for concurrency, (low, ratio, high) in ratios.items():
        cell = runs.cell(concurrency)
        cell["speedup"].update(ratio=ratio, low=low, high=high)
        cell["verdict"] = "pays" if low > 1 else "does not pay" if high < 1 else "inconclusive"
        cells.append(cell)
    return runs.write_bench(folder / name / "bench", runs.summary(cells), **conditions).parent


def joined(tmp_path: Path, *places: Path) -> tuple[dict[str, Any], str, str]:
    """JSON, HTML and Markdown."""
    report_of(places, tmp_path / "out")
    out = tmp_path / "out"
    return json.loads((out / "report.json").read_text()), (out / "report.html").read_text(), (out / "report.md").read_text()


def test_comparable_runs_are_sorted_by_their_lower_bound(tmp_path: Path) -> None:
    wide = run(tmp_path, "wide", {1: (1.10, 1.60, 2.10)})
    narrow = run(tmp_path, "narrow", {1: (1.45, 1.50, 1.55)})
    slow = run(tmp_path, "slow", {1: (1.20, 1.25, 1.30)})
    found, html, short = joined(tmp_path, wide, narrow, slow)
    [group] = found["groups"]
    [load] = group["loads"]
    assert [(row["run"], row["with_best"]) for row in load["rows"]] == [("narrow", True), ("slow", False), ("wide", True)]
    assert found["differences"] == [] and load["notes"] == []
    check_page(html)
    assert "wide ≈ best" in short and "slow ≈ best" not in short and "Not all of them" not in html
    assert Joined.model_validate(found).model_dump(mode="json", by_alias=True) == found


@pytest.mark.parametrize("other", [{"engine": "sglang==0.5.17"}, {"gpu": "NVIDIA B200, 183359 MiB, 580.159.04"}, {"target": "u" * 64}])
def test_other_conditions_are_never_ranked_together(tmp_path: Path, other: dict[str, str]) -> None:
    places = [run(tmp_path, "one", {1: (1.4, 1.5, 1.6)}), run(tmp_path, "two", {1: (1.8, 1.9, 2.0)}, **other)]
    found, html, short = joined(tmp_path, *places)
    assert [[r["name"] for r in group["runs"]] for group in found["groups"]] == [["one"], ["two"]]
    key = {"engine": "engine", "gpu": "machine", "target": "target"}[next(iter(other))]
    assert [row["key"] for row in found["differences"]] == [key]
    check_page(html)
    assert "Not all of them may be compared" in html and f"2 different conditions ({key})" in short


def test_a_setting_of_the_load_counts_as_a_condition(tmp_path: Path) -> None:
    places = [run(tmp_path, name, {1: (1.4, 1.5, 1.6)}) for name in ("short", "long")]
    path = places[1] / "bench" / "manifest.json"
    content = json.loads(path.read_text())
    content["config"]["settings"]["output_tokens"] = 2048
    path.write_text(json.dumps(content))
    found = joined(tmp_path, *places)[0]
    assert found["differences"] == [{"key": "bench output_tokens", "values": ["256", "2,048"]}]


def test_conditions_that_bench_wrote_down_decide(tmp_path: Path) -> None:
    places = [run(tmp_path, name, {1: (1.4, 1.5, 1.6)}) for name in ("one", "two", "other prompts")]
    for place, prompts in zip(places, ("p", "p", "q"), strict=True):
        runs.write_conditions(place / "bench", prompts=prompts * 64, draftsmith=f"0.2.{places.index(place)}")
    found = joined(tmp_path, *places)[0]
    assert [[r["name"] for r in group["runs"]] for group in found["groups"]] == [["one", "two"], ["other prompts"]]
    assert found["differences"] == [{"key": "prompts", "values": ["sha256 pppppppppppp", "sha256 qqqqqqqqqqqq"]}]
    assert found["groups"][0]["conditions"]["machine"] == "NVIDIA H200, Intel Xeon, 16 cores"


def test_what_is_not_known_is_not_the_same(tmp_path: Path) -> None:
    places = [run(tmp_path, name, {1: (1.4, 1.5, 1.6)}) for name in ("one", "two")]
    for place in places:
        (place / "bench" / "manifest.json").unlink()
    found, html, _ = joined(tmp_path, *places)
    assert len(found["groups"]) == 2 and found["differences"] == []
    assert "What is not known of a run" in html


def test_baselines_that_disagree_are_told(tmp_path: Path) -> None:
    places = [run(tmp_path, name, {1: (1.4, 1.5, 1.6)}) for name in ("one", "two")]
    path = places[1] / "bench" / "summary.json"
    summary = json.loads(path.read_text())
    summary["cells"][0]["baseline_tok_s"]["mean"] *= 1.12
    path.write_text(json.dumps(summary))
    found = joined(tmp_path, *places)[0]
    [note] = found["groups"][0]["loads"][0]["notes"]
    assert note.startswith("the baseline of two is 12 % faster than that of one")


def test_runs_without_a_speedup_come_last(tmp_path: Path) -> None:
    places = [run(tmp_path, name, {1: (1.4, 1.5, 1.6), 8: (0.9, 1.0, 1.1)}) for name in ("void", "good")]
    path = places[0] / "bench" / "summary.json"
    summary = json.loads(path.read_text())
    summary["cells"][0].update(speedup=None, verdict="inconclusive")
    path.write_text(json.dumps(summary))
    found, html, _ = joined(tmp_path, *places)
    first, second = found["groups"][0]["loads"]
    assert [row["run"] for row in first["rows"]] == ["good", "void"] and first["rows"][1]["with_best"] is None
    assert [row["run"] for row in second["rows"]] == ["void", "good"], "equal bounds keep the order of the command"
    check_page(html)


def test_old_and_new_reports_side_by_side(tmp_path: Path) -> None:
    found, html, _ = joined(tmp_path, RESULT, run(tmp_path, "new", {1: (1.4, 1.5, 1.6)}))
    check_page(html)
    assert len(found["groups"]) == 2 and {"target", "engine", "machine"} <= {row["key"] for row in found["differences"]}


def test_equal_titles_are_numbered_and_hostile_ones_stay_text(tmp_path: Path) -> None:
    name = "<img src=x> | `rm`"
    places = [run(tmp_path / side, name, {1: (1.4, 1.5, 1.6)}) for side in ("a", "b")]
    found, html, short = joined(tmp_path, *places)
    assert [r["name"] for r in found["groups"][0]["runs"]] == [f"{name} (1)", f"{name} (2)"]
    assert "img" not in Page(html).tags and "<img" not in short and "| `rm`" not in short


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [str(run(tmp_path, name, {1: (1.4, 1.5, 1.6)})) for name in ("one", "two")]
    assert cli.main(["report", *places, "--output", str(tmp_path / "both")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# 2 runs side by side") and out.rstrip().endswith("both/report.html")
    assert cli.main(["report", str(RESULT / "report.json"), "--output", str(tmp_path / "one-run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 2
    assert {path.name for path in (tmp_path / "one-run").iterdir()} == {"report.html", "report.md", "report.json", "model_card.md"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["RUN", "RUN"], "named twice"),
        (["RUN", "--dry-run"], "for a recipe"),
        (["RUN", "nowhere"], "nowhere has no report"),
        (["recipe.yaml", "--output", "x"], "--output is for runs"),
        (["RUN", "--output", f"{__file__}/inside"], "test_report_joined.py is a file"),
    ],
)
def test_wrong_commands_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    place = str(run(tmp_path, "one", {1: (1.4, 1.5, 1.6)}))
    assert cli.main(["report", *[place if word == "RUN" else word for word in words]]) == 2
    assert said in capsys.readouterr().err


def test_a_finished_stage_is_not_overwritten(tmp_path: Path) -> None:
    place = run(tmp_path, "one", {1: (1.4, 1.5, 1.6)})
    Manifest("report", {}, {}, {}).write(place / "report")
    with pytest.raises(UsageError, match="finished stage"):
        report_of([place], place / "report")
