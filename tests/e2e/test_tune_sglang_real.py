"""The adaptive config that tune emits, read by the released SGLang's own code."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from packaging.version import Version

from draftsmith.engines import environments
from draftsmith.tune.candidates import Candidate, Drafter
from draftsmith.tune.emit import SCHEDULE_SINCE, emit

pytestmark = pytest.mark.engine
SCRIPT = Path(__file__).with_name("sglang_adaptive.py")
CODE = Path("sglang") / "srt" / "speculative" / "adaptive_spec_params.py"


def names() -> list[str]:
    """Releases that have such a file and an environment here."""
    asked = [name for name in environments.checkable() if name.startswith("sglang==")]
    return [name for name in asked if Version(name.partition("==")[2]) >= SCHEDULE_SINCE["sglang"]]


def test_every_batch_size_takes_the_steps_that_tune_says_and_keeps_them(tmp_path: Path) -> None:
    if not names():
        pytest.skip("draftsmith engine add sglang==0.5.17 --check-only")
    best = {1: Candidate("chain", 5, 6), 4: Candidate("chain", 2, 3), 16: None}
    for name in names():
        emitted = emit(best, best[1], Drafter(Path("d"), "eagle3"), name, tmp_path, {})
        config = tmp_path / "config.json"
        config.write_text(json.dumps(emitted.config))
        python = environments.check_python(name)
        [file] = python.parents[1].glob(f"lib/python3*/site-packages/{CODE}")
        ran = subprocess.run([python, SCRIPT, file, config, "5"], capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, f"{name}: {ran.stderr}"
        told = json.loads(ran.stdout)
        assert told["first"] == told["last"] == {"1": 5, "2": 5, "4": 2, "8": 0, "16": 0, "32": 0, "100": 0}, name
        assert told["buffers"] == [0, 2, 5]
