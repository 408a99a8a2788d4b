"""The all-reduce probe: planted latency and bandwidth come back, the real probe runs on gloo, multicast cannot be switched on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.measure import collectives
from draftsmith.measure.collectives import BF16_BYTES, AllReduce, Arm, Settings, fit_all_reduce, knee_rows

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def planted(ranks: int, t0_s: float, bandwidth: float, noise: float, seed: int) -> tuple[list[float], list[float]]:
    draw = np.random.default_rng(seed)
    payloads = [rows * 7168 * BF16_BYTES for rows in ROWS]
    exact = [t0_s + 2 * (ranks - 1) / ranks * size / bandwidth for size in payloads]
    return [float(size) for size in payloads], [value * float(np.exp(draw.normal(0, noise))) for value in exact]


def test_exact_times_give_the_planted_values() -> None:
    fit = fit_all_reduce(*planted(8, 30e-6, 50e9, 0.0, 0), 8)
    assert fit["t0_s"] == pytest.approx(30e-6, rel=1e-5)
    assert fit["bandwidth_bytes_s"] == pytest.approx(50e9, rel=1e-5)
    # R* = t0 * bandwidth * N / (2 (N - 1) * 2 H), about 60 rows for Kimi on 8 PCIe GPUs
    assert knee_rows(fit, 8, 7168).value == pytest.approx(30e-6 * 50e9 * 8 / (2 * 7 * 2 * 7168), rel=1e-4)


def test_intervals_cover_the_planted_values() -> None:
    hits = {"t0_s": 0, "bandwidth_bytes_s": 0, "knee": 0}
    truth = {"t0_s": 12e-6, "bandwidth_bytes_s": 20e9, "knee": 12e-6 * 20e9 / (BF16_BYTES * 7168)}
    runs = 200
    for seed in range(runs):
        fit = fit_all_reduce(*planted(2, 12e-6, 20e9, 0.05, seed), 2)
        found = {name: fit.interval(name) for name in fit.names} | {"knee": knee_rows(fit, 2, 7168)}
        for name, value in truth.items():
            hits[name] += found[name].low <= value <= found[name].high
    assert all(0.90 <= count / runs <= 0.99 for count in hits.values()), hits


def test_flat_times_leave_the_bandwidth_open_instead_of_failing() -> None:
    fit = fit_all_reduce([1e3, 1e4, 1e5, 1e6], [1e-5] * 4, 2)
    assert fit["t0_s"] == pytest.approx(1e-5, rel=1e-2)
    inside = fit.interval("bandwidth_bytes_s")
    assert inside.high / inside.low > 100


def test_a_table_answers_at_its_points_between_and_beyond() -> None:
    table = AllReduce(2, (8192.0, 65536.0, 524288.0), (10e-6, 10e-6, 24e-6))
    assert table.at(1, 4096) == pytest.approx(10e-6)
    assert 10e-6 < table.at(32, 4096) < 24e-6
    assert table.at(128, 4096) == pytest.approx(24e-6 + (24e-6 - 10e-6) / (524288 - 65536) * 524288)
    assert AllReduce.given(2, 10e-6, 50e9).at(64, 4096) == pytest.approx(10e-6 + 524288 / 50e9, rel=1e-9)


def test_a_gather_moves_half_of_what_an_all_reduce_moves() -> None:
    """Through the library that gathers, where the engine's own kernel only reduces."""
    own, nccl = AllReduce.given(4, 5e-6, 300e9), AllReduce.given(4, 12e-6, 150e9)
    assert own.gather(64, 32000) == pytest.approx(5e-6 + 0.75 * 64 * 32000 * 2 / 300e9, rel=1e-9)
    assert replace(own, gathers=nccl).gather(64, 32000) == pytest.approx(12e-6 + 0.75 * 64 * 32000 * 2 / 150e9, rel=1e-9)
    assert own.gather(64, 0) == 0.0, "logits of an unknown width"
    assert AllReduce(1, (), ()).at(64, 4096) == 0.0


@pytest.mark.parametrize("env", [{"NCCL_NVLS_ENABLE": "1"}, {"NCCL_ALGO": "NVLS"}, {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "0"}])
def test_no_arm_can_switch_multicast_on(env: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="multicast"):
        collectives.environment(Arm("wrong", env))


def test_multicast_is_off_whatever_the_caller_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    for arm in collectives.GPU_ARMS:
        assert collectives.MULTICAST_OFF.items() <= collectives.environment(arm).items()


def test_the_probe_runs_with_two_processes(tmp_path: Path) -> None:
    settings = Settings(ranks=2, device="cpu", rows=(1, 8, 64, 512), hidden=(64, 128), inner=2, samples=3)
    document = collectives.run(settings, [Arm("gloo")], tmp_path)
    assert json.loads((tmp_path / "collectives.json").read_text())["arms"][0]["points"] == document["arms"][0]["points"]
    [entry] = document["arms"]
    assert entry["failed"] == "" and entry["ranks"] == 2
    assert [(p["rows"], p["hidden"]) for p in entry["points"]] == [(r, h) for h in (64, 128) for r in (1, 8, 64, 512)]
    assert all(len(p["eager"]) == 3 and min(p["eager"]) > 0 and "graph" not in p for p in entry["points"])
    assert set(entry["fits"]) == {"eager"} and set(entry["fits"]["eager"]["knee_rows"]) == {"64", "128"}
    assert AllReduce.from_probe(entry, "eager").at(8, 64) > 0


def test_a_probe_that_cannot_run_says_why(tmp_path: Path) -> None:
    settings = Settings(ranks=1, device="cpu", rows=(-1,), hidden=(64,), inner=1, samples=1)
    with pytest.raises(EnvironmentFailed, match=r"non-negative"):
        collectives.run(settings, [Arm("broken")], tmp_path)
