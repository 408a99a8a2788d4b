"""Words that cannot be meant are refused by one error with a hint; none is left aside without a word. And what help says."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from failures import failed

from draftsmith import cli
from draftsmith.check.args import parsed, whole

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "smollm2-cpu.yaml"
DEEP = "[" * 100_000


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


ALONE = ("breakeven", "--engine", "sglang==0.5.17", "--target", "X")
PAYBACK = ("payback", "--traffic", "1:100%", "--speedup", "1:1.5", "--training-gpu-hours", "1", "--gpu-hour", "2")
MORE: dict[str, tuple[tuple[str, ...], str]] = {
    "no replicates": ((*ALONE, "--replicates", "0"), "--replicates"),
    "an answer too short": ((*ALONE, "--tokens", "1"), "--tokens"),
    "a speed-up below zero": ((*ALONE, "--min-speedup", "-1"), "--min-speedup"),
    "a vocabulary below one": ((*ALONE, "--draft-vocab", "-5"), "--draft-vocab"),
    "a dry run that would start engines": ((*ALONE, "--dry-run"), "--dry-run"),
    "options that a recipe has itself": (("breakeven", str(RECIPE), "--replicates", "0"), "--replicates"),
    "half a row": (("collectives", "--device", "cpu", "--rows", "1.5"), "--rows '1.5'"),
    "one rank": (("collectives", "--device", "cpu", "--ranks", "1"), "--ranks 1"),
    "no lines": (("serve", "logs", "-n", "0"), "-n 0"),
    "a stage's other commands": (("verify", "wirng"), "no command 'verify wirng'"),
    "a gap below zero": (("verify", "lossless", *A, *B, "--near-tie", "-1"), "--near-tie"),
    "a distance above one": (("verify", "lossless", *A, *B, "--largest-tv", "5"), "--largest-tv"),
    "prompts below one": (("verify", "lossless", *A, *B, "--num-prompts", "-1"), "--num-prompts -1"),
    "a tolerance of zero": (("verify", "wiring", str(RECIPE), "--tolerance", "0"), "--tolerance 0"),
    "infinite traffic": ((*PAYBACK, "--gpu-hours-per-day", "inf"), "'inf' is not a number"),
}


@pytest.mark.parametrize("name", MORE)
def test_numbers_and_words_that_cannot_be_meant(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, said = MORE[name]
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


# --- help ------------------------------------------------------------------------------------------------------------


def test_help_is_made_of_sentences() -> None:
    commands = next(action.choices for action in cli.build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    for command in commands.values():
        assert command.description[-1] in ".?", command.description
        assert not command.description.endswith("?."), command.description


def test_json_holds_no_nan() -> None:
    assert cli.as_json_has_it({"a": [float("nan"), (1.5, float("inf"))], "b": {"c": 2}}) == {"a": [None, [1.5, None]], "b": {"c": 2}}
