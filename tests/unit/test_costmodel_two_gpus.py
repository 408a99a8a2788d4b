"""Two GPUs from one: on a planted machine the prediction is exact, and bytes are those of the published shapes."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from draftsmith.manifest import append_jsonl, atomic_write_json
from draftsmith.measure.collectives import AllReduce, Settings, fits_of
from draftsmith.measure.costmodel_terms import Form, Points

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "costmodel" / "two_gpus.py"


@pytest.fixture(scope="module")
def two_gpus() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("two_gpus", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["two_gpus"] = module
    sys.path.append(str(SCRIPT.parent))  # it imports its neighbour
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SCRIPT.parent))


def test_bytes_of_the_dense_shape(two_gpus: ModuleType) -> None:
    """8.19 G parameters less the input embedding."""
    assert two_gpus.shape_of("qwen3-8b")[1].target == pytest.approx(2 * (8.19e9 - 151936 * 4096), rel=0.01)


def write_waves(folder: Path, group: str, cells: dict[tuple[int, int], float], part: str = "part-1", spread: float = 0.01) -> None:
    for (concurrency, depth), second in cells.items():
        name = f"{group}-{f'depth{depth}' if depth else 'baseline'}"
        for wave, factor in enumerate((1 - spread, 1.0, 1 + spread)):
            times = {"round_s": second * factor if depth else None, "decode_step_s": second * factor / (2 if depth else 1)}
            append_jsonl(
                folder / part / "waves.jsonl",
                {"name": name, "phase": "cell", "concurrency": concurrency, "depth": depth, "wave": wave, **times},
            )
        append_jsonl(folder / part / "waves.jsonl", {"name": name, "phase": "warmup", "concurrency": concurrency, "depth": depth})


def plant(two_gpus: ModuleType, folder: Path) -> None:
    """A machine that is what the model says, with more concurrencies on one GPU than on two, a depth that only one has, and a probe whose
    arms are in two files."""
    shape, weights = two_gpus.shape_of("qwen3-8b")
    form = Form(("floor", "row", "draft", "round_slot"), 2.0, shape)
    read, drafts = weights.target / two_gpus.HBM_BYTES_S, weights.drafter / two_gpus.HBM_BYTES_S
    one, two = np.array([5e-3, 6e-5, 6e-4, 2e-4]), np.array([5e-3 - read / 2, 3e-5, 6e-4 - drafts / 2, 1e-4])

    def cells(
        values: np.ndarray, concurrency: Sequence[int], depths: Sequence[int], link: AllReduce | None
    ) -> dict[tuple[int, int], float]:
        keys = [(c, k) for c in concurrency for k in depths]
        return dict(zip(keys, form.seconds(values, Points.of([(float(c), float(k), 0.0) for c, k in keys], shape, link)), strict=True))

    write_waves(folder, "qwen3-8b-tp1-own", cells(one, (1, 2, 4, 16, 32, 64), (0, 1, 3, 5), None))
    nccl, slow = AllReduce.given(2, 12e-6, 150e9), AllReduce.given(2, 25e-6, 12e9)
    own = replace(AllReduce.given(2, 6e-6, 300e9), gathers=nccl)
    write_waves(folder, "qwen3-8b-tp2-own", cells(two, (1, 4, 16, 64), (0, 1, 3), own))
    write_waves(folder, "qwen3-8b-tp2-p2p-off", cells(two, (1, 4, 16, 64), (0, 3), slow))
    for place, arms in {"collectives": {"default": nccl, "p2p-off": slow}, "collectives-again": {"sglang": own, "default": slow}}.items():
        entries = []
        for arm, link in arms.items():
            points = [{"rows": r, "hidden": 4096, "graph": [link.at(r, 4096)] * 3} for r in (1, 4, 16, 64, 128, 256, 1024)]
            entry = {"name": arm, "ranks": 2, "points": points}
            entries.append(entry | {"fits": fits_of(entry, Settings(ranks=2, hidden=(4096,)))})
        atomic_write_json(folder / place / "collectives.json", {"arms": entries})


def test_a_planted_machine_is_predicted(two_gpus: ModuleType, tmp_path: Path) -> None:
    plant(two_gpus, tmp_path)
    document = json.loads(json.dumps(two_gpus.analyse(tmp_path)))
    for content in document["two_gpus"].values():
        assert content["errors"]["whole"]["worst"] < 0.02
        assert content["errors"]["host"]["worst"] > 0.1 and content["errors"]["no_gathers"]["worst"] > content["errors"]["whole"]["worst"]
    slow = document["two_gpus"]["qwen3-8b-tp2-p2p-off"]["speedups"]
    assert [row["concurrency"] for row in slow] == [1, 4, 16, 64]
    assert slow[0]["measured"] > slow[0]["folk"] and slow[-1]["measured"] < slow[-1]["folk"]
    more = document["extrapolated"]["qwen3-8b-tp2-own"]
    assert [entry["ranks"] for entry in more] == [4, 8] and {entry["label"] for entry in more} == {"extrapolated"}
    page = two_gpus.two_gpus_page
    page.plot([document], tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").stat().st_size > 5000
    text = page.markdown(document)
    assert "| qwen3-8b-tp2-p2p-off | 64 | 3 |" in text and "measured again" not in text
    share = slow[-1]["measured"] / document["two_gpus"]["qwen3-8b-tp2-own"]["speedups"][-1]["measured"] - 1
    assert f"| qwen3-8b | 64 | {share:+.0%} |" in text


def test_a_launch_whose_waves_disagree_gives_way_to_one_that_is_steady(two_gpus: ModuleType, tmp_path: Path) -> None:
    """The second machine was steady: its time counts. Where neither was, the mean of both does, and says so."""
    write_waves(tmp_path, "qwen3-8b-tp2-own", {(1, 3): 6e-3, (4, 3): 6e-3, (16, 3): 6e-3}, spread=0.08)
    write_waves(tmp_path, "qwen3-8b-tp2-own", {(1, 3): 5e-3, (16, 3): 6e-3}, "part-1-again")
    write_waves(tmp_path, "qwen3-8b-tp2-own", {(4, 3): 1.5e-3}, "part-1-again", spread=0.1)
    one, four, sixteen = two_gpus.measured(tmp_path)["qwen3-8b-tp2-own"]
    assert one.steady and one.cell.second == pytest.approx(5e-3)
    assert not four.steady and four.cell.second == pytest.approx(3e-3)
    assert sixteen.steady and len(sixteen.launches) == 2
    cells = [{"concurrency": m.concurrency, "depth": m.depth, "launches": m.launches} for m in (one, four)]
    text = two_gpus.two_gpus_page.again({"again": {"qwen3-8b-tp2-own": cells}})
    assert "part-1 6.00 (17.4%), part-1-again 5.00 (2.0%) | 20.0% |" in text
