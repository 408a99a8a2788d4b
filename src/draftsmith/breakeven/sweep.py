"""Measures servers that are up, side by side and one at a time: T_ar and T_round over concurrency, wave by wave, into waves.jsonl.

The launches of a plan start together (an idle server must not use the GPU or the cores: SGLang's --sleep-on-idle). At each concurrency
they are measured one right after the other, and all of it twice, forwards and backwards: what disturbs the machine for half a minute hits
a round and the step it is divided by alike. Every wave is written when it ends; a sweep that is out of time stops between two cells.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from draftsmith.breakeven.waves import STREAM_STEP, run_wave
from draftsmith.engines.protocol import Engine, Launch
from draftsmith.engines.server import Server, last_line, stop_all
from draftsmith.errors import DraftsmithError, EnvironmentFailed, InvalidMeasurement
from draftsmith.job import Talk
from draftsmith.manifest import append_jsonl

WAVES, LAUNCHES = "waves.jsonl", "launches.jsonl"


@dataclass(frozen=True)
class Planned:
    """One launch. `name` says what is special about it; launches of one name are replicates. Index: unique in the folder."""

    index: int
    name: str
    launch: Launch
    concurrency: tuple[int, ...]

    @property
    def depth(self) -> int:
        return self.launch.depth

    def head(self) -> dict[str, Any]:
        """What every line about this launch begins with."""
        drafting = self.launch.drafting
        return {
            "launch": self.index,
            "name": self.name,
            "method": drafting.method if drafting else None,
            "depth": self.depth,
            "rows": drafting.rows if drafting else 1,
            "forced_accept_len": drafting.forced_accept_len if drafting else None,
        }


@dataclass(frozen=True)
class Waves:
    """The load. Every request has `prompt_tokens` random ids below `vocab_size` and decodes exactly `tokens`.

    Each concurrency of a launch is visited `passes` times; a visit measures `waves` waves after a short one that warms up.
    """

    vocab_size: int
    tokens: int = 160
    prompt_tokens: int = 64
    warmup_tokens: int = 32
    waves: int = 2
    passes: int = 2
    stream_step: int = STREAM_STEP
    seed: int = 0

    def prompts(self, concurrency: int, key: str) -> list[list[int]]:
        """The same in every launch, and never the same twice in one launch: nothing comes from a prefix cache."""
        source = random.Random(f"{self.seed} {concurrency} {key}")
        return [[source.randrange(self.vocab_size) for _ in range(self.prompt_tokens)] for _ in range(concurrency)]


class Sweep:
    """Running servers, a load, and a clock."""

    def __init__(self, folder: Path, load: Waves, deadline: float, talk: Talk) -> None:
        """deadline: time.monotonic() after which no cell is begun."""
        self.folder, self.load, self.deadline, self.talk = folder, load, deadline, talk
        self.dead: set[int] = set()

    def run(self, servers: Sequence[tuple[Planned, Server]]) -> bool:
        """All passes; False when time ran out."""
        return all(self.one_pass(servers, number) for number in range(self.load.passes))

    def one_pass(self, servers: Sequence[tuple[Planned, Server]], number: int) -> bool:
        """The canary of every launch, then every concurrency at all launches in a row; backwards every other time. False when time ran out,
        a server that dies is left out from then on."""
        onwards = -1 if number % 2 else 1
        order = list(dict.fromkeys(c for planned, _ in servers for c in planned.concurrency))[::onwards]
        for concurrency, (planned, server) in product((0, *order), servers[::onwards]):  # 0: the canary
            if planned.index in self.dead or concurrency not in (0, *planned.concurrency):
                continue
            if time.monotonic() > self.deadline:
                self.talk.say(f"out of time in pass {number + 1}, concurrency {concurrency}, launch {planned.index}")
                return False
            if concurrency:
                self.cell(planned, server, number, concurrency)
            else:
                self.wave(planned, server, {"phase": "canary", "concurrency": 1, "pass": number, "wave": 0})
        return True

    def cell(self, planned: Planned, server: Server, number: int, concurrency: int, phase: str = "cell", **changes: Any) -> None:
        """One warm-up wave and the measured ones. changes: fields of the load that differ here."""
        for wave in range(-1, self.load.waves):
            row = {"phase": phase if wave >= 0 else "warmup", "concurrency": concurrency, "pass": number, "wave": wave}
            self.wave(planned, server, row, **changes)

    def wave(self, planned: Planned, server: Server, row: dict[str, Any], **changes: Any) -> None:
        """Send one wave and write its line; a wave that proves nothing is written with the reason."""
        tokens = self.load.warmup_tokens if row["phase"] == "warmup" else changes.get("tokens", self.load.tokens)
        step = changes.get("stream_step", self.load.stream_step)
        prompts = self.load.prompts(row["concurrency"], f"{row['phase']} {row['pass']} {row['wave']} {tokens} {step}")
        line = planned.head() | row | {"stream_step": step, "started": time.time()}
        try:
            line |= run_wave(server, prompts, tokens, step)
        except InvalidMeasurement as error:
            line["invalid"] = error.message
            self.talk.say(f"launch {planned.index} ({planned.name}), concurrency {row['concurrency']}: {error.message}")
        append_jsonl(self.folder / WAVES, line)
        try:
            server.check_alive()
        except EnvironmentFailed as error:
            self.dead.add(planned.index)
            append_jsonl(self.folder / LAUNCHES, planned.head() | {"died": error.message})


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, all different. For engines that start side by side and would choose the same ones."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def started(
    engine: Engine, python: Path, plan: Sequence[Planned], folder: Path, timeout_s: float, talk: Talk
) -> Iterator[list[tuple[Planned, Server]]]:
    """Starts all launches side by side and yields those that came up; each other one is written to launches.jsonl with its reason."""
    servers: list[tuple[Planned, Server]] = []
    try:
        for planned in plan:
            log = folder / "logs" / f"launch-{planned.index}.log"
            servers.append((planned, Server(engine, python, planned.launch, log)))
        up = wait_each(servers, time.monotonic() + timeout_s, folder, talk)
        talk.say(f"{len(up)} of {len(servers)} servers ready after {max((s.ready_s for _, s in up), default=0.0):.0f} s")
        yield up
    finally:
        stop_all([server for _, server in servers])


def wait_each(servers: Sequence[tuple[Planned, Server]], deadline: float, folder: Path, talk: Talk) -> list[tuple[Planned, Server]]:
    """The servers that came up, in their order; a line about every one. One that does not come up takes no other with it."""
    waiting, up = list(servers), []
    while waiting:
        for pair in list(waiting):
            planned, server = pair
            line = planned.head() | {"argv": server.argv, "env": server.env, "dummy": sorted(planned.launch.dummy_weights)}
            server.startup.look()
            try:
                if server.is_ready():
                    server.ready_s = time.monotonic() - server.process.started
                    append_jsonl(folder / LAUNCHES, line | told_by(server))
                    talk.say(f"launch {planned.index} ({planned.name}) is ready after {server.ready_s:.0f} s")
                    up.append(pair)
                    waiting.remove(pair)
                elif time.monotonic() > deadline:
                    raise EnvironmentFailed(
                        f"not ready in time, in {server.startup}; last said: {last_line(server.log)}", hint=f"log: {server.log}"
                    )
            except EnvironmentFailed as error:
                talk.say(f"launch {planned.index} ({planned.name}) did not come up: {error.message}")
                append_jsonl(folder / LAUNCHES, line | {"died": error.message})
                server.stop()
                waiting.remove(pair)
        time.sleep(0.2)
    return sorted(up, key=lambda pair: pair[0].index)


def told_by(server: Server) -> dict[str, Any]:
    """What took effect in a running server, and where that is not what was asked for."""
    try:
        server.check_as_planned()
        differs = ""
    except DraftsmithError as error:
        differs = error.message
    return {"ready_s": server.ready_s, "effective": server.effective(), "differs": differs}
