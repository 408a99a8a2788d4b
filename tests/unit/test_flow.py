"""The flow: what is run, skipped, continued, set aside and brought back."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import SafetensorError

import fake_stages
from draftsmith import flow
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.job import Job, Talk
from draftsmith.keys import DEPENDS, PARTS, stage_config
from draftsmith.manifest import Manifest
from draftsmith.recipe import Recipe, load_recipe
from draftsmith.runfolder import TIMES, exchange, recover, worked_s, working
from draftsmith.stages import STAGES
from fake_stages import COUNT, Broken, FakeStage


class Road:
    """A run folder with fake stages, and short ways to walk it."""

    def __init__(self, place: Path, stages: dict[str, FakeStage]) -> None:
        self.stages = stages
        self.path = fake_stages.write_recipe(place)
        self.run = place / "run"

    def open(self, *overrides: str) -> tuple[Recipe, Job]:
        recipe = load_recipe(self.path, overrides)
        return recipe, flow.make_job(recipe, self.run, Talk(quiet=True))

    def walk(self, *overrides: str, until: str | None = None) -> list[str]:
        """Names of the stages that were really run."""
        outcome = flow.run(*self.open(*overrides), until)
        return [done.stage for done in outcome.stages if done.state == "done"]

    def results(self) -> dict[str, bytes]:
        return {name: (self.run / name / "result.json").read_bytes() for name in STAGES}


@pytest.fixture
def road(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Road]:
    monkeypatch.setattr(flow, "load_stage", flow.load_stage)  # put back after the test
    yield Road(tmp_path, fake_stages.install())


def test_a_second_walk_does_nothing(road: Road) -> None:
    assert road.walk() == list(STAGES)
    before = road.results()
    assert road.walk() == []
    assert road.results() == before
    assert all(stage.starts == 1 for stage in road.stages.values())


def test_the_outcome_carries_verdict_times_and_gate(road: Road) -> None:
    outcome = flow.run(*road.open())
    assert outcome.verdict == "It pays." and outcome.exit_code == 0
    assert outcome.as_dict()["stages"]["train"]["summary"] == {"pieces": COUNT}
    again = flow.run(*road.open())
    assert again.verdict == "It pays." and [done.state for done in again.stages] == ["skipped"] * len(STAGES)


@pytest.mark.parametrize(("gate", "code"), [("passed", 0), ("failed", 1), ("inconclusive", 3)])
def test_the_gate_decides_the_exit_code(road: Road, gate: str, code: int) -> None:
    road.stages["bench"].gate = gate
    assert flow.run(*road.open()).exit_code == code


@pytest.mark.parametrize(("stop", "code"), [("no", 0), ("yes", 1), ("unsure", 3)])
def test_before_a_bench_break_even_decides_the_exit_code(stop: str, code: int) -> None:
    done = [flow.Done("breakeven", "done", 1.0, {"stop": stop, "advice": "do not train"})]
    assert flow.Outcome(Path("run"), done).exit_code == code
    done += [flow.Done("bench", "done", 1.0, {"gate": "passed"})]
    assert flow.Outcome(Path("run"), done).exit_code == 0


@pytest.mark.parametrize(
    ("override", "redone"),
    [
        ("bench.pairs=6", ["bench", "report"]),
        ("bench.gates=[1.3@8]", ["bench", "report"]),  # breakeven holds them against its ceiling, but measures the same
        ("report.title=x", ["report"]),
        ("train.budget_s=1", ["train", "export", "verify", "serve", "bench", "report"]),
        ("check.concurrency=3", ["check", "report"]),
        ("serve.output_tokens=99", ["serve", "report"]),
        ("drafter.depth=4", ["check", "export", "verify", "serve", "bench", "report"]),
        ("drafter.taps=[1,2,3]", ["check", "breakeven", "capture", "train", "export", "verify", "serve", "bench", "report"]),
        ("engine.flags.max-num-seqs=8", ["check", "breakeven", "data", "capture", "train", "export", "verify", "serve", "bench", "report"]),
        ("capture.tokens_per_shard=99", ["capture", "train", "export", "verify", "serve", "bench", "report"]),
        ("engine.ready_timeout_s=9", []),
    ],
)
def test_a_changed_setting_redoes_what_depends_on_it(road: Road, override: str, redone: list[str]) -> None:
    road.walk()
    assert road.walk(override) == redone


def test_settings_that_come_back_bring_their_work_back(road: Road) -> None:
    road.walk()
    before = road.results()
    assert road.walk("bench.pairs=6") == ["bench", "report"]
    assert (road.run / "bench.old").is_dir()
    assert road.walk() == []
    assert road.results() == before
    assert road.walk("bench.pairs=6") == []
    assert road.walk("bench.pairs=8") == ["bench", "report"]
    assert sorted(place.name for place in road.run.iterdir() if ".old" in place.name) == ["bench.old", "report.old"]


def test_half_done_work_goes_on(road: Road) -> None:
    road.stages["train"].fail = Broken("the machine burns", hint="water")
    with pytest.raises(Broken):
        road.walk()
    assert Manifest.read(road.run / "capture") and Manifest.read(road.run / "train") is None
    assert road.walk() == ["train", "export", "verify", "serve", "bench", "report"]
    assert road.stages["train"].starts == 2 and road.stages["train"].pieces == COUNT, "its pieces were kept"


def test_half_done_work_for_other_settings_is_not_gone_on_with(road: Road) -> None:
    road.stages["train"].fail = Broken("stop")
    with pytest.raises(Broken):
        road.walk()
    road.walk("train.seed=5")
    assert road.stages["train"].pieces == 2 * COUNT
    assert (road.run / "train.old" / "pieces.jsonl").exists()


def test_what_killed_writers_left_is_swept(road: Road) -> None:
    road.stages["train"].fail = Broken("stop")
    with pytest.raises(Broken):
        road.walk()
    folder = road.run / "train"
    (folder / ".checkpoint.123.tmp").mkdir()
    (folder / ".checkpoint.123.tmp" / "state.pt").write_text("half")
    (folder / "deep").mkdir()
    (folder / "deep" / ".x.json.123.tmp").write_text("half")
    road.walk()
    assert not list(folder.rglob("*.tmp")) and road.stages["train"].pieces == COUNT


@pytest.mark.parametrize("harm", ["changed", "removed"])
def test_damaged_outputs_are_made_again(road: Road, harm: str) -> None:
    road.walk()
    before = road.results()
    victim = road.run / "capture" / "result.json"
    victim.write_text("{}") if harm == "changed" else victim.unlink()
    assert road.walk() == ["capture"], "made again with the same content, so that nothing after it changes"
    assert road.results() == before


def test_until_and_single_stages(road: Road) -> None:
    assert road.walk(until="data") == ["check", "breakeven", "data"]
    with pytest.raises(UsageError, match="train needs capture, which has not finished") as caught:
        flow.run_one("train", *road.open())
    assert "--until capture" in caught.value.hint
    assert flow.run_one("capture", *road.open()).stages[0].state == "done"
    assert flow.run_one("train", *road.open()).stages[0].state == "done"
    assert flow.run_one("train", *road.open()).stages[0].state == "skipped"
    with pytest.raises(UsageError, match="made with other settings"):
        flow.run_one("train", *road.open("capture.tokens_per_shard=5"))
    assert road.stages["capture"].starts == 1


def test_a_plan_has_no_side_effects(road: Road) -> None:
    lines = flow.plan(*road.open(), flow.selection(None))
    assert [line.stage for line in lines] == list(STAGES) and {line.state for line in lines} == {"to do"}
    assert not road.run.exists()
    road.stages["train"].fail = Broken("stop")
    with pytest.raises(Broken):
        road.walk()
    before = sorted((str(path), path.stat().st_mtime_ns) for path in road.run.rglob("*"))
    states = {line.stage: line.state for line in flow.plan(*road.open(), flow.selection(None))}
    assert states["capture"] == "finished" and states["train"] == "half done" and states["export"] == "to do"
    assert sorted((str(path), path.stat().st_mtime_ns) for path in road.run.rglob("*")) == before
    costs = {line.stage: line.plan.launches for line in flow.plan(*road.open(), flow.selection("train"))}
    assert costs == {"check": 0, "breakeven": 0, "data": 0, "capture": 0, "train": 1}


def test_the_run_folder_belongs_to_one_command(road: Road) -> None:
    road.run.mkdir()
    holder = (
        "import fcntl, sys\nf = open(sys.argv[1], 'a+')\nfcntl.lockf(f, fcntl.LOCK_EX)\n"
        "f.write('77')\nf.flush()\nprint('held', flush=True)\ninput()"
    )
    other = subprocess.Popen([sys.executable, "-c", holder, road.run / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout and other.stdout.readline() == b"held\n"
    with pytest.raises(EnvironmentFailed, match=r"another draftsmith command \(process 77\)"):
        road.walk()
    other.communicate(b"\n")
    assert road.walk() == list(STAGES), "the lock went with the process"


def test_the_lock_does_not_live_on_in_a_child(road: Road) -> None:
    """An engine process that is slow to die must not keep the next command out."""
    from draftsmith.runfolder import locked

    with locked(road.run):
        child = os.fork()
        if child == 0:
            os.read(os.pipe()[0], 1)
    try:
        with (road.run / ".lock").open("a+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    "error",  # as Python and pyarrow, safetensors 0.8 and torch 2.13 say it
    [
        OSError(errno.ENOSPC, "No space left on device", "samples.parquet"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
    ],
)
def test_a_full_disk_is_one_clear_error_and_nothing_is_lost(road: Road, error: Exception) -> None:
    road.walk(until="data")
    road.stages["capture"].fail = error
    with pytest.raises(EnvironmentFailed) as caught:
        road.walk()
    assert "disk is full" in caught.value.message and "MiB free" in caught.value.message and "same command" in caught.value.hint
    assert road.walk() == ["capture", "train", "export", "verify", "serve", "bench", "report"]


def test_a_disk_that_is_really_full(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full refuses every byte, as a full disk does."""
    temporary = road.run / "data" / f".result.json.{os.getpid()}.tmp"
    real = road.stages["data"].run
    with monkeypatch.context() as patch:
        patch.setattr(road.stages["data"], "run", lambda settings, job: (temporary.symlink_to("/dev/full"), real(settings, job))[1])
        with pytest.raises(EnvironmentFailed, match="No space left on device"):
            road.walk()
    assert not temporary.is_symlink(), "the temporary file is gone, so that the disk has its bytes back"
    assert road.walk()[0] == "data" and road.stages["data"].pieces == COUNT


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), RuntimeError("shapes differ"), SafetensorError("header")])
def test_an_error_that_is_no_full_disk_is_not_dressed_up(road: Road, error: Exception) -> None:
    road.stages["data"].fail = error
    with pytest.raises(type(error), match=str(error.args[-1])):
        road.walk()


def test_a_run_folder_that_cannot_be_made(road: Road, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    road.run = tmp_path / "file" / "run"
    with pytest.raises(EnvironmentFailed, match="cannot make the run folder"):
        road.walk()


def test_a_target_that_is_not_there(road: Road) -> None:
    with pytest.raises(EnvironmentFailed, match="target nowhere: the folder does not exist"):
        road.open("target.model=nowhere")


def test_work_time_adds_up_over_starts(tmp_path: Path) -> None:
    (tmp_path / TIMES).write_text('{"start": 1.0, "seconds": 2.0}\n{"start": 1.0, "seconds": 4.0}\n{"start": 9.0, "seconds": 1.5}\n')
    assert worked_s(tmp_path) == 5.5
    with working(tmp_path):
        pass
    assert 5.5 < worked_s(tmp_path) < 6.5


def test_an_exchange_cut_short_is_put_right(tmp_path: Path) -> None:
    folder, old = tmp_path / "data", tmp_path / "data.old"

    def lay(**places: str) -> None:
        for name, content in places.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "content").write_text(content)

    lay(data="new")
    os.replace(folder, tmp_path / ".data.aside")
    lay(**{"data.old": "old"})
    recover(folder)  # killed after the first rename: undone
    assert (folder / "content").read_text() == "new" and (old / "content").read_text() == "old"
    os.replace(folder, tmp_path / ".data.aside")
    os.replace(old, folder)
    recover(folder)  # killed after the second: finished
    assert (folder / "content").read_text() == "old" and (old / "content").read_text() == "new"
    exchange(folder, old)
    assert (folder / "content").read_text() == "new" and (old / "content").read_text() == "old"


def test_every_part_of_the_job_is_in_some_key_and_the_table_is_whole(road: Road) -> None:
    assert list(DEPENDS) == list(STAGES)
    assert {part for parts in DEPENDS.values() for part in parts} == set(PARTS)
    recipe, job = road.open()
    base = stage_config("bench", recipe.bench, job)
    for override in (
        "engine.flags.dtype=float32",
        "engine.env.X=a",
        "drafter.depth=5",
        "drafter.taps=[1,2,3]",
        "target.trust_remote_code=true",
    ):
        changed, other = road.open(override)
        assert stage_config("bench", changed.bench, other) != base, override
