"""Asking an engine what it makes of its arguments, with an engine of our own inside: one import, one process per case, nothing leaks."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from draftsmith import cli
from draftsmith.engines import environments, resolution
from draftsmith.engines.resolution import Case
from draftsmith.errors import EnvironmentFailed, UsageError

ENGINE = """
import argparse, logging, os, signal, sys, time
import cases
PARSER = argparse.ArgumentParser()
PARSER.add_argument("--steps", "-s", type=int)
PARSER.add_argument("--switch", action=argparse.BooleanOptionalAction)
PARSER.add_argument("--words", nargs="+")
READ_ON_IMPORT = os.environ.get("FAKE_SWITCH", "unset")
SEEN = []

def solve(case):
    SEEN.append(case["argv"])
    print("loading", flush=True)
    words = case["argv"]
    if words == ["assert"]:
        assert len(words) == 2, "two words"
    if words == ["bare"]:
        assert not words
    if words == ["kill"]:
        os.kill(os.getpid(), signal.SIGKILL)
    if words == ["sleep"]:
        time.sleep(60)
    parser = argparse.ArgumentParser(prog="launch_server.py")
    parser.add_argument("--steps", type=int)
    args = parser.parse_args(words)
    logging.getLogger("fake.args").warning("\\x1b[33msteps is reset to 3\\x1b[0m")
    logging.getLogger("fake.args").info("a draft of 4 tokens")
    logging.getLogger("fake.args").info("hello")
    logging.getLogger("other").warning("not the engine")
    return {"steps": args.steps, "seen": len(SEEN), "switch": READ_ON_IMPORT, "device": case["device"], "pid": os.getpid()}

cases.answer_all(solve, "fake", lambda: {"tools": {"fake": "1.0"}, "options": cases.options(PARSER)}, limit_s=5)
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter whose engine is ENGINE."""
    shutil.copy(resolution.SCRIPTS / "cases.py", tmp_path)
    (tmp_path / "resolve_fake.py").write_text(ENGINE)
    monkeypatch.setattr(resolution, "SCRIPTS", tmp_path)
    return Path(sys.executable)


def case(*argv: str, **env: str) -> Case:
    return Case(Path("target"), None, argv, env)


def test_every_case_has_a_process_of_its_own_and_an_answer(python: Path) -> None:
    asked = [
        case("--steps", "3"),
        case("assert"),
        case("bare"),
        case("--step", "x"),
        case("--stops", "1"),
        case("kill"),
        case("sleep"),
        case(),
    ]
    first, failed, bare, wrong, unknown, killed, slow, last = resolution.resolve_all(python, "fake", asked).answers
    assert first["effective"]["steps"] == 3 and last["effective"]["steps"] is None
    assert first["effective"]["seen"] == last["effective"]["seen"] == 1  # the first case left nothing behind for the last
    assert first["effective"]["pid"] != last["effective"]["pid"]
    assert first["said"] == ["steps is reset to 3", "a draft of 4 tokens"]  # without colour, chatter and other people's words
    assert failed["error"] == {"type": "AssertionError", "message": "two words"} and "solve" in failed["trace"]
    assert bare["error"] == {"type": "AssertionError", "message": ""}
    assert wrong["error"] == {"type": "SystemExit", "message": "argument --steps: invalid int value: 'x'"}
    assert unknown["error"] == {"type": "SystemExit", "message": "unrecognized arguments: --stops 1"}
    assert killed["error"] == {"type": "Died", "message": "SIGKILL: loading"}
    assert slow["error"] == {"type": "Died", "message": "SIGALRM: loading"}


def test_variables_are_there_before_the_engine_is_imported(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_ANYTHING", "1")
    answers = resolution.resolve_all(python, "fake", [case(), case(FAKE_SWITCH="on"), case()]).answers
    assert [answer["effective"]["switch"] for answer in answers] == ["unset", "on", "unset"]


def test_a_cpu_is_no_pretended_gpu(python: Path) -> None:
    assert resolution.resolve(python, "fake", Case(Path("t"), gpu="cpu"))["effective"]["device"] == "cpu"
    with pytest.raises(UsageError, match="no GPU 'h900'"):
        resolution.resolve(python, "fake", Case(Path("t"), gpu="h900"))


def test_about(python: Path) -> None:
    found = resolution.about(python, "fake")
    assert found["tools"] == {"fake": "1.0"}
    options = {"-h": False, "--help": False, "--steps": True, "-s": True, "--switch": False, "--no-switch": False, "--words": "many"}
    assert found["options"] == options


def test_an_engine_that_does_not_import_is_an_error_with_its_last_line(python: Path) -> None:
    (resolution.SCRIPTS / "resolve_fake.py").write_text("import no_such_engine")
    with pytest.raises(EnvironmentFailed, match="No module named 'no_such_engine'"):
        resolution.resolve(python, "fake", case())


def test_told() -> None:
    effective = {"speculative_num_steps": 2, "max_running_requests": 48, "page_size": None, "port": 30000}
    assert resolution.told({"effective": effective, "said": ["reset"]}) == "said: reset\nmax_running_requests: 48\nspeculative_num_steps: 2"
    assert resolution.told({"error": {"type": "ValueError", "message": "no"}, "said": []}) == "refused: ValueError: no"


def test_the_command_prints_the_answer_and_says_by_its_code_whether_it_was_refused(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.move(tmp_path / "resolve_fake.py", tmp_path / "resolve_sglang.py")
    monkeypatch.setattr(environments, "check_python", lambda name: python)
    (tmp_path / "config.json").write_text("{}")
    asked = ["engine", "probe", "sglang==0.5.17", "--target", str(tmp_path), "--gpu", "cpu"]
    assert cli.main([*asked, "--json", "--", "--steps", "3"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["effective"]["steps"] == 3 and answer["effective"]["device"] == "cpu"
    assert cli.main([*asked, "--", "assert"]) == 4
    assert capsys.readouterr().out.splitlines()[-1] == "refused: AssertionError: two words"
    assert cli.main(["engine", "probe", "sglang==0.5.17", "--", "--steps", "3"]) == 2
    assert "without a target" in capsys.readouterr().err


# --- stand-ins ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def stand_ins() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stand_ins", resolution.SCRIPTS / "stand_ins.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_not_installed_can_be_imported_and_what_is_stays_itself(stand_ins: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    assert stand_ins.stand_in(["no_such_kernels", "json"]) == ["no_such_kernels"]
    from no_such_kernels.deep.inside import Base, jit  # pyright: ignore[reportMissingImports]

    @jit
    def one() -> int:
        return 1

    @jit(warps=4)
    def two() -> int:
        return 2

    class Child(Base):
        pass

    assert one() == 1 and not isinstance(two, int) and isinstance(Child(), Child)
    assert list(Base.names) == [] and len(Base) == 0
    with pytest.raises(AttributeError):
        Base.driver.active  # noqa: B018
    for name in [name for name in sys.modules if name.startswith("no_such_kernels")]:
        del sys.modules[name]


# --- environments ------------------------------------------------------------------------------------------------------


def test_a_check_only_environment_is_apart_from_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTSMITH_HOME", str(tmp_path))
    name = "sglang==0.5.17"
    with pytest.raises(EnvironmentFailed) as caught:
        environments.check_python(name)
    assert "--check-only" in caught.value.hint
    folder = environments.folder_of(name, check_only=True)
    folder.mkdir(parents=True)
    (folder / environments.RECORD).write_text(f'{{"name": "{name}", "python": "{sys.executable}", "check_only": true}}')
    assert environments.check_python(name) == Path(sys.executable)
    assert environments.checkable() == [name]
    with pytest.raises(EnvironmentFailed, match="not installed"):
        environments.python_of(name)  # it cannot serve
    environments.remove(name, check_only=True)
    assert environments.list_engines() == []


def test_locks_pin_every_package_and_the_engine_itself() -> None:
    names = environments.known_locks(check_only=True)
    assert len([name for name in names if name.startswith("sglang==")]) >= 5
    for name in names:
        lines = environments.pins(environments.lock_of(name, check_only=True))
        assert name in lines and all("==" in line for line in lines), name
        assert len({line.split("==")[0].lower().replace("_", "-") for line in lines}) == len(lines), name
        assert not any(line.startswith(("triton==", "sgl-kernel", "flashinfer")) for line in lines), name


def test_a_launch_that_cannot_be_asked_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no config\.json"):
        environments.resolve("sglang==0.5.17", Case(tmp_path))
    with pytest.raises(UsageError, match="no engine 'tgi'"):
        environments.resolve("tgi==1.0", Case(tmp_path))
