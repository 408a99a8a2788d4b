"""verify wiring and the real SGLang 0.5.17 as far as it goes without a GPU: its plug-in loader, its classes, its argument resolution."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
from pathlib import Path

import pytest

from dflash_drafter import write_random_dflash
from draftsmith.engines import environments, resolution
from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.served import calls, read_calls
from draftsmith.engines.sglang.engine import SGLang
from draftsmith.engines.sglang.features import with_features
from draftsmith.models.checkpoint import write_random_drafter
from draftsmith.settings import DrafterSettings
from engine_hooks import FILE, read

pytestmark = pytest.mark.engine
NAME = "sglang==0.5.17"
SCRIPT = Path(__file__).with_name("sglang_hooks.py")
FLAGS = runpy.run_path(str(Path(__file__).resolve().parents[1] / "gpu" / "gpu_engine.py"))["SGLANG"].flags


@pytest.fixture(scope="module")
def python() -> Path:
    if NAME not in environments.checkable():
        pytest.skip(f"draftsmith engine add {NAME} --check-only")
    return environments.check_python(NAME)


def test_the_real_classes_are_heard_and_do_as_before(python: Path, tmp_path: Path) -> None:
    launch = with_features(Launch("speculative", Path("t"), {}, {}, Drafting("eagle3", Path("d"), 2)), tmp_path)
    folders = [tmp_path / "eagle3", tmp_path / "dflash"]
    for folder in folders:
        folder.mkdir()
    ran = subprocess.run(
        [python, SCRIPT, *folders], env={**os.environ, **launch.env}, capture_output=True, text=True, cwd=tmp_path, timeout=500, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    eagle3, dflash = (read_calls(calls(folder), 3, 6) for folder in folders)
    for served in (eagle3, dflash):
        assert served.positions_T.tolist() == [0, 1, 2, 3, 4]
        assert served.features_TF[:, 0].tolist() == [0, 12, 24, 100, 112]
    assert eagle3.input_ids_T is not None and eagle3.input_ids_T.tolist() == [7, 8, 9, 5, 6] and len(calls(folders[0])) == 2
    assert dflash.input_ids_T is None and [(block.ids, block.context) for block in dflash.blocks] == [((9, 2, 2), 3)]


def test_its_arguments_resolve_to_an_eager_launch_without_a_prefix_cache(python: Path, tmp_path: Path) -> None:
    """The launches of tests/gpu, as SGLang's own resolution takes them on an H200."""
    target = environments.target_folder("smollm2-135m-instruct")
    drafters = {
        "eagle3": write_random_drafter(target, DrafterSettings(depth=3), tmp_path / "eagle3", seed=0, engine=NAME),
        "dflash": write_random_dflash(target, tmp_path / "dflash", (2, 15, 27)),
    }
    cases = []
    for method, drafter in drafters.items():
        launch = with_features(Launch("speculative", target, FLAGS, {}, Drafting(method, drafter, 7)), tmp_path / f"{method}-plugin")
        words = SGLang().argv(python, launch, 30000)
        for given in ("--model-path", "--speculative-draft-model-path"):  # the asking adds these
            place = words.index(given)
            del words[place : place + 2]
        cases.append(resolution.Case(target, drafter, tuple(words[3:]), {}, "h200"))
    for method, answer in zip(drafters, resolution.resolve_all(python, "sglang", cases).answers, strict=True):
        assert "error" not in answer, answer
        effective = answer["effective"]
        assert effective["disable_radix_cache"] is True and effective["disable_cuda_graph"] is True
        assert effective["speculative_algorithm"] == method.upper() and effective["speculative_num_draft_tokens"] == 8
        assert str(effective["cuda_graph_config"]).lower().count("disabled") >= 2, effective["cuda_graph_config"]


def test_what_was_read_of_it_is_still_there(python: Path) -> None:
    site = next((python.parents[1] / "lib").glob("python3.*")) / "site-packages"
    assert read(site, "sglang") == json.loads(FILE.read_text())["sglang"]
