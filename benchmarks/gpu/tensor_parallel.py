"""What communication does to speculation: SGLang on one and on two GPUs, with dummy weights and forced acceptance.

    PYTHONPATH=src python benchmarks/gpu/tensor_parallel.py --kit DEST --out $OUT --part probe [--arms sglang,p2p-off-LL]
    PYTHONPATH=src python benchmarks/gpu/tensor_parallel.py --kit DEST --out $OUT --part 3 --budget-s 570
    PYTHONPATH=src python benchmarks/gpu/tensor_parallel.py --plan

DEST: an unpacked kit (site/ with SGLang, model/ with a tokenizer). For every shape in `shapes/` it measures T_ar(C) and T_round(C, depth)
on one GPU, on two with SGLang's own all-reduce, and on two through NCCL with peer-to-peer switched off, a stand-in for slow PCIe. The
servers of a part start side by side, as far as GPU memory allows, and are measured in turns (draftsmith.breakeven.sweep); OUT/part-N gets
launches.jsonl and waves.jsonl, each line when it is known. NVLink multicast stays off. `--part probe` measures the all-reduce itself in all
arms: OUT/collectives/collectives.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from draftsmith.breakeven.shapes import target_folder
from draftsmith.breakeven.sweep import Planned, Sweep, Waves, free_ports, started
from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.registry import engine_for
from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Talk
from draftsmith.manifest import atomic_write_json, hardware, tool_versions
from draftsmith.measure.collectives import GPU_ARMS, MULTICAST_OFF, Settings, run
from draftsmith.settings import EngineSettings, FlagValue

SHAPES = Path(__file__).with_name("shapes")
GPU_GB, NUM_GPUS, MAX_SERVERS = 135.0, 2, 6  # of 150 GB; six starts keep 32 cores busy
CONCURRENCY = (1, 4, 16, 64)
FORCED = 2.0  # a whole number: every rank takes it without drawing
ARM_S = 45.0  # of the probe; seen: 10 to 20 s
READY_S, LEAST_S, STOP_S = 270.0, 210.0, 12.0  # seen: 60 to 124 s until one server is ready on 16 cores

LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}  # one host, perhaps without a network
# Switched off: what would use NVLink multicast (FlashInfer's fused all-reduce; SGLang's second own all-reduce, through symmetric memory).
# With dummy weights every token would go to the same experts: they are drawn at random instead, in both arms.
ENV = {
    **MULTICAST_OFF,
    **LOOPBACK,
    "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "0",
    "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0",
    "SGLANG_SIMULATE_UNIFORM_EXPERTS": "1",
    "SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # else every server forks a pool of compile workers, a core each
}
FLAGS: dict[str, FlagValue] = {
    "attention-backend": "triton",
    "sampling-backend": "pytorch",
    "disable-prefill-cuda-graph": True,
    "dtype": "bfloat16",
    "sleep-on-idle": True,
    "enforce-disable-flashinfer-allreduce-fusion": True,
    "context-length": 4096,
    "mem-fraction-static": 0.97,  # servers share a GPU; the pool is capped by max-total-tokens
    "max-total-tokens": 32768,
    "cuda-graph-max-bs": 64,
    "max-running-requests": 64,
}


@dataclass(frozen=True)
class Group:
    """One target shape on `tp` GPUs over one link, with its launches by depth (0: baseline). gb: of one server on one GPU, roughly.
    gpu: the only one that it takes, so that the other can measure something else meanwhile."""

    shape: str
    tp: int
    link: str  # "own": SGLang's own all-reduce over NVLink; "p2p-off": NCCL through the host
    gb: float
    depths: tuple[int, ...] = (0, 3, 1)
    gpu: int | None = None

    @property
    def name(self) -> str:
        return f"{self.shape}-tp{self.tp}-{self.link}"


GROUPS = (
    Group("qwen3-8b", 1, "own", 28.0),
    Group("qwen3-8b", 2, "own", 16.0),
    Group("kimi-cut-6", 1, "own", 60.0, (0, 3), gpu=1),
    Group("kimi-cut-6", 2, "own", 33.0, (0, 3)),
    Group("kimi-cut-6", 2, "p2p-off", 33.0, (0, 3)),
    Group("qwen3-8b", 2, "p2p-off", 16.0, (0, 3)),
)


@dataclass(frozen=True)
class Placed:
    """One server of a part: its group, depth, and the GPUs it gets."""

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
        one = max(range(NUM_GPUS), key=lambda gpu: trial[gpu]) if group.gpu is None else group.gpu
        gpus = tuple(range(NUM_GPUS)) if group.tp > 1 else (one,)
        for gpu in gpus:
            trial[gpu] -= group.gb
        placed.append(Placed(group, depth, gpus))
    if min(trial) < 0 or len(placed) > left:
        return None
    free[:] = trial
    return placed


def parts(groups: Sequence[Group] = GROUPS) -> list[list[Placed]]:
    """Groups packed into parts, each into the first with room; a group is never split, so that its launches alternate."""
    found: list[tuple[list[float], list[Placed]]] = []
    for group in groups:
        for free, part in found:
            if placed := place(group, free, MAX_SERVERS - len(part)):
                part += placed
                break
        else:
            free = [GPU_GB] * NUM_GPUS
            placed = place(group, free, MAX_SERVERS)
            assert placed is not None, group
            found.append((free, placed))
    return [part for _, part in found]


def plan_one(placed: Placed, index: int, free: Sequence[int], kit: Path, models: Path) -> Planned:
    """One server; of the free ports it takes the two that are `index`'s."""
    group = placed.group
    ports: dict[str, FlagValue] = {"port": free[2 * index], "nccl-port": free[2 * index + 1]}
    flags = {**FLAGS, **ports, "tp-size": group.tp}
    env = {**ENV, "PYTHONPATH": str(kit / "site"), "CUDA_VISIBLE_DEVICES": ",".join(map(str, placed.gpus))}
    if group.link == "p2p-off":
        flags["disable-custom-all-reduce"] = True
        env["NCCL_P2P_DISABLE"] = "1"
    drafting, dummy = None, frozenset(("target",))
    if placed.depth:
        drafting = Drafting("eagle3", models / f"{group.shape}-drafter", placed.depth, forced_accept_len=FORCED)
        dummy = frozenset(("target", "drafter"))
    launch = Launch("speculative" if drafting else "baseline", models / group.shape, flags, env, drafting, dummy_weights=dummy)
    return Planned(index, placed.name, launch, CONCURRENCY)


def write_models(kit: Path, out: Path) -> None:
    """Target and drafter folders of every shape under `out`: configs, and the kit's tokenizer (it need not fit: ids are sent)."""
    for folder in sorted({SHAPES / group.shape for group in GROUPS}):
        target_folder(folder / "config.json", out / folder.name, kit / "model")
        (out / f"{folder.name}-drafter").mkdir()
        shutil.copyfile(folder / "drafter.json", out / f"{folder.name}-drafter" / "config.json")


# --- measuring -------------------------------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """How the GPUs are linked, and how they are clocked."""
    told = {}
    for name, words in {"topology": ["topo", "-m"], "clocks": ["-q", "-d", "CLOCK,POWER"]}.items():
        try:
            told[name] = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=30, check=False).stdout[:6000]
        except (OSError, subprocess.TimeoutExpired) as error:
            told[name] = repr(error)
    return told


def measure_part(number: int, arguments: argparse.Namespace, models: Path, deadline: float) -> None:
    """Start the servers of one part, measure, stop. Ends at the deadline (time.monotonic()) with what there is."""
    talk, folder = Talk(), arguments.out / f"part-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    engine, python = engine_for(EngineSettings(name="sglang==0.5.17", python=arguments.python))
    part = parts()[number - 1]
    free = free_ports(2 * len(part))
    plan = [plan_one(placed, index, free, arguments.kit, models) for index, placed in enumerate(part)]
    vocabulary = min(json.loads((planned.launch.target / "config.json").read_text())["vocab_size"] for planned in plan)
    load = Waves(vocabulary, tokens=arguments.tokens)
    about = {"machine": machine(), "hardware": hardware(), "tools": tool_versions(), "load": asdict(load), "started": time.time()}
    atomic_write_json(folder / "about.json", about | {"part": [asdict(placed) for placed in part]})
    ready_s = min(READY_S, deadline - time.monotonic() - STOP_S - 60)
    with started(engine, python, plan, folder, ready_s, talk) as servers:
        done = Sweep(folder, load, deadline - STOP_S, talk).run(servers)
    talk.say(f"part {number}: {'done' if done else 'out of time'}, {deadline - time.monotonic():.0f} s left")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kit", type=Path, help="the unpacked kit: site/ and model/")
    parser.add_argument("--out", type=Path, help="where results and logs go")
    parser.add_argument("--part", nargs="+", default=[], help=f"probe, or 1 to {len(parts())}; as many as the time allows")
    parser.add_argument("--budget-s", type=float, default=570.0, help="all of it must end within this")
    parser.add_argument("--tokens", type=int, default=160, help="forced output tokens of a request")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the engine and of the probe")
    parser.add_argument("--arms", help=f"of the probe, instead of all: {','.join(arm.name for arm in GPU_ARMS)}")
    parser.add_argument("--plan", action="store_true", help="print the parts and end")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    deadline = time.monotonic() + arguments.budget_s
    if arguments.plan:
        for number, part in enumerate(parts(), 1):
            print(f"part {number}: " + ", ".join(f"{placed.name} on GPU {'+'.join(map(str, placed.gpus))}" for placed in part))
        return
    with tempfile.TemporaryDirectory(prefix="draftsmith-shapes-") as scratch:
        write_models(arguments.kit, Path(scratch))
        for part in arguments.part:
            left_s = deadline - time.monotonic()
            if part == "probe":
                settings = Settings(ranks=NUM_GPUS, python=arguments.python, timeout_s=ARM_S)
                os.environ |= LOOPBACK | {"PYTHONPATH": str(arguments.kit / "site")}  # for SGLang's own all-reduce
                arms = [arm for arm in GPU_ARMS if arguments.arms is None or arm.name in arguments.arms.split(",")]
                try:
                    run(settings, arms, arguments.out / "collectives", Talk(), budget_s=left_s - settings.timeout_s)
                except EnvironmentFailed as error:
                    print(f"probe: {error}")
            elif left_s < LEAST_S:
                print(f"part {part}: not begun, {left_s:.0f} s left")
            else:
                measure_part(int(part), arguments, Path(scratch), deadline)


if __name__ == "__main__":
    main()
