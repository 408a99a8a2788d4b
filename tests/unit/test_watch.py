"""The monitor on made-up traffic: each alarm planted and named, none on good traffic, restarts, silence, a server without positions."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_engines_commands import SGLANG_PAGE, VLLM_PAGE
from watch_traffic import DEPTH, LOGITS, TRAFFIC, Server, Traffic, reported, watched

from draftsmith.engines.rounds import LiveCounts
from draftsmith.engines.sglang import rounds as sglang
from draftsmith.engines.vllm import rounds as vllm
from draftsmith.errors import UsageError
from draftsmith.metrics import Acceptance
from draftsmith.watch.alarms import KINDS
from draftsmith.watch.counting import Meter, Span, between, restarted
from draftsmith.watch.expected import Reference, expected_of
from draftsmith.watch.monitor import Monitor, Settings
from draftsmith.watch.spread import Dispersion, critical, half_width, prior_effect, round_variance

USUAL = TRAFFIC["usual"]
HOUR = 3600.0
SETTINGS = Settings()


# --- false alarms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "days"), [("usual", 4.0), ("little", 8.0), ("long answers", 5.0)])
def test_good_traffic_raises_no_alarm(name: str, days: float) -> None:
    """17 days with a mix that changes over the day. At one false alarm in 100 days, which is claimed, none is what to expect."""
    monitor, told = watched(Server(TRAFFIC[name], 11), days, reported(TRAFFIC[name], 12))
    assert told == [] and monitor.alarms.fired == []
    assert monitor.looks > 200 * days and monitor.base_looks >= 12  # it did look


def test_the_statistic_is_calibrated_without_the_margin() -> None:
    """The margin is for a mix that changes. With none, and held against the truth itself, chance alone stays below the critical value."""
    traffic = replace(USUAL, swing=0.0)
    survival = Server(traffic, 3).advance(300 * HOUR)
    truth = Reference("the truth", 1 + sum(survival.reached) / (survival.rounds or 1))
    monitor = Monitor(Settings(margin=0.0), DEPTH, truth)
    server, away = Server(traffic, 4), []
    for i in range(4 * 288):
        counts = server.advance(300.0)
        before = monitor.look + (between(monitor.meter.last, counts, 300.0) if monitor.meter.last else Span())
        effect = monitor.dispersion.effect(before, monitor.running or 0.0)
        if before.rounds:
            away += [(t.value - t.threshold) / t.error for t in monitor.tests(before, effect) if t.name == "drift_from_report"]
        assert monitor.read(counts, 300.0 * i) == []
    assert 0.8 < np.std(away) < 1.2 and abs(np.mean(away)) < 0.3


def test_the_design_effect_is_learned() -> None:
    """Requests that differ more have a larger one; 40 looks are enough to see it."""
    effects = []
    for scatter in (0.0, 1.5):
        monitor, _ = watched(Server(Traffic(1.0, scatter, 120.0, 0.0), 5), 0.5)
        effects.append(monitor.dispersion.factor)
    assert effects[0] < 0.9 * effects[1]


def test_the_variance_of_a_round_is_exact() -> None:
    accepted = [0] * 500 + [1] * 300 + [2] * 150 + [3] * 50
    counted = Acceptance.from_rounds(accepted, 3)
    assert round_variance(counted) == pytest.approx(np.var(accepted), rel=0.01)
    assert round_variance(Acceptance(1000, (0, 0, 0))) > 0  # nothing accepted is not certain for ever
    assert Reference.of("x", counted).variance == pytest.approx(np.var(accepted))
    span = Span(300, 4000, 1000, counted.accepted, counted.reached, requests=100)
    assert prior_effect(span, 0.0) == pytest.approx(1 + 0.2 * 9) and Dispersion().effect(span, 0.0) == pytest.approx(2.8)
    assert half_width(span, 2.8) == pytest.approx(1.96 * math.sqrt(2.8 * np.var(accepted) / 1000), rel=0.01)
    assert critical(288 * 8, 1e9) == pytest.approx(4.45, abs=0.02) and critical(288 * 8, 20) > 5


# --- planted faults --------------------------------------------------------------------------------------------------


def plant(fault: np.ndarray, after_s: float = 2 * HOUR, days: float = 0.25, expect: bool = False) -> tuple[Monitor, list[str]]:
    """Good traffic for two hours, then other logits."""
    server = Server(USUAL, 21, lambda at_s: LOGITS if at_s < after_s else fault)
    return watched(server, days, reported(USUAL, 22) if expect else None)


def test_exactly_one() -> None:
    """A drafter that is never right. The weaker alarms that follow from it may sound too."""
    monitor, told = plant(np.full(3, -50.0), after_s=0.0, days=1 / 288 + 1e-6)
    assert told == []  # the first reading is a beginning
    monitor, told = plant(np.full(3, -50.0), after_s=0.0, days=2 / 288)
    assert monitor.alarms.on == ["accept_len_one"] and "exactly 1.00 over" in told[0] and "verify wiring" in told[0]


def test_the_first_position_collapses_against_the_own_start() -> None:
    monitor, told = plant(np.array([-2.0, 0.3, 0.2]))
    assert "first_position_collapse" in monitor.alarms.on and "position_collapse" not in monitor.alarms.fired
    assert any("draft 1 accepted in" in text and "at the start of the watch" in text for text in told)


def test_a_start_of_a_single_window_still_becomes_three_looks() -> None:
    """--baseline-s may be as short as --window-s; with fewer looks nothing would ever be held against the start."""
    server = Server(USUAL, 21, lambda at_s: LOGITS if at_s < 1800 else np.array([-2.0, 0.3, 0.2]))
    monitor, told = watched(server, 1 / 12, settings=Settings(baseline_s=300.0))
    assert monitor.base_looks == 3 and any(text.startswith("ALARM first_position_collapse") for text in told)


def test_a_drafter_that_never_was_right_has_nothing_to_collapse() -> None:
    """The start of the watch and the report know no acceptance: no division by it, and the one alarm that is due."""
    never = Reference("in the report", 1.0, (0.0, 0.0, 0.0), 1000)
    monitor, told = watched(Server(USUAL, 26, lambda at_s: np.full(3, -60.0)), 0.1, never)
    assert monitor.base_looks == 0 and monitor.alarms.fired == ["accept_len_one"] and len(told) == 1
    seldom, told = watched(Server(USUAL, 27, lambda at_s: np.array([-4.0, -60.0, 0.0])), 0.1)
    assert seldom.base_looks > 3 and told == []  # drafts 2 and 3 were never accepted


def test_the_first_position_is_far_below_the_report_from_the_start() -> None:
    monitor, told = plant(np.array([-2.0, 0.3, 0.2]), after_s=0.0, days=0.1, expect=True)
    assert set(monitor.alarms.on) == {"first_position_collapse", "drift_from_report"}
    assert any("in the report" in text for text in told)


def test_a_later_position_collapses_alone() -> None:
    monitor, told = plant(np.array([0.55, -2.5, 0.2]))
    assert "position_collapse" in monitor.alarms.on and "first_position_collapse" not in monitor.alarms.fired
    assert any("draft 2 accepted where draft 1 was" in text for text in told)


def test_slow_decay_is_seen() -> None:
    """accept_len goes from 2.3 to 1.8 over two hours, as with a cache fault that grows; told before the last hour has lost 20 %."""
    server = Server(USUAL, 23, lambda at_s: LOGITS - 0.6 * min(1.0, max(0.0, (at_s - HOUR) / (2 * HOUR))))
    monitor, told = watched(server, 0.25)
    assert monitor.alarms.fired == ["decay"] and "restart one server and compare" in told[0]
    at = re.search(r"accept_len (\S+) in", told[0])
    assert at and float(at[1]) > 0.8 * 2.3 and monitor.alarms.state["decay"].since_s < 3.25 * HOUR


def test_drift_from_the_report_and_back() -> None:
    """Below the report from the first look on; it goes off when acceptance comes back."""
    server = Server(USUAL, 24, lambda at_s: LOGITS - (1.0 if at_s < HOUR else 0.0))
    monitor = Monitor(SETTINGS, DEPTH, reported(USUAL, 25))
    told: list[str] = []
    for i in range(24):
        told += monitor.read(server.advance(300.0), 300.0 * i)
    assert monitor.alarms.fired == ["drift_from_report"] and monitor.alarms.on == []
    assert told[0].startswith("ALARM drift_from_report: accept_len") and told[1].startswith("alarm drift_from_report is over")
    assert "holds only if this traffic is like the report's prompts" in told[0]


def test_not_speculating() -> None:
    """Drafts stop, tokens do not; then half of the tokens come without drafts; then all is well."""
    monitor = Monitor(Settings(10.0, 60.0, 600.0), DEPTH)
    counts = LiveCounts(tokens=0, requests=0, rounds=0, drafted=0, accepted=0, reached=(0, 0, 0), running=64.0)
    told: list[str] = []
    for i in range(40):
        rounds, plain = (0, 400) if 10 <= i < 20 else (100, 600) if 20 <= i < 30 else (200, 0)
        before = counts.reached
        reached = (before[0] + rounds // 2, before[1] + rounds // 4, before[2])
        tokens = (counts.tokens or 0) + rounds + rounds // 2 + rounds // 4 + plain
        counts = replace(counts, tokens=tokens, rounds=(counts.rounds or 0) + rounds, accepted=sum(reached), reached=reached)
        told += [f"{i}: {text}" for text in monitor.read(counts, 10.0 * i)]
    assert len(told) == 2 and told[0].startswith(
        "11: ALARM not_speculating: 800 decoded tokens in a row without a round, 64 requests running"
    )
    assert "alarm not_speculating is over: 0 % of" in told[1] and int(told[1].split(":")[0]) >= 30


def test_a_drafter_that_seldom_proposes_is_told_without_enough_rounds_for_a_look() -> None:
    """As n-gram drafting on text that does not repeat: one round in a hundred tokens, and those rounds are good."""
    monitor = Monitor(Settings(10.0, 60.0, 600.0), DEPTH)
    told: list[str] = []
    for i in range(20):
        counts = LiveCounts(500 * i, 5 * i, 5 * i, 15 * i, 15 * i, (5 * i, 5 * i, 5 * i), 4.0)
        told += monitor.read(counts, 10.0 * i)
    assert monitor.alarms.on == ["not_speculating"] and monitor.looks == 0
    assert told[0].startswith("ALARM not_speculating: 96 % of 2,970 decoded tokens came without drafts")


# --- restarts, silence, losses ---------------------------------------------------------------------------------------


def counts_of(rounds: int, born: float | None = None) -> LiveCounts:
    return LiveCounts(3 * rounds, rounds // 50, rounds, 3 * rounds, rounds, (rounds // 2, rounds // 2), 1.0, None, born)


def test_a_restart_is_told_and_never_counted_negative() -> None:
    monitor = Monitor(SETTINGS, 2)
    told: list[str] = []
    for i, rounds in enumerate([1000, 1500, 2000, 100, 600]):
        told += monitor.read(counts_of(rounds), 10.0 * i)
        assert monitor.last is None or monitor.last.rounds == 500
    assert len(told) == 1 and "restarted" in told[0]
    assert monitor.meter.total.rounds == 1500 and monitor.meter.restarts == 1 and monitor.window.rounds == 500
    younger = counts_of(5000, born=2000.0)
    assert restarted(counts_of(10, born=1000.0), younger) and not restarted(counts_of(10, born=2000.4), younger)  # busy at once


def test_another_depth_after_a_restart_begins_anew() -> None:
    monitor = Monitor(SETTINGS, 2, Reference("in the report", 1.75, (0.5, 0.25), 1000))
    monitor.read(counts_of(1000), 0.0)
    monitor.base, monitor.base_looks = Span(300, 900, 300, 100, (60, 40)), 5
    [text] = monitor.read(replace(counts_of(10), reached=(5,)), 10.0)
    assert "1 drafts a round" in text and monitor.base_looks == 0
    assert monitor.expected is not None and monitor.expected.accept_len == pytest.approx(1.5)


def test_servers_behind_one_address_are_guessed() -> None:
    monitor = Monitor(SETTINGS, 2)
    told = [text for i in range(8) for text in monitor.read(counts_of(9000 + i if i % 2 else 100 + i), 10.0 * i)]
    assert sum("several servers behind one address" in text for text in told) == 1


def test_silence_is_told_once_and_is_no_alarm() -> None:
    monitor = Monitor(SETTINGS, 2)
    told = [text for i in range(30) for text in monitor.read(counts_of(1000), 10.0 * i)]
    assert told == ["no rounds in the last 01:00: no traffic"]
    assert monitor.read(counts_of(1100), 300.0) == ["traffic again after 04:50"]
    assert monitor.alarms.fired == []


def test_a_lost_connection_is_told_once_and_the_gap_is_counted() -> None:
    monitor = Monitor(SETTINGS, 2)
    monitor.read(counts_of(1000), 0.0)
    assert monitor.missed("connection refused", 10.0) == ["no reading: connection refused; going on"]
    assert monitor.missed("connection refused", 20.0) == [] and not monitor.up
    assert monitor.read(counts_of(1600), 30.0) == ["answers again after 00:20"]
    assert monitor.up and monitor.last is not None and (monitor.last.rounds, monitor.last.seconds) == (600, 30.0)


def test_the_window_slides() -> None:
    meter = Meter(30.0)
    for i in range(10):
        meter.read(counts_of(1000 + 100 * i), 10.0 * i)
    assert (meter.window.rounds, meter.window.seconds) == (300, 30.0) and meter.total.rounds == 900


# --- what servers tell -----------------------------------------------------------------------------------------------


def test_pages_of_the_engines() -> None:
    told = vllm.live_counts(VLLM_PAGE)
    assert (told.rounds, told.drafted, told.accepted, told.reached, told.tokens) == (57, 171, 44, (27, 12, 5), 100)
    assert told.running is None and told.requests is None  # not on this page: absent, not 0
    told = sglang.live_counts(SGLANG_PAGE)
    assert (told.rounds, told.accepted, told.reached, told.drafted, told.told_accept_len) == (60, 37, (), None, 1.6)


def test_sglang_without_positions() -> None:
    """Means are judged, positions are not; 1.00 is seen too. Nothing is made up for what is not told."""
    monitor = Monitor(SETTINGS, 3, Reference("expected", 2.5))
    told: list[str] = []
    for i in range(40):
        rounds, requests = 3000 * (i + 1), 30 * (i + 1)
        accepted = int(0.6 * rounds) if i < 30 else int(0.6 * 90000)
        counts = LiveCounts(rounds + accepted + requests, requests, rounds, None, accepted)
        told += monitor.read(counts, 300.0 * i)
    assert monitor.alarms.fired == ["accept_len_one", "decay", "drift_from_report"]
    assert monitor.window.survival == () and monitor.window.drafted is None
    assert "accept_len exactly 1.00 over 3,000 rounds" in told[1]


def test_sglang_that_counts_no_rounds() -> None:
    """Releases without a counter of verify calls tell an average only. Not counted is not "not speculating"."""
    monitor = Monitor(SETTINGS, 3)
    for i in range(10):
        assert monitor.read(LiveCounts(tokens=1000 * i, requests=10 * i, told_accept_len=1.8), 10.0 * i) == []
    told = [
        text for i in range(10, 13) for text in monitor.read(LiveCounts(tokens=1000 * i, requests=10 * i, told_accept_len=1.0), 10.0 * i)
    ]
    assert monitor.uncounted and monitor.alarms.on == ["accept_len_one"] and len(told) == 1


# --- what is expected ------------------------------------------------------------------------------------------------


def test_the_committed_report_is_an_expectation(root: Path) -> None:
    folder = root / "results" / "smollm2-135m-instruct_eagle3_2-core-cpu_2026-11-29"
    found = expected_of(folder)
    assert found == expected_of(folder / "report.json") and found.source.startswith("served in bench")
    assert found.rounds == 894 + 3042 and found.accept_len == pytest.approx(1 + (507 + 291 + 162 + 1704 + 879 + 495) / 3936)
    assert found.at_depth(1).accept_len == pytest.approx(1 + (507 + 1704) / 3936) and found.at_depth(9) is found


def test_expectations_of_a_run(tmp_path: Path) -> None:
    """Bench before verify, served before predicted; the export folder knows its run; what was trained is no expectation."""
    acceptance = {"rounds": 100, "reached": [60, 30]}
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="no accept_len that was served or predicted"):
        expected_of(tmp_path / "export")
    (tmp_path / "verify").mkdir()
    (tmp_path / "verify" / "verify.json").write_text(json.dumps({"replay": {"predicted": acceptance, "served": None}}))
    assert expected_of(tmp_path / "export").source.startswith("replay, predicted")
    (tmp_path / "bench").mkdir()
    cells = [{"acceptance": {"rounds": 200, "reached": [100, 40]}}, {"acceptance": None}, {"acceptance": acceptance}]
    (tmp_path / "bench" / "summary.json").write_text(json.dumps({"cells": cells}))
    assert expected_of(tmp_path) == Reference(
        f"served in bench, {tmp_path / 'bench' / 'summary.json'}", 1 + 230 / 300, (160 / 300, 70 / 300), 300
    )
    (tmp_path / "report.json").write_text(json.dumps({"acceptance": [{"kind": "training", **acceptance}]}))
    assert expected_of(tmp_path).source.startswith("served in bench")  # teacher-forced acceptance of training is passed over
    (tmp_path / "report.json").write_text("[]")
    with pytest.raises(UsageError, match=r"report\.json is not readable"):
        expected_of(tmp_path)


def test_every_alarm_says_what_it_means_and_what_to_do() -> None:
    assert list(KINDS) == [
        "accept_len_one",
        "first_position_collapse",
        "position_collapse",
        "decay",
        "drift_from_report",
        "not_speculating",
    ]
    assert all(len(kind.means) > 40 and ("draftsmith" in kind.todo or "restart" in kind.todo) for kind in KINDS.values())
