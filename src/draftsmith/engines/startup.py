"""How far an engine's start has come, read off its log; and whether it still moves. What the log lines mean is data: `phases.yaml`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from draftsmith.engines.process import EngineProcess, cpu_s, read_bytes, stat_fields
from draftsmith.engines.rootcause import is_fatal

TABLE = Path(__file__).with_name("phases.yaml")
LOOK_S = 1.0  # how often the tree is asked whether it moves
# Below these rates, over a second, a process tree does nothing but poll.
IDLE_CPU_SHARE = 0.02
IDLE_READ_BYTES_S = 64 << 10
STATES = {"D": "waits for a disk or a device", "T": "is stopped", "t": "is held by a debugger", "S": "sleeps", "R": "runs"}


@dataclass(frozen=True)
class Phase:
    """A line that begins a phase, or (name "") one that counts within it: its pattern has the groups done and total."""

    name: str
    pattern: re.Pattern[str]


@cache
def phases(engine: str) -> tuple[Phase, ...]:
    """The lines that tell phases of one engine; none for an engine that the table does not have."""
    rows = yaml.safe_load(TABLE.read_text()).get(engine, [])
    return tuple(Phase(row.get("phase", ""), re.compile(row["pattern"])) for row in rows)


class Startup:
    """The phase of one start. `look` reads what the log has gained since it was last called."""

    def __init__(self, engine: str, log: Path) -> None:
        self.engine = engine
        self.phases = phases(engine)
        self.log = log
        self.fatal = False  # has a line said that the start is lost?
        self.offset = 0
        self.rest = ""
        self.name = "start of the process"
        self.count: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.count[0]}/{self.count[1]}" if self.count else self.name

    def look(self) -> bool:
        """Has the phase, or the count within it, changed?"""
        before = (self.name, self.count)
        with self.log.open("rb") as file:
            file.seek(self.offset)
            new = file.read()
        self.offset += len(new)
        *lines, self.rest = re.split(r"[\r\n]", self.rest + new.decode(errors="replace"))
        for line in lines:
            self.read(line)
        return (self.name, self.count) != before

    def read(self, line: str) -> None:
        self.fatal = self.fatal or is_fatal(line, self.engine)
        for phase in self.phases:
            if match := phase.pattern.search(line):
                if phase.name and phase.name != self.name:
                    self.name, self.count = phase.name, None
                if "done" in phase.pattern.groupindex:
                    self.count = (int(match["done"]), int(match["total"]))
                return


class Motion:
    """Does a process tree still do something? Sampled by `look`; `still_s` is how long there was no sign of life."""

    def __init__(self, process: EngineProcess, log: Path) -> None:
        self.process = process
        self.log = log
        self.at = 0.0
        self.moved = 0.0
        self.log_bytes, self.cpu_s, self.read_bytes = 0, 0.0, 0

    def look(self, now: float) -> float:
        """Seconds without a new log line, processor time or bytes read. `now` is time.monotonic()."""
        elapsed = now - self.at
        if elapsed < LOOK_S:
            return now - self.moved
        pids = self.process.pids()
        log_bytes, cpu, read = self.log.stat().st_size, sum(map(cpu_s, pids)), sum(map(read_bytes, pids))
        # a process that ended takes its counts with it, so a sum that fell is motion too
        cpu_moved = not 0 <= cpu - self.cpu_s <= IDLE_CPU_SHARE * elapsed
        read_moved = not 0 <= read - self.read_bytes <= IDLE_READ_BYTES_S * elapsed
        if self.at == 0.0 or log_bytes != self.log_bytes or cpu_moved or read_moved:
            self.moved = now
        self.at, self.log_bytes, self.cpu_s, self.read_bytes = now, log_bytes, cpu, read
        return now - self.moved


def doing(pids: Sequence[int]) -> str:
    """ "VLLM::Worker (pid 12) is stopped": the processes of a tree that hangs, those that only sleep left out if any does not."""
    found = []
    for pid in pids:
        fields = stat_fields(pid)
        if fields:
            found.append((fields[0], f"{title(pid)} (pid {pid}) {STATES.get(fields[0], fields[0])}"))
    telling = [text for state, text in found if state not in "SR"]
    return ", ".join(telling or [text for _, text in found])


def title(pid: int) -> str:
    """The name of a process as it titles itself."""
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return "?"
    first = words[0].decode(errors="replace").strip()
    return Path(first).name if first.startswith("/") else first
