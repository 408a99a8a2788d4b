"""What communication does to speculation: SGLang on one and on two GPUs, with dummy weights and forced acceptance.

    PYTHONPATH=src python benchmarks/gpu/tensor_parallel.py --kit DEST --out $OUT --part probe
    PYTHONPATH=src python benchmarks/gpu/tensor_parallel.py --kit DEST --out $OUT --part 1 --budget-s 560      (then --part 2, 3, 4)
    python benchmarks/gpu/tensor_parallel.py --plan

DEST: an unpacked kit (site/ with SGLang, model/ with a tokenizer). For every shape in `shapes/` it measures T_ar(C) and T_round(C, depth)
on one GPU, on two with SGLang's own all-reduce, and on two through NCCL with peer-to-peer switched off, a stand-in for slow PCIe. The
servers of a wave start side by side, as far as GPU memory allows, and are measured in turns, one batch at a time; every batch is written
at once. NVLink multicast stays off. `--part probe` measures the all-reduce itself in all arms.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forced import DUMMY, FLAGS, Cell, forced_launch, measure, servers_up, write_folder

from draftsmith.engines.protocol import Launch
from draftsmith.engines.registry import engine_for
from draftsmith.engines.server import Server
from draftsmith.errors import CheckFailed, EnvironmentFailed, InvalidMeasurement
from draftsmith.job import Talk
from draftsmith.manifest import atomic_write_json, hardware, tool_versions
from draftsmith.measure.collectives import GPU_ARMS, MULTICAST_OFF, Settings, run
from draftsmith.settings import EngineSettings

SHAPES = Path(__file__).with_name("shapes")
GPU_GB, NUM_GPUS, MAX_SERVERS = 135.0, 2, 6  # of 150 GB; six starts keep 32 cores busy
CONCURRENCY = (1, 4, 16, 64)
READY_S, START_S, CELL_S = 270.0, 150.0, 12.0  # seen: 60 to 124 s for one server on 16 cores
PORT = 30000

# Switched off: what would use NVLink multicast (FlashInfer's fused all-reduce; SGLang's second own all-reduce, through symmetric memory).
# Expert choice with dummy weights would be the same for every token: it is drawn at random instead, in both arms.
ENV = {
    **MULTICAST_OFF,
    "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "0",
    "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0",
    "SGLANG_SIMULATE_UNIFORM_EXPERTS": "1",
    "SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # else every server forks a pool of compile workers, a core each
}
MORE_FLAGS = {
    "enforce-disable-flashinfer-allreduce-fusion": True,
    "context-length": 4096,
    "mem-fraction-static": 0.97,  # servers share a GPU; the pool is capped by max-total-tokens
    "max-total-tokens": 32768,
    "cuda-graph-max-bs": 64,
    "max-running-requests": 64,
}


@dataclass(frozen=True)
class Group:
    """One target shape on `tp` GPUs over one link, with its launches by depth (0: baseline). gb: of one server on one GPU, roughly."""

    shape: str
    tp: int
    link: str  # "own": SGLang's own all-reduce over NVLink; "p2p-off": NCCL through the host
    gb: float
    depths: tuple[int, ...] = (0, 3, 1)

    @property
    def name(self) -> str:
        return f"{self.shape}-tp{self.tp}-{self.link}"


GROUPS = (
    Group("qwen3-8b", 1, "own", 28.0),
    Group("qwen3-8b", 2, "own", 16.0),
    Group("kimi-cut-6", 1, "own", 60.0),
    Group("kimi-cut-6", 2, "own", 33.0),
    Group("qwen3-8b", 2, "p2p-off", 16.0, (0, 3)),
    Group("kimi-cut-6", 2, "p2p-off", 33.0),
)


@dataclass(frozen=True)
class Placed:
    """One server of a wave: its group, depth, and the GPUs it gets."""

    group: Group
    depth: int
    gpus: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.group.name}-{f'depth{self.depth}' if self.depth else 'baseline'}"


# --- the plan --------------------------------------------------------------------------------------------------------


def place(group: Group, free: list[float], left: int) -> list[Placed] | None:
    """All servers of a group in what is free on the GPUs (changed on success), or None when they do not fit."""
    trial, placed = list(free), []
    for depth in group.depths:
        gpus = tuple(range(NUM_GPUS)) if group.tp > 1 else (max(range(NUM_GPUS), key=lambda gpu: trial[gpu]),)
        for gpu in gpus:
            trial[gpu] -= group.gb
        placed.append(Placed(group, depth, gpus))
    if min(trial) < 0 or len(placed) > left:
        return None
    free[:] = trial
    return placed


def waves(groups: Sequence[Group] = GROUPS) -> list[list[Placed]]:
    """Groups packed into waves, each into the first with room; a group is never split, so that its launches alternate."""
    found: list[tuple[list[float], list[Placed]]] = []
    for group in groups:
        for free, wave in found:
            if placed := place(group, free, MAX_SERVERS - len(wave)):
                wave += placed
                break
        else:
            free = [GPU_GB] * NUM_GPUS
            placed = place(group, free, MAX_SERVERS)
            assert placed is not None, group
            found.append((free, placed))
    return [wave for _, wave in found]


def launch_of(placed: Placed, number: int, kit: Path, models: Path) -> Launch:
    """The launch of one server; `number` sets its ports apart from the others'."""
    group = placed.group
    flags = {**FLAGS, **DUMMY, **MORE_FLAGS, "tp-size": group.tp, "port": PORT + 20 * number, "nccl-port": PORT + 2000 + 20 * number}
    env = {**ENV, "PYTHONPATH": str(kit / "site"), "CUDA_VISIBLE_DEVICES": ",".join(map(str, placed.gpus))}
    if group.link == "p2p-off":
        flags["disable-custom-all-reduce"] = True
        env["NCCL_P2P_DISABLE"] = "1"
    base = Launch("baseline", models / group.shape, flags, env)
    return forced_launch(base, models / f"{group.shape}-drafter", placed.depth, dummy=True) if placed.depth else base


def write_models(shapes: Path, kit: Path, out: Path) -> dict[str, int]:
    """Target and drafter folders of every shape under `out`; returns vocabulary sizes."""
    vocabulary = {}
    for folder in sorted(path for path in shapes.iterdir() if path.is_dir()):
        config = json.loads((folder / "config.json").read_text())
        write_folder(config, out / folder.name, kit / "model")
        write_folder(json.loads((folder / "drafter.json").read_text()), out / f"{folder.name}-drafter")
        vocabulary[folder.name] = int(config["vocab_size"])
    return vocabulary


# --- measuring -------------------------------------------------------------------------------------------------------


class Record:
    """The result file of one wave, written anew after every batch."""

    def __init__(self, path: Path, deadline: float) -> None:
        self.path, self.deadline = path, deadline
        self.content: dict[str, Any] = {"launches": [], "rows": [], "machine": machine(), "tools": tool_versions(), "hardware": hardware()}

    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def write(self) -> None:
        atomic_write_json(self.path, self.content)


def machine() -> dict[str, str]:
    """How the GPUs are linked, and what they are."""
    told = {}
    for name, words in {"topology": ["topo", "-m"], "gpus": ["-q", "-d", "CLOCK,POWER"]}.items():
        try:
            told[name] = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=30, check=False).stdout[:6000]
        except (OSError, subprocess.TimeoutExpired) as error:
            told[name] = repr(error)
    return told


def batch(server: Server, cell: Cell, seed: int) -> dict[str, Any]:
    """One batch as a row; "invalid" says why it is none."""
    try:
        return {**asdict(measure((server.host, server.port), cell, seed)), "invalid": ""}
    except (InvalidMeasurement, EnvironmentFailed, OSError, http.client.HTTPException) as error:
        return {"invalid": f"{type(error).__name__}: {error}"}


def rounds(
    record: Record, wave: Sequence[Placed], servers: Mapping[str, Server], cells: Mapping[str, Sequence[Cell]], repeats: int
) -> None:
    """Every cell of every server once, then again in the reverse order; stops where the time ends. A short batch precedes the first."""
    alive = [placed for placed in wave if placed.name in servers]
    for repeat in range(repeats):
        for number in range(len(CONCURRENCY)):
            for placed in alive if repeat % 2 == 0 else alive[::-1]:
                if record.left_s() < CELL_S:
                    record.content["stopped"] = f"no time left in repeat {repeat}, at concurrency {CONCURRENCY[number]}"
                    record.write()
                    return
                cell, server = cells[placed.group.shape][number], servers[placed.name]
                if repeat == 0:
                    batch(server, Cell(cell.concurrency, cell.vocab_size, output_tokens=33), seed=9000 + number)
                row = batch(server, cell, seed=100 * repeat + number)
                record.content["rows"].append(
                    {"launch": placed.name, "concurrency": cell.concurrency, "depth": placed.depth, "repeat": repeat, **row}
                )
                record.write()


def describe(placed: Placed, server: Server | None, failed: str) -> dict[str, Any]:
    """What is known of one launch."""
    entry: dict[str, Any] = {"name": placed.name, **asdict(placed), "failed": failed}
    if server is not None:
        try:
            server.check_as_planned()
        except (CheckFailed, EnvironmentFailed) as error:
            entry["not_as_planned"] = str(error)
        entry |= {"argv": server.argv, "env": server.env, "ready_s": server.ready_s}
    return entry


def measure_wave(number: int, arguments: argparse.Namespace, vocabulary: Mapping[str, int], deadline: float) -> dict[str, Any]:
    """Start the servers of one wave, measure, stop. Leaves wave-N.json and the logs."""
    engine, python = engine_for(EngineSettings(name="sglang==0.5.17", python=arguments.python))
    record, talk = Record(arguments.out / f"wave-{number}.json", deadline), Talk()
    wave = waves()[number - 1]
    launches = {placed.name: launch_of(placed, i, arguments.kit, arguments.models) for i, placed in enumerate(wave)}
    shapes = {placed.group.shape for placed in wave}
    cells = {shape: [Cell(c, vocabulary[shape], output_tokens=arguments.tokens) for c in CONCURRENCY] for shape in shapes}
    timeout_s = min(READY_S, record.left_s() - 60)
    with servers_up(engine, python, launches, arguments.out / "logs", timeout_s, talk) as (servers, failed):
        record.content["launches"] = [describe(placed, servers.get(placed.name), failed.get(placed.name, "")) for placed in wave]
        record.write()
        rounds(record, wave, servers, cells, arguments.repeats)
        talk.say(f"wave {number}: {len(record.content['rows'])} batches, {record.left_s():.0f} s left")
    return record.content


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kit", type=Path, help="the unpacked kit: site/ and model/")
    parser.add_argument("--out", type=Path, help="where results and logs go")
    parser.add_argument("--part", nargs="+", default=[], help=f"probe, or waves 1 to {len(waves())}; as many as the time allows")
    parser.add_argument("--budget-s", type=float, default=570.0, help="all of it must end within this")
    parser.add_argument("--models", type=Path, default=Path("/tmp/draftsmith-shapes"), help="where the folders of the shapes are written")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=193, help="forced output tokens of a request")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the engine and of the probe")
    parser.add_argument("--plan", action="store_true", help="print the waves and end")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    deadline = time.monotonic() + arguments.budget_s
    if arguments.plan:
        for number, wave in enumerate(waves(), 1):
            print(f"wave {number}: " + ", ".join(f"{placed.name} on GPU {'+'.join(map(str, placed.gpus))}" for placed in wave))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    vocabulary = write_models(SHAPES, arguments.kit, arguments.models)
    for part in arguments.part:
        left_s = deadline - time.monotonic()
        if part == "probe":
            settings = Settings(ranks=NUM_GPUS, python=arguments.python)
            run(settings, GPU_ARMS, arguments.out / "collectives", Talk(), budget_s=left_s - settings.timeout_s)
        elif left_s < START_S + 60:
            print(f"wave {part}: not begun, {left_s:.0f} s left")
        else:
            measure_wave(int(part), arguments, vocabulary, deadline)


if __name__ == "__main__":
    main()
