"""export: one drafter folder that vLLM (method eagle3) and SGLang (EAGLE3) load, with a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from safetensors import safe_open

from draftsmith.errors import CheckFailed
from draftsmith.export.settings import ExportSettings
from draftsmith.job import Job, Plan
from draftsmith.manifest import atomic_write_text
from draftsmith.metrics import Acceptance
from draftsmith.models.checkpoint import WEIGHTS, load_trained, write_drafter
from draftsmith.models.eagle3 import Eagle3Shape
from draftsmith.models.taps import SGLANG_READ, VLLM_READ, sglang_version, sglang_versions
from draftsmith.models.target import load_target
from draftsmith.store import Index

NAME = "export"
INPUTS = ("train", "capture")


def plan(settings: ExportSettings, job: Job) -> Plan:
    return Plan(bytes=16_000_000, seconds=5, note="config.json, model.safetensors, README.md")


def run(settings: ExportSettings, job: Job) -> dict[str, Any]:
    """Write the folder, then read it back and account for every key and shape."""
    folder = job.folder(NAME)
    index = Index.read(job.folder("capture"))
    assert index is not None, "capture has not finished"
    target = load_target(job.target, index.taps, torch.bfloat16, job.trust_remote_code)
    drafter = load_trained(job.folder("train"), target)
    config = write_drafter(folder, drafter, index.taps, target.config, settings.dtype, job.engine.name)
    ledger = read_ledger(folder)
    wrong = ledger_differences(ledger, drafter.shape)
    if wrong:
        raise CheckFailed(f"{folder / WEIGHTS}: {'; '.join(wrong)}", hint="this is a fault of the exporter; please report it")
    parameters = sum(p.numel() for p in drafter.parameters())
    sglang = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    read_by = sglang_versions(sglang, index.taps, target.config.num_hidden_layers, target.config.model_type)
    write_model_card(folder, settings, job, config, parameters, read_by)
    return {
        "parameters": parameters,
        "bytes": (folder / WEIGHTS).stat().st_size,
        "dtype": settings.dtype,
        "taps": {
            "boundaries": list(index.taps),
            "vllm": config["eagle_aux_hidden_state_layer_ids"],
            "sglang": sglang,
            "sglang_versions": read_by,
        },
        "ledger": ledger,
    }


def expected_shapes(shape: Eagle3Shape) -> dict[str, list[int]]:
    """Name and shape of every tensor that the engines' EAGLE-3 loaders read."""
    D, inner, E = shape.hidden_size, shape.intermediate_size, shape.head_size
    layer = "midlayer."
    return {
        "fc.weight": [D, shape.num_taps * shape.target_hidden_size],
        layer + "input_layernorm.weight": [D],
        layer + "hidden_norm.weight": [D],
        layer + "post_attention_layernorm.weight": [D],
        layer + "self_attn.q_proj.weight": [shape.num_heads * E, 2 * D],
        layer + "self_attn.k_proj.weight": [shape.num_kv_heads * E, 2 * D],
        layer + "self_attn.v_proj.weight": [shape.num_kv_heads * E, 2 * D],
        layer + "self_attn.o_proj.weight": [D, shape.num_heads * E],
        layer + "mlp.gate_proj.weight": [inner, D],
        layer + "mlp.up_proj.weight": [inner, D],
        layer + "mlp.down_proj.weight": [D, inner],
        "norm.weight": [D],
        "lm_head.weight": [shape.draft_vocab_size, D],
        "d2t": [shape.draft_vocab_size],
        "t2d": [shape.vocab_size],
    }


def read_ledger(folder: Path) -> dict[str, dict[str, Any]]:
    """Name -> shape and dtype of every tensor in an exported folder."""
    with safe_open(str(folder / WEIGHTS), "pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (safe_open is not a mapping)
        return {name: {"shape": list(view.get_shape()), "dtype": view.get_dtype()} for name, view in slices.items()}


def ledger_differences(ledger: dict[str, dict[str, Any]], shape: Eagle3Shape) -> list[str]:
    """What an engine would miss, not know, or find in another shape or type."""
    expected = expected_shapes(shape)
    wrong = [f"missing {name}" for name in expected if name not in ledger]
    wrong += [f"unknown {name}" for name in ledger if name not in expected]
    wrong += [
        f"{name} is {ledger[name]['shape']}, expected {want}"
        for name, want in expected.items()
        if name in ledger and ledger[name]["shape"] != want
    ]
    wrong += [
        f"{name} is {ledger[name]['dtype']}"
        for name, dtype in {"d2t": "I64", "t2d": "BOOL"}.items()
        if name in ledger and ledger[name]["dtype"] != dtype
    ]
    return wrong


def write_model_card(folder: Path, settings: ExportSettings, job: Job, config: dict[str, Any], parameters: int, read_by: str) -> None:
    """README.md of the drafter folder: what it is for, how to serve it, what was measured in training. `read_by`: versions of SGLang."""
    environment = Environment(
        loader=PackageLoader("draftsmith.export", "."), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    train = job.summary("train")
    card = environment.get_template("model_card.md.jinja").render(
        license=settings.license,
        target=job.target.name,
        engine=job.engine.name,
        depth=job.drafter.depth,
        parameters=parameters,
        sglang={"read_by": read_by, "written_for": sglang_version(job.engine.name), "newest": SGLANG_READ[1]},
        vllm=VLLM_READ,
        config=config,
        train=train,
        heldout=Acceptance.from_dict(train["heldout"]),
    )
    atomic_write_text(folder / "README.md", card)
