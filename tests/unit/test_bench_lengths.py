"""Answers of several lengths in one bench, and thinking that is asked for or not."""

import json
from pathlib import Path

import pytest
from bench_world import ACCEPTED, PROMPTS, SETTINGS, write
from pydantic import ValidationError
from test_bench_running import Running

from draftsmith import cli
from draftsmith.bench.context import Context
from draftsmith.bench.planning import described_cells, plan_workload, workload_digest
from draftsmith.bench.prompting import Prompting
from draftsmith.bench.settings import NAMED_PROMPTS, BenchSettings
from draftsmith.bench.summary import summarise
from draftsmith.measure.prompts import BUILTIN, HELDOUT
from draftsmith.measure.workload import Deck
from mock_server import Behaviour

LABELS = ["C=1, 16 tokens", "C=4, 16 tokens", "C=1, 31 tokens", "C=4, 31 tokens"]


def settings(**changes: object) -> BenchSettings:
    return BenchSettings.model_validate(SETTINGS.model_dump() | {"output_tokens": [16, 31]} | changes)


def test_a_cell_for_each_length(tmp_path: Path) -> None:
    asked = settings(min_speedup=0.5, gate_concurrency=4, loads=[{"kind": "poisson", "rate": 2}])
    workload = plan_workload(asked, Deck(PROMPTS, 0))
    assert [cell.label for cell in workload.cells] == [*LABELS, "2 req/s, 16 tokens", "2 req/s, 31 tokens"]
    assert [cell["label"] for cell in described_cells(asked)] == [cell.label for cell in workload.cells]
    assert [{r.max_tokens for r in cell.requests} for cell in workload.cells] == [{16}, {16}, {31}, {31}, {16}, {31}]
    asked = settings(min_speedup=0.5, gate_concurrency=4)
    write(tmp_path, asked)
    summary = summarise(tmp_path, Context(asked, depth=3))
    assert [cell["label"] for cell in summary["cells"]] == LABELS and [cell["max_tokens"] for cell in summary["cells"]] == [16, 16, 31, 31]
    assert "at concurrency 4, 31 tokens it does not: 0.70x" in summary["verdict_sentence"]
    assert [gate["reason"].partition(" the ")[0] for gate in summary["gates"]] == [f"at concurrency 4, {n} tokens" for n in (16, 31)]
    assert summary["gate"] == "passed" and summary["stops_paying_above"] == 1


def test_one_length_is_not_told() -> None:
    assert [cell["label"] for cell in described_cells(settings(output_tokens=[16]))] == ["C=1", "C=4"]
    for wrong in ([], [16, 16], [4, 16]):
        with pytest.raises(ValidationError, match="expected different numbers from 8 up"):
            settings(output_tokens=wrong)


def test_the_names_of_prompts_are_those_that_are_known() -> None:
    assert set(NAMED_PROMPTS) == {HELDOUT, *BUILTIN}


def test_thinking_is_a_switch_of_the_template() -> None:
    plain = plan_workload(settings(endpoint="chat"), Prompting(PROMPTS).deck(settings(endpoint="chat")))
    off = settings(endpoint="chat", reasoning="off")
    workload = plan_workload(off, Prompting(PROMPTS).deck(off))
    asked = [request for cell in workload.cells for request in (*cell.warmup, *cell.requests)]
    assert {request.extra["chat_template_kwargs"]["enable_thinking"] for request in asked} == {False}
    assert not plain.canary.extra and workload_digest(plain) != workload_digest(workload)
    with pytest.raises(ValidationError, match="for the chat endpoint"):
        settings(reasoning="off")


def test_the_five_at_two_lengths_by_url_with_thinking_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Running(Behaviour(thinking=3)) as baseline, Running(Behaviour(accepted=ACCEPTED, depth=3, thinking=3)) as speculative:
        words = ["bench", "--url", baseline.url, "--url", speculative.url, "--prompts", "five", "--output-tokens", "8,16", "--pairs", "2"]
        words += ["--concurrency", "1", "--requests", "5", "--reasoning", "off", "--out", str(tmp_path / "out"), "-q", "--json"]
        assert cli.main(words) in (0, 1, 3)
        bodies = [body for body in baseline.seen if body["max_tokens"] == 16]
    summary = json.loads(capsys.readouterr().out)
    assert [cell["label"] for cell in summary["cells"]] == ["C=1, 8 tokens", "C=1, 16 tokens"] and summary["invalid"] == []
    assert len(bodies) == 10 and all(body["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False} for body in bodies)
    assert any("thinking tokens although reasoning is off" in text for text in summary["findings"])
    assert "--output-tokens 8,16 --reasoning off" in summary["command"]
    assert summary["cells"][1]["reasoning"]["baseline"] == {"reasoning_tokens": 30, "answer_tokens": 130}
    assert cli.main(["report", str(tmp_path / "out"), "--output", str(tmp_path / "report")]) == 0
    assert "C=1, 16 tokens" in (tmp_path / "report" / "report.html").read_text()
