"""T_ar and T_round of SGLang servers with forced acceptance, also with dummy weights. For the drivers beside this file.

A round costs the same whatever is accepted, so acceptance is forced (SGLANG_SIMULATE_ACC_LEN) and the time of a round follows from the
time of a token. One batch of equal requests is sent at once and streamed; only the window counts in which all of them decode.
"""

from __future__ import annotations

import http.client
import json
import random
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from draftsmith.engines.protocol import Drafting, Engine, Launch
from draftsmith.engines.server import POLL_S, Server, stop_all
from draftsmith.errors import EnvironmentFailed, InvalidMeasurement
from draftsmith.job import Talk
from draftsmith.settings import FlagValue

# fa3 and prefill graphs are left out of the kit; random prompts are never asked twice; an idle server beside a measured one must not spin
FLAGS: Mapping[str, FlagValue] = {
    "attention-backend": "triton",
    "sampling-backend": "pytorch",
    "disable-prefill-cuda-graph": True,
    "disable-radix-cache": True,
    "sleep-on-idle": True,
    "dtype": "bfloat16",
}
DUMMY: Mapping[str, FlagValue] = {"load-format": "dummy"}
TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab.json", "merges.txt", "chat_template*")


@dataclass(frozen=True)
class Cell:
    """`concurrency` equal requests: input_tokens random ids below vocab_size, output_tokens forced. A chunk every `interval` tokens."""

    concurrency: int
    vocab_size: int
    input_tokens: int = 64
    output_tokens: int = 256
    interval: int = 16


@dataclass(frozen=True)
class Sample:
    """One batch. second: T_ar, or T_round where the server counted rounds. distinct: share of output ids that differ (1 = all)."""

    second: float
    seconds_per_token: float
    tokens_per_round: float | None
    first_token_s: float
    tokens: int
    distinct: float
    started: float  # unix seconds


@dataclass
class Trace:
    """One request of a batch: (arrival, tokens so far) of every chunk, and what the last chunk told."""

    points: list[tuple[float, int]]
    rounds: int | None = None
    output_ids: Sequence[int] = ()


# --- one batch -------------------------------------------------------------------------------------------------------


def prompts_of(cell: Cell, seed: int) -> list[list[int]]:
    """Random ids, the same for a seed; the lowest hundred are left out, special tokens lie there."""
    draw = random.Random(seed)
    return [[draw.randrange(100, cell.vocab_size) for _ in range(cell.input_tokens)] for _ in range(cell.concurrency)]


def events(response: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON documents of an event stream, as they come."""
    for line in response:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def traces_of(documents: Iterable[dict[str, Any]], clock: Any = time.perf_counter) -> dict[int, Trace]:
    """Chunks sorted by request. Raises InvalidMeasurement when the server reports an error inside the stream."""
    traces: dict[int, Trace] = {}
    for document in documents:
        if "error" in document:
            raise InvalidMeasurement(f"the server broke off: {document['error']}")
        meta = document["meta_info"]
        trace = traces.setdefault(document.get("index", 0), Trace([]))
        trace.points.append((clock(), int(meta["completion_tokens"])))
        trace.rounds = meta.get("spec_verify_ct", trace.rounds)
        trace.output_ids = document.get("output_ids", trace.output_ids)
    return traces


def stream(address: tuple[str, int], cell: Cell, seed: int, timeout_s: float) -> dict[int, Trace]:
    """Send one batch and read it to the end. Raises EnvironmentFailed when the server refuses, OSError when it is gone."""
    sampling = {"temperature": 0.0, "max_new_tokens": cell.output_tokens, "ignore_eos": True, "stream_interval": cell.interval}
    body = {"input_ids": prompts_of(cell, seed), "sampling_params": sampling, "stream": True}
    connection = http.client.HTTPConnection(*address, timeout=timeout_s)
    try:
        connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise EnvironmentFailed(f"/generate answered {response.status}: {response.read()[:300]!r}")
        return traces_of(events(response))
    finally:
        connection.close()


def seconds_per_token(traces: Sequence[Trace]) -> float:
    """Mean over the requests, inside the window in which all of them decode. Raises InvalidMeasurement when it is too short."""
    begin = max(trace.points[0][0] for trace in traces)
    end = min(trace.points[-1][0] for trace in traces)
    slopes = []
    for trace in traces:
        inside = [point for point in trace.points if begin <= point[0] <= end]
        if len(inside) < 2 or inside[-1][1] == inside[0][1]:
            raise InvalidMeasurement("requests of one batch do not overlap long enough", hint="more output_tokens, or a smaller interval")
        slopes.append((inside[-1][0] - inside[0][0]) / (inside[-1][1] - inside[0][1]))
    return fmean(slopes)


def tokens_per_round(traces: Sequence[Trace]) -> float | None:
    """Over the whole batch; the first token of a request comes from its prefill. None without counted rounds."""
    if any(trace.rounds is None for trace in traces):
        return None
    return sum(trace.points[-1][1] - 1 for trace in traces) / sum(trace.rounds or 0 for trace in traces)


def measure(address: tuple[str, int], cell: Cell, seed: int, timeout_s: float = 120.0) -> Sample:
    """One batch on a server. Raises InvalidMeasurement for a batch that proves nothing, OSError when the server is gone."""
    began, started = time.perf_counter(), time.time()
    traces = list(stream(address, cell, seed, timeout_s).values())
    short = [trace.points[-1][1] for trace in traces if trace.points[-1][1] != cell.output_tokens]
    if len(traces) != cell.concurrency or short:
        raise InvalidMeasurement(f"{len(traces)} of {cell.concurrency} requests answered, wrong lengths {short[:5]}")
    per_token, per_round = seconds_per_token(traces), tokens_per_round(traces)
    ids = [number for trace in traces for number in trace.output_ids]
    return Sample(
        second=per_token * (per_round or 1.0),
        seconds_per_token=per_token,
        tokens_per_round=per_round,
        first_token_s=max(trace.points[0][0] for trace in traces) - began,
        tokens=sum(trace.points[-1][1] for trace in traces),
        distinct=len(set(ids)) / len(ids) if ids else float("nan"),
        started=started,
    )


def summary(samples: Sequence[Sample], forced: float | None) -> dict[str, Any]:
    """Median and raw values of one cell of one launch; invalid when acceptance was not as forced."""
    lengths = [sample.tokens_per_round for sample in samples if sample.tokens_per_round is not None]
    invalid = []
    if forced is not None and (len(lengths) < len(samples) or any(abs(length / forced - 1) > 0.05 for length in lengths)):
        invalid = [f"accept_len {lengths}, forced to {forced}"]
    values = [sample.second for sample in samples]
    return {"second": median(values), "values": values, "invalid": invalid, "samples": [asdict(sample) for sample in samples]}


# --- launches --------------------------------------------------------------------------------------------------------


def forced_env(accept_len: int) -> dict[str, str]:
    """Every round emits accept_len tokens: the drafter's own, and the target's for the last. A whole number, so that ranks agree."""
    return {
        "SGLANG_SIMULATE_ACC_LEN": str(accept_len),
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
    }


def forced_launch(base: Launch, drafter: Path, depth: int, accept_len: int = 2, dummy: bool = False) -> Launch:
    """The speculative arm of `base`: an EAGLE-3 chain of `depth` drafts with forced acceptance."""
    flags = {"speculative-draft-load-format": "dummy"} if dummy else {}
    return base.with_(arm="speculative", drafting=Drafting("eagle3", drafter, depth), env=forced_env(accept_len), flags=flags)


def write_folder(config: Mapping[str, Any], out: Path, tokenizer: Path | None = None) -> Path:
    """A model folder for dummy weights: config.json, and the tokenizer files of another model (need not fit: ids are sent)."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(dict(config), indent=1) + "\n")
    for pattern in TOKENIZER_FILES if tokenizer else ():
        for file in sorted((tokenizer or out).glob(pattern)):
            shutil.copy(file, out / file.name)
    return out


@contextmanager
def servers_up(
    engine: Engine, python: Path, launches: Mapping[str, Launch], logs: Path, timeout_s: float, talk: Talk
) -> Iterator[tuple[dict[str, Server], dict[str, str]]]:
    """(servers that got ready, why the others did not), all started side by side. One that dies takes no other with it."""
    started: dict[str, Server] = {}
    ready: dict[str, Server] = {}
    failed: dict[str, str] = {}
    try:
        for name, launch in launches.items():
            started[name] = Server(engine, python, launch, logs / f"{name}.log")
        begun = time.monotonic()
        while waiting := [name for name in started if name not in ready and name not in failed]:
            for name in waiting:
                server, waited = started[name], time.monotonic() - begun
                try:
                    if server.is_ready():
                        server.ready_s = waited
                        ready[name] = server
                        talk.say(f"{name}: ready after {waited:.0f} s")
                    elif waited > timeout_s:
                        raise EnvironmentFailed(f"not ready after {waited:.0f} s, in {server.startup}")
                except EnvironmentFailed as error:
                    failed[name] = str(error)
                    talk.say(f"{name}: {error}")
                    server.stop()
            time.sleep(POLL_S)
        yield ready, failed
    finally:
        stop_all(list(started.values()))
