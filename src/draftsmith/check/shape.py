"""Rules about the drafter's shape against the target's config. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packaging.version import Version

from draftsmith.errors import CheckFailed
from draftsmith.findings import Finding
from draftsmith.models.taps import SGLANG_ANY_NUMBER_SINCE, SGLANG_READ, check_taps, default_taps, render_sglang
from draftsmith.settings import DrafterSettings


def tap_findings(taps: Sequence[int] | None, config: dict[str, Any], engine: str, version: Version | None) -> list[Finding]:
    """Boundaries must lie in 0..N and increase strictly: engines concatenate features in layer order, not in list order."""
    num_layers = config["num_hidden_layers"]
    fix = "set drafter.taps to increasing boundaries in 0..N, or leave it out for 2, N//2, N-3"
    try:
        taps = default_taps(num_layers) if taps is None else taps
        check_taps(taps, num_layers)
    except CheckFailed as error:
        return [Finding("DS301", "error", error.message, "training and serving could not use the same hidden states", error.hint or fix)]
    if engine != "sglang":
        return []
    findings = []
    shown = ", ".join(str(tap) for tap in taps)
    try:
        render_sglang(taps, num_layers, config["model_type"], version or SGLANG_READ[1])
    except CheckFailed as error:
        findings.append(Finding("DS302", "error", error.message, "SGLang would read other hidden states than training did", error.hint))
    if num_layers in taps:
        evidence = f"taps {shown} hold boundary {num_layers}, the output of the last layer"
        findings.append(Finding("DS303", "error", evidence, "most SGLang targets do not hand it out: one feature short", fix))
    if len(taps) != 3 and version is not None and version < SGLANG_ANY_NUMBER_SINCE:
        evidence = f"{len(taps)} taps; SGLang below 0.5.12 has room for exactly 3"
        findings.append(Finding("DS306", "error", evidence, "fc has the wrong width", "use 3 taps or a newer SGLang"))
    return findings


def shape_findings(config: dict[str, Any], drafter: DrafterSettings) -> list[Finding]:
    """Vocabulary and head sizes."""
    findings = []
    vocab, hidden, heads = config["vocab_size"], config["hidden_size"], config["num_attention_heads"]
    if not 0 < drafter.draft_vocab_size <= vocab:
        evidence = f"drafter.draft_vocab_size is {drafter.draft_vocab_size}, the target's vocabulary {vocab}"
        fix = f"set drafter.draft_vocab_size to 1..{vocab}"
        findings.append(Finding("DS304", "error", evidence, "the draft head has no tokens to map to", fix))
    head_dim = config.get("head_dim") or hidden / heads
    kv_heads = config.get("num_key_value_heads") or heads
    if head_dim != int(head_dim) or head_dim % 2:
        evidence = f"hidden size {hidden} over {heads} heads gives a head dimension of {head_dim:g}"
        fix = "correct hidden_size, num_attention_heads or head_dim in config.json"
        findings.append(Finding("DS305", "error", evidence, "rotary attention needs a whole, even head dimension", fix))
    if heads % kv_heads:
        evidence = f"{heads} attention heads do not divide into {kv_heads} key-value heads"
        fix = "correct num_key_value_heads in config.json"
        findings.append(Finding("DS305", "error", evidence, "grouped attention needs whole groups", fix))
    return findings
