"""kill -9, Ctrl-C and SIGTERM at random points: the same command goes on and ends with the same files."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fake_stages
from draftsmith.manifest import MANIFEST, Manifest
from draftsmith.stages import STAGES

NUM_PIECES = len(STAGES) * fake_stages.COUNT
KILLS = 24


def start(recipe: Path, run: Path, env: dict[str, str], **more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fake_stages", "run", str(recipe), "--run-folder", str(run)]
    env = {**env, "FAKE_SAYS_PIECES": "1", **more}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear_signals)


def hear_signals() -> None:
    """Tests in the background of a script ignore Ctrl-C, and would hand that on."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def wait_for_pieces(child: subprocess.Popen[str], count: int) -> bool:
    """True once the child has made `count` pieces, False when it ended before."""
    assert child.stderr is not None
    for line in child.stderr:
        count -= line.startswith("piece ")
        if count <= 0:
            return True
    return False


def artifacts(run: Path) -> dict[str, object]:
    """Every stage's files, and of its manifest what is not time."""
    found: dict[str, object] = {}
    for stage in STAGES:
        for file in sorted((run / stage).rglob("*")):
            if not file.name.startswith(".") and file.name != MANIFEST:
                found[f"{stage}/{file.name}"] = file.read_bytes()
        manifest = Manifest.read(run / stage)
        assert manifest is not None
        found[f"{stage} identity"] = (manifest.identity, manifest.inputs, manifest.summary)
    return found


@pytest.fixture
def undisturbed(tmp_path: Path, child_env: dict[str, str]) -> dict[str, object]:
    recipe = fake_stages.write_recipe(tmp_path)
    child = start(recipe, tmp_path / "straight", child_env)
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 0, stderr
    assert stdout.splitlines()[-1] == "It pays."
    return artifacts(tmp_path / "straight")


def test_kill_9_at_random_points(tmp_path: Path, child_env: dict[str, str], undisturbed: dict[str, object]) -> None:
    """Kills fall inside pieces, between them, in writes of manifests and between stages. A run that got to its end before all KILLS
    have happened is compared and another one begins; the last one is compared too."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    dice = random.Random(seed)
    kills, ends, stages_hit = 0, 0, set()
    while True:
        run = tmp_path / f"run{ends}"
        child = start(tmp_path / "recipe.yaml", run, child_env)
        if kills < KILLS and wait_for_pieces(child, dice.randrange(1, 16)):
            time.sleep(dice.random() * 0.02)
            child.kill()
        _, stderr = child.communicate(timeout=60)
        if child.returncode == -signal.SIGKILL:
            kills += 1
            stages_hit |= {stage for stage in STAGES if (run / stage).exists() and not (run / stage / MANIFEST).exists()}
            continue
        assert child.returncode == 0, stderr
        assert artifacts(run) == undisturbed
        ends += 1
        if kills == KILLS:
            break
    assert len(stages_hit) >= 3, "the kills fell into different stages"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_the_command_in_order(
    tmp_path: Path, child_env: dict[str, str], undisturbed: dict[str, object], number: signal.Signals
) -> None:
    run = tmp_path / "run"
    child = start(tmp_path / "recipe.yaml", run, child_env, FAKE_PAUSE_S="0.05")
    assert wait_for_pieces(child, 12)
    child.send_signal(number)
    _, stderr = child.communicate(timeout=20)
    assert child.returncode == 130, stderr
    assert "run the same command to go on" in stderr and "Traceback" not in stderr
    again = start(tmp_path / "recipe.yaml", run, child_env)
    _, stderr = again.communicate(timeout=60)
    assert again.returncode == 0 and stderr.count("piece ") <= NUM_PIECES - 11, "what was made was not made again"
    assert artifacts(run) == undisturbed


def test_time_of_killed_starts_counts(tmp_path: Path, child_env: dict[str, str]) -> None:
    recipe = fake_stages.write_recipe(tmp_path)
    run = tmp_path / "run"
    child = start(recipe, run, child_env, FAKE_PAUSE_S="1")
    assert wait_for_pieces(child, 4)
    child.kill()
    child.communicate()
    again = start(recipe, run, child_env)
    assert again.communicate(timeout=60) and again.returncode == 0
    manifest = json.loads((run / "check" / MANIFEST).read_text())
    assert 1.9 < manifest["active_s"] < 60, "the beats of the killed start, at most one beat lost"
