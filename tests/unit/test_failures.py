"""Every failure that a user can meet is one error with a hint and the right exit code: never a traceback, never a value that is ignored."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftsmith import cli
from draftsmith.check.args import parsed, whole
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


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """(exit code, message, hint) of a command that is to fail; its --json is one document that says the same."""
    code = cli.main([*words, "--json"] if "--" not in words else [words[0], "--json", *words[1:]])
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert "Traceback" not in err
    assert document["exit_code"] == code
    return code, document["error"]["message"], document["error"]["hint"]


# --- the house rule --------------------------------------------------------------------------------------------------

RAISED = {"UsageError", "EnvironmentFailed", "CheckFailed"}


def without_hint(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        ours = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISED
        if ours and len(node.args) < 2 and not any(keyword.arg == "hint" for keyword in node.keywords):
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
    pages = {} if page is None else dict.fromkeys(("/v1/models", "/server_info", "/server_info?config_format=json"), page)
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


# --- words of the command line ---------------------------------------------------------------------------------------

A, B = ("--url", "http://127.0.0.1:9"), ("--url", "http://127.0.0.1:10")
WORDS: dict[str, tuple[tuple[str, ...], str]] = {
    "a limit below zero": (("bench", *A, *B, "--slo", "ttft_s=-1", "--dry-run"), "slo.ttft_s"),
    "a limit that is no number": (("bench", *A, *B, "--slo", "ttft_s=nan", "--dry-run"), "ttft_s=nan"),
    "an empty list": (("bench", *A, *B, "--concurrency", "", "--dry-run"), "--concurrency ''"),
    "no file": (("bench", *A, *B, "--prompts", ""), "there is no file"),
    "a superscript for a rate": (("bench", *A, *B, "--load", "poisson:²", "--dry-run"), "poisson:²"),
    "more requests than there is time": (("bench", *A, *B, "--concurrency", "99999999999"), "at most"),
    "a run folder for servers": (("bench", *A, *B, "--run-folder", "x"), "--run-folder is for a recipe"),
    "a dry run of what costs nothing": (("bench", "--summarise", ".", "--dry-run"), "--summarise"),
    "a recipe and an engine": (("check", str(RECIPE), "--engine", "sglang==0.5.17"), "--engine is for a launch command"),
    "a dry run of a launch command": (("check", "--dry-run", "--", "vllm", "serve", "X"), "are for a recipe"),
    "no requests at a time": (("check", "--concurrency", "0", "--engine", "vllm==0.32.0", "--", "vllm", "serve", "X"), "--concurrency 0"),
    "GPUs below zero": (("check", "--gpus", "-1", "--engine", "vllm==0.32.0", "--", "vllm", "serve", "X"), "--gpus -1"),
    "a GPU without memory": (("check", "--gpu-memory", "0", "--engine", "vllm==0.32.0", "--", "vllm", "serve", "X"), "is no size"),
    "memory without end": (("check", "--gpu-memory", "9" * 400, "--engine", "vllm==0.32.0", "--", "vllm", "serve", "X"), "is no size"),
    "a port of superscripts": (("watch", "http://127.0.0.1:9", "--prometheus", ":²"), "is no port"),
    "a price that is no number": (
        ("payback", "--traffic", "1:100%", "--speedup", "1:1.5", "--training-gpu-hours", "1", "--gpu-hour", "nan"),
        "'nan' is not a number",
    ),
    "traffic that is no number": (
        ("payback", "--traffic", "1:nan", "--speedup", "1:1.5", "--training-gpu-hours", "1", "--gpu-hour", "2", "--gpu-hours-per-day", "9"),
        "'nan' is not a number",
    ),
    "boundaries of superscripts": (("verify", "wiring", str(RECIPE), "--trained", "²"), "--trained"),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_that_cannot_be_meant(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, said = WORDS[name]
    code, message, hint = failed(capsys, *words)
    assert (code, said in message, bool(hint)) == (2, True, True), message


# --- check -----------------------------------------------------------------------------------------------------------


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["check", "--json", *words]) in (0, 4)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@pytest.mark.parametrize(
    "config",
    [
        '{"method": "eagle3", "model": "X", "num_speculative_tokens": NaN}',
        '{"method": "suffix", "suffix_decoding_max_tree_depth": {}}',
        f'{{"method": "eagle3", "num_speculative_tokens": {"9" * 5000}}}',
        DEEP,
    ],
)
def test_settings_of_vllm_that_no_json_has(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = checked(capsys, "--engine", "vllm==0.32.0", "--", "vllm", "serve", "X", "--speculative-config", config)
    assert isinstance(found["findings"], list)


def test_dotted_flags_that_stand_in_each_others_way(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("vllm", "serve", "X", "--speculative-config.method", "mtp", "--speculative-config.method.x", "9" * 5000)
    assert checked(capsys, "--engine", "vllm==0.32.0", "--", *words)["findings"]


@pytest.mark.parametrize("flag", ["--max-model-len=²", f"--max-model-len={'9' * 5000}", "--gpu-memory-utilization=nan"])
def test_flags_that_are_no_numbers(flag: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 8}
    config |= {"num_attention_heads": 4, "vocab_size": 64, "intermediate_size": 48, "max_position_embeddings": 2048}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for memory in ("80GiB", "1MiB"):
        words = ("--engine", "vllm==0.32.0", "--gpu-memory", memory, "--", "vllm", "serve", str(tmp_path), flag)
        assert checked(capsys, *words)["findings"]


def test_numbers_without_end_are_none() -> None:
    assert [whole("9" * 5000), whole("9" * 400 + ".0"), whole("32k"), whole("-1")] == [None, None, 32000, -1]
    with pytest.raises(json.JSONDecodeError):
        parsed("9" * 5000)
    with pytest.raises(json.JSONDecodeError):
        parsed(DEEP)


def test_a_manifest_of_kubernetes_that_is_a_ring(capsys: pytest.CaptureFixture[str]) -> None:
    text = "containers: &x [*x, {image: vllm/vllm-openai, args: [serve]}]\nspec: {command: vllm serve X}\n"
    assert cli.main(["check", "--engine", "vllm==0.32.0", "--", text]) in (0, 2, 4)
    assert "Traceback" not in capsys.readouterr().err


def test_flags_of_a_file_that_says_one_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "flags.yaml"
    path.write_text(yaml.safe_dump({"max-model-len": 1024}) * 2)
    code, message, _ = failed(capsys, "check", "--engine", "vllm==0.32.0", "--config", str(path), "--", "vllm", "serve", "X")
    assert code == 2
    assert "'max-model-len' is there twice, in lines 1 and 2" in message
