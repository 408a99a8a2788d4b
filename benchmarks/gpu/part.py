"""One part of the measurements on a GPU machine: it runs, ends in time, and packs what came of it into one file.

    KIT=DIR OUT=DIR python3 benchmarks/gpu/part.py NAME [WORDS...]
    python3 benchmarks/gpu/part.py --list

KIT: an unpacked kit (site/ and model/). Files are made in WORK (default: a folder under /tmp that the next call finds again) and come out
as OUT/NAME.tar.gz, also when the part was stopped. WORDS go to the part's command. README.md says in which order. Needs Python only.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEFT_BEHIND = (".safetensors", ".pt", ".sock", ".parquet")  # large, or made again by the same command
LEFT_FOLDERS = {"capture", "home", "models"}
STOP_S = 20.0  # what ending a command takes at most
EARLIER_S = 15  # a driver that watches the clock ends so long before it is stopped
MOST_BYTES = 15 << 20  # of one file that comes back


@dataclass(frozen=True)
class Part:
    """`words`: the command, in which {kit} and {work} stand for folders, {python} for this interpreter, {engine} for one that finds the
    kit's packages (no engine inherits PYTHONPATH) and {seconds} for when the command should end by itself. seconds: when it is stopped.
    expected_s: what it took, or should take."""

    what: str
    words: str
    seconds: int
    expected_s: int
    gpus: int = 1
    kit: str = "sglang"


def breakeven(shape: str, groups: str) -> str:
    """Words of breakeven.py; {seconds} is when the part is stopped."""
    source = "--target {kit}/model" if shape == "smollm2" else "--tokenizer {kit}/model"
    words = f"--shape {shape} {source} --pythonpath {{kit}}/site --groups {groups} --budget-s {{seconds}} --out {{work}}"
    return f"{{python}} benchmarks/gpu/breakeven.py {words}"


ROAD = (
    "{python} -m draftsmith run recipes/smollm2-h200-sglang.yaml target.model={kit}/model engine.python={python}"
    " engine.env.PYTHONPATH={kit}/site --run-folder {work}/run"
)
VLLM = (
    "{python} -m draftsmith breakeven --engine vllm==0.26.0 --python {engine} --target {kit}/model --draft-vocab 4096 --depths 1,3,5"
    " --concurrency 1,4,16,64 --together --out {work}/out --"
    " --gpu-memory-utilization 0.2 --kv-cache-memory-bytes 4294967296 --max-model-len 4096 --dtype bfloat16"
)
TP = "{python} benchmarks/gpu/tensor_parallel.py --kit {kit} --out {work} --budget-s {seconds} --part"
MODES, TRAINED = "{python} benchmarks/gpu/modes.py", "--trained {kit}/trained --kit {kit} --out {work}"
TESTS = "env OUT={work} bash benchmarks/gpu/tests.sh {kit} '' -k"
PARTS = {
    "road": Part("recipes/smollm2-h200-sglang.yaml, check to report; give it again until it says done", ROAD, 565, 600),
    "train": Part("capture and train on the GPU against the CPU", "{python} -m pytest -q tests/gpu/test_training_gpu.py", 120, 13),
    "sets": Part("bench whose arms swap two GPUs from pair to pair", f"{MODES} sets {TRAINED}", 420, 207, gpus=2),
    "sleep": Part("bench with a server an arm that sleeps", f"{MODES} sleep {TRAINED}", 330, 213),
    "audits": Part("verify wiring, lossless and replay, watch, on one recipe", f"{{python}} benchmarks/gpu/audits.py {TRAINED}", 400, 278),
    "wiring": Part("tests/gpu of verify wiring", f"{TESTS} 'test_wiring_gpu and sglang'", 400, 205),
    "kills": Part("tests/gpu: a killed worker, a port taken late", f"{TESTS} 'sglang and (after_the_check or killed_worker)'", 240, 67),
    "serve": Part("all tests/gpu of SGLang", f"{TESTS} sglang", 560, 500),
    "smollm2-1": Part("SmolLM2, real weights: baseline, depths 1 to 5 and 7, probes of C = 64", breakeven("smollm2", "1"), 400, 244),
    "smollm2-2": Part("SmolLM2: depth 6, dummy weights, all accepted, 64 graphs, a tree", breakeven("smollm2", "2"), 400, 126),
    "dense-2": Part("Qwen3-8B's shape: second launches, DFlash blocks of 8 and 16", breakeven("dense", "2"), 330, 168),
    "moe-1": Part("Qwen3-30B-A3B's shape: baseline, depth 3", breakeven("moe", "1"), 400, 162),
    "moe-2": Part("the same: depth 1, a second baseline", breakeven("moe", "2"), 400, 143),
    "moe-3": Part("the same with the routing of random weights", breakeven("moe", "3"), 360, 270),
    "kimi-1": Part("Kimi K2's shape, 6 layers, 384 experts: baseline, depth 3", breakeven("kimi", "1"), 400, 100),
    "kimi-2": Part("the same: depths 1 and 7", breakeven("kimi", "2"), 400, 107),
    "vllm-serve": Part("tests/gpu of vLLM: servers, their deaths, profile", f"{TESTS} 'vllm and test_serve'", 400, 169, kit="vllm"),
    "vllm-wiring": Part("tests/gpu of vLLM: verify wiring", f"{TESTS} 'vllm and test_wiring'", 400, 205, kit="vllm"),
    "vllm": Part("break-even on vLLM, acceptance forced", VLLM, 560, 420, kit="vllm"),
    "tp-probe": Part("all-reduce in every arm", f"{TP} probe", 300, 200, gpus=2),
    "tp-links": Part(
        "all-reduce: the arms that two GPUs are predicted from, and those once left out",
        f"{TP} probe --arms sglang,default,p2p-off,channels-16,p2p-off-LL,p2p-off-Simple",
        170,
        66,
        gpus=2,
    ),
    "tp-1": Part("Qwen3-8B's shape on one and on two GPUs", f"{TP} 1", 560, 132, gpus=2),
    "tp-2": Part("Kimi K2's shape on one GPU, the second", f"{TP} 2", 400, 270, gpus=2),
    "tp-3": Part("Kimi K2's shape over two GPUs, both links", f"{TP} 3", 440, 152, gpus=2),
    "tp-4": Part("Qwen3-8B's shape over two GPUs through the host", f"{TP} 4", 400, 250, gpus=2),
}


def table() -> list[str]:
    """The parts as Markdown, for README.md."""
    rows = [f"| `{name}` | {part.what} | {part.kit}, {part.gpus} | {part.expected_s} | {part.seconds} |" for name, part in PARTS.items()]
    return ["| part | what it measures | kit, GPUs | expected, s | stopped after, s |", "| --- | --- | --- | ---: | ---: |", *rows]


def command(part: Part, kit: Path, work: Path, more: Sequence[str] = (), seconds: float | None = None) -> list[str]:
    """The words of a part with its folders; words of the caller before those that go to the engine. seconds: instead of the part's own."""
    ends = f"{(seconds or part.seconds) - EARLIER_S:.0f}"
    words = shlex.split(part.words.format(kit=kit, work=work, python=sys.executable, engine=engine(kit, work), seconds=ends))
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], *more, *words[at:]]


def engine(kit: Path, work: Path) -> Path:
    """The interpreter of an engine: this one, with the kit's packages."""
    work.mkdir(parents=True, exist_ok=True)
    path = work / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(kit / "site"))} exec {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)
    return path


def environment(kit: Path, work: Path) -> dict[str, str]:
    """The toolkit from this checkout, the kit's packages behind it; no network is looked for."""
    path = os.pathsep.join([str(ROOT / "src"), str(kit / "site")])
    told = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **told, "DRAFTSMITH_HOME": str(work / "home")}


def run(words: Sequence[str], env: dict[str, str], log: Path, seconds: float) -> int:
    """Exit code of the command; when time is out it is interrupted as by Ctrl-C (124), so that it stops its engines."""
    with log.open("a") as file:
        process = subprocess.Popen(words, cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return 124


def pack(work: Path, file: Path) -> list[str]:
    """Everything small under `work` into one file; what was left out for its size."""
    left = []
    with tarfile.open(file, "w:gz") as archive:
        for path in sorted(p for p in work.rglob("*") if p.is_file() and not LEFT_FOLDERS & set(p.relative_to(work).parts)):
            if path.suffix in LEFT_BEHIND or path.stat().st_size > MOST_BYTES:
                left.append(str(path.relative_to(work)))
            else:
                archive.add(path, path.relative_to(work))
    return left


def main() -> int:
    if sys.argv[1:2] == ["--list"]:
        print("\n".join(table()))
        return 0
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        print(f"{__doc__}\nparts: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    name, more = sys.argv[1], sys.argv[2:]
    part, kit, out = PARTS[name], Path(os.environ["KIT"]).resolve(), Path(os.environ["OUT"]).resolve()
    work = Path(os.environ.get("WORK") or Path(tempfile.gettempdir()) / "draftsmith-parts") / name
    work.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    seconds = min(part.seconds, float(os.environ.get("SECONDS_LEFT", part.seconds)))
    code = run(command(part, kit, work, more, seconds), environment(kit, work), work / "part.log", seconds)
    took = time.monotonic() - started
    out.mkdir(parents=True, exist_ok=True)
    left = pack(work, out / f"{name}.tar.gz")
    print("".join((work / "part.log").read_text(errors="replace").splitlines(keepends=True)[-40:]))
    print(f"{name}: exit code {code} after {took:.0f} s (stopped after {seconds:.0f}); left behind: {', '.join(left) or 'nothing'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
