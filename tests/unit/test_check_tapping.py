"""check: which boundaries a drafter config means, by engine, version and target class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from drafter_folders import HEAD, TARGET, H, found, subject_for, write_drafter
from packaging.version import Version

from draftsmith.check.tapping import tap_findings
from draftsmith.models.taps import KEY, dflash_default, read_sglang, read_vllm, sglang_boundaries

DEEPSEEK = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": H}
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {**DEEPSEEK, "model_type": "kimi_k2"},
}


@pytest.mark.parametrize(
    ("ids", "layers", "kind", "version", "expected"),
    [
        (None, 32, "llama", "0.5.17", (2, 16, 29)),
        ([1, 15, 28], 32, "llama", "0.5.3", (2, 16, 29)),
        ([-1, 3, 31], 61, "qwen3", "0.5.17", (0, 4, 32)),
        ([2, 30, 58], 61, "kimi_k2", "0.5.12", (3, 31, 59)),  # the shift was unconditional
        ([2, 30, 58], 61, "kimi_k2", "0.5.13", (2, 30, 58)),  # raw, as the first id is not 1
        ([1, 29, 57], 61, "deepseek_v3", "0.5.17", (2, 30, 58)),
        ([1, 17, 33], 36, "gpt_oss", "0.5.17", (2, 18, 34)),
        ([18, 36], 36, "gpt_oss", "0.5.16", (19, 37)),
        ([18, 36], 36, "gpt_oss", "0.5.17", (18, 36)),
        (None, 60, "minimax_m3_vl", "0.5.18", (3, 31, 58)),
    ],
)
def test_sglang_numbers_by_target_class_and_version(
    ids: list[int] | None, layers: int, kind: str, version: str, expected: tuple[int, ...]
) -> None:
    assert sglang_boundaries(ids, layers, kind, Version(version)) == expected


@pytest.mark.parametrize(
    ("config", "version", "runner", "expected"),
    [
        ({KEY: [2, 16, 29]}, "0.32.0", 1, (2, 16, 29)),
        ({}, "0.32.0", 2, (2, 16, 29)),
        ({"eagle_config": {KEY: [1, 15, 28]}}, "0.32.0", 1, (1, 15, 28)),  # raw: one lower than its author meant
        ({"eagle_config": {KEY: [5, 15, 28]}}, "0.32.0", 2, (2, 16, 29)),  # not read
        ({"eagle_config": {KEY: [5, 15, 28]}}, "0.20.0", 1, (2, 16, 29)),
        ({"dflash_config": {"target_layer_ids": [1, 9]}}, "0.32.0", 2, (2, 10)),
        ({"dflash_config": {"target_layer_ids": [1, 9]}}, "0.20.0", 1, (1, 9)),  # before vLLM's DFlash fix
        ({"target_layer_ids": [1, 9]}, "0.32.0", 2, (2, 10)),
    ],
)
def test_vllm_looks_up_by_runner(config: dict[str, Any], version: str, runner: int, expected: tuple[int, ...]) -> None:
    assert read_vllm(config, 32, Version(version), runner).boundaries == expected


def test_sglang_dflash() -> None:
    assert read_sglang({"dflash_config": {"target_layer_ids": [1, 9, 17]}}, "dflash", 36, "qwen3", Version("0.5.17")).boundaries == (
        2,
        10,
        18,
    )
    assert dflash_default(36, 5) == (2, 10, 18, 26, 34)  # outputs of layers 1, 9, 17, 25, 33, as public heads have them
    assert dflash_default(36, 1) == (19,)


# --- findings --------------------------------------------------------------------------------------------------------


def nested(*ids: int, **more: Any) -> dict[str, Any]:
    return {**HEAD, "eagle_config": {KEY: list(ids), "use_aux_hidden_state": True}, **more}


@pytest.mark.parametrize(
    ("engine", "config", "expected"),
    [
        ("sglang==0.5.17", HEAD, []),
        ("sglang==0.5.17", nested(1, 3, 4), []),
        ("sglang==0.5.17", nested(1, 3, 9), [("DS352", "error")]),
        ("sglang==0.5.17", nested(3, 1, 4), [("DS353", "error")]),
        ("sglang==0.5.17", nested(1, 3, 7), [("DS355", "error")]),  # output of the last layer on a Llama target
        ("sglang==0.5.21", nested(-1, 3, 4), [("DS355", "error")]),  # embedding output on a Llama target
        ("sglang==0.5.22", nested(-1, 3, 4), []),
        ("sglang==0.5.17", nested(1, 2, 3, 4), []),
        ("sglang==0.5.11", nested(1, 2, 3, 4), [("DS356", "error")]),
        ("sglang==0.5.17", nested(1, 2, 3, 4, num_aux_hidden_states=3), [("DS356", "error")]),
        ("sglang==0.5.17", nested(3), [("DS359", "error")]),  # fc is skipped
        ("sglang==0.5.17", {**HEAD, "target_hidden_size": 64}, [("DS356", "error")]),
        ("vllm==0.32.0", {**HEAD, KEY: [0, 4, 8]}, []),
        ("vllm==0.32.0", {**HEAD, KEY: [2, 4, 9]}, [("DS352", "error")]),
        ("vllm==0.32.0", {**HEAD, KEY: [1, 3, 4, 5]}, [("DS356", "error")]),  # fc is sized by num_aux_hidden_states or the nested list
        ("vllm==0.32.0", {**HEAD, KEY: [1, 3, 4, 5], "num_aux_hidden_states": 4}, []),
        ("vllm==0.32.0", nested(1, 3, 4), []),  # the default in SGLang's numbering, and vLLM takes its default
        ("vllm==0.32.0", nested(2, 3, 4), [("DS357", "warning")]),
        ("vllm==0.32.0", nested(2, 3, 4, **{KEY: [3, 4, 5]}), []),
        ("vllm==0.32.0", nested(2, 3, 4, **{KEY: [2, 3, 4]}), [("DS351", "warning")]),
    ],
)
def test_what_a_config_means(engine: str, config: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert found(tap_findings(subject_for(engine, config))) == expected


def test_runner_1_takes_nested_ids_as_boundaries() -> None:
    findings = tap_findings(subject_for("vllm==0.32.0", nested(1, 3, 4), cpu_build=True))
    assert found(findings) == [("DS357", "warning")] and "2, 4, 5" in findings[-1].evidence and "1, 3, 4" in findings[-1].evidence
    forced = tap_findings(subject_for("vllm==0.32.0", nested(1, 3, 4), env={"VLLM_USE_V2_MODEL_RUNNER": "0"}))
    assert found(forced) == [("DS357", "warning")]


def test_the_story_of_a_drafter_trained_on_other_states(tmp_path: Path) -> None:
    """Trained on the embedding output and layers 3 and 31, served with what follows from ids 2, 30, 58."""
    folder = write_drafter(tmp_path / "d", eagle_config={KEY: [2, 30, 58]})
    manifest = {"outputs": {}, "summary": {"taps": {"boundaries": [0, 3, 31]}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    findings = tap_findings(subject_for("sglang==0.5.17", folder, target=KIMI))
    assert found(findings) == [("DS354", "error")]
    assert "0, 3, 31" in findings[-1].evidence and "2, 30, 58" in findings[-1].evidence
    older = tap_findings(subject_for("sglang==0.5.12", folder, target=KIMI))
    assert found(older) == [("DS354", "error")] and "3, 31, 59" in older[-1].evidence


def test_our_note_in_the_config_counts_where_there_is_no_manifest(tmp_path: Path) -> None:
    note = {"draftsmith": {"tap_boundaries": [2, 4, 5], "target_model_type": "llama"}}
    right = {"eagle_config": {KEY: [1, 3, 4]}, KEY: [2, 4, 5], **note}
    for engine in ("sglang==0.5.17", "vllm==0.32.0"):
        assert found(tap_findings(subject_for(engine, {**HEAD, **right}))) == []
    wrong = {**HEAD, "eagle_config": {KEY: [2, 4, 5]}, **note}
    assert found(tap_findings(subject_for("sglang==0.5.17", wrong))) == [("DS354", "error")]


def test_a_target_class_without_taps() -> None:
    target = {**TARGET, "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe"}
    assert found(tap_findings(subject_for("sglang==0.5.21", HEAD, target=target))) == [("DS204", "error")]
    assert found(tap_findings(subject_for("sglang==0.5.22", HEAD, target=target))) == []
    dflash = {
        **HEAD,
        "architectures": ["DFlashDraftModel"],
        "dflash_config": {"target_layer_ids": [1, 3], "mask_token_id": 3},
        "num_target_layers": 8,
    }
    asked = {"speculative-algorithm": "DFLASH"}
    assert found(tap_findings(subject_for("sglang==0.5.12", dflash, target=target, flags=asked))) == []  # another hook, there since 0.5.11
    assert found(tap_findings(subject_for("sglang==0.5.10", dflash, target=target, flags=asked))) == [("DS204", "error")]


def test_a_block_drafter_for_a_deeper_target() -> None:
    dflash = {**HEAD, "architectures": ["DFlashDraftModel"], "dflash_config": {"target_layer_ids": [1, 3]}, "num_target_layers": 36}
    findings = tap_findings(subject_for("sglang==0.5.17", dflash, flags={"speculative-algorithm": "DFLASH"}))
    assert found(findings) == [("DS358", "warning")]


def test_a_block_drafter_without_the_depth_of_its_target() -> None:
    """SGLang before 0.5.18 measures the ids by the drafter's own depth, and stops."""
    config = {"architectures": ["DFlashDraftModel"], "num_hidden_layers": 2, "dflash_config": {"target_layer_ids": [1, 3, 5]}}

    def told(version: str, **more: Any) -> list[str]:
        subject = subject_for(f"sglang=={version}", {**config, **more}, flags={"speculative-algorithm": "DFLASH"})
        return [finding.evidence for finding in tap_findings(subject) if finding.code == "DS352"]

    assert told("0.5.17") == ["the drafter's config.json has no num_target_layers, its tap ids go up to 5"]
    assert told("0.5.18") == [] and told("0.5.17", num_target_layers=TARGET["num_hidden_layers"]) == []
    assert told("0.5.17", num_hidden_layers=6) == []
