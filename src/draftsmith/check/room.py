"""Rough needs of disk and memory. Estimates for a warning in time, not measurements. Pure, sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftsmith.findings import Finding
from draftsmith.settings import DrafterSettings

GIB = 2**30
ENGINE_OVERHEAD = int(2.2 * GIB)  # a vLLM CPU engine's processes beside weights and KV cache, measured in 0.32.0
TOOLKIT_OVERHEAD = int(1.0 * GIB)  # torch, transformers and the batches of capture and training


@dataclass(frozen=True)
class Room:
    """What the machine has: free disk where the run folder is, memory in all."""

    disk_free: int
    memory_total: int


@dataclass(frozen=True)
class Load:
    """What is planned, and what there is to carry it."""

    concurrency: int
    context_length: int
    training_tokens: int
    weights: int  # bytes of the target's weight files
    room: Room


def drafter_parameters(config: dict[str, Any], drafter: DrafterSettings, num_taps: int) -> int:
    """Weights of a one-layer EAGLE-3 drafter without the embedding."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = int(config.get("head_dim") or hidden // heads)
    kv_heads = config.get("num_key_value_heads") or heads
    attention = 2 * hidden * head_dim * (heads + 2 * kv_heads) + heads * head_dim * hidden
    mlp = 3 * hidden * (drafter.intermediate_size or config.get("intermediate_size", 4 * hidden))
    return num_taps * hidden * hidden + attention + mlp + drafter.draft_vocab_size * hidden + 4 * hidden


def kv_bytes_per_token(config: dict[str, Any]) -> int:
    """bf16 keys and values of all layers for one token (an upper bound for latent or sliding attention)."""
    heads = config["num_attention_heads"]
    head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
    return 2 * config["num_hidden_layers"] * (config.get("num_key_value_heads") or heads) * head_dim * 2


def disk_findings(config: dict[str, Any], num_taps: int, tokens: int, parameters: int, room: Room) -> list[Finding]:
    """bf16 features of all taps and the last state, two checkpoints of the drafter (weights and two moments in float32), the export."""
    capture = tokens * (num_taps + 1) * config["hidden_size"] * 2
    needed = capture + parameters * (2 * 12 + 2)
    evidence = f"the run needs about {needed / GIB:.1f} GiB ({capture / GIB:.1f} of hidden states), {room.disk_free / GIB:.1f} GiB are free"
    if needed > room.disk_free:
        fix = "free disk space or move the run folder"
        return [Finding("DS501", "error", evidence, "the disk fills up during capture or training", fix)]
    return [Finding("DS501", "info", evidence, "it fits", "nothing")]


def kv_space(env: Mapping[str, str]) -> float | None:
    """GiB in VLLM_CPU_KVCACHE_SPACE; None when it is not set. Raises ValueError when it is not a positive number."""
    if "VLLM_CPU_KVCACHE_SPACE" not in env:
        return None
    value = float(env["VLLM_CPU_KVCACHE_SPACE"])
    if not 0 < value < float("inf"):
        raise ValueError(value)
    return value


def memory_findings(weights: int, parameters: int, env: Mapping[str, str], engine: str, room: Room) -> list[Finding]:
    """Host memory: two CPU engines side by side with the target in the toolkit, or the toolkit alone when the engine has a GPU."""
    needed = weights + parameters * 16 + TOOLKIT_OVERHEAD
    if engine.endswith("-cpu"):
        engines = 2 * (2 * weights + int((kv_space(env) or 4) * GIB) + ENGINE_OVERHEAD)  # verify starts two with float32 copies
        needed = max(needed, engines + weights * 2 + TOOLKIT_OVERHEAD)
    evidence = f"the largest stage needs about {needed / GIB:.1f} GiB of memory, the machine has {room.memory_total / GIB:.1f}"
    if needed > room.memory_total:
        fix = "lower VLLM_CPU_KVCACHE_SPACE, or use a larger machine"
        return [Finding("DS502", "warning", evidence, "a process may be killed for memory", fix)]
    return [Finding("DS502", "info", evidence, "it fits", "nothing")]


def kv_findings(config: dict[str, Any], env: Mapping[str, str], concurrency: int, context_length: int) -> list[Finding]:
    """The CPU engine's KV cache against the planned load."""
    space = kv_space(env)
    needed = kv_bytes_per_token(config) * concurrency * context_length / GIB
    if space is None or needed <= space:
        return []
    evidence = f"{concurrency} x {context_length} tokens need {needed:.1f} GiB of KV cache, VLLM_CPU_KVCACHE_SPACE is {space:g}"
    return [Finding("DS503", "warning", evidence, "requests queue or are preempted", "raise VLLM_CPU_KVCACHE_SPACE")]


def room_findings(config: dict[str, Any], drafter: DrafterSettings, load: Load, env: Mapping[str, str], engine: str) -> list[Finding]:
    """Disk, memory and KV cache."""
    num_taps = len(drafter.taps or (0, 0, 0))
    parameters = drafter_parameters(config, drafter, num_taps)
    findings = disk_findings(config, num_taps, load.training_tokens, parameters, load.room)
    try:
        findings += memory_findings(load.weights, parameters, env, engine, load.room)
        findings += kv_findings(config, env, load.concurrency, load.context_length) if engine.endswith("-cpu") else []
    except ValueError:
        evidence = f"VLLM_CPU_KVCACHE_SPACE is {env['VLLM_CPU_KVCACHE_SPACE']!r}"
        findings.append(Finding("DS504", "error", evidence, "the engine refuses to start", "set it to a number of GiB"))
    return findings
