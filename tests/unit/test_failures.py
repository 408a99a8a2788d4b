"""Every failure that a user can meet is one error with a hint and the right exit code: recipes, files of ours, servers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from failures import failed

from draftsmith import cli
from draftsmith.engines.counters import samples
from draftsmith.engines.pages import first_model, json_object
from draftsmith.engines.sglang.effective import effective as sglang_effective
from draftsmith.engines.vllm.effective import effective as vllm_effective
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.manifest import Manifest, read_json, read_jsonl
from draftsmith.measure.attached import depth_told
from draftsmith.measure.credentials import server_url
from draftsmith.recipe import load_recipe
from draftsmith.serve import records
from draftsmith.serve.http import connect
from draftsmith.yaml_text import read_yaml

PACKAGE = Path(cli.__file__).parent
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "smollm2-cpu.yaml"
DEEP = "[" * 100_000


# --- the house rule --------------------------------------------------------------------------------------------------

RAISED = {"UsageError", "EnvironmentFailed", "CheckFailed"}


def without_hint(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISED):
            continue
        if len(node.args) < 2 and not any(keyword.arg == "hint" for keyword in node.keywords):
            yield f"{path.relative_to(PACKAGE)}:{node.lineno}"


def test_every_error_comes_with_a_hint() -> None:
    assert [place for path in sorted(PACKAGE.rglob("*.py")) for place in without_hint(path)] == []


# --- recipes ---------------------------------------------------------------------------------------------------------

WRITTEN = {
    "a key twice": ("bench: {pairs: 2}\nname: x\nbench: {pairs: 3}\n", "'bench' is there twice, in lines 1 and 3"),
    "a key twice inside": ("bench:\n  pairs: 2\n  pairs: 3\n", "'pairs' is there twice, in lines 2 and 3"),
    "nesting": (DEEP, "depth"),
    "no number": ("a: !!int x", "invalid literal"),
    "no switch": ("a: !!bool x", "x"),
    "no date": ("a: !!timestamp z", "NoneType"),
    "a list for a key": ("? [a]\n: b", "unhashable"),
    "a tag that runs code": ("a: !!python/object:os.system x", "could not determine a constructor"),
    "two documents": ("a: 1\n---\nb: 2\n", "single document"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_yaml_that_cannot_be_meant(name: str, tmp_path: Path) -> None:
    text, said = WRITTEN[name]
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not YAML that can be meant") as caught:
        load_recipe(path)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_yaml_with_anchors_is_read_as_ever() -> None:
    assert read_yaml("a: &x {b: 1}\nc: *x\nd: {<<: *x, b: 2}") == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 2}}
    ring = read_yaml("&x [*x]")
    assert ring[0] is ring


def test_a_recipe_that_is_not_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes("name: é".encode("latin-1"))
    code, message, hint = failed(capsys, "run", str(path))
    assert (code, message) == (2, f"cannot read the recipe {path}: it is not text in UTF-8")
    assert "complete recipe" in hint


@pytest.mark.parametrize(
    "override",
    [
        *("train.budget_s=.inf", "train.budget_s=0", "train.learning_rate=-1", "train.step_decay=.nan", "capture.tokens_per_batch=0"),
        *("export.dtype=bfloat", "engine.ready_timeout_s=0", "drafter.intermediate_size=-4", "check.concurrency=0", "bench.pairs=100000"),
        *("bench.concurrency=[99999999999]", "bench.slo={ttft_s: -1}", "breakeven.concurrency=[99999999999]", "tune.rounds=99999999"),
    ],
)
def test_settings_that_would_only_fail_after_hours(override: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe(RECIPE, [override])
    assert override.partition("=")[0].split(".")[0] in caught.value.message


def test_a_value_without_end_is_shown_by_its_beginning() -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe(RECIPE, [f"bench.pairs={'x' * 5000}"])
    assert len(caught.value.message) < 300


# --- files of ours that were damaged since ---------------------------------------------------------------------------

DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "cut": b'{"schema": 1, "stage": ',
    "binary": b"\xff\xfe\x00",
    "a list": b"[1]",
    "null": b"null",
    "nesting": DEEP.encode(),
    "a key that is not ours": b'{"schema": 1, "nobody": 1}',
    "lists for mappings": b'{"schema": 1, "stage": "x", "config": [], "inputs": [], "outputs": []}',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_manifest_that_was_damaged(name: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(DAMAGED[name])
    with pytest.raises(EnvironmentFailed, match=r"manifest\.json") as caught:
        Manifest.read(tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["cut", "binary", "a list", "nesting"])
def test_the_record_of_a_server_that_was_damaged(name: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records.folder().mkdir(parents=True)
    (records.folder() / "mine.json").write_bytes(DAMAGED[name])
    for words in (("serve", "status"), ("serve", "stop", "--all"), ("serve", "logs", "mine")):
        code, message, hint = failed(capsys, *words)
        assert code == 4
        assert "mine.json" in message
        assert "remove" in hint


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTSMITH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_lines_that_are_no_objects(tmp_path: Path) -> None:
    path = tmp_path / "launches.jsonl"
    path.write_text('{"launch": 0}\n{"launch": 1')
    assert read_jsonl(path) == [{"launch": 0}]  # cut by a kill
    for wrong in ('{"launch": 0}\n[1]\n', "{}\nnull\n{}\n", f"{DEEP}\n{{}}\n"):
        path.write_text(wrong)
        with pytest.raises(EnvironmentFailed, match=r"line \d is not a JSON object"):
            read_jsonl(path)
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(EnvironmentFailed, match=r"launches\.jsonl is malformed"):
        read_jsonl(path)


def test_a_file_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="cannot be read: Is a directory"):
        read_json(tmp_path)
    with pytest.raises(EnvironmentFailed, match="is missing"):
        read_json(tmp_path / "x")


# --- servers ---------------------------------------------------------------------------------------------------------

PAGES: list[Any] = ["", "<html>", "[1]", "null", '"x"', DEEP, '{"data": 1}', '{"data": []}', '{"data": [1]}', '{"data": [{}]}', None]


@pytest.mark.parametrize("number", range(len(PAGES)))
def test_a_page_that_is_not_what_it_should_be_tells_nothing(number: int) -> None:
    page = PAGES[number]
    assert first_model(page) == {}
    pages: dict[str, Any] = {} if page is None else dict.fromkeys(("/v1/models", "/server_info", "/server_info?config_format=json"), page)
    assert vllm_effective("", pages) == {}
    assert sglang_effective("", pages) in ({}, {"data": "1"})


def test_parts_of_a_page_that_are_not_what_they_should_be() -> None:
    odd = '{"vllm_config": {"scheduler_config": [], "cache_config": 3, "speculative_config": "x"}, "internal_states": 1, "dp_size": "x"}'
    assert vllm_effective("", {"/server_info?config_format=json": odd}) == {}
    assert (
        sglang_effective("", {"/server_info": '{"internal_states": [{"effective_max_running_requests_per_dp": 8}], "dp_size": []}'}) == {}
    )
    assert json_object(odd)["dp_size"] == "x"


def test_metrics_that_are_no_numbers_tell_nothing() -> None:
    page = 'a 1\na NaN\na +Inf\na x\na{l="1"} 2\n'
    assert samples(page, "a") == [({}, 1.0), ({"l": "1"}, 2.0)]


@pytest.mark.parametrize(
    ("settings", "depth"), [({"depth": "x"}, 1), ({"draft_tokens": "4"}, 3), ({"draft_tokens": "[]"}, 1), ({"depth": "5"}, 5)]
)
def test_depth_as_a_server_tells_it(settings: dict[str, str], depth: int) -> None:
    assert depth_told({"drafting_method": "EAGLE3", **settings}, "") == depth


@pytest.mark.parametrize(
    "url", ["http://a b", "http://127.0.0.1 ", "http://\x01", "http://.", "http://a..b", "http://h:99999", "http://[::1"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match="is not the address of a server"):
        server_url(url)
    if " " not in url and "\x01" not in url and ".." not in url and "//." not in url:
        with pytest.raises(UsageError, match="is not the URL of a server"):
            connect(url, 1.0)
