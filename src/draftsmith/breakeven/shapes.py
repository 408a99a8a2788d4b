"""Folders for what does not exist yet: a target from its config.json alone, and a drafter that fits it, to be filled with dummy weights.

No network is built here: the engine fills the tensors with random numbers. Costs depend on shapes; what random weights do change (which
experts a router picks, which tokens are drafted) is said in `page.py` and measured where both can be had.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from draftsmith.errors import UsageError
from draftsmith.manifest import atomic_write_json, make_folder
from draftsmith.models.taps import default_taps, dflash_default
from draftsmith.models.text_config import read_text_config
from draftsmith.settings import DrafterSettings

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "tokenizer.model", "special_tokens_map.json")
NEEDED = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"),
    *("intermediate_size", "rms_norm_eps", "max_position_embeddings"),
)
DFLASH_LAYERS = 5  # of the published drafters for 4B to 30B targets


def has_weights(folder: Path) -> bool:
    """Does a model folder hold tensors?"""
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")) or any(folder.glob("*.gguf"))


def has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer.json").is_file() or (folder / "tokenizer.model").is_file()


def target_folder(source: Path, made: Path, tokenizer: Path | None = None) -> Path:
    """The folder that the engine is given for `source`, a model folder or a config.json.

    A folder with weights is taken as it is. Otherwise `made` gets the config, the source's other small files, and the tokenizer of
    the folder `tokenizer` when the source has none. Raises UsageError when there is no config.json.
    """
    config = source if source.is_file() else source / "config.json"
    if not config.is_file():
        raise UsageError(f"no config.json at {source}", hint="--target takes a model folder, or a config.json")
    folder = config.parent
    if source.is_dir() and has_weights(folder):
        return folder
    if config.resolve().is_relative_to(made.resolve()):  # named by the place where a copy would go: it stays as it is
        return folder
    make_anew(made)
    shutil.copyfile(config, made / "config.json")
    lender = folder if source.is_dir() and has_tokenizer(folder) else tokenizer
    if lender is not None:
        for name in TOKENIZER_FILES:
            if (lender / name).is_file():
                shutil.copyfile(lender / name, made / name)
    return made


def make_anew(folder: Path) -> None:
    """An empty folder in the place of the one that an earlier start made. Raises UsageError when it holds weights: it is not ours."""
    if has_weights(folder):
        raise UsageError(f"{folder} holds weights, and breakeven would write a config.json of its own there", hint="choose another --out")
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder, "--out")


def write_drafter_config(
    target: Path, settings: DrafterSettings, folder: Path, method: str = "eagle3", block: int = 16, engine: str = ""
) -> Path:
    """A drafter folder that holds only config.json, in the shape that `settings` give it for the target in `target`."""
    text = read_text_config(target)
    if missing := [key for key in NEEDED if not isinstance(text.get(key), int | float)]:
        hint = "a config.json of a Llama-like target"
        raise UsageError(f"{target / 'config.json'} lacks {', '.join(missing)}: no drafter's shape follows from it", hint=hint)
    make_anew(folder)
    config = dflash_config(text, block) if method == "dflash" else eagle3_config(text, settings, engine)
    atomic_write_json(folder / "config.json", config)
    return folder


def eagle3_config(text: dict[str, Any], settings: DrafterSettings, engine: str = "") -> dict[str, Any]:
    """As the export stage writes it, for a target of which only the config is known."""
    from draftsmith.models.checkpoint import drafter_config
    from draftsmith.models.eagle3 import shape_for

    target = SimpleNamespace(**text)
    taps = settings.taps or default_taps(target.num_hidden_layers)
    shape = shape_for(target, settings.draft_vocab_size, len(taps), settings.intermediate_size)
    return drafter_config(shape, taps, target, "bfloat16", engine)


def dflash_config(text: dict[str, Any], block: int) -> dict[str, Any]:
    """A DFlash drafter of the target's width (arXiv 2602.06036, section 3): five layers on five taps propose a block at once."""
    heads = text["num_attention_heads"]
    taps = dflash_default(text["num_hidden_layers"], DFLASH_LAYERS)
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": block,
        "num_target_layers": text["num_hidden_layers"],
        "dflash_config": {"mask_token_id": text["vocab_size"] - 1, "target_layer_ids": [boundary - 1 for boundary in taps]},
        "vocab_size": text["vocab_size"],
        "hidden_size": text["hidden_size"],
        "intermediate_size": text["intermediate_size"],
        "num_hidden_layers": DFLASH_LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": text.get("num_key_value_heads") or heads,
        "head_dim": text.get("head_dim") or text["hidden_size"] // heads,
        "hidden_act": "silu",
        "rms_norm_eps": text["rms_norm_eps"],
        "rope_theta": float(text.get("rope_theta") or 10000.0),
        "max_position_embeddings": text["max_position_embeddings"],
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
