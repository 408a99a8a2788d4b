"""Run by the interpreter of a speculators environment: load what Draftsmith converted, convert the same sources with speculators' own
converter, and print what was loaded and made as JSON. Arguments: a folder with sources/, converted/ and target/."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import hashlib
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from speculators import SpeculatorModel, SpeculatorModelConfig
from speculators.convert.entrypoints import convert_model

FIELDS = (
    *("draft_vocab_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "target_hidden_size"),
    *("block_size", "mask_token_id", "sample_from_anchor", "sliding_window_non_causal"),
    *("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "speculators_model_type"),
)
LAYER = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"),
    *("rms_norm_eps", "rope_parameters", "sliding_window", "layer_types", "model_type"),
)


def digest(tensor: torch.Tensor) -> str:
    """Shape and the first digits of the SHA-256 of the values, floating ones as float32 (which holds every 16-bit value)."""
    value = tensor.float() if tensor.is_floating_point() else tensor
    return f"{list(tensor.shape)} {hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()[:16]}"


def picked(config: Any) -> dict[str, Any]:
    """The fields that say what is computed, as the library understood them."""
    found = {name: getattr(config, name) for name in FIELDS if hasattr(config, name)}
    return {**found, "layer": {name: getattr(config.transformer_layer_config, name, None) for name in LAYER}}


def loaded(folder: Path) -> dict[str, Any]:
    """What the library's own loader makes of a folder. Tensors that it left unset are NaN there."""
    config = SpeculatorModelConfig.from_pretrained(str(folder))
    config.transformer_layer_config._attn_implementation = "eager"
    model, report = SpeculatorModel.from_pretrained(str(folder), config=config, dtype=torch.float32), {}
    state = {name: value for name, value in model.state_dict().items() if not (value.is_floating_point() and value.isnan().any())}
    report["class"] = type(model).__name__
    report["config"] = picked(model.config)
    stored = set(load_file(folder / "model.safetensors"))
    report["tensors"] = {name: digest(value) for name, value in sorted(state.items()) if name in stored}
    report["filled"] = sorted(set(state) - stored)  # from the target, or at random: an EAGLE-3 embedding that is not stored is random
    report["unset"] = sorted(set(model.state_dict()) - set(state))
    if (inputs := folder.parents[1] / f"{folder.name}.inputs.safetensors").is_file():
        report["logits"] = first_logits(model, load_file(inputs))
    return report


@torch.inference_mode()
def first_logits(model: Any, inputs: dict[str, torch.Tensor]) -> list[list[float]]:
    """Draft logits of the first step. features [1, T, F] and the tokens that follow them, [1, T]."""
    model.eval()
    model.embed_tokens.weight.data = inputs["embedding"]
    heads: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, args, output: heads.append(output))
    documents = torch.zeros_like(inputs["next_ids"])
    model(hidden_states=inputs["features"], input_ids=inputs["next_ids"], document_ids=documents, ttt_steps=1)
    return [[round(value, 5) for value in row] for row in heads[0][0].tolist()]


def own_conversion(source: Path, output: Path, target: Path, options: dict[str, Any]) -> dict[str, Any]:
    """What the library's converter makes of the same source."""
    algorithm = options.pop("algorithm")
    try:
        convert_model(str(source), str(target), algorithm, str(output), **options)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    tensors = {name: digest(value) for name, value in sorted(load_file(output / "model.safetensors").items())}
    return {"config": picked(SpeculatorModelConfig.from_pretrained(str(output))), "tensors": tensors}


def main() -> None:
    root = Path(sys.argv[1])
    cases = json.loads((root / "cases.json").read_text())
    answers: dict[str, Any] = {"speculators": metadata.version("speculators"), "cases": {}}
    for name, options in cases.items():
        answer = {"loaded": loaded(root / "converted" / name)}
        if options:
            answer["own"] = own_conversion(root / "sources" / name, root / "own" / name, root / "target", options)
        answers["cases"][name] = answer
    (root / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
