"""`draftsmith tune` as it is typed: sets of variables, the recipe's section, --dry-run, and a tune that is finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftsmith import cli
from draftsmith.errors import UsageError
from draftsmith.manifest import atomic_write_json
from draftsmith.recipe import load_recipe
from draftsmith.tune.command import RESULT
from draftsmith.tuning import env_sets, settings_of

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "smollm2-cpu.yaml"
CONTENT = {
    **{"verdict": "Chain 3 pays.", "exit_code": 0, "candidates": [], "concurrency": [], "environments": [], "left_out": {}, "invalid": []},
    **{"engine_takes": {"flags": [], "schedule": [], "notes": []}, "schedule_check": [], "findings": [], "environment": {}},
}


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command on a recipe whose target and exported drafter are there."""
    monkeypatch.setattr("draftsmith.tuning.fresh_stages", lambda recipe, job: frozenset({"export"}))
    for folder in (tmp_path / "target", tmp_path / "run" / "export"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}')
    return ["tune", str(RECIPE), f"target.model={tmp_path / 'target'}", "--run-folder", str(tmp_path / "run"), "-q"]


def test_sets_of_variables() -> None:
    found = env_sets(["ll:NCCL_PROTO=LL,NCCL_ALGO=Ring", "wide:NCCL_MAX_NCHANNELS=32", "two:NCCL_PROTO=LL,LL128,NCCL_ALGO=Tree,Ring"])
    assert {name: json.loads(values) for name, values in found.items()} == {
        "ll": {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"},
        "wide": {"NCCL_MAX_NCHANNELS": "32"},
        "two": {"NCCL_PROTO": "LL,LL128", "NCCL_ALGO": "Tree,Ring"},  # NCCL takes lists
    }


@pytest.mark.parametrize("word", ["NCCL_PROTO=LL", "ll:", "ll:NCCL_PROTO", ":A=1", "a.b:A=1"])
def test_sets_that_are_none(word: str) -> None:
    with pytest.raises(UsageError, match="is not NAME:VARIABLE=VALUE"):
        env_sets([word])


def test_what_the_recipe_does_not_say_is_as_its_bench_has_it() -> None:
    settings = settings_of(load_recipe(RECIPE))
    assert (settings.concurrency, settings.requests, settings.output_tokens, settings.start_together) == ((1, 8), (5, 16), 128, True)
    other = settings_of(load_recipe(RECIPE, ["tune.concurrency=[1,16]", "tune.keep=3"]))
    assert (other.concurrency, other.requests, other.keep) == ((1, 16), None, 3)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("tune.trees=[3-4-64]", "at most 37 tokens"),
        ("tune.pairs_max=2", "pairs_max 2 is below pairs 3"),
        ("tune.env_sets={x: {}}", "needs a plain name"),
        ("tune.depth=[3]", "unknown key 'tune.depth'"),
        ("bench.prompts=five", "tune needs its own"),
    ],
)
def test_settings_that_cannot_be_meant(override: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        settings_of(load_recipe(RECIPE, [override]))


def test_a_dry_run_says_what_it_would_cost_and_does_nothing(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words, "--dry-run", "--json", "--env-set", "ll:NCCL_PROTO=LL"]) == 0
    found = json.loads(capsys.readouterr().out)
    # 3 probes (no breakeven), 2 rounds of a baseline and four candidates in two environments, 3 pairs of at most 3 arms, 4 for the schedule
    assert (found["launches"], found["candidates"]) == (3 + 2 * 5 * 2 + 3 * 3 + 4, ["chain 1", "chain 2", "chain 3", "chain 5"])
    assert not (tmp_path / "run" / "tune").exists()


def test_a_finished_tune_is_shown_again_and_other_settings_are_measured_anew(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Any] = []

    def run(subject: Any, settings: Any) -> Any:
        measured.append(settings)
        atomic_write_json(subject.job.folder("tune") / RESULT, CONTENT)
        return CONTENT

    monkeypatch.setattr("draftsmith.tune.command.run", run)
    for _ in range(2):
        assert cli.main(words) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "Chain 3 pays."
    assert len(measured) == 1
    assert cli.main([*words, "tune.depths=[1,3]"]) == 0 and len(measured) == 2
    assert (tmp_path / "run" / "tune.old" / RESULT).exists()


def test_without_a_drafter_it_says_what_to_run_first(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the run has no manifest at all
    assert cli.main(words) == 2
    assert "--until export" in capsys.readouterr().err
