"""check: every key, shape and type of a drafter against what each engine version's loader expects.

What vLLM 0.32.0 really does with these folders is in docs/decisions/0005-what-drafter-loaders-do.md; SGLang's loaders were read.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafter_folders import HEAD, IDS, TARGET, H, V, W, changed, eagle3_specs, found, safetensors, subject_for, tables, write_drafter

from draftsmith.check.ledger import ledger_findings

ENGINES = ["sglang==0.5.6", "sglang==0.5.12", "sglang==0.5.17", "sglang==0.5.23", "vllm==0.32.0"]


def without(*names: str) -> dict[str, Any]:
    return {name: spec for name, spec in eagle3_specs().items() if name not in names}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_whole_one_layer_head_has_no_finding(engine: str, tmp_path: Path) -> None:
    assert ledger_findings(subject_for(engine, write_drafter(tmp_path / "d"))) == []


@pytest.mark.parametrize(
    ("engine", "expected"),
    [("sglang==0.5.11", [("DS322", "error")]), ("sglang==0.5.12", []), ("sglang==0.5.23", []), ("vllm==0.32.0", [])],
)
def test_layers_0_is_lost_in_old_sglang(engine: str, expected: list[tuple[str, str]], tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "d", eagle3_specs("layers.0."))
    assert found(ledger_findings(subject_for(engine, folder))) == expected


@pytest.mark.parametrize(("engine", "severity"), [("sglang==0.5.17", "warning"), ("vllm==0.32.0", "error")])
def test_an_unknown_tensor(engine: str, severity: str, tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "d", {**eagle3_specs(), "midlayer.self_attn.q_norm.weight": ("BF16", [8])})
    findings = ledger_findings(subject_for(engine, folder))
    assert found(findings) == [("DS321", severity)] and "midlayer.self_attn.q_norm.weight" in findings[0].evidence


def test_a_model_prefix_is_sglangs_alone(tmp_path: Path) -> None:
    folder = write_drafter(
        tmp_path / "d", {f"model.{name}" if "." in name and "lm_head" not in name else name: spec for name, spec in eagle3_specs().items()}
    )
    assert found(ledger_findings(subject_for("sglang==0.5.17", folder))) == []
    assert {code for code, _ in found(ledger_findings(subject_for("vllm==0.32.0", folder)))} == {"DS320", "DS321"}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_projection(engine: str, tmp_path: Path) -> None:
    findings = ledger_findings(subject_for(engine, write_drafter(tmp_path / "d", without("midlayer.self_attn.k_proj.weight"))))
    assert found(findings) == [("DS320", "error")] and "layers.0.self_attn.k_proj.weight" in findings[0].evidence


@pytest.mark.parametrize(
    ("engine", "config", "expected"),
    [
        ("sglang==0.5.17", {}, [("DS325", "error")]),
        ("sglang==0.5.17", {"draft_vocab_size": V}, [("DS325", "error")]),
        ("sglang==0.5.17", {"draft_vocab_size": None}, []),
        ("sglang==0.5.17", {"tie_word_embeddings": True, "draft_vocab_size": None}, []),
        ("vllm==0.32.0", {}, [("DS325", "error")]),
        ("vllm==0.32.0", {"draft_vocab_size": V}, []),
        ("vllm==0.32.0", {"draft_vocab_size": ...}, []),
    ],
)
def test_a_head_without_lm_head(engine: str, config: dict[str, Any], expected: list[tuple[str, str]], tmp_path: Path) -> None:
    specs = without("lm_head.weight") if config == {} else without("lm_head.weight", "d2t", "t2d")
    assert found(ledger_findings(subject_for(engine, write_drafter(tmp_path / "d", specs, **config)))) == expected


def test_draft_vocab_size_must_exist_for_sglang(tmp_path: Path) -> None:
    specs = {**without("d2t", "t2d"), "lm_head.weight": ("BF16", [V, H])}
    folder = write_drafter(tmp_path / "d", specs, draft_vocab_size=..., truncated_vocab_size=W)
    findings = ledger_findings(subject_for("sglang==0.5.17", folder))
    assert found(findings) == [("DS330", "error")] and "truncated_vocab_size" in findings[0].evidence
    assert found(ledger_findings(subject_for("vllm==0.32.0", folder))) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_fc_of_another_width(engine: str, tmp_path: Path) -> None:
    findings = ledger_findings(subject_for(engine, write_drafter(tmp_path / "d", eagle3_specs(taps=4))))
    assert found(findings) == [("DS323", "error")] and f"[{H}, {4 * H}], expected [{H}, {3 * H}]" in findings[0].evidence


@pytest.mark.parametrize(("engine", "expected"), [("sglang==0.5.11", ["DS323"]), ("sglang==0.5.12", []), ("vllm==0.32.0", [])])
def test_four_taps_with_num_aux_hidden_states(engine: str, expected: list[str], tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "d", eagle3_specs(taps=4), num_aux_hidden_states=4)
    assert [code for code, _ in found(ledger_findings(subject_for(engine, folder)))] == expected


@pytest.mark.parametrize(
    ("switch", "engine", "expected"),
    [
        ("norm_before_residual", "sglang==0.5.23", True),
        ("norm_before_residual", "vllm==0.32.0", False),
        ("norm_before_fc", "sglang==0.5.16", True),
        ("norm_before_fc", "sglang==0.5.17", False),
        ("fc_norm", "sglang==0.5.11", True),
        ("fc_norm", "sglang==0.5.12", False),
        ("fc_norm", "vllm==0.20.0", True),
        ("norm_output", "vllm==0.32.0", False),
    ],
)
def test_norms_that_an_engine_does_not_implement(switch: str, engine: str, expected: bool) -> None:
    findings = ledger_findings(subject_for(engine, {**HEAD, switch: True}))
    assert (("DS331", "error") in found(findings)) is expected


def test_norms_have_tensors(tmp_path: Path) -> None:
    norms = {"input_norm.weight": ("BF16", [3 * H]), **{f"fc_norm.{k}.weight": ("BF16", [H]) for k in range(3)}}
    folder = write_drafter(tmp_path / "d", {**eagle3_specs(), **norms}, norm_before_fc=True, fc_norm=True)
    assert found(ledger_findings(subject_for("sglang==0.5.17", folder))) == []
    assert found(ledger_findings(subject_for("vllm==0.32.0", folder))) == []
    (folder / "model.safetensors").write_bytes(safetensors(eagle3_specs(), tables()))
    findings = ledger_findings(subject_for("vllm==0.32.0", folder))
    assert found(findings) == [("DS320", "error")] and "4 tensors" in findings[0].evidence


def test_the_norm_of_later_layers_has_two_names(tmp_path: Path) -> None:
    """SGLang normalises with hidden_norm, vLLM with input_layernorm."""
    specs = eagle3_specs("layers.0.")
    second = {name.replace("layers.0.", "layers.1."): spec for name, spec in specs.items() if name.startswith("layers.0.")}
    second |= {f"layers.1.self_attn.{k}_proj.weight": ("BF16", [specs[f"layers.0.self_attn.{k}_proj.weight"][1][0], H]) for k in "qkv"}
    both = write_drafter(tmp_path / "both", {**specs, **second}, num_hidden_layers=2)
    for engine in ("sglang==0.5.12", "vllm==0.32.0"):
        assert found(ledger_findings(subject_for(engine, both))) == []
    assert ("DS338", "error") in found(ledger_findings(subject_for("sglang==0.5.11", both)))
    for engine, lost in (("sglang==0.5.12", "hidden_norm"), ("vllm==0.32.0", "input_layernorm")):
        one = {name: spec for name, spec in {**specs, **second}.items() if name != f"layers.1.{lost}.weight"}
        findings = ledger_findings(subject_for(engine, write_drafter(tmp_path / lost, one, num_hidden_layers=2)))
        assert found(findings) == [("DS334", "error")] and lost in findings[0].evidence


# --- the map of the vocabulary ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (IDS, []),
        (np.where(IDS == 63, 64, IDS), [("DS327", "error")]),  # outside the vocabulary
        (np.where(IDS == 5, 2, IDS), [("DS327", "error")]),  # twice
        (IDS[::-1].copy(), [("DS327", "warning")]),  # a permutation
        (IDS + np.arange(W), [("DS327", "error")]),  # absolute ids in the place of offsets
    ],
)
def test_d2t(ids: np.ndarray, expected: list[tuple[str, str]], tmp_path: Path) -> None:
    content = {"d2t": (ids - np.arange(W)).astype("<i8").tobytes(), "t2d": tables()["t2d"]}
    assert found(ledger_findings(subject_for("sglang==0.5.17", write_drafter(tmp_path / "d", content=content)))) == expected


def test_t2d_of_another_run(tmp_path: Path) -> None:
    other = tables(np.where(IDS == 63, 61, IDS))
    folder = write_drafter(tmp_path / "d", content={"d2t": tables()["d2t"], "t2d": other["t2d"]})
    findings = ledger_findings(subject_for("vllm==0.32.0", folder))
    assert found(findings) == [("DS328", "warning")] and "1 of them differ" in findings[0].evidence


def test_a_reduced_head_needs_d2t_and_a_full_one_has_none(tmp_path: Path) -> None:
    for engine in ("sglang==0.5.17", "vllm==0.32.0"):
        assert found(ledger_findings(subject_for(engine, write_drafter(tmp_path / "d", without("d2t"))))) == [("DS326", "error")]
    full = {**eagle3_specs(), "lm_head.weight": ("BF16", [V, H]), "d2t": ("I64", [V])}
    folder = write_drafter(tmp_path / "full", full, {"d2t": bytes(8 * V), "t2d": b"\1" * V}, draft_vocab_size=V)
    assert found(ledger_findings(subject_for("sglang==0.5.17", folder))) == []
    assert found(ledger_findings(subject_for("vllm==0.32.0", folder))) == [("DS321", "error")]


def test_types(tmp_path: Path) -> None:
    floats = write_drafter(tmp_path / "a", {**eagle3_specs(), "d2t": ("F32", [W])}, {"": b""})
    assert found(ledger_findings(subject_for("sglang==0.5.17", floats))) == [("DS324", "error")]
    half = write_drafter(
        tmp_path / "b", {name: ("F16" if dtype == "BF16" else dtype, shape) for name, (dtype, shape) in eagle3_specs().items()}
    )
    assert found(ledger_findings(subject_for("vllm==0.32.0", half))) == [("DS336", "warning")]
    assert found(ledger_findings(subject_for("vllm==0.32.0", half, target={**TARGET, "torch_dtype": "float16"}))) == []


# --- embedding -------------------------------------------------------------------------------------------------------


def test_an_embedding_of_its_own_is_compared_by_samples(tmp_path: Path) -> None:
    specs = {**eagle3_specs(), "embed_tokens.weight": ("BF16", [V, H])}
    folder = write_drafter(tmp_path / "d", specs)
    target = tmp_path / "target"
    target.mkdir()
    same = safetensors({"model.embed_tokens.weight": ("BF16", [V, H])})
    (target / "model.safetensors").write_bytes(same)
    assert ledger_findings(subject_for("sglang==0.5.17", folder, target_folder=target)) == []
    (target / "model.safetensors").write_bytes(same[:-1] + b"\1")
    assert found(ledger_findings(subject_for("sglang==0.5.17", folder, target_folder=target))) == [("DS335", "error")]
    assert ledger_findings(subject_for("vllm==0.32.0", folder, target_folder=target)) == []  # keeps the drafter's own
    assert [f.severity for f in ledger_findings(subject_for("sglang==0.5.17", folder))] == ["info"]  # nothing to compare with


# --- class and files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "architecture", "expected"),
    [
        ("sglang==0.5.11", "Eagle3DeepseekV2ForCausalLM", [("DS333", "error")]),
        ("sglang==0.5.12", "Eagle3DeepseekV2ForCausalLM", []),
        ("sglang==0.5.17", "LlamaForCausalLM", [("DS333", "error")]),
        ("vllm==0.32.0", "LlamaForCausalLM", []),
        ("vllm==0.32.0", "Eagle3LlamaForCausalLM", []),
        ("sglang==0.5.23", "Qwen3MoEForCausalLMEagle3", [("DS333", "error")]),
        ("sglang==0.6.1", "Qwen3MoEForCausalLMEagle3", [("DS333", "warning")]),
        ("sglang==0.5.17", ..., [("DS333", "error")]),
    ],
)
def test_the_class_must_be_in_the_registry(engine: str, architecture: Any, expected: list[tuple[str, str]]) -> None:
    config = changed(HEAD, {"architectures": architecture if architecture is ... else [architecture]})
    assert found(ledger_findings(subject_for(engine, config))) == expected


def test_a_class_without_a_ledger_says_so(tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "d", architectures=["Gemma4DSparkModel"])
    findings = ledger_findings(subject_for("vllm==0.32.0", folder, flags={"speculative-config": '{"method": "dspark"}'}))
    assert [(f.code, f.severity) for f in findings] == [("DS339", "info")]


def test_speculators_format_is_vllms(tmp_path: Path) -> None:
    layer = {key: value for key, value in HEAD.items() if key not in ("architectures", "draft_vocab_size")}
    config = {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": W,
        "transformer_layer_config": layer,
    }
    folder = write_drafter(tmp_path / "d", eagle3_specs("layers.0."))
    (folder / "config.json").write_text(json.dumps(config))
    assert found(ledger_findings(subject_for("vllm==0.32.0", folder))) == []
    assert ("DS332", "error") in found(ledger_findings(subject_for("sglang==0.5.23", folder)))


def test_files_that_are_not_whole(tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "d")
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    (folder / "manifest.json").write_text(json.dumps({"outputs": {"model.safetensors": hashlib.sha256(content).hexdigest()}}))
    assert ledger_findings(subject_for("vllm==0.32.0", folder)) == []
    weights.write_bytes(content[:-1] + b"\0")
    assert found(ledger_findings(subject_for("vllm==0.32.0", folder))) == [("DS314", "error"), ("DS328", "warning")]
    (folder / "manifest.json").unlink()
    weights.write_bytes(content[:-1])
    assert found(ledger_findings(subject_for("vllm==0.32.0", folder))) == [("DS311", "error")]
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"fc.weight": "model-2.safetensors"}}))
    assert found(ledger_findings(subject_for("vllm==0.32.0", folder))) == [("DS312", "error")]
    (folder / "model.safetensors.index.json").unlink()
    weights.rename(folder / "pytorch_model.bin")
    assert found(ledger_findings(subject_for("vllm==0.32.0", folder))) == [("DS313", "warning")]
    (folder / "pytorch_model.bin").unlink()
    assert found(ledger_findings(subject_for("vllm==0.32.0", folder))) == [("DS310", "error")]
    (folder / "config.json").unlink()
    nothing = ledger_findings(subject_for("vllm==0.32.0", None, drafter_folder=folder))
    assert found(nothing) == [("DS310", "error")] and "config.json" in nothing[0].evidence


def test_a_large_drafter_and_target_take_less_than_a_second(tmp_path: Path) -> None:
    """600 GB of sparse shards: nothing but headers and samples is read."""
    rows = 4_000_000
    entry = {"dtype": "BF16", "shape": [rows, 2000], "data_offsets": [0, rows * 4000]}
    target = tmp_path / "target"
    target.mkdir()
    for number in range(38):
        header = json.dumps({"model.embed_tokens.weight" if number == 0 else f"w{number}": entry}).encode()
        path = target / f"model-{number:05}.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(path, 8 + len(header) + rows * 4000)
    folder = write_drafter(tmp_path / "d", {**eagle3_specs(), "embed_tokens.weight": ("BF16", [V, H])})
    start = time.perf_counter()
    findings = ledger_findings(subject_for("sglang==0.5.17", folder, target_folder=target))
    assert time.perf_counter() - start < 1
    assert found(findings) == [("DS335", "error")] and sum(path.stat().st_size for path in target.iterdir()) > 600e9
