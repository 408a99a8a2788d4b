"""Running pip for another interpreter, with progress and one clear error."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Talk

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own index of CPU wheels


def pip_install(python: Path, arguments: Sequence[str], log: Path, talk: Talk, what: str, total: int) -> None:
    """`python -m pip install ARGUMENTS`, output in `log`, progress by packages collected and installed. Raises EnvironmentFailed."""
    started = time.monotonic()
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off", *arguments]
    before = installed(python)
    with log.open("a") as record:
        begin = record.tell()
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=record, stderr=subprocess.STDOUT) as process:
            while process.poll() is None:
                time.sleep(0.2)
                collected = said(log, begin).count("\nCollecting ") + said(log, begin).startswith("Collecting ")
                done = installed(python) - before
                talk.progress(what, collected + done, 2 * total + 1, started, f"{collected} of {total} collected, {done} installed")
    if process.returncode != 0:
        errors = [line.removeprefix("ERROR:").strip() for line in said(log, begin).splitlines() if line.startswith("ERROR:")]
        raise EnvironmentFailed(f"{what}: pip failed: {errors[0] if errors else 'see the log'}", hint=f"log: {log}")
    talk.progress(what, 1, 1, started, f"{total} package{'s' if total > 1 else ''} in {time.monotonic() - started:.0f} s")


def said(log: Path, begin: int) -> str:
    """What pip wrote since `begin`."""
    with log.open("rb") as file:
        file.seek(begin)
        return file.read().decode(errors="replace")


def installed(python: Path) -> int:
    """How many distributions are in the interpreter's environment."""
    return sum(1 for _ in python.parent.parent.glob("lib/python3*/site-packages/*.dist-info"))


def install_torch(python: Path, pin: str, log: Path, talk: Talk) -> None:
    """Install torch from the package index as configured, and if a CPU pin is not there, from PyTorch's CPU wheel index.

    pin: "torch==2.13.0+cpu". The Python package index carries no "+cpu" wheels. Raises EnvironmentFailed when neither has it.
    """
    try:
        pip_install(python, ["--no-deps", pin], log, talk, pin, total=1)
        return
    except EnvironmentFailed as error:
        if not pin.endswith("+cpu"):
            raise
        first = error.message
    talk.say(f"{pin} is not on the configured package index, trying {TORCH_CPU_INDEX}")
    try:
        pip_install(python, ["--no-deps", "--index-url", TORCH_CPU_INDEX, pin], log, talk, pin, total=1)
    except EnvironmentFailed as error:
        raise EnvironmentFailed(
            f"{pin} cannot be found: neither on the configured package index ({first}) nor on {TORCH_CPU_INDEX} ({error.message})",
            hint=f"check the network, or put the wheel of {pin} into a folder and set PIP_FIND_LINKS to it; log: {log}",
        ) from error
