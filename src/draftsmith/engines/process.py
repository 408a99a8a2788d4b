"""One engine process under its supervisor, seen from the command that started it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftsmith.engines.secrets import KEY_VARIABLE
from draftsmith.errors import EnvironmentFailed

SUPERVISOR = Path(__file__).with_name("supervisor.py")
GRACE_S = 1.5  # from SIGTERM to SIGKILL of the engine's tree
# of the toolkit's interpreter, not of the engine's (DONTWRITEBYTECODE would make every later start slower); and the key of servers that
# stay, which `serve start` hands on itself: a stage asks the servers that it starts without one
NOT_PASSED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", KEY_VARIABLE)


def inherited() -> dict[str, str]:
    """What an engine gets of the caller's environment."""
    return {name: value for name, value in os.environ.items() if name not in NOT_PASSED}


class EngineProcess:
    """A supervised process tree. It ends with `stop`, and with this process, however that ends; a detached one only with `stop`."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path, detached: bool = False) -> None:
        """Start `argv` with `env` on top of the caller's environment and all output in `log`. Raises EnvironmentFailed."""
        self.argv = list(argv)
        self.log = log
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_bytes(b"")
        except OSError as error:
            raise EnvironmentFailed(f"cannot write the engine's log {log}: {error.strerror}", hint="free some disk space") from error
        for left in (".exit", ".workers"):
            Path(f"{log}{left}").unlink(missing_ok=True)
        parent = 0 if detached else os.getpid()
        command = [sys.executable, "-I", "-S", str(SUPERVISOR), str(parent), str(GRACE_S), str(log), *argv]
        self.killed_before = oom_kills()
        self.supervisor = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if detached else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if detached else None,
            cwd="/" if detached else None,  # a folder that a long-lived process stands in cannot be unmounted
            env={**inherited(), **env},
            start_new_session=True,
            text=True,
        )
        self.started = time.monotonic()
        self.pid = self._read_pid()

    def _read_pid(self) -> int:
        assert self.supervisor.stdout is not None
        ready, _, _ = select.select([self.supervisor.stdout], [], [], 30)
        line = self.supervisor.stdout.readline().strip() if ready else ""
        word, _, rest = line.partition(" ")
        if word == "pid":
            return int(rest)
        self.stop()
        raise EnvironmentFailed(
            f"the engine could not be started: {rest or 'its supervisor said nothing'}", hint="`draftsmith engine list`"
        )

    def poll(self) -> int | None:
        """Exit status of the engine, or None while it runs."""
        return self.supervisor.poll()

    def oom_kills(self) -> int:
        """How many processes of this machine the kernel has killed for lack of memory since the start."""
        return oom_kills() - self.killed_before

    def lost(self, workers: str) -> Ended | None:
        """The first worker that has failed since the start; its title matches the pattern `workers`."""
        return lost_worker(self.log, workers)

    def pids(self) -> list[int]:
        """The engine and all processes below it."""
        return tree(self.pid) if self.poll() is None else []

    def rss_bytes(self) -> int:
        """Resident memory summed over the tree; pages shared between its processes count once for each."""
        page = os.sysconf("SC_PAGE_SIZE")
        return sum(page * resident_pages(pid) for pid in self.pids())

    def ask_to_stop(self) -> None:
        """Let the supervisor begin to end the tree, without waiting for it."""
        if self.supervisor.poll() is None:  # a forked child of ours may hold the pipe open, so closing it is not enough
            self.supervisor.send_signal(signal.SIGTERM)
        for pipe in (self.supervisor.stdin, self.supervisor.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def stop(self) -> None:
        """End the whole tree; returns when it is gone (about two seconds at most). Safe to call again."""
        self.ask_to_stop()
        try:
            self.supervisor.wait(GRACE_S + 5)
        except subprocess.TimeoutExpired:  # a stuck supervisor
            for pid in tree(self.supervisor.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.supervisor.wait()


@dataclass(frozen=True)
class Ended:
    """A process below an engine that has ended. status: exit code, or minus the number of a signal; None when nobody knows."""

    pid: int
    title: str
    status: int | None
    at: float  # Unix time

    def __str__(self) -> str:
        if self.status is None:
            how = "for a reason that only its parent knows"
        elif self.status < 0:
            how = f"by signal {-self.status} ({signal_name(-self.status)})"
        else:
            how = f"with exit status {self.status}"
        return f"{self.title} (pid {self.pid}) ended {how}"


def lost_worker(log: Path, workers: str) -> Ended | None:
    """The first process of an engine that matters (its title matches `workers`) and that did not end with status 0; see supervisor.py."""
    try:
        lines = Path(f"{log}.workers").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return None
    ended = (Ended(**json.loads(line)) for line in lines if line.endswith("\n"))
    return next((one for one in ended if one.status != 0 and re.search(workers, one.title)), None)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def tree(root: int) -> list[int]:
    """A process and all below it."""
    found, front = [], [root]
    while front:
        found += front
        front = [child for pid in front for child in children_of(pid)]
    return found


def children_of(pid: int) -> list[int]:
    """Direct children of a process over all its threads; none when it is gone."""
    found: list[int] = []
    try:
        for task in Path("/proc", str(pid), "task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found


def resident_pages(pid: int) -> int:
    """Resident pages of one process; 0 when it is gone."""
    try:
        return int(Path("/proc", str(pid), "statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with the pid it names one process for good. None when it is gone or a zombie."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields and fields[0] != "Z" else None


def cpu_s(pid: int) -> float:
    """Processor time of one process so far, its ended children included; 0 when it is gone."""
    fields = stat_fields(pid)
    return sum(int(fields[i]) for i in (11, 12, 13, 14)) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def read_bytes(pid: int) -> int:
    """Bytes that one process has read, page faults of mapped files included; 0 when it is gone or not ours to ask."""
    try:
        lines = Path("/proc", str(pid), "io").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    counts = dict(line.split(": ") for line in lines)
    return int(counts["rchar"]) + int(counts["read_bytes"])


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty when the process is gone."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """Processes that the kernel has killed for lack of memory since boot; 0 where the kernel does not count them."""
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
