"""Time of one all-reduce against rows. Started by torchrun, one process a GPU; needs torch only, nothing of Draftsmith.

    python -m torch.distributed.run --standalone --nproc-per-node 2 collectives_probe.py --rows 1,8,64 --hidden 4096 --out FILE

bf16 [rows, hidden], as a decoder layer reduces its output. Each sample is the mean of `--inner` all-reduces in a row, the slowest rank's.
eager: enqueued one by one, so that launch overhead shows. graph: replayed from one CUDA graph, as engines run them. Rank 0 writes the file
anew after every size, so that a probe that is stopped leaves what it has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.cuda.nccl as nccl
import torch.distributed as dist

Reduce = Callable[[torch.Tensor], object]


def timed_cpu(work: Callable[[], None], samples: int) -> list[float]:
    """Seconds of `work`, by the wall clock, ranks started together."""
    values = []
    for _ in range(samples):
        dist.barrier()
        begun = time.perf_counter()
        work()
        values.append(time.perf_counter() - begun)
    return values


def timed_gpu(work: Callable[[], None], samples: int) -> list[float]:
    """Seconds of `work` on the current stream, by CUDA events, ranks started together."""
    values = []
    for _ in range(samples):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        values.append(begin.elapsed_time(end) / 1000)
    return values


def slowest(values: list[float], inner: int) -> list[float]:
    """The slowest rank's seconds for one all-reduce, sample by sample. Ranks agree through a gloo group: NCCL stays out of the way."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, values, group=CONTROL)
    return [max(sample) / inner for sample in zip(*every, strict=True)]


CONTROL: Any = None  # the gloo group for everything that is not measured


class Arm:
    """How this arm reduces: torch.distributed, or the engine's own kernel."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.device = device
        self.custom: Any = None
        if name == "sglang":
            from sglang.srt.distributed import parallel_state  # type: ignore[import-not-found]
            from sglang.srt.distributed.device_communicators.custom_all_reduce import CustomAllreduce  # type: ignore[import-not-found]

            # its logging asks SGLang's own world group for the rank
            parallel_state.init_distributed_environment(dist.get_world_size(), dist.get_rank(), local_rank=int(os.environ["LOCAL_RANK"]))
            self.custom = CustomAllreduce(group=CONTROL, device=device)
            if self.custom.disabled:
                raise SystemExit("SGLang's all-reduce is not available between these GPUs")

    def reduce(self, tensor: torch.Tensor) -> object:
        if self.custom is None:
            return dist.all_reduce(tensor)
        return self.custom.custom_all_reduce(tensor)

    def takes(self, tensor: torch.Tensor) -> bool:
        """The engine's kernel has a largest size; beyond it the engine uses NCCL."""
        return self.custom is None or self.custom.should_custom_ar(tensor)

    def capturing(self) -> contextlib.AbstractContextManager[object]:
        return self.custom.capture() if self.custom is not None else contextlib.nullcontext()

    def graph(self, tensor: torch.Tensor, inner: int) -> torch.cuda.CUDAGraph:
        """`inner` all-reduces in one graph."""
        graph = torch.cuda.CUDAGraph()
        with self.capturing(), torch.cuda.graph(graph):
            for _ in range(inner):
                self.reduce(tensor)
        return graph


def measure(arm: Arm, tensor: torch.Tensor, inner: int, samples: int) -> dict[str, Any]:
    """One size, [rows, hidden]: sample lists by way, seconds for one all-reduce."""
    size = {"rows": tensor.shape[0], "hidden": tensor.shape[1]}

    def eager() -> None:
        for _ in range(inner):
            arm.reduce(tensor)

    eager()
    if arm.device.type == "cpu":
        return {**size, "eager": slowest(timed_cpu(eager, samples), inner)}
    torch.cuda.synchronize()
    result: dict[str, Any] = {**size, "eager": slowest(timed_gpu(eager, samples), inner)}
    graph = arm.graph(tensor, inner)
    graph.replay()
    torch.cuda.synchronize()
    result["graph"] = slowest(timed_gpu(graph.replay, samples), inner)
    return result


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=numbers, required=True)
    parser.add_argument("--hidden", type=numbers, required=True)
    parser.add_argument("--inner", type=int, default=20)
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--reduce", choices=("torch", "sglang"), default="torch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    global CONTROL
    gpu = arguments.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=60), device_id=device if gpu else None)
    CONTROL = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
    arm = Arm(arguments.reduce, device)
    result: dict[str, Any] = {
        "ranks": dist.get_world_size(),
        "device": torch.cuda.get_device_name(device) if gpu else "cpu",
        "torch": torch.__version__,
        "nccl": ".".join(map(str, nccl.version())) if gpu else None,
        "inner": arguments.inner,
        "points": [],
    }
    for hidden in arguments.hidden:
        for rows in arguments.rows:
            tensor = torch.zeros(rows, hidden, dtype=torch.bfloat16, device=device)
            if not arm.takes(tensor):
                continue
            result["points"].append(measure(arm, tensor, arguments.inner, arguments.samples))
            if dist.get_rank() == 0:
                temporary = arguments.out.with_suffix(".tmp")
                temporary.write_text(json.dumps(result))
                temporary.replace(arguments.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
