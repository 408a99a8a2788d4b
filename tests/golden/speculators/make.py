"""Ask speculators again: convert small drafters with Draftsmith, let speculators load them and convert the same sources itself.

    python tests/golden/speculators/make.py PYTHON      PYTHON: an interpreter with speculators 0.9.0

writes tests/golden/speculators/<version>.json. What the converter is held to: tests/unit/test_convert_speculators.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "unit"))

import convert_folders as folders  # noqa: E402  # pyright: ignore[reportMissingImports]
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from draftsmith import cli  # noqa: E402

EAGLE3 = {"algorithm": "eagle3", "eagle_aux_hidden_state_layer_ids": [3, 6, 11]}
# case -> (source, options of speculators' own converter; None: it has none for this source)
CASES: dict[str, tuple[Any, dict[str, Any] | None]] = {
    "eagle3_sglang": (folders.sglang_eagle3, EAGLE3),
    "eagle3_vllm": (folders.vllm_eagle3, EAGLE3),
    "eagle3_norm_before_residual": (
        lambda folder: folders.vllm_eagle3(folder, norm_before_residual=True),
        {**EAGLE3, "norm_before_residual": True},
    ),
    "dflash_zlab": (folders.zlab_dflash, {"algorithm": "dflash"}),
    "dflash_sliding": (
        lambda folder: folders.zlab_dflash(folder, layer_types=["sliding_attention"] * 2, sliding_window=16, use_sliding_window=True),
        {"algorithm": "dflash"},
    ),
    "dspark": (folders.dspark, None),
}


def varied(variant: str) -> Callable[[Path], Path]:
    """A maker of the plain vLLM folder with a variant's changes."""

    def make(folder: Path) -> Path:
        folders.vary(folders.vllm_eagle3(folder), **folders.VARIANTS[variant][0])
        return folder

    return make


CASES |= {f"variant_{variant}": (varied(variant), None) for variant in folders.VARIANTS if variant not in ("plain", "residual")}


def prepare(root: Path) -> None:
    """Sources, what Draftsmith makes of them, and the inputs of the logits."""
    target = folders.write_target(root / "target")
    generator = torch.Generator().manual_seed(11)
    shapes = {
        "model.embed_tokens.weight": [folders.V, folders.H],
        "lm_head.weight": [folders.V, folders.H],
        "model.norm.weight": [folders.H],
    }
    save_file({name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}, target / "model.safetensors")
    for name, (maker, _) in CASES.items():
        source = maker(root / "sources" / name)
        words = [str(source), "--to", "speculators", "-o", str(root / "converted" / name), "--target", str(target), "--json"]
        if cli.main(["convert", *words]) != 0:
            raise SystemExit(f"{name} was not converted")
        if name.startswith(("eagle3", "variant")):
            save_file(inputs(), root / f"{name}.inputs.safetensors")
    (root / "cases.json").write_text(json.dumps({name: options for name, (_, options) in CASES.items()}))


def inputs() -> dict[str, torch.Tensor]:
    """Features [1, 8, 3H], the tokens after them [1, 8], an embedding [V, H]."""
    generator = torch.Generator().manual_seed(5)
    return {
        "features": torch.randn(1, 8, 3 * folders.H, generator=generator),
        "next_ids": torch.randint(folders.V, (1, 8), generator=generator),
        "embedding": torch.randn(folders.V, folders.H, generator=generator),
    }


def ask(python: str, root: Path) -> dict[str, Any]:
    """The answers of that interpreter's speculators."""
    prepare(root)
    subprocess.run([python, str(HERE / "ask.py"), str(root)], check=True, env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"})
    return json.loads((root / "answers.json").read_text())


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        answers = ask(sys.argv[1], Path(folder))
    path = HERE / f"{answers['speculators']}.json"
    lines = [f"  {json.dumps(name)}: {json.dumps(answer, sort_keys=True)}" for name, answer in answers["cases"].items()]
    path.write_text(f'{{"speculators": "{answers["speculators"]}", "cases": {{\n' + ",\n".join(lines) + "\n}}\n")
    print(f"{path}: {len(answers['cases'])} cases")


if __name__ == "__main__":
    main()
