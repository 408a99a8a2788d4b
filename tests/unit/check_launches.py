"""Configs and launches that the rules of check are tested on."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from draftsmith.check.command_line import parse_command
from draftsmith.check.resolution import Resolution
from draftsmith.check.rules import resolve
from draftsmith.check.subject import Subject
from draftsmith.findings import Finding

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "vocab_size": 128256}
QWEN = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 36, "vocab_size": 151936}
DEEPSEEK = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 61, "vocab_size": 129280}
EAGLE3_HEAD = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32000, "vocab_size": 128256}
EAGLE1_HEAD = {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1, "vocab_size": 128256}
DFLASH = {"architectures": ["DFlashDraftModel"], "block_size": 16, "dflash_config": {"target_layer_ids": [1, 9]}}
DSPARK = {"architectures": ["Qwen3DSparkModel"], "block_size": 7, "markov_rank": 256}
SGLANG_VERSIONS = ("0.5.3", "0.5.6", "0.5.9", "0.5.11", "0.5.12", "0.5.13", "0.5.15", "0.5.17", "0.5.19", "0.5.20", "0.5.23")


def sglang(flags: str, version: str = "0.5.17", **more: Any) -> Resolution:
    """Flags behind `--speculative-` where they begin with a word."""
    text = f"sglang serve --model-path X {flags}".replace("--algo ", "--speculative-algorithm ")
    pasted = parse_command([text])
    more.setdefault("target", LLAMA)
    return resolve(Subject(family="sglang", version=Version(version), flags=pasted.flags, env=more.pop("env", {}), **more))


def vllm(config: str, version: str = "0.32.0", flags: str = "", **more: Any) -> Resolution:
    pasted = parse_command([f"vllm serve X {flags}" + (f" --speculative-config '{config}'" if config else "")])
    return resolve(Subject(family="vllm", version=Version(version), flags=pasted.flags, env=more.pop("env", {}), **more))


def one(resolution: Resolution, code: str) -> Finding:
    found = [finding for finding in resolution.findings if finding.code == code]
    assert len(found) == 1, resolution.findings
    return found[0]


def bad(resolution: Resolution) -> list[str]:
    return [finding.code for finding in resolution.findings if finding.severity == "error"]


def numbers(resolution: Resolution) -> tuple[Any, ...]:
    assert resolution.effective is not None
    return tuple(resolution.effective[f"speculative_{name}"] for name in ("num_steps", "eagle_topk", "num_draft_tokens"))


HEAD = "--algo EAGLE3 --speculative-draft-model-path H"
CHAIN = f"{HEAD} --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
TREE = f"{HEAD} --speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"
