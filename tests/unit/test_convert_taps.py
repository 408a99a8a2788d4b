"""convert: tap ids through boundaries, for engines and versions that number them differently."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import convert_folders as folders
import pytest
from convert_folders import KEY, read
from packaging.version import Version

from draftsmith import cli
from draftsmith.models.taps import read_sglang, read_vllm

KIMI = {"model_type": "kimi_k2", "num_hidden_layers": 61}


def run(source: Path, to: str, *more: str | Path) -> int:
    return cli.main(["convert", str(source), "--to", to, "-o", str(source.parent / f"{source.name}-{to}"), *map(str, more)])


def config_of(source: Path, to: str, *more: str | Path) -> dict[str, Any]:
    assert run(source, to, *more) == 0
    return read(source.parent / f"{source.name}-{to}")[0]


@pytest.mark.parametrize(
    ("target", "boundaries", "version", "nested"),
    [
        ({}, [3, 6, 11], "0.5.6", [2, 5, 10]),
        ({}, [3, 6, 11], "0.5.23", [2, 5, 10]),
        (KIMI, [2, 30, 58], "0.5.12", [1, 29, 57]),
        (KIMI, [2, 30, 58], "0.5.13", [1, 29, 57]),  # a first id of 1 still means: add 1
        (KIMI, [3, 31, 59], "0.5.12", [2, 30, 58]),
        (KIMI, [3, 31, 59], "0.5.13", [3, 31, 59]),  # any other first id: as they are
        ({"model_type": "gpt_oss", "num_hidden_layers": 24}, [3, 12, 24], "0.5.16", [2, 11, 23]),
        ({"model_type": "gpt_oss", "num_hidden_layers": 24}, [3, 12, 24], "0.5.17", [2, 11, 23]),
    ],
)
def test_sglangs_ids_by_target_and_version(
    target: dict[str, Any], boundaries: list[int], version: str, nested: list[int], tmp_path: Path
) -> None:
    source = folders.vllm_eagle3(tmp_path / "source", **{KEY: boundaries})
    folders.write_target(tmp_path / "target", **target)
    code = run(source, "sglang", "--engine", f"sglang=={version}", "--target", tmp_path / "target")
    if boundaries[-1] == target.get("num_hidden_layers") and version == "0.5.16":
        assert code == 4  # check knows that this version never takes the last layer's output
        return
    assert code == 0
    config = read(tmp_path / "source-sglang")[0]
    assert config["eagle_config"][KEY] == nested and config["draftsmith"]["tap_boundaries"] == boundaries
    kind = target.get("model_type", "llama")
    assert read_sglang(config, "eagle3", target.get("num_hidden_layers", 12), kind, Version(version)).boundaries == tuple(boundaries)
    for runner in (1, 2):
        assert read_vllm(config, 61, Version("0.32.0"), runner).boundaries == tuple(boundaries)


def test_boundary_1_first_cannot_be_named_for_deepseek_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folders.vllm_eagle3(tmp_path / "source", **{KEY: [1, 30, 58]})
    target = folders.write_target(tmp_path / "target", **KIMI)
    assert run(source, "sglang", "--engine", "sglang==0.5.17", "--target", target) == 4
    assert "no list of ids makes SGLang 0.5.17 tap boundaries [1, 30, 58] of a kimi_k2 target" in capsys.readouterr().err
    assert config_of(source, "sglang", "--engine", "sglang==0.5.12", "--target", target)["eagle_config"][KEY] == [0, 29, 57]


def test_ids_whose_meaning_changed_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """[2, 30, 58] on a DeepSeek-family target: 3, 31, 59 up to SGLang 0.5.12, as they are since. Only the trainer knows."""
    source = folders.sglang_eagle3(tmp_path / "source", eagle_config={KEY: [2, 30, 58]})
    target = folders.write_target(tmp_path / "target", **KIMI)
    assert run(source, "vllm", "--target", target) == 4
    err = capsys.readouterr().err
    assert "[3, 31, 59] or [2, 30, 58]" in err and "--source-engine" in err
    assert config_of(source, "vllm", "--target", target, "--source-engine", "sglang==0.5.12")[KEY] == [3, 31, 59]
    source = folders.sglang_eagle3(tmp_path / "other", eagle_config={KEY: [2, 30, 58]})
    assert config_of(source, "vllm", "--target", target, "--taps", "2,30,58")[KEY] == [2, 30, 58]


def test_nested_ids_without_the_target_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folders.sglang_eagle3(tmp_path / "source")
    assert run(source, "vllm") == 4
    assert "depends on the target's class; give --target" in capsys.readouterr().err
    note = {"target_model_type": "llama"}
    source = folders.sglang_eagle3(tmp_path / "noted", draftsmith=note)
    assert config_of(source, "vllm")[KEY] == [3, 6, 11]


def test_no_ids_stay_no_ids(tmp_path: Path) -> None:
    """The default needs no spelling; with the target known it is noted."""
    source = folders.sglang_eagle3(tmp_path / "source", eagle_config={"use_aux_hidden_state": True})
    config = config_of(source, "vllm")
    assert KEY not in config and "draftsmith" not in config
    config = config_of(source, "sglang", "--target", folders.write_target(tmp_path / "target"))
    assert KEY not in config["eagle_config"] and config["draftsmith"]["tap_boundaries"] == [2, 6, 9]
    assert config_of(source, "speculators")[KEY] is None


def test_a_default_that_another_engine_shifts_is_written_out(tmp_path: Path) -> None:
    """MiniMax-M3's wrapper adds 1 to SGLang's default, vLLM does not."""
    source = folders.vllm_eagle3(tmp_path / "source")
    config, _ = read(source)
    del config[KEY]
    (source / "config.json").write_text(json.dumps(config))
    inner = {"num_hidden_layers": 12, "model_type": "minimax_m3", "hidden_size": 32, "vocab_size": 64}
    target = folders.write_target(
        tmp_path / "target", model_type="minimax_m3_vl", architectures=["MiniMaxM3SparseForConditionalGeneration"]
    )
    (target / "config.json").write_text(json.dumps({"model_type": "minimax_m3_vl", "text_config": inner}))
    written = config_of(source, "sglang", "--target", target)
    assert written["eagle_config"][KEY] == [1, 5, 8]
    assert read_sglang(written, "eagle3", 12, "minimax_m3_vl", Version("0.5.23")).boundaries == (2, 6, 9)


@pytest.mark.parametrize(("version", "top"), [("0.21.0", [2, 6, 10]), ("0.22.0", None), ("0.32.0", None)])
def test_dflash_ids_for_a_vllm_that_takes_them_raw(version: str, top: list[int] | None, tmp_path: Path) -> None:
    source = folders.speculators_dflash(tmp_path / "source")
    config = config_of(source, "vllm", "--engine", f"vllm=={version}")
    assert config["dflash_config"]["target_layer_ids"] == [1, 5, 9] and config.get(KEY) == top
    assert read_vllm(config, 12, Version(version), 1).boundaries == (2, 6, 10)


def test_dflash_without_ids_gets_the_default_written_out(tmp_path: Path) -> None:
    source = folders.zlab_dflash(tmp_path / "source", dflash_config={"mask_token_id": 7}, num_target_layers=12)
    config, _ = read(source)
    folders.write(source, config, folders.block_shapes(2, 2))
    assert config_of(source, "speculators")["aux_hidden_state_layer_ids"] == [2, 10]


def test_the_embedding_output_is_minus_one_for_dspark(tmp_path: Path) -> None:
    source = folders.dspark(tmp_path / "source", target_layer_ids=[-1, 5, 9])
    assert config_of(source, "speculators")["aux_hidden_state_layer_ids"] == [0, 6, 10]
    assert config_of(tmp_path / "source-speculators", "sglang")["target_layer_ids"] == [-1, 5, 9]


# --- real configs ----------------------------------------------------------------------------------------------------

DATA = Path(os.environ.get("DRAFTSMITH_SHARED_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data") / "configs"
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SMALL |= {"vocab_size": 64, "target_hidden_size": 32}
TARGETS = {
    "SpecForge__llama3-8B-eagle3": "llama",
    "SpecForge__qwen3-8b-eagle3": "qwen3",
    "SpecForge__qwen3-235B-A22B-eagle3": "qwen3_moe",
    "SpecForge__qwen3-next-80b-a3b-eagle3": "qwen3_next",
    "SpecForge__gpt-oss-120B-eagle3": "gpt_oss",
    "SpecForge__kimi-k2-eagle3": "kimi_k2",  # the layout that AQ-MedAI publishes
    "SpecForge__ling-flash-2.0-eagle3": "bailing_moe",
    "SpecForge__qwen3-30B-A3B-eagle3.1": "qwen3_moe",
    "TorchSpec__qwen3_8b_eagle3": "qwen3",
    "SpecForge__qwen3-4b-dflash": "qwen3",
    "SpecForge__qwen3.5-4b-dflash": "qwen3_5",
    "SpecForge__qwen3-4b-dspark": "qwen3",
    "TorchSpec__dflash_draft_config": "qwen3",
}


@pytest.mark.skipif(not DATA.is_dir(), reason="public configs are not at hand")
@pytest.mark.parametrize("name", TARGETS)
def test_public_configs_go_to_speculators_and_back(name: str, tmp_path: Path) -> None:
    """Config as published, sizes and weights small."""
    config = json.loads((DATA / "drafters" / f"{name}.json").read_text())
    config |= {key: value for key, value in SMALL.items() if key in config or key == "head_dim"}
    config.pop("quantization_config", None)  # one was copied from the target; see the test below
    block = "EAGLE" not in name.upper()
    if block:
        ids = (config.get("dflash_config") or {}).get("target_layer_ids") or config.get("target_layer_ids")
        layers = int(config["num_hidden_layers"])
        shapes = folders.block_shapes(layers, len(ids) if ids else layers)
        if name.endswith("dspark"):
            shapes |= {"markov_head.markov_w1.weight": [64, 256], "markov_head.markov_w2.weight": [64, 256]}
            shapes |= {"confidence_head.proj.weight": [1, 32 + 256], "confidence_head.proj.bias": [1]}
        config.setdefault("block_size", 16)
        source = folders.write(tmp_path / "source", config, shapes)
    else:
        config["draft_vocab_size"] = folders.W
        shapes = folders.eagle3_shapes() | ({f"fc_norm.{k}.weight": [32] for k in range(3)} if config.get("fc_norm") else {})
        source = folders.write(tmp_path / "source", config, shapes, folders.tables())
    target = folders.write_target(tmp_path / "target", model_type=TARGETS[name], num_hidden_layers=94)
    assert run(source, "speculators", "--target", target) == 0
    assert run(tmp_path / "source-speculators", "sglang", "--target", target) == 0
    back, _ = read(tmp_path / "source-speculators-sglang")
    lost = {key for key, value in config.items() if back.get(key) != value and not isinstance(value, dict)}
    made = [tmp_path / name / "manifest.json" for name in ("source-speculators", "source-speculators-sglang")]
    entries = [entry for path in made for entry in json.loads(path.read_text())["summary"]["ledger"]]
    explained = {entry[end] for entry in entries for end in ("source", "target") if entry["action"] in ("computed", "dropped")}
    # ids at the top level go into dflash_config, where engines look first
    moved = set() if config.get("dflash_config") else {"target_layer_ids", "mask_token_id"}
    assert lost <= explained | moved and lost <= {"auto_map", "architectures", "model_type"} | moved, {key: config[key] for key in lost}


@pytest.mark.skipif(not DATA.is_dir(), reason="public configs are not at hand")
def test_public_configs_that_need_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A quantization_config that came along from the target; sliding layers that look back beside a full layer that looks both ways."""
    config = json.loads((DATA / "drafters" / "SpecForge__kimi-k2-eagle3.json").read_text())
    source = folders.write(tmp_path / "kimi", config, folders.eagle3_shapes(), folders.tables())
    assert run(source, "vllm") == 4 and "quantization_config (fp8), and no weight is quantised" in capsys.readouterr().err
    config = json.loads((DATA / "drafters" / "SpecForge__qwen3.6-27b-dflash.json").read_text()) | SMALL
    source = folders.write(tmp_path / "mixed", config, folders.block_shapes(5, 5))
    assert run(source, "speculators") == 4 and "one causality for all layers" in capsys.readouterr().err
    assert run(source, "sglang") == 0 and run(source, "vllm") == 0


@pytest.mark.skipif(not DATA.is_dir(), reason="public configs are not at hand")
def test_lightseeks_mla_head(tmp_path: Path) -> None:
    """Kimi's EAGLE-3 with latent attention: between the two engines, not to speculators. Ids 1, 29, 57 are 2, 30, 58 in every version."""
    config = json.loads((DATA / "drafters" / "TorchSpec__kimi_k25_eagle3_mla.json").read_text())
    small = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 8}
    small |= {"kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4, "vocab_size": 64, "draft_vocab_size": 64}
    shapes = {"fc.weight": [32, 96], "norm.weight": [32], "lm_head.weight": [64, 32], "embed_tokens.weight": [64, 32]}
    inner = {"q_a_proj": [8, 64], "q_a_layernorm": [8], "q_b_proj": [12, 8], "kv_a_proj_with_mqa": [6, 64], "kv_a_layernorm": [4]}
    inner |= {"kv_b_proj": [16, 4], "o_proj": [32, 8]}
    shapes |= {f"midlayer.self_attn.{name}.weight": shape for name, shape in inner.items()}
    shapes |= {f"midlayer.{norm}.weight": [32] for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}
    shapes |= {f"midlayer.mlp.{name}_proj.weight": shape for name, shape in (("gate", [48, 32]), ("up", [48, 32]), ("down", [32, 48]))}
    source = folders.write(tmp_path / "source", {**config, **small}, shapes)
    target = folders.write_target(tmp_path / "target", architectures=["DeepseekV3ForCausalLM"], **KIMI)
    written = config_of(source, "vllm", "--target", target)
    assert written[KEY] == [2, 30, 58] and written["architectures"] == ["Eagle3DeepseekV2ForCausalLM"]
    assert config_of(tmp_path / "source-vllm", "sglang", "--target", target)["eagle_config"][KEY] == [1, 29, 57]
    assert run(source, "speculators", "--target", target) == 4
