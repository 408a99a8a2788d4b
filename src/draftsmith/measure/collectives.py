"""What an all-reduce costs against the rows it carries: measured by a probe under torchrun, one process a GPU, and fitted.

    t(R) = t0 + 2 (N - 1) / N * R * H * 2 bytes / bandwidth          N ranks, R rows, hidden size H, bf16

Up to the knee R* = t0 * bandwidth / (2 (N - 1) / N * 2 H) a row more costs less than the call itself. NCCL variables are arms: one torchrun
each, since NCCL reads them once per process. NVLink multicast stays off in every arm: on a shared host it can put the GPUs out of service.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.job import Talk
from draftsmith.manifest import atomic_write_json, hardware, make_folder, tool_versions
from draftsmith.measure.fitting import Fit, fit_log
from draftsmith.measure.statistics import Interval

PROBE = Path(__file__).with_name("collectives_probe.py")
MULTICAST_OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
BF16_BYTES = 2
Way = Literal["graph", "eager"]  # replayed from a CUDA graph, as engines do, or enqueued one by one


@dataclass(frozen=True)
class Arm:
    """One set of environment values. reduce: "torch" (NCCL or gloo) or "sglang" (that engine's own kernel, where it can be imported)."""

    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    reduce: Literal["torch", "sglang"] = "torch"


DEFAULT = Arm("default")
GPU_ARMS = (
    DEFAULT,
    Arm("p2p-off", {"NCCL_P2P_DISABLE": "1"}),
    Arm("sglang", reduce="sglang"),
    Arm("proto-LL", {"NCCL_PROTO": "LL"}),
    Arm("proto-LL128", {"NCCL_PROTO": "LL128"}),
    Arm("proto-Simple", {"NCCL_PROTO": "Simple"}),
    Arm("algo-ring", {"NCCL_ALGO": "Ring"}),
    Arm("algo-tree", {"NCCL_ALGO": "Tree"}),
    Arm("channels-1", {"NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "1"}),
    Arm("channels-16", {"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "16"}),
    Arm("p2p-off-LL", {"NCCL_P2P_DISABLE": "1", "NCCL_PROTO": "LL"}),
    Arm("p2p-off-Simple", {"NCCL_P2P_DISABLE": "1", "NCCL_PROTO": "Simple"}),
)


@dataclass(frozen=True)
class Settings:
    """What is probed. python: an interpreter that has torch. timeout_s: of one arm; an arm that takes longer is a failed one."""

    ranks: int
    device: Literal["cuda", "cpu"] = "cuda"
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    hidden: tuple[int, ...] = (4096, 7168)
    inner: int = 20
    samples: int = 30
    timeout_s: float = 90.0
    python: str = sys.executable


# --- the probe -------------------------------------------------------------------------------------------------------


def environment(arm: Arm) -> dict[str, str]:
    """The caller's environment with the arm's values, multicast off. Raises UsageError for an arm that would turn it on."""
    wrong = [name for name, value in arm.env.items() if name in MULTICAST_OFF or (name == "NCCL_ALGO" and "NVLS" in value.upper())]
    if wrong:
        raise UsageError(f"arm {arm.name}: {', '.join(wrong)} would touch NVLink multicast", hint="multicast stays off; leave it out")
    return {**os.environ, **arm.env, **MULTICAST_OFF}


def command(settings: Settings, arm: Arm, out: Path) -> list[str]:
    """The torchrun of one arm."""
    words = [settings.python, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    words += ["--nproc-per-node", str(settings.ranks), str(PROBE)]
    words += ["--rows", ",".join(map(str, settings.rows)), "--hidden", ",".join(map(str, settings.hidden))]
    words += ["--inner", str(settings.inner), "--samples", str(settings.samples), "--reduce", arm.reduce]
    return [*words, "--device", settings.device, "--out", str(out)]


def probe(settings: Settings, arm: Arm, folder: Path) -> dict[str, Any]:
    """One arm's sizes and samples; "failed" says why some or all are missing. Leaves NAME.json and NAME.log in the folder."""
    out, log = folder / f"{arm.name}.json", folder / f"{arm.name}.log"
    out.unlink(missing_ok=True)
    begun, failed = time.monotonic(), ""
    with log.open("wb") as file:
        # torchrun ends its workers on SIGTERM, not when it is killed
        try:
            process = subprocess.Popen(command(settings, arm, out), stdout=file, stderr=subprocess.STDOUT, env=environment(arm))
        except OSError as error:
            hint = "--python PATH: an interpreter with torch"
            raise EnvironmentFailed(f"cannot start {settings.python}: {error.strerror}", hint=hint) from None
        try:
            status = process.wait(settings.timeout_s)
            failed = f"exit status {status}: {last_words(log)}" if status else ""
        except subprocess.TimeoutExpired:
            failed = f"stopped after {settings.timeout_s:.0f} s"
        finally:
            end(process)
    found = json.loads(out.read_text()) if out.exists() else {"points": []}
    return {**found, **asdict(arm), "env": dict(arm.env), "failed": failed, "seconds": time.monotonic() - begun}


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL to one that does not hear it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def last_words(log: Path) -> str:
    """The last error line of a torchrun log, or its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "error:" in line or "not available" in line]
    return (errors or lines or ["nothing was said"])[0 if errors else -1][:300]


def run(settings: Settings, arms: Sequence[Arm], folder: Path, talk: Talk | None = None, budget_s: float | None = None) -> dict[str, Any]:
    """Probe every arm, fit each, write collectives.json into `folder` after each arm, and return it.

    budget_s: no arm is begun after that. Raises EnvironmentFailed when no arm measured anything.
    """
    talk, begun = talk or Talk(quiet=True), time.monotonic()
    make_folder(folder, "--out")
    document: dict[str, Any] = {"settings": asdict(settings), "arms": [], "tools": tool_versions(), "hardware": hardware()}
    for number, arm in enumerate(arms):
        if budget_s is not None and time.monotonic() - begun > budget_s:
            document["arms"] += [{**asdict(arm), "points": [], "failed": "no time left"}]
            continue
        talk.progress("all-reduce", number, len(arms), begun, arm.name)
        entry = probe(settings, arm, folder)
        entry["fits"] = fits_of(entry, settings)
        document["arms"].append(entry)
        talk.say(describe(entry))
        atomic_write_json(folder / "collectives.json", document)
    if not any(entry["points"] for entry in document["arms"]):
        reasons = "; ".join(f"{entry['name']}: {entry['failed']}" for entry in document["arms"])
        raise EnvironmentFailed(f"no arm of the all-reduce probe measured anything: {reasons}", hint=f"logs: {folder}")
    atomic_write_json(folder / "collectives.json", document)
    return document


def describe(entry: Mapping[str, Any]) -> str:
    """One line for a person."""
    if not entry["fits"]:
        return f"all-reduce {entry['name']}: {entry['failed'] or 'too few sizes for a fit'}"
    way, fit = next(iter(entry["fits"].items()))
    knees = ", ".join(f"{knee['value']:.0f} rows of {hidden}" for hidden, knee in fit["knee_rows"].items())
    line = f"t0 {1e6 * fit['t0_s']['value']:.1f} us, {fit['bandwidth_bytes_s']['value'] / 1e9:.1f} GB/s, knee at {knees} ({way})"
    return f"all-reduce {entry['name']}: {line}{'; ' + entry['failed'] if entry['failed'] else ''}"


# --- the model -------------------------------------------------------------------------------------------------------


def bytes_moved(payload_bytes: np.ndarray | float, ranks: int) -> np.ndarray | float:
    """Bytes over the slowest link of a ring all-reduce: 2 (N - 1) / N of the payload."""
    return 2 * (ranks - 1) / ranks * payload_bytes


def fit_all_reduce(payloads: Sequence[float], seconds: Sequence[float], ranks: int) -> Fit:
    """t0_s and bandwidth_bytes_s from at least three sizes. payloads: bytes of one rank's tensor."""
    moved = np.asarray(bytes_moved(np.asarray(payloads, float), ranks))
    top = max(float(seconds[-1]) - min(seconds), 1e-3 * min(seconds))

    def model(values: np.ndarray) -> np.ndarray:
        return values[0] + moved / values[1]

    return fit_log(model, seconds, {"t0_s": min(seconds), "bandwidth_bytes_s": float(moved.max()) / top})


def knee_rows(fit: Fit, ranks: int, hidden: int) -> Interval:
    """R*: rows at which moving the data takes as long as the call."""
    per_row = float(bytes_moved(hidden * BF16_BYTES, ranks))
    i, j = fit.names.index("t0_s"), fit.names.index("bandwidth_bytes_s")
    variance = fit.covariance[i, i] + fit.covariance[j, j] + 2 * fit.covariance[i, j]
    return fit.of(math.log(fit["t0_s"] * fit["bandwidth_bytes_s"] / per_row), float(variance))


def fits_of(entry: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """One fit for each way, over all hidden sizes together: only bytes count. Empty with fewer than three sizes."""
    fits = {}
    for way in ("graph", "eager"):
        points = [point for point in entry["points"] if way in point]
        if len(points) < 3:
            continue
        payloads = [point["rows"] * point["hidden"] * BF16_BYTES for point in points]
        order = np.argsort(payloads, kind="stable")
        seconds = [median(points[i][way]) for i in order]
        fit = fit_all_reduce([payloads[i] for i in order], seconds, settings.ranks)
        knees = {str(hidden): knee_rows(fit, settings.ranks, hidden).as_dict() for hidden in settings.hidden}
        fits[way] = fit.as_dict() | {"knee_rows": knees}
    return fits


@dataclass(frozen=True)
class AllReduce:
    """Seconds of one all-reduce by its payload, from a probe's table (bytes, seconds; ascending): interpolated between, the fit beyond.

    gathers: the table of the library that gathers, where it is another than the one that reduces (an engine's own kernel beside NCCL).
    """

    ranks: int
    payloads: tuple[float, ...]
    seconds: tuple[float, ...]
    gathers: AllReduce | None = None

    @classmethod
    def from_probe(cls, entry: Mapping[str, Any], way: Way = "graph") -> AllReduce:
        """From one arm of `run`'s document: medians, sizes of several hidden sizes in one table."""
        table = sorted((p["rows"] * p["hidden"] * BF16_BYTES, median(p[way])) for p in entry["points"] if way in p)
        return cls(entry["ranks"], tuple(float(size) for size, _ in table), tuple(second for _, second in table))

    @classmethod
    def given(cls, ranks: int, t0_s: float, bandwidth_bytes_s: float) -> AllReduce:
        """From a latency and a bandwidth, without a measurement."""
        payloads = tuple(float(1 << power) for power in range(10, 31))
        return cls(ranks, payloads, tuple(t0_s + float(bytes_moved(size, ranks)) / bandwidth_bytes_s for size in payloads))

    def at(self, rows: float, hidden: int) -> float:
        """Seconds for [rows, hidden] in bf16; 0 on one GPU."""
        if self.ranks == 1:
            return 0.0
        size = rows * hidden * BF16_BYTES
        if self.payloads[0] <= size <= self.payloads[-1]:
            return float(np.interp(size, self.payloads, self.seconds))
        if size < self.payloads[0]:
            return self.seconds[0]
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.payloads[-1] - self.payloads[-2])
        return self.seconds[-1] + slope * (size - self.payloads[-1])

    def gather(self, rows: float, width: int) -> float:
        """Seconds until each GPU has all of [rows, width] in bf16, of which it made its share. 0 for an unknown width.

        Gathers were not probed. They are taken from all-reduces by bytes: a ring moves (N - 1) / N of the whole, an all-reduce twice that.
        """
        return (self.gathers or self).at(rows / 2, width) if width else 0.0
