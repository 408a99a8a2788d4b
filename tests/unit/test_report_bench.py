"""Every shape of measurement that bench can leave has a report: what is there is shown, what is absent is called absent and is never 0."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import report_runs as runs
import yaml
from report_pages import Page, check_page

from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.report import content, join, views
from draftsmith.report.sources import open_run
from draftsmith.report.write import report_of

RESULT = Path(__file__).parents[2] / "results" / "smollm2-135m-instruct_eagle3_2-core-cpu_2026-11-29"
LONG = "an agent that reads a repository, replayed from the trace of one long Tuesday afternoon at twice its speed"
Row = dict[str, Any]


def made(tmp_path: Path, found: Row) -> tuple[str, str, Row]:
    """HTML, Markdown and JSON of a bench folder with this summary."""
    report_of([runs.write_bench(tmp_path / "run" / "bench", found).parent], tmp_path / "out")
    out = tmp_path / "out"
    return (out / "report.html").read_text(), (out / "report.md").read_text(), json.loads((out / "report.json").read_text())


def words(html: str) -> str:
    return " ".join("".join(Page(html).text).split())


def one_arm(found: Row) -> None:
    for cell in found["cells"]:
        nothing = {
            "speedup": None,
            "verdict": "inconclusive",
            "acceptance": None,
            "predicted_speedup": None,
            "acceptance_by_category": None,
        }
        cell.update(nothing, speculative_tok_s={"mean": None, "launches": []})
        for key in ("per_user_tok_s", "latency", "goodput", "finish"):
            cell[key] = {"baseline": cell[key]["baseline"], "speculative": None}


def all_invalid(found: Row) -> None:
    one_arm(found)
    for cell in found["cells"]:
        cell.update(baseline_tok_s={"mean": None, "launches": []}, per_user_tok_s=None, latency=None, goodput=None, finish=None)
    found["invalid"] = [{"launch": row["launch"], "arm": row["arm"], "reason": "3 of 40 requests failed"} for row in found["timeline"]]
    for row in found["timeline"]:
        row.update(invalid=["3 of 40 requests failed"], excluded=True, canary_tok_s=None, sensors=None)
    found.update(gate="inconclusive", noise_floor=None, launches_used=0, arms={"baseline": None, "speculative": None})


def version_1(found: Row) -> None:
    """Only the keys that a summary had before."""
    kept = ("concurrency", "baseline_tok_s", "speculative_tok_s", "speedup", "verdict", "acceptance")
    found["cells"] = [{key: cell[key] for key in kept} for cell in found["cells"]]
    for cell in found["cells"]:
        del cell["speedup"]["confidence"]
        for arm in runs.ARMS:
            cell[f"{arm}_tok_s"] = {key: cell[f"{arm}_tok_s"][key] for key in ("mean", "launches")}
    for key in ("noise_floor", "stopping", "stops_paying_above", "gates", "timeline", "differences", "command", "arms", "tok_s"):
        del found[key]


def long_labels(found: Row) -> None:
    for number, cell in enumerate(found["cells"]):
        cell.update(label=f"{LONG} ({number})", load={"kind": "trace", "file": "tuesday.jsonl", "speed": 2.0})
    found["acceptance_by_category"] = None
    for cell in found["cells"]:
        cell["acceptance_by_category"] = {LONG: {"rounds": 10, "accept_len": 2.0, "survival": None}}


def no_break_even(found: Row) -> None:
    for cell in found["cells"]:
        cell.update(break_even_accept_len=None, predicted_speedup=None, prediction_gap=None)


def open_loop(found: Row) -> None:
    found["cells"] = [runs.cell(c, load={"kind": "poisson", "rate": rate, "max_concurrency": None}) for c, rate in ((1, 0.5), (8, 2.0))]


CHANGES: dict[str, Callable[[Row], None]] = {
    "as it is": lambda found: None,
    "one arm": one_arm,
    "all invalid": all_invalid,
    "version 1": version_1,
    "long labels": long_labels,
    "no break-even": no_break_even,
    "open loop": open_loop,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("concurrencies", [(1,), (1, 4, 16), (1, 2, 4, 8, 16, 32, 64, 128)], ids=len)
def test_every_shape_has_a_report(tmp_path: Path, change: str, concurrencies: tuple[int, ...]) -> None:
    found = runs.summary([runs.cell(c) for c in concurrencies])
    CHANGES[change](found)
    html, short, report = made(tmp_path, found)
    check_page(html)
    assert content.normal(report) == report, "report.json is whole and in its normal form"
    assert len(report["verdict"]["cells"]) == len(found["cells"])
    assert short.startswith("# run\n\n**EAGLE-3 with 4 drafts: ") and all(
        f"| {cell['label']} |" in short for cell in report["verdict"]["cells"]
    )
    assert "sk-secret" not in html + json.dumps(report) and "hf_abc" not in html + json.dumps(report)


def test_verdict_first_with_interval_and_pairs(tmp_path: Path) -> None:
    found = runs.summary([runs.cell(c) for c in (1, 128)])
    html, _, report = made(tmp_path, found)
    body = html[html.index("<main>") :]
    assert body.index(report["verdict"]["sentence"]) < body.index('class="cells"') < body.index("<svg")
    told = words(html)
    for cell in report["verdict"]["cells"]:
        ratio = cell["speedup"]
        assert f"{ratio['ratio']:.2f}×" in told and f"95 % interval {ratio['low']:.2f}–{ratio['high']:.2f}, 4 pairs of launches" in told
    assert 'class="verdict none"' in html, "pays here and does not there: no colour for both"


def test_over_many_loads_the_headline_takes_neighbours_together(tmp_path: Path) -> None:
    cells = [runs.cell(c) for c in (1, 2, 4, 8, 16, 32, 64, 128)]
    cells[6].update(verdict="inconclusive")
    html, _, report = made(tmp_path, runs.summary(cells))
    headline = views.headline(report["verdict"])
    assert headline == "Pays at concurrency 1 to 32 (1.85× to 1.38×); inconclusive at 64 (1.10×); does not pay at 128 (0.78×)"
    assert headline in html and html.index('class="loads"') < html.index("<svg")
    for cell in cells:
        cell.update(speedup=None)
    assert views.headline({"cells": cells[:4], "sentence": ""}) == "No verdict at concurrency 1 to 8"


def test_all_invalid_is_said_and_nothing_is_zero(tmp_path: Path) -> None:
    found = runs.summary([runs.cell(c) for c in (1, 4)])
    all_invalid(found)
    html, short, report = made(tmp_path, found)
    told = words(html)
    assert "8 invalid of 8 launches" in told and "launch 3: 3 of 40 requests failed" in told
    assert "Speed-up absent: too few valid launches of both arms." in told
    assert "<svg" not in html and not re.search(r"\b0\.0+\b", told[: told.index("Provenance")])
    assert report["verdict"]["cells"][0]["baseline_tok_s"]["mean"] is None and "| C=1 | absent | absent |" in short


def test_a_summary_of_version_1_is_readable(tmp_path: Path) -> None:
    found = runs.summary([runs.cell(c) for c in (1, 4)])
    version_1(found)
    html, _, report = made(tmp_path, found)
    told = words(html)
    assert "Latency Absent: this summary has no latencies." in told and "Noise floor (A/A): absent" in told
    assert report["verdict"]["noise_floor"] is None and report["verdict"]["cells"][0]["per_user_tok_s"] is None
    assert [row["canary_tok_s"] for row in report["verdict"]["timeline"]] == [row["tok_s"] for row in found["canary"]]
    assert report["verdict"]["cells"][0]["speedup"]["confidence"] == 0.95


def test_a_published_report_of_version_1_is_readable(tmp_path: Path) -> None:
    report_of([RESULT], tmp_path)
    html, report = (tmp_path / "report.html").read_text(), json.loads((tmp_path / "report.json").read_text())
    before = json.loads((RESULT / "report.json").read_text())
    check_page(html)
    assert report["schema"] == 2 and before["schema"] == 1
    assert [c["speedup"]["ratio"] for c in report["verdict"]["cells"]] == [c["speedup"]["ratio"] for c in before["verdict"]["cells"]]
    needed = {row["concurrency"]: row["accept_len"] for row in before["break_even"]["rows"] if row["depth"] == before["subject"]["depth"]}
    assert {c["concurrency"]: c["break_even_accept_len"]["value"] for c in report["verdict"]["cells"]} == needed
    first = report["acceptance"][0]
    assert first["conditional"][1] == pytest.approx(first["reached"][1] / first["reached"][0])


def test_evidence_of_the_protocol_is_shown(tmp_path: Path) -> None:
    found = runs.summary([runs.cell(c) for c in (1, 4)], invalid={5: "the canary ran 14 % below its arm's median"})
    found["differences"].append({"key": "enforce-eager", "baseline": True, "speculative": False, "matters": True})
    found["stops_paying_above"] = 64
    found["cells"][0].update(verdict_reason="accept_len 1.20 is below the break-even 1.47")
    found["timeline"][0]["pair"] = -1
    told = words(made(tmp_path, found)[0])
    for text in (
        "1 invalid of 8 launches",
        "launch 5: the canary ran 14 % below its arm's median",
        "The arms differ in more than speculation: enforce-eager",
        "Stops paying above concurrency 64.",
        "Noise floor: equal launches differed by up to 0.9 %; detectable from 1.012×.",
        "Ended after 4 of at most 8 pairs: every load is decided.",
        "Gate 1.1× at concurrency 4: passed",
        "draftsmith bench recipes/llama-eagle3.yaml",
        "HF_TOKEN=(hidden) vllm serve",
        "Accept_len 1.20 is below the break-even 1.47.",
        "0A/Abaseline",
        "over launches (the verdict)over promptsbootstrap",
    ):
        assert text in told, text


def test_blocks_at_running_servers_are_not_called_launches(tmp_path: Path) -> None:
    """`bench --url` leaves no manifest, and its unit is a block."""
    folder = runs.write_bench(tmp_path / "urls", {**runs.summary([runs.cell(1)]), "unit": "block", "arms": {"baseline": None}})
    (folder / "manifest.json").unlink()
    runs.write_conditions(folder, engine=None, target=None)
    report_of([folder], tmp_path / "out")
    report, told = json.loads((tmp_path / "out" / "report.json").read_text()), words((tmp_path / "out" / "report.html").read_text())
    assert "4 pairs of blocks" in told and "pairs of launches" not in told
    assert report["title"] == "urls" and report["subject"]["engine"] is None and report["subject"]["depth"] == 4
    assert report["provenance"]["hardware"] is None and "samplingtemperature 0, seed None" in told


def test_an_open_load_has_no_concurrency(tmp_path: Path) -> None:
    found = runs.summary([])
    open_loop(found)
    cells = made(tmp_path, found)[2]["verdict"]["cells"]
    assert [(cell["label"], cell["concurrency"]) for cell in cells] == [("0.5 req/s", None), ("2 req/s", None)]


def test_latency_rows_are_those_that_were_measured() -> None:
    cell = runs.cell(4)
    rows = views.latency_rows(cell)
    assert [(row["metric"], row["arm"]) for row in rows[:3]] == [("TTFT", "baseline"), ("TTFT", "speculative"), ("TPOT", "baseline")]
    assert not any(row["metric"] == "TTFO" for row in rows), "no reasoning, no TTFO"
    cell["latency"]["speculative"] = None
    assert {row["arm"] for row in views.latency_rows(cell)} == {"baseline"}


def test_categories_are_weighted_by_rounds_and_span_the_loads() -> None:
    cells = [runs.cell(1), runs.cell(4)]
    cells[0]["acceptance_by_category"] = {"code": {"rounds": 100, "accept_len": 3.0}, "": {"rounds": 1, "accept_len": 1.5}}
    cells[1]["acceptance_by_category"] = {"code": {"rounds": 300, "accept_len": 2.0}}
    verdict = content.Verdict.model_validate({"sentence": "", "cells": cells}).model_dump(mode="json")
    code, unnamed = views.categories(verdict)
    assert (code["accept_len"], code["low"], code["high"], code["rounds"]) == (2.25, 2.0, 3.0, 400)
    assert unnamed["category"] == "without a category" and unnamed["low"] is None


def test_a_rate_of_zero_is_refused(tmp_path: Path) -> None:
    found = runs.summary([runs.cell(1)])
    found["cells"][0]["baseline_tok_s"]["mean"] = 0.0
    with pytest.raises(EnvironmentFailed, match=r"cells\.0\.baseline_tok_s\.mean.*absent must be null"):
        made(tmp_path, found)


def test_model_card(tmp_path: Path) -> None:
    made(tmp_path, runs.summary([runs.cell(c) for c in (1, 128)]))
    card = (tmp_path / "out" / "model_card.md").read_text()
    _, matter, body = card.split("---\n", 2)
    head = yaml.safe_load(matter)
    assert head["base_model"] == "llama-3.1-8b-instruct" and {"speculative-decoding", "eagle3", "vllm"} <= set(head["tags"])
    [entry] = head["model-index"]
    assert len(entry["results"]) == 2 and all({"task", "dataset", "metrics"} <= set(result) for result in entry["results"])
    assert entry["results"][1]["metrics"][0]["value"] == pytest.approx(0.78, abs=0.005), "what does not pay is said, too"
    assert "| C=128 |" in body and "does not pay" in body and "- machine: NVIDIA H200, 16 cores" in body and "- output tokens: 256" in body


@pytest.mark.parametrize("model, path", [(content.Report, content.SCHEMA_FILE), (join.Joined, join.SCHEMA_FILE)])
def test_the_shipped_schema_is_that_of_the_types(model: type, path: Path) -> None:
    assert path.read_text() == content.json_schema(model), "scripts/report_schema.py writes it"
    schema = json.loads(path.read_text())
    assert schema["properties"]["schema"]["const"] == int(path.stem.split("-")[-1]) and set(schema["required"]) == set(schema["properties"])


def test_json_has_every_key_of_the_schema(tmp_path: Path) -> None:
    report = made(tmp_path, runs.summary([runs.cell(1)]))[2]
    schema = json.loads(content.SCHEMA_FILE.read_text())
    assert set(report) == set(schema["properties"])
    assert set(report["verdict"]) == set(schema["$defs"]["Verdict"]["properties"])
    assert set(report["verdict"]["cells"][0]) == set(schema["$defs"]["Cell"]["properties"])


@pytest.mark.parametrize("text", ["{}", "[]", '{"schema": 99}', "{", '{"schema": 2}', '{"schema": 1, "title": 3}'])
def test_a_file_that_is_no_report_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(EnvironmentFailed, match=r"report\.json") as caught:
        open_run(tmp_path)
    assert caught.value.hint


def test_bench_that_was_repeated_since_the_report_is_read_itself(tmp_path: Path) -> None:
    run = runs.write_bench(tmp_path / "run" / "bench", runs.summary([runs.cell(1)])).parent
    report_of([run], run / "report")
    assert len(open_run(run)["verdict"]["cells"]) == 1
    (run / "bench" / "launches.jsonl").unlink()
    runs.write_bench(run / "bench", {**runs.summary([runs.cell(1), runs.cell(4)]), "depth": 2})
    assert len(open_run(run)["verdict"]["cells"]) == 2


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no report and no measurement"):
        open_run(tmp_path)
