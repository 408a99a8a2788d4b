"""check: the drafter's context, window, vocabulary, sizes and origin against the target and the flags."""

from __future__ import annotations

from typing import Any

import pytest
from drafter_folders import HEAD, TARGET, found, subject_for

from draftsmith.check.args import above_zero
from draftsmith.check.context import OVERRIDE, context_findings, own_length

LONG = {**TARGET, "max_position_embeddings": 131072}
ASKED = {"speculative-algorithm": "EAGLE3"}
VLLM = {"speculative-config": '{"method": "eagle3"}'}
DFLASH = {"speculative-algorithm": "DFLASH"}


@pytest.mark.parametrize(
    ("engine", "fields", "expected"),
    [
        ("sglang==0.5.17", {}, [("DS360", "error")]),  # without a flag the target's length is served
        ("sglang==0.5.17", {"flags": {**ASKED, "context-length": 2048}}, []),
        ("sglang==0.5.17", {"flags": {**ASKED, "context-length": "10000"}}, [("DS360", "error")]),
        ("sglang==0.5.17", {"env": {OVERRIDE: "1"}}, [("DS360", "warning")]),
        ("sglang==0.5.17", {"env": {OVERRIDE: "0"}}, [("DS360", "error")]),
        ("sglang==0.5.17", {"env": {OVERRIDE: "true"}, "context_length": 2048}, []),  # no planned request is longer
        ("vllm==0.32.0", {}, [("DS360", "warning")]),
        ("vllm==0.32.0", {"context_length": 1024}, []),
        ("vllm==0.32.0", {"flags": {**VLLM, "max-model-len": "2k"}}, []),
    ],
)
def test_served_length_against_the_drafters(engine: str, fields: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert found(context_findings(subject_for(engine, HEAD, target=LONG, **fields))) == expected


def test_positions_as_sglang_derives_them() -> None:
    assert own_length({"max_position_embeddings": 4096}) == 4096
    assert own_length({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "linear", "factor": 4}}) == 16384
    assert own_length({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8}}) == 131072
    scaled = {"rope_type": "yarn", "factor": 64, "original_max_position_embeddings": 4096}
    assert own_length({"max_position_embeddings": 262144, "rope_scaling": scaled}) == 262144
    assert own_length({}) is None


def test_lengths_as_people_write_them() -> None:
    assert [above_zero(value) for value in (4096, "32k", "32K", "auto", None, True)] == [4096, 32000, 32768, None, None, None]


def test_yarn_past_its_reach() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    inside, past = ({**HEAD, "max_position_embeddings": limit, "rope_scaling": rope} for limit in (131072, 262144))
    assert found(context_findings(subject_for("vllm==0.32.0", inside))) == []
    assert found(context_findings(subject_for("vllm==0.32.0", past))) == [("DS361", "warning")]


def test_windows() -> None:
    sliding = {**HEAD, "sliding_window": 512, "layer_types": ["sliding_attention"]}
    assert found(context_findings(subject_for("sglang==0.5.17", sliding))) == [("DS362", "warning")]
    flags = {**ASKED, "speculative-draft-window-size": 512}
    assert found(context_findings(subject_for("sglang==0.5.17", sliding, flags=flags))) == []
    assert (
        found(context_findings(subject_for("sglang==0.5.17", {**HEAD, "sliding_window": 512}))) == []
    )  # a template's leftover, never used
    mixed = {
        **HEAD,
        "architectures": ["DFlashDraftModel"],
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 512,
        "num_hidden_layers": 2,
    }
    asked = {"speculative-config": '{"method": "dflash"}'}
    assert found(context_findings(subject_for("vllm==0.32.0", mixed, flags=asked, cpu_build=True))) == [("DS362", "error")]
    assert found(context_findings(subject_for("vllm==0.32.0", mixed, flags=asked))) == []


def test_vocabulary_and_mask() -> None:
    assert found(context_findings(subject_for("sglang==0.5.17", {**HEAD, "vocab_size": 60}))) == [("DS363", "warning")]
    full = {**HEAD, "vocab_size": 60, "draft_vocab_size": 60}
    assert found(context_findings(subject_for("sglang==0.5.17", full))) == [("DS363", "error")]
    assert found(context_findings(subject_for("sglang==0.5.17", {**HEAD, "draft_vocab_size": 65}))) == [("DS363", "error")]
    for mask, expected in ((63, []), (64, [("DS364", "error")])):
        dflash = {**HEAD, "architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": mask}}
        assert found(context_findings(subject_for("sglang==0.5.17", dflash, flags=DFLASH))) == expected
    dspark = {**HEAD, "architectures": ["DSparkDraftModel"]}
    flags = {"speculative-algorithm": "DSPARK"}
    assert found(context_findings(subject_for("sglang==0.5.17", dspark, flags=flags))) == [("DS364", "error")]


def test_heads_over_gpus() -> None:
    assert found(context_findings(subject_for("sglang==0.5.17", {**HEAD, "head_dim": 7}))) == [("DS365", "error")]
    assert found(context_findings(subject_for("sglang==0.5.17", HEAD, num_gpus=4))) == []  # 2 key-value heads are copied
    assert found(context_findings(subject_for("sglang==0.5.17", HEAD, num_gpus=8))) == [("DS365", "error")]
    own = {"speculative-config": '{"method": "eagle3", "draft_tensor_parallel_size": 1}'}
    assert found(context_findings(subject_for("vllm==0.32.0", HEAD, num_gpus=8, flags=own))) == []


def test_origin() -> None:
    note = {**HEAD, "draftsmith": {"target_model_type": "qwen3"}}
    assert found(context_findings(subject_for("sglang==0.5.17", note))) == [("DS367", "error")]
    layer = {key: value for key, value in HEAD.items() if key != "architectures"}
    verifier = {"name_or_path": "x/Llama", "architectures": ["Qwen3ForCausalLM"]}
    config = {"speculators_model_type": "eagle3", "transformer_layer_config": layer, "speculators_config": {"verifier": verifier}}
    assert found(context_findings(subject_for("vllm==0.32.0", config))) == [("DS367", "error")]
    verifier["architectures"] = ["LlamaForCausalLM"]
    assert found(context_findings(subject_for("vllm==0.32.0", config))) == []
