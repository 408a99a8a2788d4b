"""Two GPUs from one: on a planted machine the prediction is exact, and bytes are those of the published shapes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from draftsmith.manifest import append_jsonl, atomic_write_json
from draftsmith.measure.collectives import AllReduce
from draftsmith.measure.costmodel_terms import Form, Points

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "costmodel" / "two_gpus.py"


@pytest.fixture(scope="module")
def two_gpus() -> ModuleType:
    spec = importlib.util.spec_from_file_location("two_gpus", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["two_gpus"] = module
    spec.loader.exec_module(module)
    return module


def test_bytes_of_the_dense_shape(two_gpus: ModuleType) -> None:
    """8.19 G parameters less the input embedding."""
    assert two_gpus.shape_of("qwen3-8b")[1].target == pytest.approx(2 * (8.19e9 - 151936 * 4096), rel=0.01)


def write_waves(folder: Path, group: str, cells: dict[tuple[int, int], float]) -> None:
    for (concurrency, depth), second in cells.items():
        name = f"{group}-{f'depth{depth}' if depth else 'baseline'}"
        for wave, factor in enumerate((0.99, 1.0, 1.01)):
            times = {"round_s": second * factor if depth else None, "decode_step_s": second * factor / (2 if depth else 1)}
            append_jsonl(
                folder / "part-1" / "waves.jsonl",
                {"name": name, "phase": "cell", "concurrency": concurrency, "depth": depth, "wave": wave, **times},
            )
        append_jsonl(folder / "part-1" / "waves.jsonl", {"name": name, "phase": "warmup", "concurrency": concurrency, "depth": depth})


def test_a_planted_machine_is_predicted(two_gpus: ModuleType, tmp_path: Path) -> None:
    shape, weights = two_gpus.shape_of("qwen3-8b")
    form = Form(("floor", "row", "draft"), 2.0, shape)
    places = [(float(c), float(k), 0.0) for c in (1, 4, 16, 64) for k in (0, 1, 3)]
    keys = [(int(c), int(k)) for c, k, _ in places]
    read, drafts = weights.target / two_gpus.HBM_BYTES_S, weights.drafter / two_gpus.HBM_BYTES_S
    one, two = np.array([5e-3, 6e-5, 6e-4]), np.array([5e-3 - read / 2, 3e-5, 6e-4 - drafts / 2])
    write_waves(tmp_path, "qwen3-8b-tp1-own", dict(zip(keys, form.seconds(one, Points.of(places, shape, None)), strict=True)))
    links = {"sglang": AllReduce.given(2, 6e-6, 300e9), "p2p-off": AllReduce.given(2, 25e-6, 12e9)}
    arms = []
    for (arm, link), group in zip(links.items(), ("own", "p2p-off"), strict=True):
        write_waves(tmp_path, f"qwen3-8b-tp2-{group}", dict(zip(keys, form.seconds(two, Points.of(places, shape, link)), strict=True)))
        points = [{"rows": r, "hidden": 4096, "graph": [link.at(r, 4096)] * 3} for r in (1, 4, 16, 64, 128, 256, 1024)]
        arms.append({"name": arm, "ranks": 2, "points": points})
    atomic_write_json(tmp_path / "collectives" / "collectives.json", {"arms": arms})
    document = two_gpus.analyse(tmp_path)
    for content in document["two_gpus"].values():
        assert content["errors"]["worst"] < 0.02
    slow = document["two_gpus"]["qwen3-8b-tp2-p2p-off"]["speedups"]
    assert slow[0]["measured"] > slow[0]["folk"] and slow[-1]["measured"] < slow[-1]["folk"]
    two_gpus.plot(document, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").stat().st_size > 5000
    assert "qwen3-8b-tp2-p2p-off | 64 |" in two_gpus.markdown(json.loads(json.dumps(document)))
