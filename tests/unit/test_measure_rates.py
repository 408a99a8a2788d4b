"""What the estimates of --dry-run go by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftsmith.bench.settings import BenchSettings
from draftsmith.bench.stage import plan
from draftsmith.data.settings import DataSettings
from draftsmith.data.stage import plan as data_plan
from draftsmith.job import Job, Talk
from draftsmith.measure.rates import ASSUMED, rates
from draftsmith.settings import DrafterSettings, EngineSettings


def test_measured_steps_give_rates(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"decode_step_s": {"1": {"value": 0.001}, "8": {"value": 0.002}}}))
    found = rates(tmp_path)
    assert found.measured and [round(found.at(c)) for c in (1, 4, 8, 64)] == [1000, 1000, 4000, 4000]


@pytest.mark.parametrize("text", ["{", "{}", '{"decode_step_s": {}}', '{"decode_step_s": {"1": {"value": 0}}}', '{"decode_step_s": null}'])
def test_without_a_measurement_they_are_assumed_and_said_to_be(text: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(text)
    assert rates(tmp_path) == rates(tmp_path / "nowhere") == ASSUMED and not ASSUMED.measured


def test_an_estimate_follows_the_machine_once_break_even_has_run(tmp_path: Path) -> None:
    job = Job(tmp_path, tmp_path / "target", EngineSettings(name="sglang==0.5.17"), DrafterSettings(), Talk(quiet=True))
    settings = BenchSettings(concurrency=(1, 8), requests=(20, 80), output_tokens=128)
    before, asking = plan(settings, job), data_plan(DataSettings(), job)
    (tmp_path / "breakeven").mkdir()
    steps = {"1": {"value": 0.0011}, "8": {"value": 0.0012}}
    (tmp_path / "breakeven" / "summary.json").write_text(json.dumps({"decode_step_s": steps}))
    after, asking_after = plan(settings, job), data_plan(DataSettings(), job)
    assert after.seconds < before.seconds / 2 and asking_after.seconds < asking.seconds
    assert "two CPU cores" in before.note and "break-even measured" in after.note and "measured by break-even" in asking_after.note
