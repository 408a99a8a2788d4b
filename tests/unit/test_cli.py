"""The command line as a stranger meets it: help, mistakes, JSON, exit codes."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fake_stages
from draftsmith import cli, flow
from draftsmith.errors import UsageError
from draftsmith.stages import STAGES
from fake_stages import Broken

HEAVY = ("torch", "transformers", "pydantic", "pyarrow", "numpy", "scipy", "yaml", "aiohttp", "matplotlib", "jinja2", "asyncio")
COMMANDS = [
    "run",
    *STAGES,
    "data show",
    "engine add",
    "engine list",
    "engine probe",
    "engine remove",
    "target fetch",
    "target list",
    *cli.AROUND,
]


def fake(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command with fake stages, in a process of its own."""
    return subprocess.run([sys.executable, "-m", "fake_stages", *words], env=env, capture_output=True, text=True, timeout=60)


def test_help_is_quick(child_env: dict[str, str]) -> None:
    """Processor time, best of three: the limit is about what is imported, not about what else the machine does."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-m", "draftsmith", "--help"], env=child_env, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0 and "draftsmith run recipes/smollm2-cpu.yaml" in done.stdout
    assert min(times) < 0.3, times


def test_help_imports_nothing_heavy(child_env: dict[str, str]) -> None:
    script = f"import sys\nfrom draftsmith import cli\ncli.build_parser().format_help()\nprint([x for x in {HEAVY} if x in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], env=child_env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.parse([*command.split(), "--help"])
    told = capsys.readouterr().out
    assert caught.value.code == 0 and told.startswith(f"usage: draftsmith {command} ") and "--json" in told


def test_the_overview_names_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.parse([])
    told = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n  {command} " in told, command
    for code in (0, 1, 2, 3, 4, 130):
        assert f"  {code} " in told
    assert max(len(line) for line in told.splitlines()) <= 125


@pytest.mark.parametrize(
    ("words", "found", "hint"),
    [
        ("benhc r.yaml", "no command 'benhc'", "did you mean 'bench'?"),
        ("engine", "no command 'engine'", "engine add, engine list"),
        ("engine ad x", "no command 'engine ad'", "engine add, engine list"),
        ("target", "no command 'target'", "target fetch"),
        ("zzz", "no command 'zzz'", "known: run, check"),
        ("run", "arguments are required: RECIPE", "draftsmith run --help"),
        ("run r.yaml --utnil data", "unknown argument '--utnil'", "did you mean '--until'?"),
        ("run r.yaml --until dat", "invalid choice: 'dat'", "draftsmith run --help"),
        ("serve status x y", "unknown argument 'y'", "known: "),
        ("serve start", "arguments are required: RECIPE", "draftsmith serve start --help"),
        ("engine add x y", "unknown argument 'y'", "known: "),
        ("data show folder -n x", "invalid int value", "draftsmith data show --help"),
        ("capture r.yaml --unt x", "unknown argument '--unt'", "known: "),
        ("train r.yaml --estimate", "unknown argument '--estimate'", "known: "),
    ],
)
def test_mistakes_come_with_a_suggestion(words: str, found: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        cli.parse(words.split())
    assert found in caught.value.message and hint in caught.value.hint, caught.value


def test_overrides_may_stand_anywhere_after_the_recipe() -> None:
    args = cli.parse(["run", "r.yaml", "a=1", "--until", "data", "b.c=2", "--json", "d=[1]"])
    assert args.overrides == ["a=1", "b.c=2", "d=[1]"] and args.until == "data" and args.json
    assert cli.parse(["run", "r.yaml"]).overrides == []
    assert cli.parse(["run", "r.yaml"]).overrides is not cli.parse(["run", "r.yaml"]).overrides


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(flow, "load_stage", flow.load_stage)
    monkeypatch.chdir(tmp_path)
    return fake_stages.write_recipe(tmp_path)


def test_the_verdict_is_the_last_line_and_the_run_folder_has_the_recipes_name(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_stages.install()
    assert cli.main(["run", str(recipe)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "It pays." and "report.html" in out
    assert (recipe.parent / "runs" / "fake" / "report" / "manifest.json").exists()
    for stage in STAGES:
        assert f"{stage}: done in 00:0" in err
    assert "all 10 stages finished" in err


@pytest.mark.parametrize(("gate", "code"), [("passed", 0), ("failed", 1), ("inconclusive", 3)])
def test_exit_codes_of_the_gate(recipe: Path, capsys: pytest.CaptureFixture[str], gate: str, code: int) -> None:
    fake_stages.install()["bench"].gate = gate
    assert cli.main(["run", str(recipe), "-q", "--json"]) == code
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["exit_code"] == code and document["verdict"] == "It pays." and err == ""
    assert cli.main(["bench", str(recipe), "-q"]) == code, "skipped, and the gate still holds"
    assert cli.main(["report", str(recipe), "-q"]) == 0


def test_an_error_is_one_clear_message_and_json_stays_one_document(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_stages.install()["train"].fail = Broken("the loss is nan", hint="lower train.learning_rate")
    assert cli.main(["run", str(recipe), "--json"]) == 4
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "error": {"kind": "Broken", "message": "the loss is nan", "hint": "lower train.learning_rate"},
        "exit_code": 4,
    }
    assert err.endswith("error: the loss is nan\n  hint: lower train.learning_rate\n")


@pytest.mark.parametrize(
    ("words", "code"), [("run absent.yaml", 2), ("run recipe.yaml trian.x=1", 2), ("nonsense", 2), ("train recipe.yaml", 2)]
)
def test_exit_codes_of_mistakes(recipe: Path, capsys: pytest.CaptureFixture[str], words: str, code: int) -> None:
    fake_stages.install()
    assert cli.main(words.split()) == code
    out, err = capsys.readouterr()
    assert out == "" and "error: " in err and "hint: " in err


def test_a_fault_of_ours_is_not_taken_for_a_failed_gate(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_stages.install()["data"].fail = KeyError("oops")
    assert cli.main(["run", str(recipe), "--json"]) == 4
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["message"] == "KeyError: 'oops'" and "Traceback" in err and "please report it" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_data_that_cannot_be_printed_is_not_taken_for_a_failed_gate(child_env: dict[str, str]) -> None:
    words = [sys.executable, "-m", "draftsmith", "engine", "list"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, env=child_env, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4 and "cannot write to standard output" in done.stderr and "Traceback" not in done.stderr


def test_nohup_is_respected(recipe: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        fake_stages.install()
        assert cli.main(["run", str(recipe), "--until", "check", "-q"]) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_dry_run_prints_the_plan_and_does_nothing(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_stages.install()
    assert cli.main(["run", str(recipe), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == list(STAGES)
    assert lines[-1].split()[:5] == ["total", "10", "30.0", "MiB", "10:10"]
    assert not (recipe.parent / "runs").exists()
    assert cli.main(["run", str(recipe), "--dry-run", "--until", "data", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["total"] == {"launches": 3, "bytes": 9 << 20, "seconds": 183.0}
    assert cli.main(["capture", str(recipe), "--estimate"]) == 0
    assert "3.0 MiB" in capsys.readouterr().out


def test_what_a_library_prints_does_not_spoil_stdout(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = fake_stages.install()
    real = stages["data"].run
    monkeypatch.setattr(stages["data"], "run", lambda settings, job: (print("chatter"), real(settings, job))[1])
    assert cli.main(["run", str(recipe), "--until", "data", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["stages"]["data"]["state"] == "done" and "chatter" in err


def test_the_module_and_the_script_are_the_same_command(child_env: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "draftsmith", "--version"], env=child_env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("draftsmith 0.")
    path = fake_stages.write_recipe(tmp_path)
    done = fake("run", str(path), "--run-folder", str(tmp_path / "here"), "--quiet", env=child_env)
    assert done.returncode == 0 and done.stderr == "" and (tmp_path / "here" / "report").is_dir()
