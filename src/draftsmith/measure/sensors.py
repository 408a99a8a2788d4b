"""What the machine did while a launch was measured: load of the host, processor time of others, clocks and limits of the GPUs.

A sensor that is not there reads None, never 0. NVML is used when the package nvidia-ml-py can be imported, else `nvidia-smi`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from draftsmith.engines.process import cpu_s, tree

EVERY_S = 1.0
FOREIGN_CPU_SUSPECT = 0.15  # share of the machine's processors that others used
THROTTLED_SHARE = 0.05  # of the samples; a single one may be a glitch


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment. throttle: reasons that are active now, by NVML's names without prefix."""

    index: int
    clock_mhz: float | None
    temperature_c: float | None
    power_w: float | None
    throttle: tuple[str, ...] = ()


class GpuReader(Protocol):
    """Reads all GPUs of this machine."""

    def samples(self) -> list[GpuSample]: ...
    def processes(self) -> dict[int, set[int]]:
        """Process ids with memory on each GPU, by its index; as the driver tells them, in a container perhaps other numbers than ours."""
        ...


# --- the host --------------------------------------------------------------------------------------------------------


def busy_s(stat: Path = Path("/proc/stat")) -> float | None:
    """Processor seconds that this machine has worked since boot, over all cores; idle, waiting and stolen time is not work."""
    try:
        numbers = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(numbers[:3] + numbers[5:7]) / os.sysconf("SC_CLK_TCK")  # user, nice, system, irq, softirq


def own_s() -> float:
    """Processor seconds of this process and of everything below it, engines included."""
    return sum(cpu_s(pid) for pid in tree(os.getpid()))


# --- one measurement -------------------------------------------------------------------------------------------------


@dataclass
class Reading:
    """Filled while a launch is measured; `row` is its entry in launches.jsonl."""

    gpus: dict[int, list[GpuSample]] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)
    foreign_cpu: float | None = None
    strangers: int | None = None

    def take(self, samples: Sequence[GpuSample]) -> None:
        for sample in samples:
            self.gpus.setdefault(sample.index, []).append(sample)

    def row(self) -> dict[str, Any]:
        gpus = [
            {
                "index": index,
                "clock_mhz": spread([sample.clock_mhz for sample in samples]),
                "temperature_c": spread([sample.temperature_c for sample in samples]),
                "power_w": spread([sample.power_w for sample in samples]),
                "throttle": reasons(samples),
            }
            for index, samples in sorted(self.gpus.items())
        ]
        return {
            "host_load": fmean(self.loads) if self.loads else None,
            "foreign_cpu": self.foreign_cpu,
            "other_processes": self.strangers,
            "gpus": gpus,
        }


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """min, mean and max of what was read; None when nothing was."""
    known = [value for value in values if value is not None]
    return {"min": min(known), "mean": fmean(known), "max": max(known)} if known else None


def reasons(samples: Sequence[GpuSample]) -> list[str]:
    """Limits that were active in more than THROTTLED_SHARE of the samples."""
    counts: dict[str, int] = {}
    for sample in samples:
        for reason in sample.throttle:
            counts[reason] = counts.get(reason, 0) + 1
    return sorted(reason for reason, count in counts.items() if count > THROTTLED_SHARE * len(samples))


class Sensors:
    """Watches the machine during measurements. only_ours: the engine is below this process, so foreign processor time can be told."""

    def __init__(self, reader: GpuReader | None = None, only_ours: bool = True, own: Callable[[], float] = own_s) -> None:
        self.reader = reader
        self.only_ours = only_ours
        self.own = own
        self.before: dict[int, set[int]] | None = None

    def look_before(self) -> None:
        """Call it before engines start: whoever is on a GPU then is a stranger."""
        self.before = self.reader.processes() if self.reader else None

    def strangers(self, gpus: Sequence[int] | None) -> int | None:
        """Processes on these GPUs (None: on all) that were there before and still are, or that are visibly not ours."""
        if self.reader is None:
            return None
        ours = set(tree(os.getpid()))
        found = 0
        for index, pids in self.reader.processes().items():
            if gpus is None or index in gpus:
                before = (self.before or {}).get(index, set())
                found += sum(pid not in ours and (pid in before or Path("/proc", str(pid)).exists()) for pid in pids)
        return found

    @contextmanager
    def watching(self, gpus: Sequence[int] | None) -> Iterator[Reading]:
        """Sample until the block ends; the reading is whole only then. gpus: indices, None for all."""
        reading, stop = Reading(), threading.Event()
        thread = threading.Thread(target=self.sample, args=(reading, gpus, stop), daemon=True)
        busy, own, cores = busy_s(), self.own(), os.cpu_count() or 1
        started = os.times().elapsed
        thread.start()
        try:
            yield reading
        finally:
            stop.set()
            thread.join()
            now, elapsed = busy_s(), os.times().elapsed - started
            if self.only_ours and busy is not None and now is not None and elapsed > 0:
                reading.foreign_cpu = max(0.0, (now - busy - (self.own() - own)) / (elapsed * cores))
            reading.strangers = self.strangers(gpus)

    def sample(self, reading: Reading, gpus: Sequence[int] | None, stop: threading.Event) -> None:
        """The sampling thread: about once a second, at once the first time."""
        while True:
            reading.loads.append(os.getloadavg()[0])
            if self.reader:
                reading.take([sample for sample in self.reader.samples() if gpus is None or sample.index in gpus])
            if stop.wait(EVERY_S):
                return


# --- judging it ------------------------------------------------------------------------------------------------------

THROTTLING = {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake", "sw_thermal_slowdown"}  # not power cap: that is normal at full load


@dataclass(frozen=True)
class Limits:
    """What makes a launch invalid. foreign_cpu None: processor time of others is only a finding."""

    foreign_cpu: float | None = None
    throttled: bool = True
    strangers: bool = True


def invalid_reasons(row: dict[str, Any], limits: Limits) -> list[str]:
    """Why a launch with this reading proves nothing."""
    found = []
    for gpu in row["gpus"]:
        if limits.throttled and (active := sorted(THROTTLING & set(gpu["throttle"]))):
            heat = f" at {gpu['temperature_c']['max']:.0f} C" if gpu["temperature_c"] else ""
            found.append(f"GPU {gpu['index']} was throttled ({', '.join(active)}){heat}")
    if limits.strangers and row["other_processes"]:
        found.append(f"{row['other_processes']} foreign process{'es' if row['other_processes'] > 1 else ''} on the GPU")
    if limits.foreign_cpu is not None and (row["foreign_cpu"] or 0) > limits.foreign_cpu:
        found.append(f"the host was busy: other processes took {row['foreign_cpu']:.0%} of its processors")
    return found


def suspicions(row: dict[str, Any]) -> list[str]:
    """What a reader should know about a launch that is not invalid."""
    found = []
    if (row["foreign_cpu"] or 0) > FOREIGN_CPU_SUSPECT:
        found.append(f"other processes took {row['foreign_cpu']:.0%} of the host's processors")
    for gpu in row["gpus"]:
        if "sw_power_cap" in gpu["throttle"]:
            found.append(f"GPU {gpu['index']} ran at its power limit")
    return found
