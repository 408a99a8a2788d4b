"""The parts of a session on a GPU machine: what README.md says of them, that they fit a call, and one of them from start to result."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from draftsmith.check.parameters import weight_bytes_of
from draftsmith.manifest import read_jsonl

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "benchmarks" / "gpu"
CALL_S = 600


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, GPU / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


part, breakeven, pair, results = load("part"), load("breakeven"), load("tensor_parallel"), load("breakeven_results")


def test_the_readme_has_the_parts() -> None:
    assert "\n".join(part.table()) in (GPU / "README.md").read_text()


def test_every_part_ends_within_a_call_and_says_what_it_starts(tmp_path: Path) -> None:
    for name, one in part.PARTS.items():
        assert one.seconds + part.STOP_S <= CALL_S - 10, name
        assert name == "road" or one.expected_s <= one.seconds, name
        words = part.command(one, Path("/kit"), tmp_path)
        assert not [word for word in words if "{" in word]
        scripts = [ROOT / word for word in words if word.endswith((".py", ".sh", ".yaml"))]
        assert all(script.is_file() for script in scripts), (name, scripts)
        if "--groups" in words:
            shape, group = words[words.index("--shape") + 1], int(words[words.index("--groups") + 1])
            assert group <= len(breakeven.SHAPES[shape].groups)
        if "--part" in words and words[words.index("--part") + 1] != "probe":
            assert int(words[words.index("--part") + 1]) <= len(pair.parts())


def test_servers_of_a_group_fit_the_gpu() -> None:
    """Weights of target and drafter, from their shapes; what is left of 141 GB holds pools, graphs and contexts."""
    for folder, gb in (("qwen3-8b", 28.0), ("kimi-cut-6", 60.0), ("qwen3-30b-a3b", 64.0)):
        target = weight_bytes_of(json.loads((GPU / "shapes" / folder / "config.json").read_text()))
        drafter = GPU / "shapes" / folder / "drafter.json"
        own = weight_bytes_of({"num_hidden_layers": 1, **json.loads(drafter.read_text())}) if drafter.exists() else 1e9
        assert 0.5 * gb < (target + own) / 1e9 < gb, (folder, target / 1e9, own / 1e9)
    assert {group.shape: group.gb for group in pair.GROUPS if group.tp == 1} == {"qwen3-8b": 28.0, "kimi-cut-6": 60.0}
    for name in ("moe", "kimi"):
        assert all(len(group) == 2 for group in breakeven.SHAPES[name].groups)


def test_a_command_that_takes_too_long_is_interrupted_and_what_it_left_comes_back(tmp_path: Path) -> None:
    work, script = tmp_path / "work", tmp_path / "slow.py"
    (work / "capture").mkdir(parents=True)
    (work / "capture" / "shard.bin").write_text("large")
    (work / "model.safetensors").write_text("large")
    script.write_text("import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('stopped')\n")
    assert part.run([sys.executable, str(script)], dict(os.environ), work / "part.log", 2.0) == 124
    assert (work / "part.log").read_text() == "stopped\n"
    assert part.pack(work, tmp_path / "out.tar.gz") == ["model.safetensors"]
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        assert archive.getnames() == ["part.log"]


def test_words_of_the_caller_stand_before_those_of_the_engine(tmp_path: Path) -> None:
    words = part.command(part.PARTS["vllm"], Path("/kit"), tmp_path, ["--tokens", "64"])
    assert words[words.index("--tokens") :][:3] == ["--tokens", "64", "--"]


def test_every_engine_is_told_where_the_kit_is(tmp_path: Path) -> None:
    """None inherits PYTHONPATH: a recipe and the drivers say it in the launch's environment, the command by its interpreter."""
    (tmp_path / "kit" / "site").mkdir(parents=True)
    (tmp_path / "kit" / "site" / "carried.py").write_text("print('found')")
    words = part.command(part.PARTS["vllm"], tmp_path / "kit", tmp_path / "work")
    interpreter = words[words.index("--python") + 1]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    assert subprocess.run([interpreter, "-m", "carried"], env=env, capture_output=True, text=True, check=True).stdout == "found\n"
    for name in ("road", "smollm2-1", "kimi-1", "tp-1"):
        said = part.command(part.PARTS[name], Path("/kit"), tmp_path)
        assert "engine.env.PYTHONPATH=/kit/site" in said or "--pythonpath" in said or "--kit" in said


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A kit with the stand-in for SGLang."""
    shutil.copytree(ROOT / "tests" / "fake_sglang", tmp_path / "kit" / "site")
    (tmp_path / "kit" / "model").mkdir()
    (tmp_path / "kit" / "model" / "tokenizer.json").write_text("{}")
    return tmp_path / "kit"


def test_a_part_from_its_name_to_a_folder_of_results(kit: Path, tmp_path: Path) -> None:
    env = {**os.environ, "KIT": str(kit), "OUT": str(tmp_path / "out"), "WORK": str(tmp_path / "work")}
    words = [sys.executable, str(GPU / "part.py"), "kimi-1", "--concurrency", "1,4", "--tokens", "65"]
    ran = subprocess.run(words, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "kimi-1: exit code 0" in ran.stdout
    measured = tmp_path / "measured"
    with tarfile.open(tmp_path / "out" / "kimi-1.tar.gz") as archive:
        archive.extractall(measured, filter="data")
    argv = {row["name"]: row["argv"] for row in read_jsonl(measured / "launches.jsonl") if "argv" in row}
    assert set(argv) == {"baseline", "depth 3"}
    ports = [words[words.index(flag) + 1] for words in argv.values() for flag in ("--port", "--nccl-port")]
    assert len(set(ports)) == 4
    words = [
        sys.executable,
        str(GPU / "breakeven_results.py"),
        "--title",
        "Kimi",
        "--out",
        str(tmp_path / "results"),
        "--note",
        "Six of 61.",
    ]
    words += ["--set-aside", str(measured), "--measured", str(measured), str(measured)]
    env["PYTHONPATH"] = str(ROOT / "src")
    made = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 0, made.stderr
    summary = json.loads((tmp_path / "results" / "summary.json").read_text())
    assert summary["launch_scatter"]["df"] == 2
    assert {entry["concurrency"] for entry in summary["break_even"]} == {1, 4}
    assert all("Six of 61." in (tmp_path / "results" / name).read_text() for name in ("report.md", "breakeven.html"))
    again = [
        *words[:2],
        "--title",
        "Kimi",
        "--out",
        str(tmp_path / "again"),
        "--note",
        "Six of 61.",
        "--measured",
        str(tmp_path / "results"),
    ]
    subprocess.run(again, env=env, capture_output=True, check=True, timeout=120)
    assert (tmp_path / "again" / "summary.json").read_text() == (tmp_path / "results" / "summary.json").read_text()
    aside = tmp_path / "results" / "set-aside"
    assert (aside / "times.md").read_text().count("| depth 3 | ") == 2 and (aside / "waves.jsonl.gz").exists()
    assert "/" not in json.loads((aside / "launches.jsonl").read_text().splitlines()[0])["argv"][0]


def waves(name: str, launch: int, depth: int, seconds: tuple[float, ...], phase: str = "cell") -> list[dict[str, Any]]:
    """Two passes of one kind at concurrency 64."""
    return [
        {"name": name, "launch": launch, "depth": depth, "phase": phase, "concurrency": 64, "pass": 2 * number // len(seconds),
         "round_s": one if depth else None, "decode_step_s": one, "tokens": 64, "wall_s": 1.0}
        for number, one in enumerate(seconds)
    ]  # fmt: skip


def test_a_part_that_was_set_aside_is_shown_beside_the_same_kind() -> None:
    clean = results.timed(waves("baseline", 0, 0, (0.002, 0.001)) + waves("dummy depth 3", 1, 3, (0.004, 0.003)))
    rows = waves("baseline", 0, 0, (0.005, 0.0025)) + waves("depth 3", 1, 3, (0.007, 0.006)) + waves("depth 5", 2, 5, (0.009, 0.008))
    assert results.by_pass(rows, clean)[2:] == [
        "| baseline | 64 | 5.00 | 2.50 | 2.50 | 1.00 |",
        "| depth 3 | 64 | 7.00 | 6.00 | 6.00 | 3.00 |",
        "| depth 5 | 64 | 9.00 | 8.00 | 8.00 |  |",
        "",
    ]


def test_probes_are_named_only_where_there_are_some_and_trees_are_kinds_of_the_table() -> None:
    cells = waves("baseline", 0, 0, (0.002, 0.001))
    assert results.phases(cells) == []
    assert [found["phase"] for found in results.phases(cells + waves("baseline", 0, 0, (0.004,), "chunk per token"))] == [
        "cell",
        "chunk per token",
    ]
    assert results.plain("tree of 3 steps, 4 wide, 16 rows") and not results.plain("depth 3, all accepted")
    gpus = {"hardware": {"gpus": ["H200", "H200"], "cpu": "x"}}
    assert results.device(gpus) == "one of 2 GPUs, H200"


def test_all_accepted_is_compared_with_random_weights_where_nothing_else_is_there() -> None:
    rows = waves("depth 3, all accepted", 0, 3, (0.004,)) + waves("dummy depth 3", 1, 3, (0.005,))
    [(name, [entry])] = [(n, found) for n, found in results.comparisons(results.timed(rows), rows).items() if found]
    assert name.startswith("All four tokens accepted on real weights") and entry["ratio"] == pytest.approx(0.8)
    both = results.comparisons(results.timed(rows + waves("depth 3", 2, 3, (0.002,))), rows)
    assert both["All four tokens accepted against two of them"][0]["ratio"] == pytest.approx(2.0)
    assert not any("on real weights against two" in name for name in both)


def test_two_lanes_take_a_gpu_each_and_begin_nothing_that_cannot_end(kit: Path, tmp_path: Path) -> None:
    """Without a GPU the tests of `train` are skipped."""
    env = {**os.environ, "KIT": str(kit), "OUT": str(tmp_path / "out"), "WORK": str(tmp_path / "work")}
    words = [sys.executable, str(GPU / "lanes.py"), "--seconds", "200", "train", "serve"]
    ran = subprocess.run(words, env=env, capture_output=True, text=True, timeout=220, check=False)
    assert ran.returncode == 124 and "serve: not begun" in ran.stdout, ran.stdout + ran.stderr
    assert "train: exit code 0" in ran.stdout and "100%" in (tmp_path / "work" / "train" / "part.log").read_text()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["train.tar.gz"]


def test_an_unknown_part_is_told(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, str(GPU / "lanes.py"), "kimi-1+kimi"], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2 and "no part is called kimi;" in ran.stderr
