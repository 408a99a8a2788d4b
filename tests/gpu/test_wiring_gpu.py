"""verify wiring on a GPU engine: what EAGLE-3 and DFlash drafters are given in bfloat16 is told right when right, and named when wrong.

Three launches an engine, eager: ids as exported, ids that are one too high, and a DFlash drafter. What the second took down is judged
against several claims of what training had.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from gpu_engine import KINDS, Machine, version_of, why_not

from dflash_drafter import write_random_dflash
from draftsmith import cli
from draftsmith.models.taps import KEY
from draftsmith.verify.wiring import run as wiring_run
from wiring_world import guessing_drafter, launch_once, revised

pytestmark = pytest.mark.gpu
TAPS, LATE = (2, 15, 27), (3, 16, 28)


class Look:
    """`verify wiring` on one machine, in this process."""

    def __init__(self, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
        self.machine, self.capsys, self.who = machine, capsys, f"{machine.engine}=={version_of(machine.engine)}"
        self.recipe = machine.recipe("wiring", {}, {})

    def __call__(self, drafter: Path, *words: str) -> tuple[int, str]:
        """(exit code, what was said). The engine's log and the numbers are kept in $OUT."""
        run = self.machine.folder / f"run-{drafter.name}"
        code = cli.main(["verify", "wiring", str(self.recipe), "--run-folder", str(run), "--drafter", str(drafter), *words])
        told = self.capsys.readouterr()
        for path in (run / "wiring").glob("*.*"):
            self.machine.keep(Path(shutil.copy(path, self.machine.folder / f"wiring-{drafter.name}-{path.name}")))
        return code, told.out + told.err

    def found(self, drafter: Path) -> dict[str, Any]:
        return json.loads((self.machine.folder / f"run-{drafter.name}" / "wiring" / "wiring.json").read_text())


@pytest.fixture(params=sorted(KINDS))
def look(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    child_env: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Look:
    if reason := why_not(request.param):
        pytest.skip(reason)
    launch_once(monkeypatch)
    return Look(Machine(request.param, tmp_path, tmp_path, child_env), capsys)


def test_what_the_export_writes_is_right(look: Look) -> None:
    drafter = guessing_drafter(look.machine.target, look.machine.folder / "exported", TAPS, look.who, more=48)
    code, said = look(drafter)
    assert code == 0, said
    assert f"wiring is right: {look.who} passes boundaries {list(TAPS)}, each beside the next token's embedding" in said
    served = look.found(drafter)["served"]
    assert (served["feature_shift"], served["token_shift"], served["token_share"], served["position_offset"]) == (0, 1, 1.0, 0)
    worst = max(tap["expected_error"] for tap in served["taps"])
    assert 0 < worst < 0.75 * served["tolerance"]  # not near an alarm; seen: 0.018 of 0.03 in SGLang 0.5.17


def test_each_planted_mistake_is_named(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every id is one too high, as when boundaries are written where SGLang wants outputs of layers."""
    drafter = guessing_drafter(look.machine.target, look.machine.folder / "late", TAPS, look.who, more=48)
    config = json.loads((drafter / "config.json").read_text())
    config[KEY] = list(LATE)
    config["eagle_config"][KEY] = list(TAPS)
    (drafter / "config.json").write_text(json.dumps(config))
    code, said = look(drafter)
    assert code == 4 and "DS901 error: every tap is one layer late" in said, said
    key, ids = (KEY, TAPS) if look.machine.engine == "vllm" else (f"eagle_config.{KEY}", (1, 14, 26))
    assert f"write {list(ids)} under {key}" in said, said

    assert look(drafter, "--trained", "3,16,28")[0] == 0  # the same rows, and the truth
    for trained, expected in (
        ("16,3,28", "DS903 error: "),  # swapped
        ("3,9,16,28", "concatenates 3 tensors"),  # three of four
        ("0,3,16", "the list of taps is one entry late"),  # slid: the embedding is missing
        ("3,15,28", "tap 2 is one layer late"),
    ):
        code, said = look(drafter, "--trained", trained)
        assert code == 4 and expected in said, said

    monkeypatch.setattr(wiring_run, "load_target", revised)
    code, said = look(drafter, "--trained", "3,16,28")
    assert code == 4 and "DS905 error" in said and "the values are not this target's" in said, said


def test_a_dflash_drafter_gets_its_layers_and_fills_masks_behind_them(look: Look) -> None:
    drafter = write_random_dflash(look.machine.target, look.machine.folder / "dflash", TAPS)
    code, said = look(drafter, "--trained", "2,15,27")
    assert code == 0 and "wiring is right" in said, said
    seen = look.found(drafter)["blocks"]
    assert seen["number"] >= 12 and (seen["anchor_shift"], seen["anchor_share"], seen["mask_share"], seen["line_share"]) == (0, 1, 1, 1)
    assert seen["lacking"] == 0
    code, said = look(drafter, "--trained", "1,14,26")
    assert code == 4 and "DS901 error: every tap is one layer late" in said, said
    assert "write [0, 13, 25] under dflash_config.target_layer_ids" in said, said
