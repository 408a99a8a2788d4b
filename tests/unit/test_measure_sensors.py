"""What the sensors read, and what makes of a reading a launch that proves nothing."""

import os
import stat
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from draftsmith.measure.gpus import NvidiaSmi, Nvml, mask_of, reason_names
from draftsmith.measure.sensors import GpuSample, Limits, Reading, Sensors, busy_s, invalid_reasons, suspicions

QUIET = {"host_load": 0.1, "foreign_cpu": 0.01, "other_processes": 0, "gpus": []}
SMI = """#!/bin/sh
case "$1" in
  *query-gpu=index,uuid*) echo "0, GPU-a"; echo "1, GPU-b";;
  *query-gpu*) echo "0, 1980, 61, 512.34, 0x0000000000000004"; echo "1, [N/A], 40, [N/A], 0x0000000000000060";;
  *query-compute-apps*) echo "GPU-b, 4242";;
esac
"""


class FakeGpus:
    def __init__(self, pids: set[int]) -> None:
        self.pids = pids

    def samples(self) -> list[GpuSample]:
        return [GpuSample(0, 1400.0, 60.0, None, ("hw_thermal_slowdown",)), GpuSample(1, 1400.0, 50.0, 300.0)]

    def processes(self) -> dict[int, set[int]]:
        return {0: set(self.pids), 1: set()}


def test_absent_is_none() -> None:
    row = Reading().row()
    assert row == {"host_load": None, "foreign_cpu": None, "other_processes": None, "gpus": []}
    assert invalid_reasons(row, Limits(foreign_cpu=0.1)) == [] == suspicions(row)
    assert busy_s(Path("/nowhere")) is None


def test_host_and_gpus_are_sampled() -> None:
    sensors = Sensors(FakeGpus(set()))
    with sensors.watching([0]) as reading:
        time.sleep(0.3)
    row = reading.row()
    assert row["host_load"] is not None and 0 <= row["foreign_cpu"] <= 1.1 and row["other_processes"] == 0
    [gpu] = row["gpus"]
    assert (gpu["index"], gpu["clock_mhz"], gpu["power_w"]) == (0, {"min": 1400.0, "mean": 1400.0, "max": 1400.0}, None)
    assert invalid_reasons(row, Limits()) == ["GPU 0 was throttled (hw_thermal_slowdown) at 60 C"]
    assert invalid_reasons(row, Limits(throttled=False)) == []


def test_our_own_work_is_not_foreign() -> None:
    before_s = busy_s()
    with Sensors(own=lambda: busy_s() or 0.0).watching(None) as reading:  # everything that works is ours
        sum(range(2_000_000))
    assert before_s is not None and reading.row()["foreign_cpu"] == pytest.approx(0, abs=0.2)
    with Sensors(own=lambda: 0.0).watching(None) as reading:  # nothing is
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            pass
    assert reading.row()["foreign_cpu"] > 0.1 / (os.cpu_count() or 1)
    with Sensors(only_ours=False).watching(None) as reading:
        pass
    assert reading.row()["foreign_cpu"] is None


def test_strangers_on_the_gpu() -> None:
    other = os.getppid()  # a process that is visibly not below us
    sensors = Sensors(FakeGpus({os.getpid(), other}))
    assert sensors.strangers([0]) == 1 and sensors.strangers([1]) == 0
    hidden = Sensors(FakeGpus({2**22 + 1}))  # a number of another process namespace: ours or not, nobody can tell ...
    assert hidden.strangers(None) == 0
    hidden.look_before()  # ... but it was there before our engine
    assert hidden.strangers(None) == 1
    assert invalid_reasons(QUIET | {"other_processes": 1}, Limits()) == ["1 foreign process on the GPU"]


def test_a_busy_host_is_a_finding_or_a_reason() -> None:
    busy = QUIET | {"foreign_cpu": 0.4}
    assert invalid_reasons(busy, Limits()) == [] and suspicions(busy) == ["other processes took 40% of the host's processors"]
    assert "the host was busy" in invalid_reasons(busy, Limits(foreign_cpu=0.25))[0]


def test_one_glitch_is_no_throttling() -> None:
    reading = Reading()
    for place in range(100):
        reading.take([GpuSample(0, 1900.0, 60.0, 400.0, ("hw_slowdown",) if place < 5 else ("sw_power_cap",))])
    assert reading.row()["gpus"][0]["throttle"] == ["sw_power_cap"]
    assert suspicions(reading.row()) == ["GPU 0 ran at its power limit"]


def test_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(SMI)
    command.chmod(command.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    reader = NvidiaSmi()
    first, second = reader.samples()
    assert first == GpuSample(0, 1980.0, 61.0, 512.34, ("sw_power_cap",))
    assert second == GpuSample(1, None, 40.0, None, ("sw_thermal_slowdown", "hw_thermal_slowdown"))
    assert reader.processes() == {0: set(), 1: {4242}}
    command.write_text("#!/bin/sh\nexit 9\n")
    assert reader.samples() == [] and reader.processes() == {}


class FakeNvml(SimpleNamespace):
    """As much of pynvml as is used; GPU 1 has no power meter."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def nvmlInit(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetClockInfo(self, handle: int, _: int) -> int:
        return 1755

    def nvmlDeviceGetTemperature(self, handle: int, _: int) -> int:
        return 55

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle:
            raise self.NVMLError
        return 350_500

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 0x1 | 0x80

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=7)] if handle else []


def test_nvml() -> None:
    reader = Nvml(FakeNvml())
    first, second = reader.samples()
    assert first == GpuSample(0, 1755, 55, 350.5, ("hw_power_brake",))
    assert second.power_w is None
    assert reader.processes() == {0: set(), 1: {7}}


def test_bits() -> None:
    assert reason_names(0x1) == () and reason_names(0x48) == ("hw_slowdown", "hw_thermal_slowdown")
    assert mask_of("[N/A]") == 0
