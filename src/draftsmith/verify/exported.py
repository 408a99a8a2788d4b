"""Is the exported folder what training made, and is it whole? Suffixes: B batch, T tokens, F taps * hidden, W draft vocabulary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftsmith.findings import Finding
from draftsmith.models.eagle3 import Eagle3Drafter

AGAIN = "run the export stage again"
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


@dataclass(frozen=True)
class Tensors:
    """Header of model.safetensors and the two vocabulary maps."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    d2t_W: Tensor | None
    t2d_V: Tensor | None


def read_tensors(folder: Path) -> Tensors:
    """Names, shapes and dtypes; only d2t and t2d are read. Raises SafetensorError on a damaged file."""
    with safe_open(str(folder / "model.safetensors"), framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        shapes = {name: tuple(piece.get_shape()) for name, piece in slices.items()}
        dtypes = {name: piece.get_dtype() for name, piece in slices.items()}
        maps = [file.get_tensor(name) if name in slices else None for name in ("d2t", "t2d")]
    return Tensors(shapes, dtypes, *maps)


def expected_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a one-layer EAGLE-3 folder as vLLM and SGLang load it, derived from its config.json alone."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["draft_vocab_size"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    num_taps = len(config.get("eagle_aux_hidden_state_layer_ids") or (0, 0, 0))
    return {
        "fc.weight": (hidden, num_taps * (config.get("target_hidden_size") or hidden)),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (heads * head_dim, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (kv_heads * head_dim, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (kv_heads * head_dim, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, heads * head_dim),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
        "d2t": (vocab,),
        "t2d": (config["vocab_size"],),
    }


def ledger_findings(expected: Mapping[str, tuple[int, ...]], tensors: Tensors) -> list[Finding]:
    """Every key accounted for: missing, unknown, wrong shape, mixed dtypes."""
    findings = []
    shapes = tensors.shapes
    if missing := sorted(expected.keys() - shapes.keys()):
        evidence = f"model.safetensors lacks {', '.join(missing)}"
        findings.append(Finding("DS601", "error", evidence, "the engines leave such weights random without a word", AGAIN))
    if unknown := sorted(shapes.keys() - expected.keys()):
        evidence = f"model.safetensors has unknown tensors: {', '.join(unknown)}"
        findings.append(Finding("DS602", "error", evidence, "vLLM refuses them, SGLang drops them silently", AGAIN))
    for name in sorted(expected.keys() & shapes.keys()):
        if expected[name] != shapes[name]:
            evidence = f"{name} has shape {list(shapes[name])}, config.json means {list(expected[name])}"
            findings.append(Finding("DS603", "error", evidence, "the engine cannot load it", AGAIN))
    found = {dtype for name, dtype in tensors.dtypes.items() if name not in ("d2t", "t2d")}
    if len(found) != 1 or not found <= DTYPES.keys():
        findings.append(Finding("DS604", "error", f"weights have the dtypes {sorted(found)}", "the drafter is not what was trained", AGAIN))
    return findings


def vocabulary_findings(d2t_W: Tensor, t2d_V: Tensor, trained_ids_W: Tensor) -> list[Finding]:
    """d2t (offsets) and t2d (mask) name the same tokens, in order, inside the vocabulary, and those that training used."""
    ids_W = d2t_W.long() + torch.arange(len(d2t_W))
    wrong = "drafts are read as other tokens than the drafter means; acceptance collapses without an error"
    if d2t_W.dtype != torch.int64 or t2d_V.dtype != torch.bool:
        return [Finding("DS605", "error", f"d2t is {d2t_W.dtype}, t2d {t2d_V.dtype}, expected int64 and bool", wrong, AGAIN)]
    if bool((ids_W.diff() <= 0).any()) or int(ids_W[0]) < 0 or int(ids_W[-1]) >= len(t2d_V):
        return [Finding("DS605", "error", f"d2t names ids that do not increase inside 0..{len(t2d_V) - 1}", wrong, AGAIN)]
    findings = []
    if not torch.equal(t2d_V.nonzero().flatten(), ids_W):
        evidence = f"t2d marks {int(t2d_V.sum())} tokens, d2t names {len(ids_W)}, and they are not the same"
        findings.append(Finding("DS605", "error", evidence, wrong, AGAIN))
    if not torch.equal(trained_ids_W, ids_W):
        first = int((trained_ids_W != ids_W).nonzero()[0]) if trained_ids_W.shape == ids_W.shape else 0
        evidence = f"d2t names other tokens than training used, first at draft id {first}"
        findings.append(Finding("DS605", "error", evidence, wrong, AGAIN))
    return findings


@dataclass(frozen=True)
class Equality:
    """Exported against trained on the same real features, in float32 arithmetic."""

    dtype: str  # of the exported weights
    tokens: int
    max_abs_logit_diff: float  # against the trained weights rounded to that dtype: must be 0
    max_abs_rounding_diff: float  # against the trained weights as they are
    same_top1: float  # share of rows whose best draft survives the rounding

    @property
    def equal(self) -> bool:
        return self.max_abs_logit_diff == 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "equal": self.equal}


@torch.inference_mode()
def compare(
    exported: Eagle3Drafter, trained: Eagle3Drafter, dtype: str, rows: Sequence[Sequence[int]], features: Sequence[Tensor]
) -> Equality:
    """First-step draft logits of both on every row. `trained` is rounded in place on the way. dtype: safetensors name.

    features: float32 [T, F] per row of the real target.
    """
    exported, trained = exported.float().eval(), trained.float().eval()
    inputs = [(features_TF[None].float(), torch.tensor(row)[None]) for row, features_TF in zip(rows, features, strict=True)]
    before = [trained.draft_logits(*pair) for pair in inputs]
    for parameter in trained.parameters():
        parameter.copy_(parameter.to(DTYPES[dtype]).float())
    served = [exported.draft_logits(*pair) for pair in inputs]
    rounded = [trained.draft_logits(*pair) for pair in inputs]
    return Equality(
        dtype=dtype,
        tokens=sum(len(row) for row in rows),
        max_abs_logit_diff=largest_difference(served, rounded),
        max_abs_rounding_diff=largest_difference(served, before),
        same_top1=float(torch.cat([(a.argmax(-1) == b.argmax(-1)).flatten() for a, b in zip(served, before, strict=True)]).float().mean()),
    )


def largest_difference(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Largest absolute difference; inf when a value is not finite, so that nan never passes as equal."""
    difference = max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))
    return difference if all(bool(torch.isfinite(x).all()) for x in (*a, *b)) else float("inf")


def folder_findings(folder: Path, taps: Sequence[int]) -> tuple[Tensors | None, list[Finding]]:
    """Ledger of config.json and model.safetensors; None when they cannot be read. taps: the boundaries that capture stored."""
    try:
        config = json.loads((folder / "config.json").read_text())
        tensors = read_tensors(folder)
        findings = ledger_findings(expected_shapes(config), tensors)
    except (OSError, ValueError, TypeError, KeyError, RecursionError, SafetensorError) as error:
        return None, [Finding("DS600", "error", f"cannot read the exported folder {folder}: {error!r}", "no engine can load it", AGAIN)]
    written = config.get("eagle_aux_hidden_state_layer_ids")
    if written is not None and list(written) != list(taps):
        evidence = f"config.json taps {written}, training used boundaries {list(taps)}"
        findings.append(Finding("DS606", "error", evidence, "the engine feeds the drafter other hidden states", AGAIN))
    return tensors, findings
