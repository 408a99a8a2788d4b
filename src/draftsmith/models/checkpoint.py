"""Drafter folders: write one that SGLang and vLLM load, read one strictly, make one of random weights.

Tensor names are the parameter names of `Eagle3Drafter`, which are the names that both engines accept (`midlayer.*`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from draftsmith.errors import CheckFailed, EnvironmentFailed
from draftsmith.manifest import atomic_write_bytes, atomic_write_json, read_json, shaped
from draftsmith.models.eagle3 import Eagle3Drafter, Eagle3Shape, shape_for
from draftsmith.models.taps import default_taps, render_sglang, render_vllm, sglang_version
from draftsmith.models.target import Target
from draftsmith.models.text_config import read_config
from draftsmith.settings import DrafterSettings

WEIGHTS = "model.safetensors"
TRAINED_WEIGHTS, TRAINED_SHAPE = "drafter.safetensors", "drafter.json"
EXPORTED = "expected a drafter in the plain layout, as export and `draftsmith convert --to vllm` write it"
INTEGER_TENSORS = {"d2t": torch.int64, "t2d": torch.bool}


def drafter_tensors(drafter: Eagle3Drafter, dtype: torch.dtype) -> dict[str, Tensor]:
    """Every tensor that a drafter folder holds, floating ones in `dtype`."""
    state = drafter.state_dict()
    return {name: (value if name in INTEGER_TENSORS else value.to(dtype)).contiguous().cpu() for name, value in state.items()}


def drafter_config(shape: Eagle3Shape, taps: Sequence[int], target_config: Any, dtype: str, engine: str) -> dict[str, Any]:
    """config.json that both engines read. Tap ids are written in both spellings (models/taps.py), SGLang's for `engine` if that is one."""
    sglang = render_sglang(taps, target_config.num_hidden_layers, target_config.model_type, sglang_version(engine))
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "target_hidden_size": shape.target_hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "vocab_size": shape.vocab_size,
        "draft_vocab_size": shape.draft_vocab_size,
        "max_position_embeddings": shape.max_position,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": getattr(target_config, "bos_token_id", None),
        "eos_token_id": getattr(target_config, "eos_token_id", None),
        "torch_dtype": dtype,
        "num_aux_hidden_states": len(taps),
        "eagle_aux_hidden_state_layer_ids": render_vllm(taps),
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": sglang,
            "use_aux_hidden_state": True,
        },
        "draftsmith": {"tap_boundaries": list(taps), "target_model_type": target_config.model_type},
    }


def write_drafter(
    folder: Path, drafter: Eagle3Drafter, taps: Sequence[int], target_config: Any, dtype: str, engine: str = ""
) -> dict[str, Any]:
    """Write model.safetensors and config.json, for the engine NAME==VERSION first of all; returns the config."""
    folder.mkdir(parents=True, exist_ok=True)
    config = drafter_config(drafter.shape, taps, target_config, dtype, engine)
    atomic_write_bytes(folder / WEIGHTS, save(drafter_tensors(drafter, getattr(torch, dtype)), metadata={"format": "pt"}))
    atomic_write_json(folder / "config.json", config)
    return config


def shape_from_config(config: Mapping[str, Any]) -> Eagle3Shape:
    """The shape that a drafter's config.json describes. Raises CheckFailed for another architecture or a missing key."""
    architecture = (config.get("architectures") or ["absent"])[0]
    if architecture != "LlamaForCausalLMEagle3":
        raise CheckFailed(f"drafter architecture is {architecture!r}, expected 'LlamaForCausalLMEagle3'", hint=EXPORTED)
    try:
        return Eagle3Shape(
            hidden_size=config["hidden_size"],
            target_hidden_size=config.get("target_hidden_size") or config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            head_size=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            vocab_size=config["vocab_size"],
            draft_vocab_size=config["draft_vocab_size"],
            num_taps=config.get("num_aux_hidden_states") or 3,
            rope_theta=config["rope_theta"],
            rms_norm_eps=config["rms_norm_eps"],
            max_position=config["max_position_embeddings"],
        )
    except KeyError as error:
        raise CheckFailed(f"drafter config.json has no {error.args[0]!r}", hint=EXPORTED) from None


def same_tensors(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], where: Path) -> None:
    """Raises CheckFailed naming every missing, unknown or misshapen tensor."""
    problems = [f"missing {name}" for name in expected if name not in tensors]
    problems += [f"unknown {name}" for name in tensors if name not in expected]
    problems += [
        f"{name} is {list(tensors[name].shape)}, expected {list(value.shape)}"
        for name, value in expected.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    problems += [
        f"{name} is {tensors[name].dtype}, expected {dtype}"
        for name, dtype in INTEGER_TENSORS.items()
        if name in tensors and tensors[name].dtype != dtype
    ]
    if problems:
        raise CheckFailed(f"{where}: {'; '.join(problems)}", hint="the folder was not written for this drafter; convert or export it again")


def load_strictly(drafter: Eagle3Drafter, tensors: Mapping[str, Tensor], where: Path) -> Eagle3Drafter:
    """Copy tensors into the drafter. Raises CheckFailed naming every missing, unknown or misshapen one."""
    same_tensors(drafter.state_dict(), tensors, where)
    drafter.load_state_dict(dict(tensors), strict=True)
    ids = drafter.target_ids_W
    if not bool((ids.diff() > 0).all()) or int(ids[0]) < 0 or int(ids[-1]) >= drafter.shape.vocab_size:
        raise CheckFailed(
            f"{where}: d2t does not give strictly increasing target ids inside the vocabulary",
            hint="d2t holds offsets: target id - draft id",
        )
    if not torch.equal(drafter.t2d.nonzero().flatten(), ids):
        raise CheckFailed(f"{where}: t2d marks other tokens than d2t names", hint=EXPORTED)
    return drafter.eval()


def weights_of(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises EnvironmentFailed when it is not whole."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise EnvironmentFailed(f"{path} is damaged or not whole: {error}", hint="copy it, or run its stage, again") from None


def load_exported(folder: Path, target: Target, dtype: torch.dtype = torch.float32) -> Eagle3Drafter:
    """The drafter of an exported folder, with the target's embedding."""
    if not (folder / "config.json").is_file() or not (folder / WEIGHTS).is_file():
        raise EnvironmentFailed(f"{folder} is no drafter folder: config.json or {WEIGHTS} is missing", hint="run the export stage")
    shape = shape_from_config(read_config(folder))
    drafter = load_strictly(Eagle3Drafter(shape), weights_of(folder / WEIGHTS), folder / WEIGHTS)
    return with_target(drafter, target, dtype)


def save_trained(folder: Path, drafter: Eagle3Drafter, taps: Sequence[int]) -> None:
    """The training stage's result: float32 weights and the shape."""
    atomic_write_bytes(folder / TRAINED_WEIGHTS, save(drafter_tensors(drafter, torch.float32)))
    atomic_write_json(folder / TRAINED_SHAPE, {"shape": asdict(drafter.shape), "tap_boundaries": list(taps)})


def load_trained(folder: Path, target: Target, dtype: torch.dtype = torch.float32) -> Eagle3Drafter:
    """The drafter that the training stage left, with the target's embedding."""
    if not (folder / TRAINED_SHAPE).is_file():
        raise EnvironmentFailed(f"no trained drafter in {folder}", hint="run the train stage")
    content = read_json(folder / TRAINED_SHAPE)
    with shaped(folder / TRAINED_SHAPE):
        shape = Eagle3Shape(**{field.name: content["shape"][field.name] for field in fields(Eagle3Shape)})
    drafter = load_strictly(Eagle3Drafter(shape), weights_of(folder / TRAINED_WEIGHTS), folder / TRAINED_WEIGHTS)
    return with_target(drafter, target, dtype)


def with_target(drafter: Eagle3Drafter, target: Target, dtype: torch.dtype) -> Eagle3Drafter:
    """Cast the drafter and lend it the target's embedding."""
    drafter.to(dtype)
    drafter.set_embedding(target.embedding_VH.to(dtype))
    return drafter.eval().requires_grad_(False)


def write_random_drafter(target: Path, settings: DrafterSettings, folder: Path, seed: int, engine: str = "") -> Path:
    """A drafter of the right shape with random weights, from the target's config.json alone: what breakeven drafts with.

    Nothing that it drafts is ever right, so its rounds cost what a real drafter's rounds cost and emit one token.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(target, local_files_only=True).get_text_config()
    taps = settings.taps or default_taps(config.num_hidden_layers)
    generator_state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        drafter = Eagle3Drafter(shape_for(config, settings.draft_vocab_size, len(taps), settings.intermediate_size))
    finally:
        torch.set_rng_state(generator_state)
    drafter.set_vocabulary(torch.arange(drafter.shape.draft_vocab_size))
    write_drafter(folder, drafter, taps, config, "bfloat16", engine)
    return folder
