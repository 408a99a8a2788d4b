"""Several parts in one call: one GPU and half of the cores for each lane, a part after the other in it; parts of all GPUs come first.

    KIT=DIR OUT=DIR python3 benchmarks/gpu/lanes.py --seconds 585 --first smollm2-1+sets moe-1 kimi-1

One word for each GPU: the parts of its lane, joined by +. What does not fit the seconds that are left is not begun, so that the call ends
in time; a part is stopped at its own limit or at the call's. `OUT/NAME.tar.gz` of every part comes back, also of one that was stopped.

A part that the host bounds (smollm2-*) belongs to --first, alone on the machine: lanes share what cores have in common.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from part import PARTS, STOP_S

PART = Path(__file__).with_name("part.py")
LEAST_SHARE = 0.7  # of the expected seconds; with less a part is not begun


class Lane:
    """Parts one after the other on some GPUs and cores, until the deadline (time.monotonic())."""

    def __init__(self, gpus: Sequence[int], cores: Sequence[int], deadline: float) -> None:
        self.gpus, self.cores, self.deadline = gpus, cores, deadline
        self.codes: dict[str, int] = {}

    def run(self, names: Sequence[str]) -> None:
        for name in names:
            part, left = PARTS[name], self.deadline - time.monotonic() - STOP_S
            if left < LEAST_SHARE * part.expected_s:
                print(f"{name}: not begun, {left:.0f} s left", flush=True)
                self.codes[name] = 124
                continue
            told = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus)), "SECONDS_LEFT": f"{min(part.seconds, left):.0f}"}
            words = ["taskset", "-c", ",".join(map(str, self.cores)), sys.executable, str(PART), name]
            ran = subprocess.run(words, env={**os.environ, **told}, capture_output=True, text=True, check=False)
            print(f"--- {name}\n{ran.stdout}{ran.stderr}", flush=True)
            self.codes[name] = ran.returncode


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=585.0, help="all of it ends within this")
    parser.add_argument("--first", default="", help="parts that take every GPU, joined by +")
    parser.add_argument("lanes", nargs="*", help="for GPU 0, GPU 1, ...: parts joined by +")
    arguments = parser.parse_args()
    arguments.first = [name for name in arguments.first.split("+") if name]
    arguments.lanes = [lane.split("+") for lane in arguments.lanes]
    if unknown := [name for lane in [arguments.first, *arguments.lanes] for name in lane if name not in PARTS]:
        parser.error(f"no part is called {', '.join(unknown)}; parts: {', '.join(PARTS)}")
    return arguments


def main() -> int:
    arguments = parse()
    deadline = time.monotonic() + arguments.seconds
    cores = sorted(os.sched_getaffinity(0))
    number = len(arguments.lanes)
    both = Lane(range(max(number, 2)), cores, deadline)
    both.run(arguments.first)
    share = len(cores) // max(number, 1)
    lanes = [Lane([gpu], cores[gpu * share : (gpu + 1) * share], deadline) for gpu in range(number)]
    threads = [threading.Thread(target=lane.run, args=(names,)) for lane, names in zip(lanes, arguments.lanes, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    codes = {name: code for lane in [both, *lanes] for name, code in lane.codes.items()}
    print("; ".join(f"{name}: {code}" for name, code in codes.items()))
    return max(codes.values(), default=0)


if __name__ == "__main__":
    sys.exit(main())
