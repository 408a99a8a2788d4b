"""Reading NVIDIA GPUs: NVML through the optional package nvidia-ml-py, else the command `nvidia-smi`. Neither there: no reader."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from typing import Any

from draftsmith.measure.sensors import GpuReader, GpuSample

# nvmlClocksThrottleReason bits (nvml.h); idle and what users set themselves are no trouble
REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}
QUERY = ("index", "clocks.sm", "temperature.gpu", "power.draw", "clocks_throttle_reasons.active")
TIMEOUT_S = 10


def reason_names(mask: int) -> tuple[str, ...]:
    """Names of the bits that are set."""
    return tuple(name for bit, name in REASONS.items() if mask & bit)


class Nvml:
    """The NVML library. Raises ImportError without the package, its own NVMLError without a driver."""

    def __init__(self, nvml: Any = None) -> None:
        self.nvml = nvml or importlib.import_module("pynvml")
        self.nvml.nvmlInit()
        self.handles = [self.nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self.nvml.nvmlDeviceGetCount())]

    def ask(self, name: str, *args: Any) -> Any:
        """What a call answers; None when this GPU does not have it."""
        try:
            return getattr(self.nvml, name)(*args)
        except self.nvml.NVMLError:
            return None

    def samples(self) -> list[GpuSample]:
        found = []
        for index, handle in enumerate(self.handles):
            power_mw = self.ask("nvmlDeviceGetPowerUsage", handle)
            clock = self.ask("nvmlDeviceGetClockInfo", handle, self.nvml.NVML_CLOCK_SM)
            temperature = self.ask("nvmlDeviceGetTemperature", handle, self.nvml.NVML_TEMPERATURE_GPU)
            mask = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
            found.append(GpuSample(index, clock, temperature, None if power_mw is None else power_mw / 1000, reason_names(mask)))
        return found

    def processes(self) -> dict[int, set[int]]:
        asked = {index: self.ask("nvmlDeviceGetComputeRunningProcesses", handle) for index, handle in enumerate(self.handles)}
        return {index: {process.pid for process in found or ()} for index, found in asked.items()}


class NvidiaSmi:
    """The command; about 50 ms a call, in the sampling thread."""

    def query(self, *arguments: str) -> list[list[str]]:
        """The rows of a CSV answer; none when the command fails."""
        command = ["nvidia-smi", *arguments, "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return []
        return [[word.strip() for word in line.split(",")] for line in answer.splitlines() if line.strip()]

    def samples(self) -> list[GpuSample]:
        rows = self.query(f"--query-gpu={','.join(QUERY)}")
        return [
            GpuSample(int(index), number(clock), number(temperature), number(power), reason_names(mask_of(mask)))
            for index, clock, temperature, power, mask in rows
        ]

    def processes(self) -> dict[int, set[int]]:
        places = {uuid: int(index) for index, uuid in self.query("--query-gpu=index,uuid")}
        found: dict[int, set[int]] = {index: set() for index in places.values()}
        for uuid, pid in self.query("--query-compute-apps=gpu_uuid,pid"):
            if uuid in places and pid.isdigit():
                found[places[uuid]].add(int(pid))
        return found


def number(word: str) -> float | None:
    """nvidia-smi says [N/A] for what a GPU does not have."""
    try:
        return float(word)
    except ValueError:
        return None


def mask_of(word: str) -> int:
    """0x0000000000000004 as 4; 0 when it is not there."""
    try:
        return int(word, 16)
    except ValueError:
        return 0


def gpu_reader() -> GpuReader | None:
    """The best reader on this machine, or None without a GPU."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        nvml = None
    if nvml is not None:
        try:
            return Nvml(nvml)
        except nvml.NVMLError:  # the package without a driver
            return None
    reader = NvidiaSmi()
    return reader if shutil.which("nvidia-smi") and reader.samples() else None
