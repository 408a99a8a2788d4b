"""bench: exactly known times in, their speed-up out; and servers that must not be believed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_world import PROMPTS, SETTINGS, job, run, server, times, written
from pydantic import ValidationError

from draftsmith.bench.cells import acceptance_by_category
from draftsmith.bench.planning import plan_launches
from draftsmith.bench.prompting import Prompting
from draftsmith.bench.sentences import verdict_sentence
from draftsmith.bench.settings import BenchSettings
from draftsmith.bench.stage import measure, plan
from draftsmith.bench.summary import summarise
from draftsmith.job import Job
from draftsmith.manifest import read_jsonl
from draftsmith.measure.messages import Reply
from draftsmith.measure.protocol import LAUNCHES
from draftsmith.metrics import Acceptance
from draftsmith.settings import DrafterSettings, EngineSettings
from mock_server import Behaviour, mock_starter
from synthetic_runs import PREFILL_S


def test_known_speedups_and_verdicts(tmp_path: Path) -> None:
    summary = written(tmp_path)
    alone, busy = summary["cells"]
    answer_s, faster_s = PREFILL_S + 30 * 0.010, PREFILL_S + 15 * 0.010
    assert alone["baseline_tok_s"]["mean"] == pytest.approx(31 / answer_s)
    assert alone["speedup"]["ratio"] == pytest.approx(answer_s / faster_s) and alone["verdict"] == "pays"
    assert busy["speedup"]["ratio"] == pytest.approx(answer_s / (PREFILL_S + 15 * 0.030)) and busy["verdict"] == "does not pay"
    assert (alone["speedup"]["pairs"], alone["speedup"]["df"]) == (2, 2)
    assert alone["predicted_speedup"] == pytest.approx(2.0) and busy["predicted_speedup"] == pytest.approx(2 / 3)
    assert alone["prediction_gap"] == pytest.approx(2.0 / (answer_s / faster_s) - 1)
    assert alone["speedup_over_prompts"]["ratio"] == pytest.approx(2.0) and alone["speedup_over_prompts"]["prompts"] == 3
    assert summary["gate"] == "passed" and "lies above 1" in summary["gate_reason"]
    assert summary["verdict_sentence"].startswith("EAGLE-3 with 3 drafts pays at concurrency 1: 1.75x (95 % interval 1.75-1.75, 2 pairs")
    assert "; at concurrency 4 it does not: 0." in summary["verdict_sentence"]
    assert [text for text in summary["findings"] if "show a steady state" not in text] == []
    assert len(summary["findings"]) == 4  # the test asks for short loops


def test_drift_and_noise_between_launches_are_in_the_interval(tmp_path: Path) -> None:
    jitter = [1.0, 1.03, 0.99, 1.02]
    summary = written(tmp_path, times=lambda p, c: times(p, c) * jitter[p.index])
    speedup = summary["cells"][0]["speedup"]
    assert speedup["low"] < 1.65 and speedup["high"] > 1.85
    jitter = [1.0, 1.1, 1.2, 1.3]
    summary = written(tmp_path / "drift", times=lambda p, c: times(p, c) * jitter[p.index])
    assert [finding for finding in summary["findings"] if "canary of the baseline" in finding]


@pytest.mark.parametrize(
    ("floor", "place", "result"), [(3.0, 1, "failed"), (1.0, 4, "failed"), (0.3, 4, "passed"), (1.7, 1, "inconclusive")]
)
def test_gate(tmp_path: Path, floor: float, place: int, result: str) -> None:
    settings = SETTINGS.model_copy(update={"min_speedup": floor, "gate_concurrency": place})
    jitter = [1.0, 1.03, 0.99, 1.02] if result == "inconclusive" else [1.0] * 4
    assert written(tmp_path, settings, lambda p, c: times(p, c) * jitter[p.index])["gate"] == result


def test_counts_from_a_server(tmp_path: Path) -> None:
    summary = run(tmp_path)
    alone = summary["cells"][0]
    assert summary["order"] == "ABBA" and summary["invalid"] == []
    assert alone["acceptance"]["rounds"] == 2 * 3 * 15 and alone["acceptance"]["accept_len"] == 2.0
    assert alone["output_tokens"] == {"baseline": 2 * 3 * 31, "speculative": 2 * 3 * 31}
    assert summary["accept_len_by_source"] == {"chat": 2.0, "code": 2.0}
    assert json.loads((tmp_path / "bench" / "summary.json").read_text()) == summary
    assert summarise(tmp_path / "bench") == summary
    for row in read_jsonl(tmp_path / "bench" / LAUNCHES):
        assert {"launch", "pair", "arm", "argv", "env", "ready_s", "canary_tok_s", "cells"} <= row.keys()
        assert all({"concurrency", "window_s", "output_tokens", "requests", "acceptance"} <= cell.keys() for cell in row["cells"])


def test_invalid_launches_are_left_out_and_reach_the_gate(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"pairs": 3})
    everyone = {prompt.token_ids[0]: "cut" for prompt in PROMPTS}
    summary = run(tmp_path, lambda p: server(p, faults=everyone) if p.index == 1 else server(p), settings)
    assert {row["launch"] for row in summary["invalid"]} == {1}
    assert (summary["launches"], summary["launches_used"]) == (6, 5)
    assert summary["cells"][0]["speedup"]["pairs"] == 2 and len(summary["cells"][0]["speculative_tok_s"]["launches"]) == 2
    assert summary["gate"] == "inconclusive" and "1 launch is invalid" in summary["gate_reason"]


def test_a_drafter_that_is_never_right_is_no_verdict(tmp_path: Path) -> None:
    summary = run(tmp_path, lambda p: Behaviour(accepted=(0,), depth=3) if p.depth else Behaviour())
    assert len({row["launch"] for row in summary["invalid"]}) == 2
    assert all(cell["speedup"] is None and cell["verdict"] == "inconclusive" for cell in summary["cells"])
    assert summary["gate"] == "inconclusive"
    assert summary["verdict_sentence"].startswith("EAGLE-3 with 3 drafts at concurrency 1 has too few valid launches")


def test_shorter_answers_in_one_arm_are_a_finding(tmp_path: Path) -> None:
    summary = run(tmp_path, lambda p: server(p, answer_tokens=29) if p.depth else server(p))
    assert any("answers are 6.5% shorter" in finding for finding in summary["findings"]), summary["findings"]


def test_acceptance_by_category_needs_rounds_by_request() -> None:
    counted = Acceptance(30, (20, 10, 0))
    by_chunks = [Reply(f"r{i}", True, completion_tokens=31, num_chunks=11, category="ab"[i % 2]) for i in range(3)]
    found = acceptance_by_category(by_chunks, counted)
    assert found == {name: {"rounds": 10 * n, "accept_len": 3.0, "survival": None} for name, n in (("a", 2), ("b", 1))}
    assert acceptance_by_category(by_chunks, Acceptance(40, (20, 10, 0))) is None  # chunks do not add up to the server's rounds
    told = [replace(reply, num_chunks=2, rounds=10, reached=(5, 2)) for reply in by_chunks]
    assert acceptance_by_category(told, None) == {
        name: {"rounds": 10 * n, "accept_len": pytest.approx(1.7), "survival": [0.5, 0.2]} for name, n in (("a", 2), ("b", 1))
    }


def test_arms_differ_only_in_the_drafter() -> None:
    launches = plan_launches(BenchSettings(pairs=2), Job(Path("run"), Path("t"), EngineSettings(name="x==1"), DrafterSettings(depth=5)))
    a, b = launches[0].launch, launches[1].launch
    assert b.drafting is not None and (b.drafting.folder, b.drafting.depth) == (Path("run/export"), 5)
    assert a == b.with_(arm="baseline", drafting=None)


def test_plan_counts_launches() -> None:
    settings = BenchSettings(requests=(6, 24))
    found = plan(settings, Job(Path("run"), Path("t"), EngineSettings(name="x==1"), DrafterSettings()))
    assert found.launches == 6 and 200 < found.seconds < 500


def test_sentence_for_an_inconclusive_cell() -> None:
    speedup = {"ratio": 1.02, "low": 0.95, "high": 1.09, "pairs": 3, "confidence": 0.95}
    cell = {"concurrency": 8, "label": "C=8", "speedup": speedup, "verdict": "inconclusive", "acceptance": {"accept_len": 1.951}}
    assert verdict_sentence([cell | {"load": {"kind": "closed"}, "verdict_reason": ""}], "EAGLE-3 with 3 drafts") == (
        "EAGLE-3 with 3 drafts is inconclusive at concurrency 8: 1.02x (95 % interval 0.95-1.09, 3 pairs, accept_len 1.95)"
    )


@pytest.mark.parametrize(
    "update",
    [{"requests": (8,)}, {"concurrency": (1, 1)}, {"requests": (6, 15)}, {"gate_concurrency": 2}, {"warmup_requests": (0, 8)}],
)
def test_settings_that_cannot_be_meant(update: dict) -> None:
    with pytest.raises(ValidationError):
        BenchSettings(**update)


def test_thinking_is_told_apart_where_there_is_any(tmp_path: Path) -> None:
    assert run(tmp_path)["cells"][0]["reasoning"] is None
    settings = SETTINGS.model_copy(update={"endpoint": "chat"})
    prompts = [replace(prompt, token_ids=(), messages=({"role": "user", "content": str(prompt.token_ids[0])},)) for prompt in PROMPTS]
    starter = mock_starter(lambda p: replace(server(p), thinking=10))
    summary = measure(settings, job(tmp_path / "thinks"), starter, "target", Prompting(prompts))
    cell = summary["cells"][0]
    assert cell["reasoning"] == {arm: {"reasoning_tokens": 2 * 3 * 10, "answer_tokens": 2 * 3 * 21} for arm in ("baseline", "speculative")}
    latency = cell["latency"]["baseline"]
    assert latency["ttfo_s"]["p50"] > latency["ttft_s"]["p50"] + 0.005, "the answer begins after ten tokens of thought"
    assert cell["finish"]["baseline"] == {"length": 6} and cell["goodput"] is None


def test_goodput_over_launches(tmp_path: Path) -> None:
    summary = run(tmp_path, settings=SETTINGS.model_copy(update={"slo": {"e2e_s": 60.0}}))
    for cell in summary["cells"]:
        good = cell["goodput"]["baseline"]
        assert good["share"] == 1.0 and good["low"] < 1 and good["slo"] == {"e2e_s": 60.0}
        assert good["requests_s"] == pytest.approx(cell["baseline_tok_s"]["mean"] / 31, rel=0.5)
