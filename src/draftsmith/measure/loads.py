"""When requests are sent: so many at a time (closed), at random moments of a given rate (Poisson), or as a trace says.

An open load does not wait for the server, so it also shows what a queue does to latency. Each request has a moment at which it is
due; how late it was sent is recorded, and a client that cannot keep up is a finding about the client, not about the server.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, ClassVar

from draftsmith.errors import UsageError
from draftsmith.measure.messages import Request

REQUESTS_PER_SLOT, WARMUP_PER_SLOT = 10, 2


@dataclass(frozen=True)
class ClosedLoad:
    """`concurrency` requests in flight until none is left."""

    kind: ClassVar[str] = "closed"
    concurrency: int

    @property
    def label(self) -> str:
        return f"C={self.concurrency}"

    def due(self, requests: Sequence[Request]) -> list[float] | None:
        """Seconds from the start at which each request is due; None: when a slot is free."""
        return None


@dataclass(frozen=True)
class PoissonLoad:
    """`rate` requests a second on average, with exponential gaps that `seed` fixes. max_concurrency: most in flight, or no limit."""

    kind: ClassVar[str] = "poisson"
    rate: float
    max_concurrency: int | None = None
    seed: int = 0

    @property
    def label(self) -> str:
        return f"{self.rate:g} req/s"

    def due(self, requests: Sequence[Request]) -> list[float] | None:
        gaps = random.Random(self.seed)
        return list(accumulate(gaps.expovariate(self.rate) for _ in requests))


@dataclass(frozen=True)
class TraceLoad:
    """Requests at the times of their `at_s`, `speed` times as fast. file: where they were read from (see measure/traces.py)."""

    kind: ClassVar[str] = "trace"
    file: str
    speed: float = 1.0
    max_concurrency: int | None = None

    @property
    def label(self) -> str:
        return f"trace {self.file.rsplit('/', 1)[-1]}" + ("" if self.speed == 1 else f" x{self.speed:g}")

    def due(self, requests: Sequence[Request]) -> list[float] | None:
        times = [request.at_s for request in requests if request.at_s is not None]
        if len(times) != len(requests):
            raise UsageError(f"{len(requests) - len(times)} requests of the trace {self.file} have no time", hint="give each an at_s")
        return [(at_s - min(times)) / self.speed for at_s in times]


Load = ClosedLoad | PoissonLoad | TraceLoad


def label_of(load: Load, output_tokens: int | None = None) -> str:
    """C=4; with the limit of its answers where cells differ in it: C=4, 1024 tokens."""
    return load.label if output_tokens is None else f"{load.label}, {output_tokens} tokens"


LOADS: dict[str, type[Load]] = {load.kind: load for load in (ClosedLoad, PoissonLoad, TraceLoad)}


def load_dict(load: Load) -> dict[str, Any]:
    """The JSON form: {"kind": "closed", "concurrency": 4}."""
    return {"kind": load.kind, **asdict(load)}


def load_from(content: Mapping[str, Any]) -> Load:
    """The load that `content` describes. Raises UsageError."""
    values = dict(content)
    kind = values.pop("kind", None)
    if kind not in LOADS:
        raise UsageError(f"load kind {kind!r} is not known", hint=f"expected one of {', '.join(LOADS)}")
    try:
        load = LOADS[kind](**values)
    except TypeError as error:
        raise UsageError(f"load {dict(content)}: {error}", hint="see measure/loads.py for the fields of each kind") from error
    for name in ("concurrency", "rate", "speed", "max_concurrency"):
        value = getattr(load, name, None)
        if value is not None and not value > 0:
            raise UsageError(f"load {dict(content)}: {name} is {value}", hint="expected a number above 0")
    return load


def closed_shapes(concurrency: Sequence[int], requests: Sequence[int] | None, warmup: Sequence[int] | None) -> list[tuple[int, int, int]]:
    """(concurrency, measured requests, warm-up requests) of closed loops; None: as many as show a steady state."""
    measured = requests or [REQUESTS_PER_SLOT * slots for slots in concurrency]
    warming = warmup or [WARMUP_PER_SLOT * slots for slots in concurrency]
    return list(zip(concurrency, measured, warming, strict=True))


def size_problems(concurrency: int, requests: int, warmup: int) -> list[str]:
    """What keeps a closed loop from showing a steady state; empty when it is long enough.

    Requests >= 10 x concurrency: start and end of the loop are then a small part. Warm-up >= 2 x concurrency at the same concurrency:
    every slot has been through a whole request. A smaller setting must be asked for, and these sentences become its findings.
    """
    found = []
    for name, count, per_slot in (("requests", requests, REQUESTS_PER_SLOT), ("warm-up requests", warmup, WARMUP_PER_SLOT)):
        if count < per_slot * concurrency:
            found.append(f"{count} {name} at concurrency {concurrency}: at least {per_slot * concurrency} show a steady state")
    return found
