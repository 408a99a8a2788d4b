"""What the tests on a GPU share: which engine is there, how it is started, and where its logs go.

An engine is found in the folders of DRAFTSMITH_GPU_PYTHONPATH (a kit that was unpacked on a machine without a network), or else among the
packages of the interpreter that runs the tests. DRAFTSMITH_GPU_TARGET is the target's folder. With OUT set, logs are copied there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from draftsmith.settings import FlagValue

PYTHONPATH, TARGET, OUT = "DRAFTSMITH_GPU_PYTHONPATH", "DRAFTSMITH_GPU_TARGET", "OUT"
READY_TIMEOUT_S = 330.0  # the first start on a machine compiles for three minutes
DEPTH = 3
VARIABLE = ("NCCL_DEBUG", "WARN")  # set for every server, and looked for in all of its processes


@dataclass(frozen=True)
class Failure:
    """A start that cannot work. `says`: pattern of the cause; `hint`: what the hint must name."""

    flags: Mapping[str, FlagValue]
    says: str
    hint: str
    env: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 1
    target: str = "target"  # "narrow": a copy of the target whose heads can be divided by two


@dataclass(frozen=True)
class Kind:
    """How one engine is started here. `worker`: title of the process that has the GPU."""

    flags: Mapping[str, FlagValue]
    plain: Mapping[str, FlagValue]  # on top, for the baseline
    worker: str
    effective: Mapping[str, str]
    named: bool  # does the engine name the parts of a step in its traces?
    failures: Mapping[str, Failure]


OUT_OF_MEMORY = r"CUDA out of memory\. Tried to allocate [\d.]+ GiB"
NO_INTERFACE = {"NCCL_SOCKET_IFNAME": "nosuchinterface"}
SGLANG = Kind(
    # the pool is given in tokens, so that servers that start side by side do not take each other's memory
    flags={
        "attention-backend": "triton",
        "sampling-backend": "pytorch",
        "disable-prefill-cuda-graph": True,
        "mem-fraction-static": 0.8,
        "max-total-tokens": 65536,
        "cuda-graph-max-bs": 8,
        "max-running-requests": 8,
        "dtype": "bfloat16",
    },
    plain={"disable-cuda-graph": True},
    worker="sglang::scheduler",
    effective={"topk": "1", "draft_tokens": str(DEPTH + 1), "max_running_requests": "8", "attention_backend": "triton"},
    named=True,
    failures={
        "oom": Failure({"mem-fraction-static": 1.5, "max-total-tokens": None}, OUT_OF_MEMORY, "memory"),
        "no_gpu": Failure({}, "No accelerator|No CUDA GPUs|no CUDA-capable device", "GPU", {"CUDA_VISIBLE_DEVICES": ""}),
        "nccl": Failure({"tp-size": 2, "load-format": "dummy"}, "(?i)nccl", "NCCL_", NO_INTERFACE, gpus=2, target="narrow"),
    },
)
VLLM = Kind(
    flags={
        "max-model-len": 2048,
        "max-num-seqs": 16,
        "gpu-memory-utilization": 0.2,
        "kv-cache-memory-bytes": 2 << 30,
        "dtype": "bfloat16",
    },
    plain={"enforce-eager": True},
    worker="VLLM::EngineCore",
    effective={"max_model_len": "2048", "gpu_memory_utilization": "0.2"},
    named=False,  # model runner V2 does not
    failures={
        "oom": Failure({"kv-cache-memory-bytes": 400 << 30, "enforce-eager": True}, OUT_OF_MEMORY, "memory"),
        "gpu_in_use": Failure(
            {"gpu-memory-utilization": 0.999, "enforce-eager": True},
            r"Free memory on device \S+ \([\d.]+/[\d.]+ GiB\) on startup is less than desired GPU memory utilization",
            "gpu-memory-utilization",
        ),
        "no_gpu": Failure({"enforce-eager": True}, "No CUDA GPUs|out of bounds for 0 devices", "GPU", {"CUDA_VISIBLE_DEVICES": ""}),
        "nccl": Failure(
            {"tensor-parallel-size": 2, "load-format": "dummy", "enforce-eager": True}, "(?i)nccl", "NCCL_", NO_INTERFACE, 2, "narrow"
        ),
    },
)
KINDS = {"sglang": SGLANG, "vllm": VLLM}


def folders() -> list[str]:
    """Where the engine's packages lie, when they are not this interpreter's own."""
    return [folder for folder in os.environ.get(PYTHONPATH, "").split(os.pathsep) if folder]


def why_not(engine: str) -> str:
    """Why this engine cannot be tested here; "" when it can."""
    if not os.environ.get(TARGET):
        return f"{TARGET} names no target"
    return "" if version_of(engine) else f"{engine} is neither in {PYTHONPATH} nor among this interpreter's packages"


def version_of(engine: str) -> str:
    """The version of the installed engine; "" when it is not there."""
    return next((found.version for found in distributions(name=engine, path=folders() or sys.path)), "")


def narrow(target: Path, folder: Path) -> Path:
    """The target's config with 8 heads and without weights: for engines that are told to make up their weights."""
    folder.mkdir()
    config = json.loads((target / "config.json").read_text())
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    config |= {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": head}
    (folder / "config.json").write_text(json.dumps(config))
    for path in target.iterdir():
        if path.name != "config.json" and path.suffix != ".safetensors":
            (folder / path.name).symlink_to(path)
    return folder


class Machine:
    """`draftsmith serve ...` on one engine, in processes of their own as a user types it, with records in a home of their own."""

    def __init__(self, engine: str, folder: Path, drafter: Path, env: Mapping[str, str]) -> None:
        self.engine, self.kind, self.folder, self.drafter = engine, KINDS[engine], folder, drafter
        self.target = Path(os.environ[TARGET]).absolute()
        self.targets = {"target": self.target, "narrow": narrow(self.target, folder / "narrow")}
        self.home = folder / "home"
        self.env = {**env, "DRAFTSMITH_HOME": str(self.home)}
        self.launch_env = dict([VARIABLE]) | ({"PYTHONPATH": os.pathsep.join(folders())} if folders() else {})
        self.timings: dict[str, float] = {}

    def recipe(self, name: str, flags: Mapping[str, FlagValue], env: Mapping[str, str], target: str = "target") -> Path:
        engine = {"name": f"{self.engine}=={version_of(self.engine)}", "python": sys.executable, "ready_timeout_s": READY_TIMEOUT_S}
        engine |= {"flags": {**self.kind.flags, **flags}, "env": {**self.launch_env, **env}}
        path = self.folder / f"{name}.yaml"
        recipe = {"name": name, "target": {"model": str(self.targets[target])}, "engine": engine, "drafter": {"depth": DEPTH}}
        path.write_text(json.dumps(recipe))
        return path

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One command, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "draftsmith", "serve", *words, "--json"], env=self.env, capture_output=True, text=True, timeout=500
        )

    def start(self, name: str, recipe: Path, *words: str) -> subprocess.CompletedProcess[str]:
        done = self("start", str(recipe), "--name", name, "--no-check", *words)  # some must reach the engine that check would refuse
        self.keep(self.home / "servers" / f"{name}.log")
        return done

    def start_all(self, starts: Mapping[str, tuple[Path, tuple[str, ...]]]) -> dict[str, subprocess.CompletedProcess[str]]:
        """Several starts side by side; what came of each."""
        with ThreadPoolExecutor(len(starts)) as pool:
            running = {name: pool.submit(self.start, name, recipe, *words) for name, (recipe, words) in starts.items()}
            return {name: future.result() for name, future in running.items()}

    def status(self, name: str) -> dict[str, Any]:
        [row] = json.loads(self("status", name).stdout)["servers"]
        return row

    def keep(self, log: Path) -> None:
        """Copy a log to $OUT, where there is one."""
        if os.environ.get(OUT) and log.exists():
            shutil.copy(log, Path(os.environ[OUT]) / f"{self.engine}-{log.name}")

    def note(self, what: str, seconds: float) -> None:
        """Keep a measured time; $OUT/ENGINE-timings.json."""
        self.timings[what] = round(seconds, 3)
        if os.environ.get(OUT):
            (Path(os.environ[OUT]) / f"{self.engine}-timings.json").write_text(json.dumps(self.timings, indent=1) + "\n")
