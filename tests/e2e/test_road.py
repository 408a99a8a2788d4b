"""The whole road on the real engine, with a shortened recipe, killed with kill -9 in every long stage and started again.

One run folder for all of it: an engine start takes half a minute. The command is killed once in each stage of KILLED, at a point
drawn at random, and given again; the last start walks to the verdict. What is asserted of the end is what an undisturbed run gives.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from draftsmith.flow import GATE_EXIT
from draftsmith.manifest import MANIFEST, Manifest
from draftsmith.metrics import Acceptance
from draftsmith.stages import STAGES

RECIPE = Path(__file__).with_name("road.yaml")
PATIENCE_S = 600.0
pytestmark = pytest.mark.engine


@dataclass
class Killed:
    """What one kill left behind: the processes of the command, and the files of the stage."""

    stage: str
    survivors: list[int]
    journals: dict[str, bytes]  # whole lines of each JSONL file at the time of the kill
    times: dict[str, int]  # name of a finished shard or of the manifest before -> mtime


@dataclass
class Road:
    """The run folder after all starts."""

    run: Path
    kills: list[Killed] = field(default_factory=list)
    code: int = -1
    stdout: str = ""
    stderr: str = ""

    def manifest(self, stage: str) -> Manifest:
        manifest = Manifest.read(self.run / stage)
        assert manifest is not None, stage
        return manifest

    def read(self, stage: str, name: str) -> Any:
        return json.loads((self.run / stage / name).read_text())


# --- processes -------------------------------------------------------------------------------------------------------


def parents() -> dict[int, int]:
    """pid -> pid of its parent, of all processes that are not zombies."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != "Z":
                found[int(entry.name)] = int(parent)
    return found


def descendants(root: int) -> set[int]:
    tree, found = parents(), {root}
    while more := {pid for pid, parent in tree.items() if parent in found} - found:
        found |= more
    return found - {root}


def still_there(pids: set[int], within_s: float) -> list[int]:
    """Which of these processes live on after a while."""
    deadline = time.monotonic() + within_s
    while (alive := pids & parents().keys()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return sorted(alive)


# --- walking ---------------------------------------------------------------------------------------------------------


def command(run: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "draftsmith", "run", str(RECIPE), "--run-folder", str(run), *more]


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def in_stage(run: Path, stage: str, point: Callable[[Path], bool]) -> Callable[[], bool]:
    """True once the stage has begun and reached the point."""
    folder = run / stage
    return lambda: (folder / ".key").exists() and not (folder / MANIFEST).exists() and point(folder)


def points(dice: random.Random) -> dict[str, Callable[[Path], bool]]:
    """Where each stage is killed: after some of its work is on disk, so that going on means something."""
    answers, shards, launches = dice.randrange(1, 60), dice.randrange(1, 4), dice.randrange(1, 4)
    return {
        "breakeven": lambda folder: lines_of(folder / "launches.jsonl") >= 1,
        "data": lambda folder: lines_of(folder / "answers.jsonl") >= answers,
        "capture": lambda folder: len(list(folder.glob("shard-*"))) >= shards,
        "train": lambda folder: (folder / "checkpoint.pt").exists(),
        "verify": lambda folder: any(folder.glob("*.log")),
        "bench": lambda folder: lines_of(folder / "launches.jsonl") >= launches,
    }


def walk_and_kill(road: Road, stage: str, reached: Callable[[], bool], delay_s: float, log: Path) -> None:
    """Start the command, kill it -9 in the stage, and note what was there."""
    with log.open("a") as file:
        child = subprocess.Popen(command(road.run), stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not reached():
                assert child.poll() is None, f"the command ended before {stage} could be killed:\n{log.read_text()[-3000:]}"
                assert time.monotonic() < deadline, f"{stage} was not reached in {PATIENCE_S:.0f} s:\n{log.read_text()[-3000:]}"
                time.sleep(0.05)
            time.sleep(delay_s)
            family = descendants(child.pid)
        finally:
            child.kill()
        assert child.wait() == -9, f"{stage} had ended before the kill"
    survivors = still_there(family, within_s=15)
    folder = road.run / stage
    journals = {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}
    whole = {name: content[: content.rfind(b"\n") + 1] for name, content in journals.items()}
    finished = [*folder.glob("shard-*"), *(road.run / name / MANIFEST for name in STAGES if (road.run / name / MANIFEST).exists())]
    times = {str(path.relative_to(road.run)): path.stat().st_mtime_ns for path in finished}
    road.kills.append(Killed(stage, survivors, whole, times))


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Road:
    place = tmp_path_factory.mktemp("road")
    seed = int(os.environ.get("ROAD_SEED", random.randrange(1 << 30)))
    print("ROAD_SEED", seed)
    dice = random.Random(seed)
    road, log = Road(place / "run"), place / "killed.log"
    for stage, point in points(dice).items():
        walk_and_kill(road, stage, in_stage(road.run, stage, point), delay_s=dice.random() * 2, log=log)
    done = subprocess.run(command(road.run), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE_S)
    road.code, road.stdout, road.stderr = done.returncode, done.stdout, done.stderr
    assert road.code in GATE_EXIT.values(), f"exit code {road.code}:\n{road.stderr[-3000:]}"
    return road


# --- the end ---------------------------------------------------------------------------------------------------------


def test_no_engine_outlives_a_killed_command(road: Road) -> None:
    assert {kill.stage: kill.survivors for kill in road.kills} == {kill.stage: [] for kill in road.kills}
    assert len(road.kills) == 6


def test_what_was_done_before_a_kill_is_not_done_again(road: Road) -> None:
    for kill in road.kills:
        for name, time_ns in kill.times.items():
            assert (road.run / name).stat().st_mtime_ns == time_ns, f"{name} was written again after the kill in {kill.stage}"
        for name in ("answers.jsonl", "launches.jsonl"):
            kept = kill.journals.get(name, b"")
            assert (road.run / kill.stage / name).read_bytes().startswith(kept) if kept else True, f"{kill.stage}/{name}"
    killed = {kill.stage: kill for kill in road.kills}
    assert killed["data"].journals["answers.jsonl"] and killed["bench"].journals["launches.jsonl"], "the kills fell where they should"
    assert any(name.startswith("capture/shard-") for name in killed["capture"].times)


def test_training_went_on_from_its_checkpoint(road: Road) -> None:
    rows = [json.loads(line) for line in (road.run / "train" / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows if "loss" in row]
    assert steps == list(range(1, len(steps) + 1)), "no step is missing and none is there twice"
    summary = road.manifest("train").summary
    assert steps[-1] == summary["steps"] and summary["training_s"] >= 20, "the budget is the sum over both starts"


def test_the_verdict_is_the_last_line_and_fits_the_exit_code(road: Road) -> None:
    gate = road.manifest("bench").summary["gate"]
    assert road.code == GATE_EXIT[gate]
    verdict = road.manifest("report").summary["verdict"]
    assert len(verdict) > 20 and road.stdout.splitlines()[-1] == verdict
    for name in ("report.html", "report.md", "report.json"):
        assert (road.run / "report" / name).stat().st_size > 1000, name
    assert verdict in (road.run / "report" / "report.md").read_text()


def test_every_stage_left_a_manifest_with_provenance_and_time(road: Road) -> None:
    for stage in STAGES:
        manifest = road.manifest(stage)
        assert manifest.stage == stage and manifest.outputs and not manifest.damaged(road.run / stage)
        assert manifest.active_s > 0 and manifest.started <= manifest.finished
        assert manifest.provenance["tools"]["torch"] and manifest.provenance["hardware"]["cores"]
        assert f"{stage}: " in road.stderr
    assert not list(road.run.rglob(".*.tmp")) and not list(road.run.glob("*.old"))


def test_the_numbers_hang_together(road: Road) -> None:
    verify, bench = road.read("verify", "verify.json"), road.read("bench", "summary.json")
    assert verify["export"]["equal"]
    assert verify["lossless"]["float32"]["prompts"] == 20 and verify["lossless"]["float32"]["lossless"]
    for cell in bench["cells"]:
        served = Acceptance.from_dict(cell["acceptance"])
        assert served.rounds > 0 and 1 < served.accept_len <= 4
        speedup = cell["speedup"]
        assert speedup["low"] <= speedup["ratio"] <= speedup["high"]
        assert len(cell["baseline_tok_s"]["launches"]) == len(cell["speculative_tok_s"]["launches"]) == 2


def test_the_same_command_again_does_nothing_and_says_the_same(road: Road) -> None:
    before = {path: path.stat().st_mtime_ns for path in road.run.rglob("*") if path.is_file() and path.name != ".lock"}
    done = subprocess.run(command(road.run, "--json"), capture_output=True, text=True, timeout=PATIENCE_S)
    document = json.loads(done.stdout)
    assert done.returncode == road.code == document["exit_code"]
    assert {part["state"] for part in document["stages"].values()} == {"skipped"}
    assert document["verdict"] == road.manifest("report").summary["verdict"]
    assert {path: path.stat().st_mtime_ns for path in road.run.rglob("*") if path.is_file() and path.name != ".lock"} == before


def test_the_drafter_alone_reaches_what_training_measured_and_what_was_served(road: Road) -> None:
    """No engine: `verify replay` reads what the road left, and what it says of the served tokens is what the verify stage said."""
    words = ["verify", "replay", str(RECIPE), "--run-folder", str(road.run), "--json"]
    done = subprocess.run([sys.executable, "-m", "draftsmith", *words], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["trained"]["rounds"] == result["replayed_as_trained"]["rounds"] and abs(result["trained_gap"]) <= 0.01
    mine, stage = result["served"]["replay"], road.read("verify", "verify.json")["replay"]
    assert mine["served"] == stage["served"] and abs(mine["gap"]) <= 0.05 and abs(mine["gap"] - stage["gap"]) <= 0.02


def test_the_cpu_recipe_plans_at_most_twenty_minutes(root: Path, tmp_path: Path) -> None:
    recipe = str(root / "recipes" / "smollm2-cpu.yaml")
    words = ["run", recipe, "--dry-run", "--json", "--run-folder", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-m", "draftsmith", *words], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["total"]["seconds"] <= 20 * 60 and not (tmp_path / "run").exists()
