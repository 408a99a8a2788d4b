"""T_ar and T_round of SGLang over concurrency and depth on one GPU: what break-even tables and the cost model are fitted to.

    python benchmarks/gpu/breakeven.py --shape smollm2 --target DIR --pythonpath SITE --out DIR --groups 1,2
    python benchmarks/gpu/breakeven.py --shape dense|moe|kimi --tokenizer DIR --pythonpath SITE --out DIR --groups 1
    python benchmarks/gpu/breakeven.py --plan

(README.md beside this file has them as parts that fit a call.) Servers of a group start together and are measured one at a time
(draftsmith.breakeven.sweep). smollm2 takes the weights in `--target`; the others get dummy weights for the config in `shapes/`, and a
tokenizer's files. Acceptance is forced to 2 tokens a round: a round costs the same whatever is accepted (one launch of smollm2 checks
that). OUT gets launches, idle, waves and profile (.jsonl), sensors.csv and the servers' logs, each line when it is known.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from draftsmith.breakeven.shapes import has_weights, target_folder, write_drafter_config
from draftsmith.breakeven.sweep import Planned, Sweep, Waves, free_ports, started
from draftsmith.engines.process import cpu_s
from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.registry import engine_for
from draftsmith.engines.rounds import split_of_folder
from draftsmith.engines.server import Server
from draftsmith.engines.sglang.rounds import SPANS, start_body
from draftsmith.errors import DraftsmithError
from draftsmith.job import Talk
from draftsmith.manifest import append_jsonl, atomic_write_json, hardware, tool_versions
from draftsmith.models.text_config import read_text_config
from draftsmith.serve.http import fetch
from draftsmith.settings import DrafterSettings, EngineSettings, FlagValue

SHAPES_FOLDER = Path(__file__).with_name("shapes")
FLAGS: dict[str, FlagValue] = {
    "attention-backend": "triton",
    "sampling-backend": "pytorch",
    "disable-prefill-cuda-graph": True,
    "cuda-graph-max-bs": 72,
    "max-running-requests": 72,
    "dtype": "bfloat16",
    "sleep-on-idle": True,
}
ENGINE = "sglang==0.5.17"
ENV = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # else every server forks a pool of compile workers, a core each
EVEN = {"SGLANG_SIMULATE_UNIFORM_EXPERTS": "1"}  # routers of random weights may favour a few experts
ALL = (1, 2, 4, 8, 16, 32, 64)
WITH_ODD = (1, 2, 4, 8, 16, 32, 48, 56, 64, 72)
FEW: dict[str, FlagValue] = {"max-running-requests": 64, "cuda-graph-max-bs": 64}
FORCED = 2.0
CLIENT_CORES = 2
SENSORS = "timestamp,index,clocks.sm,clocks.mem,temperature.gpu,power.draw,memory.used,utilization.gpu,clocks_event_reasons.active"
STOP_S = 12.0  # what stopping a group takes at most


@dataclass(frozen=True)
class Wanted:
    """One launch to make. depth 0: baseline. real: the target's own weights and a drafter file of random weights, else dummy weights."""

    name: str
    depth: int = 0
    concurrency: tuple[int, ...] = ALL
    real: bool = False
    forced: float = FORCED
    method: str = "eagle3"
    tree: tuple[int, int] | None = None
    flags: dict[str, FlagValue] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Shape:
    """Groups of launches that fit the GPU together; flags and load that differ from the common ones. config: its folder in `shapes/`."""

    groups: tuple[tuple[Wanted, ...], ...]
    flags: dict[str, FlagValue]
    draft_vocab: int
    tokens: int = 160
    probes: bool = False
    config: str = ""


def smollm2() -> Shape:
    """Seven servers at a time: a step of this target is bound by the host, and sixteen servers on sixteen cores were seen to disturb it."""
    depths = [Wanted(f"depth {depth}", depth, WITH_ODD if depth == 3 else ALL, real=True) for depth in range(1, 8)]
    groups = (
        (Wanted("baseline", 0, WITH_ODD, real=True), *(wanted for wanted in depths if wanted.depth != 6)),
        (
            depths[5],
            Wanted("baseline", real=True),
            Wanted("dummy baseline"),
            Wanted("dummy depth 3", 3),
            Wanted("depth 3, all accepted", 3, real=True, forced=4.0),
            Wanted("baseline, 64 requests and graphs", 0, (48, 56, 64), real=True, flags=FEW),
            Wanted("tree of 3 steps, 4 wide, 16 rows", 3, (1, 4, 16, 64), real=True, tree=(4, 16)),
        ),
    )
    return Shape(groups, {"mem-fraction-static": 0.9, "max-total-tokens": 60000}, draft_vocab=4096, probes=True)


def moe() -> Shape:
    """Two servers of 61 GB at a time. Experts are drawn evenly at random in both arms, and beside it as random weights route."""
    groups = (
        (Wanted("baseline", env=EVEN), Wanted("depth 3", 3, env=EVEN)),
        (Wanted("depth 1", 1, env=EVEN), Wanted("baseline", env=EVEN)),
        (Wanted("routed baseline", 0, (1, 4, 16, 64)), Wanted("routed depth 3", 3, (1, 4, 16, 64))),
    )
    return Shape(groups, {"mem-fraction-static": 0.97, "max-total-tokens": 20000}, 32000, tokens=128, config="qwen3-30b-a3b")


def kimi() -> Shape:
    """Six layers of Kimi K2's shape with all 384 experts, 55 GB a server with its drafter: two at a time."""
    groups = (
        (Wanted("baseline", env=EVEN), Wanted("depth 3", 3, env=EVEN)),
        (Wanted("depth 1", 1, env=EVEN), Wanted("depth 7", 7, env=EVEN)),
    )
    flags: dict[str, FlagValue] = {"mem-fraction-static": 0.97, "max-total-tokens": 20000, "context-length": 4096}
    return Shape(groups, flags, 32000, tokens=128, config="kimi-cut-6")


SHAPES = {
    "smollm2": smollm2(),
    "dense": Shape(
        (
            (Wanted("baseline"), *(Wanted(f"depth {d}", d) for d in (1, 3, 5, 7))),
            (Wanted("baseline"), Wanted("depth 3", 3), *(Wanted(f"dflash block {b}", b - 1, method="dflash") for b in (16, 8))),
        ),
        {"mem-fraction-static": 0.95, "max-total-tokens": 20000},
        draft_vocab=32000,
        config="qwen3-8b",
    ),
    "moe": moe(),
    "kimi": kimi(),
}


class Maker:
    """From a wanted launch to a planned one: folders, flags, ports."""

    def __init__(self, arguments: argparse.Namespace, shape: Shape, scratch: Path) -> None:
        self.arguments, self.shape, self.scratch = arguments, shape, scratch
        source = arguments.target or SHAPES_FOLDER / shape.config / "config.json"
        self.target = target_folder(source, scratch / "target", arguments.tokenizer)
        self.drafter = DrafterSettings(draft_vocab_size=shape.draft_vocab)
        self.given = source.with_name("drafter.json") if source.is_file() else Path()
        self.ports = free_ports(2 * sum(map(len, shape.groups)))
        self.made = 0

    def drafter_folder(self, wanted: Wanted) -> Path:
        """Made once per kind."""
        name = f"{'real' if wanted.real else wanted.method}-{wanted.depth + 1 if wanted.method == 'dflash' else 0}"
        folder = self.scratch / name
        if folder.exists():
            return folder
        if wanted.real:
            from draftsmith.models.checkpoint import write_random_drafter

            return write_random_drafter(self.target, self.drafter, folder, 0, ENGINE)
        if wanted.method == "eagle3" and self.given.is_file():
            folder.mkdir()
            shutil.copyfile(self.given, folder / "config.json")
            return folder
        return write_drafter_config(self.target, self.drafter, folder, wanted.method, wanted.depth + 1, ENGINE)

    def plan(self, wanted: Wanted) -> Planned:
        if wanted.real:
            assert has_weights(self.target), f"{self.target} has no weights"
        index, self.made = self.made, self.made + 1
        drafting = None
        if wanted.depth:
            drafting = Drafting(wanted.method, self.drafter_folder(wanted), wanted.depth, wanted.tree, wanted.forced)
        ports: dict[str, FlagValue] = {"port": self.ports[2 * index], "nccl-port": self.ports[2 * index + 1]}
        env = ENV | wanted.env | ({"PYTHONPATH": self.arguments.pythonpath} if self.arguments.pythonpath else {})
        dummy = frozenset[str]() if wanted.real else frozenset(("target", "drafter"))
        arm = "speculative" if drafting else "baseline"
        flags = {**FLAGS, **self.shape.flags, **wanted.flags, **ports}
        return Planned(index, wanted.name, Launch(arm, self.target, flags, env, drafting, dummy_weights=dummy), wanted.concurrency)


def measure(sweep: Sweep, servers: Sequence[tuple[Planned, Server]], with_probes: bool) -> None:
    """The passes over all launches, with what is asked beside them in the order of its worth. Ends when time is out."""
    first = {planned.name: (planned, server) for planned, server in reversed(servers)}
    probed = [first[name] for name in ("baseline", "depth 3") if name in first and with_probes]
    if not sweep.one_pass(servers, 0):
        return
    for planned, server in probed:
        for phase, concurrency, change in (("chunk per token", 16, 1), ("chunk per token", 64, 1), ("512 tokens", 64, 0)):
            changes = {"stream_step": change} if change else {"tokens": 512}
            if time.monotonic() < sweep.deadline and planned.index not in sweep.dead:
                sweep.cell(planned, server, 0, concurrency, phase, **changes)
    if not all(sweep.one_pass(servers, number) for number in range(1, sweep.load.passes)):
        return
    for planned, server in probed:
        for concurrency in (16, 64):
            if time.monotonic() < sweep.deadline and planned.index not in sweep.dead:
                line = planned.head() | {"concurrency": concurrency} | profiled(sweep, planned, server, concurrency)
                append_jsonl(sweep.folder / "profile.jsonl", line)


def profiled(sweep: Sweep, planned: Planned, server: Server, concurrency: int) -> dict[str, Any]:
    """Where a round's time goes, from one traced wave; the reason when there is no trace."""
    folder = sweep.folder / f"traces-{planned.index}-{concurrency}"
    folder.mkdir(exist_ok=True)
    try:
        status, text = fetch(f"{server.url}/start_profile", start_body(folder))
        if status != 200:
            return {"no_split": f"/start_profile answered {status}: {text[:200]}"}
        row = {"phase": "traced", "concurrency": concurrency, "pass": 0, "wave": 0}
        sweep.wave(planned, server, row, tokens=48)
        fetch(f"{server.url}/stop_profile", {}, 60.0)
        split = split_of_folder(sorted(p for p in folder.rglob("*") if p.name.endswith((".json", ".json.gz"))), SPANS)
        return {"period_ms": split.period_ms, "verify_ms": split.verify_ms, "draft_ms": split.draft_ms, "host_ms": split.host_ms,
                "rounds": split.rounds, "on_gpu": split.on_gpu}  # fmt: skip
    except (DraftsmithError, OSError) as error:
        return {"no_split": str(error)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pin(servers: Sequence[Server]) -> None:
    """Every server and this client on cores of their own, as far as there are two for each."""
    cores = sorted(os.sched_getaffinity(0))
    each = (len(cores) - CLIENT_CORES) // max(len(servers), 1)
    if each < 2:
        return
    for number, server in enumerate(servers):
        own = cores[CLIENT_CORES + number * each : CLIENT_CORES + (number + 1) * each]
        for thread in (int(path.name) for pid in server.process.pids() for path in Path(f"/proc/{pid}/task").glob("*")):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, own)
    os.sched_setaffinity(0, cores[:CLIENT_CORES])


def idle_cpu(sweep: Sweep, servers: Sequence[tuple[Planned, Server]], seconds: float = 4.0) -> None:
    """Processor seconds a second that each server takes while nobody asks it: idle.jsonl."""

    def taken() -> list[float]:
        return [sum(map(cpu_s, server.process.pids())) for _, server in servers]

    before = taken()
    time.sleep(seconds)
    for (planned, _), old, new in zip(servers, before, taken(), strict=True):
        append_jsonl(sweep.folder / "idle.jsonl", planned.head() | {"servers": len(servers), "idle_cpus": (new - old) / seconds})


@contextmanager
def sensors(path: Path) -> Iterator[None]:
    """Clocks, temperature, power and memory of every GPU of the machine every two seconds, as CSV."""
    if not shutil.which("nvidia-smi"):
        yield
        return
    with path.open("w") as file:
        reader = subprocess.Popen(["nvidia-smi", f"--query-gpu={SENSORS}", "--format=csv", "-lms", "2000"], stdout=file)
        try:
            yield
        finally:
            reader.terminate()
            reader.wait()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2")
    parser.add_argument("--target", type=Path, help="folder with weights (smollm2), or another config.json than the shape's own")
    parser.add_argument("--tokenizer", type=Path, help="folder whose tokenizer files a bare config.json gets")
    parser.add_argument("--pythonpath", help="PYTHONPATH of the engine, where it is not installed in this interpreter")
    parser.add_argument("--out", type=Path, default=Path("breakeven"))
    parser.add_argument("--plan", action="store_true", help="print the groups of every shape and end")
    parser.add_argument("--budget-s", type=float, default=420.0, help="seconds in all; what is measured by then is kept")
    parser.add_argument("--ready-s", type=float, default=240.0, help="seconds that a group may take to come up")
    parser.add_argument("--groups", default="1,2,3,4", help="which groups of launches, for example 1,2")
    parser.add_argument("--concurrency", help="instead of the shape's own: 1,4,16")
    parser.add_argument("--tokens", type=int, help="instead of the shape's own")
    return parser.parse_args()


def main() -> None:
    begun, allowed = time.monotonic(), os.sched_getaffinity(0)
    arguments, talk = parse(), Talk()
    if arguments.plan:
        print(
            "\n".join(f"{name}, group {n}: {', '.join(w.name for w in g)}" for name, s in SHAPES.items() for n, g in enumerate(s.groups, 1))
        )
        return
    shape = SHAPES[arguments.shape]
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="breakeven-"))
    maker = Maker(arguments, shape, scratch)
    engine, python = engine_for(EngineSettings(name=ENGINE, python=sys.executable))
    load = Waves(read_text_config(maker.target)["vocab_size"], tokens=arguments.tokens or shape.tokens)
    machine = {"hardware": hardware(), "tools": tool_versions(), "target": read_text_config(maker.target), "shape": arguments.shape}
    atomic_write_json(out / "about.json", machine | {"load": vars(load), "words": sys.argv, "started": time.time()})
    wanted_groups = [int(word) for word in arguments.groups.split(",")]
    groups = [group for number, group in enumerate(shape.groups, 1) if number in wanted_groups]
    with sensors(out / "sensors.csv"):
        for number, group in enumerate(groups):
            left = arguments.budget_s - (time.monotonic() - begun)
            share = left / (len(groups) - number)
            if share < 60:
                talk.say(f"group {number + 1} left out: {left:.0f} s left")
                break
            os.sched_setaffinity(0, allowed)  # servers that start now may use all cores again
            plan = [maker.plan(chosen(wanted, arguments.concurrency)) for wanted in group]
            deadline = time.monotonic() + share - STOP_S
            with started(engine, python, plan, out, min(arguments.ready_s, share - 30), talk) as servers:
                sweep = Sweep(out, load, deadline, talk)
                pin([server for _, server in servers])
                idle_cpu(sweep, servers)
                measure(sweep, servers, shape.probes and group is shape.groups[0])
    shutil.rmtree(scratch, ignore_errors=True)
    talk.say("done")


def chosen(wanted: Wanted, concurrency: str | None) -> Wanted:
    return wanted if concurrency is None else replace(wanted, concurrency=tuple(json.loads(f"[{concurrency}]")))


if __name__ == "__main__":
    main()
