"""Running pip for another interpreter, with progress and one clear error."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Talk

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own index of CPU wheels
STEPS = ("Collecting ", "Installing collected packages")


def pip_install(python: Path, arguments: Sequence[str], log: Path, talk: Talk, what: str, total: int) -> None:
    """`python -m pip install ARGUMENTS`, output in `log`, progress by packages collected of `total`. Raises EnvironmentFailed."""
    started = time.monotonic()
    last_error = ""
    collected = 0
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off", *arguments]
    with (
        log.open("a") as record,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            record.write(line)
            if line.startswith("ERROR:") and not last_error:
                last_error = line.removeprefix("ERROR:").strip()
            if line.startswith(STEPS):
                collected += line.startswith("Collecting ")
                # collecting is most of the time on a cold cache; unpacking has no progress of its own
                detail = "unpacking" if line.startswith("Installing") else line.split()[1]
                talk.progress(what, collected * 0.9, total, started, detail)
    if process.returncode != 0:
        raise EnvironmentFailed(f"{what}: pip failed: {last_error or 'see the log'}", hint=f"log: {log}")
    talk.progress(what, total, total, started, f"{total} packages in {time.monotonic() - started:.0f} s")


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
