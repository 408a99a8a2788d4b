"""The parts of a round: exact on traces that are made up, and from counters as the engines write them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from draftsmith.engines.rounds import RoundCounts, Split, split, split_of_folder
from draftsmith.engines.sglang import rounds as sglang
from draftsmith.engines.vllm import rounds as vllm
from draftsmith.errors import InvalidMeasurement, UsageError
from draftsmith.job import Talk
from draftsmith.serve import profile
from mock_server import Behaviour, MockServer


def span(name: str, start_ms: float, ms: float, cat: str = "user_annotation") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": start_ms * 1000, "dur": ms * 1000, "pid": 1, "tid": 1}


def rounds(num: int, period: float, verify: float, draft: float, cat: str = "user_annotation", begin: float = 0.0) -> list[dict[str, Any]]:
    """Rounds as vLLM writes them: verify, then the drafts of the next round."""
    events = []
    for i in range(num):
        at = begin + i * period
        events += [span("gpu_model_runner: forward", at, verify, cat), span("gpu_model_runner: draft", at + verify + 1, draft, cat)]
    return events


def test_a_round_is_split_exactly() -> None:
    events = rounds(6, period=40, verify=30, draft=5)
    found = split(events, vllm.SPANS)
    assert found is not None and found == Split(5, 40, 30, 5, on_gpu=False) and found.host_ms == 5  # the last one has no next
    events += [span("gpu_model_runner: postprocess", 40 * i + 30, 1) for i in range(6)]  # the target's logits
    assert split(events, vllm.SPANS) == Split(5, 40, 31, 5, on_gpu=False)


def test_prefills_are_no_rounds() -> None:
    prefill = [span("execute_context_1(200)_generation_0(0)", 1000, 300), *rounds(1, 300, 290, 5, begin=1001)]
    events = rounds(6, 40, 30, 5) + prefill + rounds(6, 40, 30, 5, begin=1300)
    found = split(events, vllm.SPANS)
    assert found is not None and found.rounds == 10  # neither the prefill, nor the rounds before and ... it
    assert (found.period_ms, found.verify_ms, found.draft_ms) == (40, 30, 5)


def test_the_devices_own_time_line_counts() -> None:
    """The host only launches: its spans are short, and the device's are what a round costs."""
    events = rounds(5, 20, 2, 1) + rounds(5, 20, 12, 6, cat="gpu_user_annotation")
    assert split(events, vllm.SPANS) == Split(4, 20, 12, 6, on_gpu=True)


def test_sglangs_names() -> None:
    events = []
    for i in range(4):
        events += [span("draft", 50 * i, 8), span("step[DECODE bs=1]", 50 * i + 1, 2)]  # a draft step lies within draft
        events += [span("step[TARGET_VERIFY bs=1]", 50 * i + 10, 30), span("draft_extend", 50 * i + 42, 4)]
    events = [event for event in events if "DECODE" not in event["name"]]
    assert split(events, sglang.SPANS) == Split(3, 50, 30, 12, on_gpu=False)


def test_traces_without_rounds_are_no_measurement(tmp_path: Path) -> None:
    (tmp_path / "front.json").write_text(json.dumps({"traceEvents": [span("api", 0, 5)]}))
    with pytest.raises(InvalidMeasurement, match="1 traces, and no round in any"):
        split_of_folder([tmp_path / "front.json"], vllm.SPANS)
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": rounds(4, 40, 30, 5)}).encode()))
    assert split_of_folder(sorted(tmp_path.iterdir()), vllm.SPANS).rounds == 3


VLLM_PAGE = """vllm:generation_tokens_total{engine="0"} 130.0
vllm:spec_decode_num_drafts_total{engine="0"} 80.0
vllm:request_decode_time_seconds_sum{engine="0"} 4.0
vllm:request_decode_time_seconds_count{engine="0"} 2.0
vllm:iteration_tokens_total_sum{engine="0"} 150.0
vllm:iteration_tokens_total_count{engine="0"} 82.0
"""
SGLANG_PAGE = """sglang:generation_tokens_total{model_name="t"} 130.0
sglang:num_requests_total{model_name="t"} 2.0
sglang:spec_verify_calls_total{model_name="t"} 80.0
sglang:e2e_request_latency_seconds_sum{model_name="t"} 4.5
sglang:time_to_first_token_seconds_sum{model_name="t"} 0.5
"""


def test_counters() -> None:
    assert vllm.round_counts(VLLM_PAGE) == RoundCounts(80, 130, 2, 4.0, 82)
    assert sglang.round_counts(SGLANG_PAGE) == RoundCounts(80, 130, 2, 4.0)
    plain = "\n".join(line for line in VLLM_PAGE.splitlines() if "spec_decode" not in line)
    assert vllm.round_counts(plain) == RoundCounts(128, 130, 2, 4.0, 82)  # every token but the first of a request
    assert vllm.round_counts("") is None and sglang.round_counts("") is None
    assert RoundCounts(5, 9, 1, 2.0, 7) - RoundCounts(1, 2, 0, 0.5, 3) == RoundCounts(4, 7, 1, 1.5, 4)


def test_a_server_without_counters_is_no_measurement() -> None:
    with MockServer(Behaviour()) as server, pytest.raises(InvalidMeasurement, match="/v1/models answered 404"):
        profile.profile(profile.Subject(server.url, "vllm"), profile.Load(1, 1, 8), Talk(quiet=True))
    with pytest.raises(UsageError, match="above zero"):
        profile.profile(profile.Subject("http://127.0.0.1:1", "vllm"), profile.Load(0, 1, 8), Talk(quiet=True))


def test_a_trace_without_names_costs_the_split_and_not_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM 0.26.0 on an H200: model runner V2 has one span a step, and none of its parts."""

    def work(*_: object) -> float:
        (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [span("execute_context_0(0)_generation_1(4)", 0, 5)]}))
        return 1.0

    monkeypatch.setattr(profile, "fetch", lambda *_: (200, ""))
    monkeypatch.setattr(profile, "work", work)
    told = profile.traced(profile.Subject("http://127.0.0.1:1", "vllm", tmp_path), vllm, "m", profile.Load(1, 1, 8), Talk(quiet=True))
    assert isinstance(told, str) and "no round in any" in told and "VLLM_USE_V2_MODEL_RUNNER=0" in told


def test_for_people() -> None:
    found = {
        "round_ms": 40.0,
        "rounds": 80,
        "tokens_per_round": 1.6,
        "split": {"draft_ms": 5.0, "verify_ms": 30.0, "host_ms": 5.0},
        "traced": {"rounds": 79, "period_ms": 55.0},
    }
    told = profile.as_text(found)
    assert "verify        30.00 ms    75 %  target model" in told and "79 traced rounds of 55.00 ms" in told
    assert "no split: why" in profile.as_text({**found, "split": None, "no_split": "why"})
