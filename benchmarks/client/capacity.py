"""How many streams can a client watch on one core before it distorts what it measures?

    python benchmarks/client/capacity.py --out benchmarks/client/capacity.json

A server of known speed (stream_server.py, its own process, the first core) sends one token per chunk and RATE tokens a second to each
of N streams, which start together once all N requests have come; the client runs on the second core. Distorted: its mean TPOT is more
than 5 % away from what the server's own clock says (all streams run together, so the throughput while decoding is off by the same
share), or it does not open N streams at all. N is doubled until a client distorts, then the gap is halved.

A server in Python saturates as well, at about as many chunks a second as the best client on a whole core, so that core is shared with
BALLAST busy processes: the kernel leaves the client 1 / (1 + BALLAST) of it, and the numbers are streams per that share. A point at
which the server itself was late is not used.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import peers

from draftsmith.manifest import atomic_write_json, atomic_write_text

PORT = 8765
DISTORTED = 0.05
SERVER_LATE = 0.02  # share by which the server may be slower than it should be
FINEST = 1.25  # the search ends when the distorting number is at most this many times the other


def spin() -> None:
    """Take all of the processor that the kernel gives."""
    while True:
        pass


@contextmanager
def server(rate: float, core: int) -> Iterator[str]:
    """The stream server, on its core."""
    argv = ["taskset", "-c", str(core), sys.executable, str(peers.HERE / "stream_server.py"), "--port", str(PORT), "--rate", str(rate)]
    process = subprocess.Popen(argv)
    try:
        time.sleep(1.0)
        yield f"http://127.0.0.1:{PORT}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def ballast(count: int, core: int) -> Iterator[None]:
    """Busy processes on the client's core."""
    busy = [multiprocessing.Process(target=spin, daemon=True) for _ in range(count)]
    for process in busy:
        process.start()
        assert process.pid is not None
        os.sched_setaffinity(process.pid, {core})
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.join()


def ask(url: str, method: str, path: str = "") -> dict:
    with urllib.request.urlopen(urllib.request.Request(url + path, method=method)) as answer:
        return json.load(answer)


def point(name: str, streams: int, url: str, a: argparse.Namespace, folder: Path) -> dict:
    """One client at one number of streams."""
    prompts = folder / f"{streams}.jsonl"
    peers.write_prompts(prompts, ["a prompt of some words"] * streams, a.tokens, forced=True)
    ask(f"{url}/reset?{streams}", "POST")
    load = peers.Load(url, prompts, streams, streams, a.tokens, True, a.tokenizer)
    looks: list[tuple[int, float]] = []  # (chunks sent, CPU seconds of the client)
    try:
        found = peers.run(name, load, folder, [a.client_core], lambda cpu_s: looks.append((ask(url, "GET", "/sent")["sent"], cpu_s)))
    except RuntimeError as error:
        return {"client": name, "streams": streams, "distorted": True, "server_late": False, "error": str(error)[:300]}
    stats = ask(f"{url}/stats", "GET")["finished"][-streams:]
    truth_ms = 1e3 * sum((last - first) / (tokens - 1) for first, last, tokens in stats) / len(stats)
    measured_ms = found["inter_token_ms"] if name == "guidellm" else found["tpot_ms"]  # GuideLLM's TPOT includes TTFT; its ITL is TPOT
    off = measured_ms / truth_ms - 1
    return {
        "client": name,
        "streams": streams,
        "off": off,
        "distorted": abs(off) > DISTORTED or found["output_tokens"] != streams * a.tokens,
        "server_late": abs(truth_ms * a.rate / 1e3 - 1) > SERVER_LATE,
        "cpu_s": found["cpu_s"],
        "us_per_chunk": us_per_chunk(looks, streams * a.tokens),
        "tokens": found["output_tokens"],
        "measured_tpot_ms": measured_ms,
        "truth_tpot_ms": truth_ms,
    }


def search(name: str, url: str, a: argparse.Namespace, folder: Path) -> tuple[list[dict], dict]:
    """All points of one client, and {"good", "distorts"}: the most streams without distortion, the fewest with it."""
    points: list[dict] = []

    def try_at(streams: int) -> dict:
        found = point(name, streams, url, a, folder)
        points.append(found)
        off = f"TPOT {found['off']:+.1%}" if "off" in found else found["error"]
        print(f"{name:>17} {streams:>5} streams: {off}{'  SERVER LATE' if found['server_late'] else ''}", file=sys.stderr, flush=True)
        return found

    good, bad, streams = 0, 0, a.start
    while streams <= a.most:
        found = try_at(streams)
        if found["server_late"]:
            break
        if found["distorted"]:
            bad = streams
            break
        good, streams = streams, streams * 2
    while bad and good and bad / good > FINEST:
        streams = round((bad * good) ** 0.5)
        found = try_at(streams)
        if found["server_late"]:
            break
        if found["distorted"]:
            bad = streams
        else:
            good = streams
    costs = {p["streams"]: p["us_per_chunk"] for p in points if "off" in p and not p["distorted"]}
    return points, {"client": name, "good": good, "distorts": bad or None, "us_per_chunk": costs}


def us_per_chunk(looks: list[tuple[int, float]], total: int) -> float | None:
    """CPU time per chunk while streams run, from a tenth to nine tenths of the chunks: start and end of the program are not in it."""
    inside = [look for look in looks if 0.1 * total <= look[0] <= 0.9 * total]
    if len(inside) < 2:
        return None
    return 1e6 * (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def markdown(found: dict) -> str:
    """The table that is committed beside the JSON."""
    lines = [
        "# Client cost: streams per core",
        "",
        f"Each stream: {found['rate']:g} tokens/s, one token a chunk, {found['tokens']} tokens. The client has {found['share']:.0%} of one",
        f"core ({found['cpu']}). Distorted: mean TPOT more than 5 % off the server's own clock. CPU per chunk: while streams run, start",
        "and end of the program left out; a client that falls behind reads several chunks at once, which makes each cheaper.",
        "",
        "| client | streams without distortion | distorts at | CPU per chunk, by streams |",
        "| --- | ---: | ---: | --- |",
    ]
    for row in found["result"]:
        limit = row["distorts"] or "not reached (server's limit)"
        costs = ", ".join(f"{cost:.0f} us at {streams}" for streams, cost in row["us_per_chunk"].items() if cost is not None)
        lines.append(f"| {row['client']} | {row['good']} | {limit} | {costs or '-'} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON; a table beside it ends in .md")
    parser.add_argument("--rate", type=float, default=50.0, help="tokens per second and stream")
    parser.add_argument("--tokens", type=int, default=400, help="tokens per stream")
    parser.add_argument("--start", type=int, default=100)
    parser.add_argument("--most", type=int, default=1600)
    parser.add_argument("--ballast", type=int, default=1, help="busy processes that share the client's core")
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--client-core", type=int, default=1)
    parser.add_argument("--clients", nargs="+", default=list(peers.CLIENTS))
    parser.add_argument("--tokenizer", type=Path, default=peers.tokenizer())
    a = parser.parse_args()
    peers.pandas()
    began = time.time()
    points, result = [], []
    with tempfile.TemporaryDirectory() as scratch, server(a.rate, a.server_core) as url, ballast(a.ballast, a.client_core):
        for name in a.clients:
            found, row = search(name, url, a, Path(scratch))
            points += found
            result.append(row)
    content = {
        "rate": a.rate,
        "tokens": a.tokens,
        "share": 1 / (1 + a.ballast),
        "cpu": peers.cpu_name(),
        "python": platform.python_version(),
    }
    content |= {"took_s": round(time.time() - began), "result": result, "points": points}
    atomic_write_json(a.out, content)
    atomic_write_text(a.out.with_suffix(".md"), markdown(content))
    print(markdown(content))


if __name__ == "__main__":
    main()
