"""check: texts that people really paste, and what the words of the launch in them are. Nothing may raise anything but a UsageError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftsmith.check.command_line import Pasted, parse_command
from draftsmith.check.inputs import Asked, make_subject
from draftsmith.check.rules import check_subject
from draftsmith.errors import UsageError


def read(text: str) -> Pasted:
    return parse_command([text])


SGLANG = {"model-path": "X", "tp": "8"}
VLLM = {"model": "X", "tensor-parallel-size": "2"}
KUBERNETES = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      initContainers:
        - {name: wait, image: busybox, command: [sh, -c, sleep 1]}
      containers:
        - name: server
          image: %s
          %s
          env:
            - {name: A, value: "1"}
            - name: TOKEN
              valueFrom: {secretKeyRef: {name: x, key: y}}
"""
COMPOSE = """
services:
  server:
    image: vllm/vllm-openai:v0.32.0
    environment:
      %s
    command: >
      --model X
      --tensor-parallel-size 2
"""
A_SHELL = "command: [bash, -c]\n          args:\n            - |\n              sglang serve --model-path X --tp 8"
UNIT = "[Service]\nEnvironment=A=1\nExecStart=/opt/venv/bin/vllm serve X \\\n  --tensor-parallel-size 2\nRestart=always\n"
SCRIPT = '#!/bin/bash\nset -euo pipefail\nM=${1:-X}\nARGS=(--tp 4 --model-path "$M")\nARGS+=(--tp 8)\n%s "${ARGS[@]}" 2>&1 | tee log.txt\n'
# what it is: (text, flags, version of an image or behind @)
TEXTS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "a comment with an apostrophe": ("sglang serve --model-path X \\\n  # don't forget\n  --tp 8  # it's eight\n", SGLANG, None),
    "a # in a value": ("sglang serve --model-path X --tp 8 --chat-template 'a # b'", {**SGLANG, "chat-template": "a # b"}, None),
    "an ampersand and what follows": ("sglang serve --model-path X --tp 8 &\nsleep 60\ncurl http://x --tp 4", SGLANG, None),
    "an empty line and what follows": ("sglang serve --model-path X --tp 8\n\ncurl http://x", SGLANG, None),
    "a loop": ("if true; then\n  sglang serve --model-path X --tp 8\nfi", SGLANG, None),
    "a prompt": ("$ sglang serve --model-path X --tp 8", SGLANG, None),
    "root's prompt": ("# sglang serve --model-path X --tp 8", SGLANG, None),
    "root's prompt with its host": ("root@node:/# sglang serve --model-path X --tp 8", SGLANG, None),
    "a notebook": ("!vllm serve X --tensor-parallel-size 2", VLLM, None),
    "a notebook's shell cell": ("%%bash\nvllm serve X --tensor-parallel-size 2", VLLM, None),
    "Markdown": ("```bash\nvllm serve X --tensor-parallel-size 2\n```", VLLM, None),
    "inline code": ("`vllm serve X --tensor-parallel-size 2`", VLLM, None),
    "PowerShell": ("vllm serve X `\n  --tensor-parallel-size 2", VLLM, None),
    "cmd": ("vllm serve X ^\n  --tensor-parallel-size 2", VLLM, None),
    "Windows line ends": ("vllm serve X \\\r\n  --tensor-parallel-size 2\r\n", VLLM, None),
    "spaces of a web page": ("vllm serve X\u00a0--tensor-parallel-size\u00a02", VLLM, None),
    "uv": ("uv run --with vllm vllm serve X -tp 2", VLLM, None),
    "uvx": ("uvx vllm@0.32.0 serve X -tp=2", VLLM, "0.32.0"),
    "conda": ("conda run -n v vllm serve X -tp 2", VLLM, None),
    "numactl": ("numactl --cpunodebind=0 python -m sglang.launch_server --model-path X --tp 8", SGLANG, None),
    "ssh": ("ssh node1 'sglang serve --model-path X --tp 8'", SGLANG, None),
    "srun": ("srun --nodes=2 bash -c 'sglang serve --model-path X --tp 8'", SGLANG, None),
    "a variable with the command": ('CMD="sglang serve --model-path X --tp 8"\neval $CMD', SGLANG, None),
    "a variable with flags": ('MORE="--tp 8"\nsglang serve --model-path X $MORE', SGLANG, None),
    "an array": (SCRIPT % "sglang serve", SGLANG, None),
    "docker": ("sudo docker run --gpus all --ipc=host lmsysorg/sglang:v0.5.17-cu129 sglang serve --model-path X --tp 8", SGLANG, "0.5.17"),
    "an image for ROCm": ("docker run vllm/vllm-openai-rocm:v0.14.0 --model X --tensor-parallel-size 2", VLLM, "0.14.0"),
    "an image whose tag counts months": ("docker run nvcr.io/nvidia/vllm:25.09-py3 vllm serve X -tp 2", VLLM, None),
    "an image of one's own": ("docker run --gpus all registry.me/serve:1 --model X --tensor-parallel-size 2", VLLM, None),
    "an image without a version": ("docker run vllm/vllm-openai:latest --model X --tensor-parallel-size 2", VLLM, None),
    "Kubernetes, command": (KUBERNETES % ("vllm/vllm-openai:v0.32.0", "command: [vllm, serve, X, -tp, '2']"), VLLM, "0.32.0"),
    "Kubernetes, arguments": (KUBERNETES % ("vllm/vllm-openai:v0.32.0", "args: [--model=X, --tensor-parallel-size, 2]"), VLLM, "0.32.0"),
    "Kubernetes, a shell": (
        KUBERNETES
        % (
            "lmsysorg/sglang:v0.5.17",
            "command: [bash, -c]\n          args:\n            - |\n              sglang serve --model-path X --tp 8",
        ),
        SGLANG,
        "0.5.17",
    ),
    "a list of arguments": ("args:\n  - --model-path\n  - X\n  - --tp=8\n", SGLANG, None),
    "a bare list": ("- --model-path\n- X\n- --tp\n- 8\n", SGLANG, None),
    "a list in one line": ('args: ["--model-path", "X", "--tp", "8"]', SGLANG, None),
    "JSON": ('["vllm", "serve", "X", "--tensor-parallel-size", "2"]', VLLM, None),
    "compose": (COMPOSE % "- A=1", VLLM, "0.32.0"),
    "compose with a mapping": (COMPOSE % "A: 1", VLLM, "0.32.0"),
    "a Dockerfile": ('FROM x\nENTRYPOINT ["vllm", "serve"]\nCMD ["X", "-tp", "2"]', VLLM, None),
    "a unit": (UNIT, VLLM, None),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_launch_in_a_text(name: str) -> None:
    text, flags, version = TEXTS[name]
    found = read(text)
    model = {"model": found.flags["model"]} if "model" in found.flags else {}
    assert {**model, **found.flags} == flags and found.version == version and found.unread == () and found.more == 0
    assert found.family in (None, "vllm" if "model" in flags else "sglang")
    if any(mark in text for mark in ("name: A,", "A=1", "A: 1")):
        assert found.env == {"A": "1"}


@pytest.mark.parametrize(
    "text",
    [
        "vllm bench serve --model X",
        "python -m sglang.bench_one_batch --model-path X",
        "python -m sglang_router.launch_server --model-path X",
        "trtllm-serve X --tp_size 8",
        "llama-server -m x.gguf",
        "docker run busybox ls",
        "args:\n  - a: 1",
    ],
)
def test_what_starts_no_server(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert caught.value.hint


def test_keys_behind_a_short_name() -> None:
    found = read("vllm serve X -sc.method eagle3 -sc.num_speculative_tokens=3 -cc.mode=3")
    assert json.loads(str(found.flags["speculative-config"])) == {"method": "eagle3", "num_speculative_tokens": 3}
    assert json.loads(str(found.flags["compilation-config"])) == {"mode": 3} and found.one_dash == ()


def test_another_image_is_no_engine() -> None:
    assert read("docker run -v data/vllm:/root ghcr.io/x/sglang-router:v1 vllm serve X").version is None


# --- what is said about them -----------------------------------------------------------------------------------------


def codes(text: str, engine: str = "sglang==0.5.17", **asked: Any) -> list[str]:
    """Codes of errors and warnings, less those about models that are not here."""
    subject, noticed = make_subject(Asked(engine=engine, **asked), read(text))
    found = [*noticed, *check_subject(subject).findings]
    return [finding.code for finding in found if finding.severity != "info" and finding.code != "DS110"]


EAGLE3 = '\'{"method": "eagle3", "model": "H", "num_speculative_tokens": 3}\''
SAID: list[tuple[str, str, dict[str, Any], list[str]]] = [
    ("sglang serve --model-path X --disaggregation-mode prefill &\nsglang serve --model-path X", "sglang==0.5.17", {}, ["DS468"]),
    ("vllm serve X --config /nowhere/c.yaml", "vllm==0.32.0", {}, ["DS468"]),
    ("sglang serve --model-path X --tp 8 --tp-size 4", "sglang==0.5.17", {}, ["DS434"]),
    ("sglang serve --model-path X --tp 8", "sglang==0.5.17", {"gpus": 4}, ["DS469"]),
    ("sglang serve --model-path X --tp 4 --dp 2", "sglang==0.5.17", {"gpus": 4}, ["DS469"]),
    ("sglang serve --model-path X --tp 4 --dp 4 --enable-dp-attention", "sglang==0.5.17", {"gpus": 4}, []),
    ("CUDA_VISIBLE_DEVICES=0,1 vllm serve X -tp 2 -pp 2", "vllm==0.32.0", {}, ["DS469"]),
    ("CUDA_VISIBLE_DEVICES=0,1 vllm serve X -tp 4 --nnodes 2", "vllm==0.32.0", {}, []),
    ("CUDA_VISIBLE_DEVICES=0,1 vllm serve X -tp 4 --distributed-executor-backend ray", "vllm==0.32.0", {}, []),
    ("sglang serve --model-path X --tp 16 --nnodes 2 --node-rank 0 --dist-init-addr a:1", "sglang==0.5.17", {"gpus": 8}, []),
    (f"vllm serve X -sc {EAGLE3}", "vllm==0.32.0", {}, []),
    (f"vllm serve X -sc {EAGLE3}", "vllm==0.25.0", {}, ["DS467"]),
    (f"vllm serve X -sc {EAGLE3} --enforce-eager", "vllm==0.25.0", {}, ["DS404"]),
    (f"VLLM_DISABLE_COMPILE_CACHE=1 vllm serve X -sc {EAGLE3}", "vllm==0.25.0", {}, []),
    ("vllm serve RedHatAI/Qwen3-32B-speculator.eagle3 -tp 2", "vllm==0.25.0", {}, ["DS467"]),
    ("vllm serve X -sc \u2018{\u201cmethod\u201d:\u201cngram\u201d}\u2019", "vllm==0.32.0", {}, ["DS450"]),
    ('vllm serve X -sc \'{"method": 3, "model": [1], "num_speculative_tokens": "x"}\'', "vllm==0.32.0", {}, ["DS451", "DS453"]),
    ('vllm serve X -sc \'{"method": "ngram", "num_speculative_tokens": NaN}\'', "vllm==0.32.0", {}, ["DS451"]),
    ("vllm serve --model=", "vllm==0.32.0", {}, []),
    (f"vllm serve {'x' * 5000}", "vllm==0.32.0", {}, []),
    ("vllm serve ~nobody-of-that-name/x", "vllm==0.32.0", {}, []),
    # what the real vLLM 0.32.0 answers to the next five: unrecognized arguments twice, invalid int value twice, and it starts
    ("vllm serve X --tp 2", "vllm==0.32.0", {}, ["DS430"]),
    ("vllm serve X -max-model-len 512", "vllm==0.32.0", {}, ["DS430"]),
    ("vllm serve X --max-model-len 512.0", "vllm==0.32.0", {}, ["DS435"]),
    ("vllm serve X --tensor-parallel-size 1.0", "vllm==0.32.0", {}, ["DS435"]),
    ("vllm serve X --max-model-len 1k -dp 2 -ep -dcp 1", "vllm==0.32.0", {}, []),
    ("sglang serve --model-path X -tp 8", "sglang==0.5.17", {}, ["DS430"]),
    ("sglang serve --model-path X --tp 8.0", "sglang==0.5.17", {}, ["DS435"]),
    ("vllm serve X --tp-size 2 --dp-size 2", "vllm==0.32.0", {}, ["DS430", "DS430"]),
    ("sglang serve X --tp 8", "sglang==0.5.17", {}, []),
    ("sglang serve --tp 8", "sglang==0.5.17", {}, ["DS470"]),
    ("vllm serve -tp 8", "vllm==0.32.0", {}, ["DS470"]),
    ("--tp 8", "sglang==0.5.17", {}, []),
    ("vllm serve X --speculative-model H --num-speculative-tokens 5", "vllm==0.6.3", {}, ["DS208"]),
    ("sglang serve --model-path X", "SGLang[all]==v0.5.17", {}, []),
    ("sglang serve --model-path X", "sglang==0.5.14.post1", {}, []),
    ("sglang serve --model-path X", "sglang==0.5.24rc1", {}, []),
    ("vllm serve X", "vllm==0.33.1.dev12+g1234", {}, []),
    ("sglang serve --model-path X", "sglang==0.3.0", {}, ["DS208"]),
]


@pytest.mark.parametrize(("text", "engine", "asked", "said"), SAID, ids=[f"{engine}: {text[:60]}" for text, engine, _, _ in SAID])
def test_what_is_said(text: str, engine: str, asked: dict[str, Any], said: list[str]) -> None:
    assert codes(text, engine, **asked) == said


GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "configs"
MTP = '\'{"method": "mtp", "num_speculative_tokens": 1}\''


@pytest.mark.parametrize("target", ["kimi-k2", "kimi-k2.5"])
def test_a_target_whose_config_counts_no_mtp_layer_cannot_draft_with_one(target: str) -> None:
    """vLLM 0.32.0: NotImplementedError. SGLang loads the target's folder a second time, as a drafter that is not in it."""
    config = str(GOLDEN / target)
    assert codes(f"vllm serve X -tp 8 -sc {MTP}", "vllm==0.32.0", target=config) == ["DS416"]
    nextn = "--speculative-algorithm NEXTN --speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 2"
    assert codes(f"sglang serve --model-path X --tp 8 {nextn}", target=config) == ["DS416"]
    assert codes(f"sglang serve --model-path X --tp 8 {nextn}", target=str(GOLDEN / "deepseek-v3")) == []


def test_the_engines_own_file_counts_behind_the_command(tmp_path: Any) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text(f"model: Y\nspeculative-config: {json.dumps({'method': 'eagle3', 'model': 'H'})}\n")
    subject, _ = make_subject(Asked(engine="vllm==0.32.0"), read(f"vllm serve X --config {file}"))
    assert subject.flags["model"] == "X" and json.loads(str(subject.flags["speculative-config"]))["model"] == "H"


def test_a_cache_for_the_longest_context_is_no_warning_when_nobody_planned_it() -> None:
    shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "vocab_size": 128256}
    shape |= {"hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 14336, "max_position_embeddings": 131072}
    for planned, severity in ((None, "info"), (131072, "warning")):
        asked = Asked(engine="sglang==0.5.17", concurrency=64, context_length=planned, gpus=1, gpu_memory="80GiB")
        subject, _ = make_subject(asked, read("sglang serve --tp 1"))
        found = check_subject(type(subject)(**{**vars(subject), "target": shape})).findings
        assert [finding.severity for finding in found if finding.code == "DS512"] == [severity]
