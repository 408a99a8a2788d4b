"""check: parameters, bytes and whether they fit, against published numbers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from drafter_folders import HEAD, TARGET, found, subject_for

from draftsmith.check.memory import GIB, estimate, memory_findings
from draftsmith.check.parameters import cache_of, describable, num_parameters, weight_bytes_of

# Written from public facts: only the fields that the arithmetic reads. Published numbers beside them.
LLAMA_8B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_30B = {
    "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "decoder_sparse_step": 1,
}  # fmt: skip
DEEPSEEK_V3 = {
    "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "first_k_dense_replace": 3, "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
KIMI_K2 = {
    **DEEPSEEK_V3, "n_routed_experts": 384, "first_k_dense_replace": 1, "num_attention_heads": 64, "vocab_size": 163840,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    },
}  # fmt: skip
KIMI_K25 = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {**KIMI_K2, "model_type": "kimi_k2"},
}


@pytest.mark.parametrize(
    ("config", "billions"), [(LLAMA_8B, 8.03), (QWEN3_30B, 30.53), (DEEPSEEK_V3, 671.0), (KIMI_K2, 1026.0), (KIMI_K25, 1026.0)]
)
def test_parameters_are_the_published_ones(config: dict[str, Any], billions: float) -> None:
    assert num_parameters(config) == pytest.approx(billions * 1e9, rel=0.005)


def test_bytes_of_quantised_weights() -> None:
    assert weight_bytes_of(KIMI_K25) == pytest.approx(594e9, rel=0.01)  # the published folder of K2 in int4 is 594 GB
    assert weight_bytes_of(DEEPSEEK_V3) == pytest.approx(673e9, rel=0.01)  # fp8, embedding and head in bf16
    assert weight_bytes_of(LLAMA_8B) == pytest.approx(16.06e9, rel=0.01)


def test_kv_bytes_per_token() -> None:
    assert cache_of(LLAMA_8B, 1, 2).per_token == 32 * 2 * 8 * 128 * 2
    assert cache_of(LLAMA_8B, 16, 2).per_token == 32 * 2 * 1 * 128 * 2  # no GPU holds less than one head
    assert cache_of(KIMI_K25, 8, 2).per_token == 61 * (512 + 64) * 2  # latent attention is whole on every GPU
    sliding = {**LLAMA_8B, "layer_types": ["sliding_attention", "full_attention"] * 16, "sliding_window": 128}
    assert cache_of(sliding, 1, 2).bytes(2, 1000) == 2 * (16 * 4096 * 1000 + 16 * 4096 * 128)


def test_the_table_can_be_followed() -> None:
    table = estimate(
        subject_for("sglang==0.5.17", None, target=KIMI_K25, gpu_bytes=141 * 10**9, num_gpus=8, concurrency=16, context_length=8192)
    )
    assert table is not None
    rows = {row.name: row.bytes for row in table.rows}
    assert rows["target weights"] == pytest.approx(594e9 / 8, rel=0.01) and rows["KV cache"] == 16 * 8192 * 61 * 576 * 2
    assert "594" in table.lines()[0] and "one GPU has" in table.lines()[-1]


@pytest.mark.parametrize(
    ("engine", "flags", "fields", "expected"),
    [
        ("sglang==0.5.17", {}, {"num_gpus": 8}, []),
        ("sglang==0.5.17", {}, {"num_gpus": 4}, [("DS510", "error")]),  # 148 GB on GPUs of 141
        ("sglang==0.5.17", {"mem-fraction-static": 0.9}, {"num_gpus": 8}, []),
        ("sglang==0.5.17", {"mem-fraction-static": 0.5}, {"num_gpus": 8}, [("DS511", "error")]),
        ("sglang==0.5.17", {"tp-size": "8"}, {"num_gpus": None}, []),
        ("vllm==0.32.0", {"gpu-memory-utilization": 0.4}, {"num_gpus": 8}, [("DS511", "error")]),
        ("sglang==0.5.17", {}, {"num_gpus": 8, "concurrency": 64, "context_length": 131072}, [("DS512", "warning")]),
        ("vllm==0.32.0", {}, {"num_gpus": 8, "concurrency": 8, "context_length": 131072}, [("DS512", "warning")]),
        ("vllm==0.32.0", {"kv-cache-dtype": "fp8"}, {"num_gpus": 8, "concurrency": 8, "context_length": 131072}, []),
        ("vllm==0.32.0", {}, {"num_gpus": 8, "gpu_bytes": None}, []),
    ],
)
def test_kimi_k2_on_gpus_of_141_gb(engine: str, flags: dict[str, Any], fields: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    given = {"target": KIMI_K25, "gpu_bytes": 141 * 10**9, "flags": flags, **fields}
    assert found(memory_findings(subject_for(engine, None, **given))) == expected


@pytest.mark.parametrize(
    ("flags", "severity"),
    [
        ({}, "warning"),
        ({"model": "x/Model-NVFP4"}, "warning"),
        ({"model": "x/Model", "quantization": "fp8"}, "warning"),
        ({"model": "x/Model"}, "error"),
    ],
)
def test_a_bare_config_does_not_know_of_other_files(flags: dict[str, Any], severity: str) -> None:
    """hf_quant_config.json may quantise what config.json describes in bfloat16."""
    given = {"target": LLAMA_8B, "gpu_bytes": 12 * GIB, "flags": flags}
    assert found(memory_findings(subject_for("vllm==0.32.0", None, **given))) == [("DS510", severity)]


def test_a_drafter_counts() -> None:
    gpu = 24 * GIB
    alone = estimate(subject_for("vllm==0.32.0", None, target=LLAMA_8B, gpu_bytes=gpu))
    config = {
        **HEAD,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "draft_vocab_size": 32000,
    }
    both = estimate(subject_for("vllm==0.32.0", config, target=LLAMA_8B, gpu_bytes=gpu))
    assert alone is not None and both is not None
    assert both.weights - alone.weights == pytest.approx(0.85e9, rel=0.1)  # published one-layer heads of this target have 0.8 to 0.9 GB
    assert both.tokens_left < alone.tokens_left


def test_weight_files_go_before_shapes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    os.truncate(path, 600 * 10**9)
    table = estimate(subject_for("sglang==0.5.17", None, target=KIMI_K25, target_folder=tmp_path, gpu_bytes=80 * GIB, num_gpus=8))
    assert table is not None and table.weights == 75 * 10**9


def test_models_that_the_arithmetic_does_not_describe() -> None:
    assert describable(TARGET) and not describable({**TARGET, "block_configs": [{}]})
    odd = {**TARGET, "hybrid_override_pattern": "M-M*"}
    assert memory_findings(subject_for("vllm==0.32.0", None, target=odd, gpu_bytes=GIB)) == []


def test_public_targets() -> None:
    """Configs of public models, where they are at hand: sizes within 3 % of the model's name."""
    data = Path(os.environ.get("DRAFTSMITH_SHARED_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
    folder = data / "configs" / "targets"
    if not folder.is_dir():
        pytest.skip("no public configs beside the checkout")
    sizes = {"Qwen__Qwen3-235B-A22B": 235, "Qwen__Qwen3-Next-80B-A3B-Thinking": 80, "Qwen__Qwen3.5-397B-A17B": 397, "Qwen__Qwen3-32B": 32.8,
             "openai__gpt-oss-120b": 116.8, "openai__gpt-oss-20b": 20.9, "meta-llama__Llama-4-Scout-17B-16E-Instruct": 107.8,
             "meta-llama__Meta-Llama-3.1-70B": 70.6, "deepseek-ai__DeepSeek-V3": 671, "moonshotai__Kimi-K2.6": 1026}  # fmt: skip
    for name, billions in sizes.items():
        assert num_parameters(json.loads((folder / f"{name}.json").read_text())) == pytest.approx(billions * 1e9, rel=0.03), name
