"""check: the command on a launch, as a stranger meets it."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from drafter_folders import HEAD, TARGET, write_drafter

from draftsmith import cli
from draftsmith.check.codes import FOLDER, catalog

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = "python -m sglang.launch_server --model-path {target} --speculative-algorithm EAGLE3 --speculative-draft-model-path {drafter}"
THREE = "--speculative-num-steps {} --speculative-eagle-topk 1 --speculative-num-draft-tokens {}"


@pytest.fixture
def models(tmp_path: Path) -> dict[str, str]:
    """A target of which only the config is there, and a drafter with its weights."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text(json.dumps(TARGET))
    write_drafter(tmp_path / "drafter")
    return {name: str(tmp_path / name) for name in ("target", "drafter")}


def check(*words: str) -> int:
    return cli.main(["check", *words])


def test_what_is_asked_and_what_is_run_stand_side_by_side(models: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    config = str(Path(models["target"]) / "config.json")
    launch = f"{LAUNCH} {THREE.format(1, 16)}".format(**models)
    assert check("--engine", "sglang==0.5.17", "--target", config, "--concurrency", "64", "--", launch) == 4
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == "" and lines[0].startswith("error DS412: steps 1, topk 1, draft tokens 16")
    assert lines[1].startswith("  then: ") and [line for line in lines if line.startswith("  fix:  ")]
    assert re.search(r"^speculative_num_draft_tokens +16 +2$", out, re.M)
    assert re.search(r"^max_running_requests +- +48$", out, re.M)
    assert lines[-1].startswith("refused for sglang 0.5.17: 1 error") and "--explain DS412" in lines[-1]
    assert out.index("error DS412") < out.index("warning DS403") < out.index("setting ")


def test_words_as_the_shell_splits_them_and_json(models: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    words = f"{LAUNCH} {THREE.format(3, 4)}".format(**models).split()
    assert check("--engine", "sglang==0.5.17", "--json", "--", *words) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["engine", "version", "findings", "requested", "effective", "assumed"]
    assert (document["engine"], document["version"], document["assumed"]) == ("sglang", "0.5.17", False)
    assert document["effective"]["speculative_num_draft_tokens"] == 4 and document["requested"]["speculative_num_steps"] == "3"
    assert not [finding for finding in document["findings"] if finding["severity"] == "error"]


def test_the_last_line_of_a_good_launch(models: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    config = json.dumps({"method": "eagle3", "model": models["drafter"], "num_speculative_tokens": 3})
    assert check("--engine", "vllm==0.32.0", "--", "vllm", "serve", models["target"], "--speculative-config", config) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("nothing stands against it in vllm 0.32.0")


def test_flags_from_a_file(tmp_path: Path, models: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "flags.yaml"
    file.write_text(f"model-path: {models['target']}\nspeculative-algorithm: EAGLE3\nspeculative-num-steps: 3\n")
    assert check("--engine", "sglang==0.5.17", "--config", str(file), "--drafter", models["drafter"], "--json") == 4
    document = json.loads(capsys.readouterr().out)
    assert [f["code"] for f in document["findings"] if f["severity"] == "error"] == ["DS411"]
    assert document["requested"]["speculative_draft_model_path"] == models["drafter"]


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        ("", "nothing to check", "draftsmith check RECIPE"),
        ("--", "nothing to check", "draftsmith check RECIPE"),
        ("-- vllm serve X", "which version of vllm", "--engine vllm==VERSION"),
        ("-- --port 1", "the engine cannot be told", "--engine sglang==VERSION"),
        ("--engine sglang==0.5.17 -- vllm serve X", "the pasted command starts vllm", "correct one"),
        ("--engine sglang -- sglang serve --model-path X", "which version of sglang", "--engine sglang==VERSION"),
        ("--engine trt==1 -- sglang serve --model-path X", "engine 'trt' is not known", "--engine sglang==VERSION"),
        ("--engine vllm==0.32.0 --target no/such -- vllm serve X", "--target no/such", "config.json"),
        ("--engine vllm==0.32.0 --gpu-memory lots -- vllm serve X", "'lots' is no size", "80GiB"),
        ("recipe.yaml -- vllm serve X", "a recipe and a launch command", "one of the two"),
        ("--explain DS4111", "no code 'DS4111'", "did you mean DS411?"),
        ("--explain X", "no code 'X'", "codes: DS101"),
    ],
)
def test_mistakes(words: str, said: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(*words.split()) == 2
    err = capsys.readouterr().err
    assert said in err and hint in err


def test_only_check_takes_a_launch() -> None:
    assert cli.main(["run", "r.yaml", "--", "vllm", "serve", "X"]) == 2


def test_versions_of_images_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--json", "--", "docker run --gpus all vllm/vllm-openai:v0.32.0 --model X") == 0
    assert json.loads(capsys.readouterr().out)["version"] == "0.32.0"


def test_a_hub_id_is_read_from_the_local_cache_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE", raising=False)
    launch = ["--engine", "sglang==0.5.17", "--json", "--", *f"{LAUNCH} {THREE.format(3, 4)}".format(target="a/t", drafter="a/d").split()]
    assert check(*launch) == 0
    missing = [f["evidence"] for f in json.loads(capsys.readouterr().out)["findings"] if f["code"] == "DS110"]
    assert len(missing) == 2 and "nothing is downloaded" in missing[0]
    snapshot = tmp_path / "hub" / "models--a--d" / "snapshots" / "123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({**HEAD, "architectures": ["LlamaForCausalLMEagle"], "draft_vocab_size": None}))
    assert check(*launch) == 4
    assert "DS417" in [f["code"] for f in json.loads(capsys.readouterr().out)["findings"]]


# --- speed -----------------------------------------------------------------------------------------------------------


def sparse_shards(folder: Path, shards: int, gigabytes: int) -> None:
    """Whole safetensors files by their headers, holes by their blocks."""
    weight_map = {}
    for number in range(shards):
        name, tensor = f"model-{number:05}.safetensors", f"layers.{number}.weight"
        size = gigabytes * 10**9 // 2 * 2
        header = json.dumps({tensor: {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
        path = folder / name
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(path, 8 + len(header) + size)
        weight_map[tensor] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_target_of_600_gb_takes_less_than_a_second(models: dict[str, str], child_env: dict[str, str]) -> None:
    """Processor time, best of three, with the start of Python: the limit is about what is read, not about what else the machine does."""
    sparse_shards(Path(models["target"]), 60, 10)
    assert sum(path.stat().st_size for path in Path(models["target"]).iterdir()) > 600 * 10**9
    words = f"{LAUNCH} {THREE.format(3, 4)}".format(**models).split()
    code = "import sys; from draftsmith import cli; code = cli.main(sys.argv[1:]); assert 'torch' not in sys.modules; sys.exit(code)"
    command = [sys.executable, "-c", code, "check", "--engine", "sglang==0.5.17", "--gpu-memory", "80GiB", "--json", "--", *words]
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, env=child_env, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.stderr == "" and json.loads(done.stdout)["engine"] == "sglang"
    assert min(times) < 1, times


# --- codes -----------------------------------------------------------------------------------------------------------


def used_codes() -> set[str]:
    files = (ROOT / "src" / "draftsmith").rglob("*.py")
    return {code for path in files for code in re.findall(r'"(DS[0-9]{3})"', path.read_text())}


def test_every_code_has_an_entry_and_every_entry_a_code() -> None:
    assert used_codes() == set(catalog())


def test_entries_are_complete() -> None:
    for code, entry in catalog().items():
        assert set(entry) == {"title", "why", "fix"} and all(entry.values()), code
        assert len(entry["title"]) <= 100 and "\n" not in entry["title"], code
    assert {path.name for path in FOLDER.glob("*.yaml")} >= {"flags.yaml", "common.yaml"}


def test_the_reference_lists_every_code() -> None:
    page = (ROOT / "docs" / "reference" / "check.md").read_text()
    rows: dict[str, Any] = dict(re.findall(r"^\| (DS[0-9]{3}) \| (.*) \|$", page, re.M))
    assert rows == {code: entry["title"] for code, entry in catalog().items()}


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--explain", "ds411") == 0
    out = capsys.readouterr().out
    assert out.startswith("DS411: ") and "AssertionError" in out and "fix: " in out
    assert check("--explain", "DS411", "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == {"code", "title", "why", "fix"}
