"""A tune on mock servers: the whole way, killed and started again, and a schedule that drafts nothing somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tune_world import SMALL, conclude_on, job, setting_of

from draftsmith.manifest import read_jsonl
from draftsmith.measure.protocol import LAUNCHES
from draftsmith.measure.recorder import Planned
from draftsmith.tune.candidates import Arm, Candidate
from draftsmith.tune.experiment import Experiment
from draftsmith.tune.settings import TuneSettings
from mock_server import Behaviour, mock_starter


def test_on_mock_servers(tmp_path: Path) -> None:
    def behaviour(planned: Planned) -> Behaviour:
        most = planned.depth
        return Behaviour(accepted=tuple(min(most, n) for n in (3, 0, 2)), depth=most) if most else Behaviour()

    content = conclude_on(tmp_path, SMALL, mock_starter(behaviour))
    assert content["invalid"] == [] and (tmp_path / "tune" / "tune.html").exists()
    assert content["acceptance"]["survival"] == pytest.approx([2 / 3, 2 / 3, 1 / 3], abs=0.2)
    assert {row["speedup"]["pairs"] for row in content["concurrency"]} == {2}


def test_a_tune_that_was_killed_measures_only_what_is_missing(tmp_path: Path, child_env: dict[str, str]) -> None:
    log = tmp_path / "tune" / LAUNCHES
    child = subprocess.Popen([sys.executable, str(Path(__file__).with_name("killed_tune.py")), str(tmp_path)], env=with_units(child_env))
    deadline = time.monotonic() + 60
    while len(read_jsonl(log)) < 4:
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    child.kill()
    child.wait()
    before = [row["started"] for row in read_jsonl(log)]
    assert not (tmp_path / "tune" / "tune.json").exists()
    content = conclude_on(tmp_path, SMALL, mock_starter(lambda p: Behaviour(accepted=(1, 0), depth=p.depth) if p.depth else Behaviour()))
    rows = read_jsonl(log)
    assert [row["started"] for row in rows][: len(before)] == before and content["launches"] == len(rows)
    assert [row["launch"] for row in rows] == list(range(len(rows)))


def with_units(env: dict[str, str]) -> dict[str, str]:
    return {**env, "PYTHONPATH": os.pathsep.join([env["PYTHONPATH"], str(Path(__file__).parent)])}


def test_a_schedule_that_drafts_nothing_somewhere_is_no_fault_there(tmp_path: Path) -> None:
    settings = TuneSettings.model_validate({"depths": (3,), "concurrency": (1,), "requests": (2,), "warmup_requests": (1,)})
    launches = {"schedule": setting_of(job(tmp_path), settings).launch(Arm(Candidate("chain", 3, 4)))}
    for quiet, valid in (((1,), True), ((), False)):
        experiment = Experiment(setting_of(job(tmp_path / str(valid)), settings, start=mock_starter(lambda _: Behaviour())))
        experiment.add("schedule", {Arm(Candidate("schedule", 3, 4)): (1,)}, 1, launches, quiet)
        experiment.run()
        assert (experiment.invalid() == []) == valid and experiment.acceptance(Arm(Candidate("schedule", 3, 4))) is None
