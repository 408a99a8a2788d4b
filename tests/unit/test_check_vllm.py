"""check: from vLLM's --speculative-config to what takes effect, by version."""

from __future__ import annotations

from typing import Any

import pytest
from check_launches import DEEPSEEK, DFLASH, DSPARK, EAGLE3_HEAD, LLAMA, bad, one, vllm

# --- vLLM ------------------------------------------------------------------------------------------------------------


def test_a_complete_configuration_is_silent() -> None:
    found = vllm('{"method": "eagle3", "model": "H", "num_speculative_tokens": 3}', drafter=EAGLE3_HEAD, target=LLAMA)
    assert found.findings == []
    assert found.effective == {"method": "eagle3", "model": "H", "num_speculative_tokens": 3, "model_runner": "V2"}


@pytest.mark.parametrize(
    ("config", "version", "code", "fix"),
    [
        ("{method: eagle3}", "0.32.0", "DS450", "single quotes"),
        ("[1]", "0.32.0", "DS450", "JSON object"),
        ('{"method": "eagle3", "model": "H", "num_speculative_token": 3}', "0.32.0", "DS450", "num_speculative_tokens"),
        ('{"method": "eagle3", "model": "H", "num_speculative_tokens": 3, "tensor_parallel_size": 2}', "0.32.0", "DS450", "draft_tensor"),
        ('{"method": "eagle3", "model": "H", "num_speculative_tokens": 3, "kv_cache_dtype": "fp8"}', "0.25.0", "DS450", "0.26.0"),
        ('{"method": "eagle3", "model": "H", "num_speculative_tokens": 3, "disable_by_batch_size": 8}', "0.32.0", "DS458", "batch_size"),
        ('{"method": "eagle3", "model": "H"}', "0.32.0", "DS451", "num_speculative_tokens"),
        ('{"method": "eagle3", "model": "H", "num_speculative_tokens": 0}', "0.32.0", "DS451", "num_speculative_tokens"),
        ('{"method": "eagle3", "num_speculative_tokens": 3}', "0.32.0", "DS416", '"model"'),
        (
            '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 4, "prompt_lookup_max": 2}',
            "0.32.0",
            "DS462",
            "4 or more",
        ),
        ('{"num_speculative_tokens": 3}', "0.32.0", "DS416", '"method"'),
        ('{"method": "eagle-3", "model": "H", "num_speculative_tokens": 3}', "0.32.0", "DS453", "eagle3"),
        ('{"method": "dspark", "model": "H", "num_speculative_tokens": 3}', "0.24.0", "DS453", "0.25.0"),
        ('{"method": "dflash", "model": "H", "num_speculative_tokens": 3}', "0.19.1", "DS453", "0.20.0"),
        ('{"method": "medusa", "model": "H", "num_speculative_tokens": 3}', "0.33.0", "DS453", "0.33.0"),
        ('{"method": "eagle3", "model": "H", "num_speculative_tokens": 3, "synthetic_acceptance_length": 2}', "0.32.0", "DS464", "remove"),
        ('{"method": "eagle3", "model": "qwen3.5-head", "num_speculative_tokens": 3}', "0.24.0", "DS452", "slash"),
    ],
)
def test_configurations_that_vllm_refuses(config: str, version: str, code: str, fix: str) -> None:
    found = vllm(config, version)
    assert bad(found) == [code] and fix in one(found, code).fix and found.effective is None


def test_keys_with_hyphens_and_strings_are_taken() -> None:
    found = vllm('{"method": "eagle3", "model": "H", "num-speculative-tokens": "3", "max-model-len": "4096"}')
    assert bad(found) == [] and found.effective is not None and found.effective["num_speculative_tokens"] == 3


@pytest.mark.parametrize(
    ("path", "drafter", "method", "severity"),
    [
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", None, "eagle3", "info"),
        ("yuhuili/EAGLE-LLaMA3-Instruct-8B", None, "eagle", "info"),
        ("z-lab/Qwen3-8B-DFlash-b16", DFLASH, "dflash", "info"),
        ("./outputs/final", None, "draft_model", "warning"),
        ("./outputs/final", EAGLE3_HEAD, "draft_model", "error"),
        ("./outputs/final", LLAMA, "draft_model", "info"),
        ("./my-eagle-run/final", EAGLE3_HEAD, "eagle", "error"),
    ],
)
def test_a_missing_method_is_guessed_from_the_path(path: str, drafter: dict[str, Any] | None, method: str, severity: str) -> None:
    found = vllm(f'{{"model": "{path}", "num_speculative_tokens": 3}}', drafter=drafter, target=LLAMA)
    assert found.effective is not None and found.effective["method"] == method
    assert one(found, "DS452").severity == severity


@pytest.mark.parametrize(
    ("method", "drafter", "asked", "right"),
    [("dflash", DFLASH, 16, 15), ("dflash", DFLASH, 15, None), ("dspark", DSPARK, 8, 7), ("dspark", DSPARK, 7, None)],
)
def test_widths_of_the_other_engine(method: str, drafter: dict[str, Any], asked: int, right: int | None) -> None:
    found = vllm(f'{{"method": "{method}", "model": "H", "num_speculative_tokens": {asked}}}', drafter=drafter)
    assert bad(found) == []
    if right is None:
        assert "DS455" not in [f.code for f in found.findings]
    else:
        assert one(found, "DS455").fix == f'"num_speculative_tokens": {right}' and "SGLang" in one(found, "DS455").consequence


def test_shortcuts() -> None:
    found = vllm("", flags="--spec-method eagle3 --spec-model H --spec-tokens 3")
    assert found.effective is not None and (found.effective["method"], found.effective["num_speculative_tokens"]) == ("eagle3", 3)
    assert bad(vllm('{"method": "eagle3", "model": "H"}', flags="--spec-tokens 3 --spec-method eagle3")) == ["DS454"]
    assert bad(vllm("", "0.20.0", flags="--spec-method ngram --spec-tokens 3")) == ["DS430", "DS430"]


def test_the_drafters_tensor_parallel_size() -> None:
    config = '{{"method": "{}", "model": "H", "num_speculative_tokens": 3, "draft_tensor_parallel_size": {}}}'
    assert bad(vllm(config.format("eagle3", 4), flags="-tp 8")) == ["DS456"]
    assert one(vllm(config.format("eagle3", 1), flags="-tp 8"), "DS456").severity == "warning"
    assert bad(vllm(config.format("draft_model", 1), flags="-tp 8")) == ["DS456"]
    assert vllm(config.format("eagle3", 8), flags="-tp 8").findings == []


def test_runners() -> None:
    dspark = '{"method": "dspark", "model": "H", "num_speculative_tokens": 7}'
    suffix = '{"method": "suffix", "num_speculative_tokens": 7}'
    assert bad(vllm(dspark)) == [] and bad(vllm(dspark, cpu_build=True)) == ["DS457"]
    assert bad(vllm(dspark, env={"VLLM_USE_V2_MODEL_RUNNER": "0"})) == ["DS457"]
    assert bad(vllm(suffix)) == [] and bad(vllm(suffix, env={"VLLM_USE_V2_MODEL_RUNNER": "1"})) == ["DS457"]
    runner = vllm(suffix).effective
    assert runner is not None and runner["model_runner"] == "V1"
    mixed = {**DFLASH, "layer_types": ["sliding_attention", "full_attention"]}
    dflash = '{"method": "dflash", "model": "H", "num_speculative_tokens": 15}'
    assert bad(vllm(dflash, drafter=mixed, cpu_build=True)) == ["DS457"] and bad(vllm(dflash, drafter=mixed)) == []


def test_the_cpu_build() -> None:
    eagle = '{"method": "eagle3", "model": "H", "num_speculative_tokens": 3}'
    assert bad(vllm(eagle, "0.18.1", cpu_build=True, target=LLAMA)) == ["DS207"] and bad(vllm(eagle, cpu_build=True)) == []
    forced = eagle[:-1] + ', "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2}'
    assert bad(vllm(forced, cpu_build=True)) == ["DS460"] and bad(vllm(forced)) == []


def test_targets_that_eagle3_was_limited_to() -> None:
    eagle = '{"method": "eagle3", "model": "H", "num_speculative_tokens": 3}'
    assert bad(vllm(eagle, "0.16.0", target=DEEPSEEK)) == ["DS459"]
    for version in ("0.18.1", "0.22.0"):
        assert bad(vllm(eagle, version, target=DEEPSEEK)) == []


def test_quantisation_stays_with_the_target() -> None:
    found = vllm('{"method": "eagle3", "model": "H", "num_speculative_tokens": 3}', flags="--quantization fp8", drafter=EAGLE3_HEAD)
    assert one(found, "DS461").severity == "info"


def test_flags_of_the_other_engine() -> None:
    found = vllm("", flags="--speculative-algorithm EAGLE3 --speculative-num-steps 3")
    assert bad(found) == ["DS430", "DS430"] and all("SGLang" in f.evidence for f in found.findings)


def test_the_graph_range_counts_tokens() -> None:
    eagle = '{"method": "eagle3", "model": "H", "num_speculative_tokens": 3}'
    assert one(vllm(eagle, concurrency=200), "DS429").fix.startswith("set --max-cudagraph-capture-size to at least 800")
    assert "DS429" not in [f.code for f in vllm(eagle, concurrency=128).findings]


def test_what_the_target_does_not_have_and_what_it_does_not_allow() -> None:
    mtp = '{"method": "mtp", "num_speculative_tokens": 1}'
    assert bad(vllm(mtp, target=LLAMA)) == ["DS416"] and bad(vllm(mtp, target=DEEPSEEK)) == []
    longer = '{"method": "eagle3", "model": "H", "num_speculative_tokens": 3, "max_model_len": 4096}'
    assert bad(vllm(longer, flags="--max-model-len 2048")) == ["DS462"] and bad(vllm(longer, flags="--max-model-len 8192")) == []
