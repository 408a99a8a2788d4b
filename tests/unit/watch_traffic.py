"""Made-up traffic with known truth: requests that differ, rounds of one request that are alike, a mix that changes over the day.

`python tests/unit/watch_traffic.py` measures false alarms per day over many days (see docs/guides/watch.md).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from draftsmith.engines.rounds import LiveCounts
from draftsmith.watch.expected import Reference
from draftsmith.watch.monitor import DAY_S, Monitor, Settings

DEPTH = 3
LOGITS = np.array([0.55, 0.3, 0.2])  # of the chance that draft i is accepted where the one before it was
KINDS = np.array([0.5, 0.0, -0.6])  # what a kind of prompt adds: code, prose, arithmetic
MIX = np.array([0.4, 0.4, 0.2])
ROUNDS_S = 25.0  # rounds per second of one request


@dataclass(frozen=True)
class Traffic:
    """requests_s: mean arrivals per second; by day between 0.3 and 1.7 of it. scatter: of a request's logit within its kind.

    rounds: median rounds of a request (log-normal, sigma 0.9). swing: how far the share of code changes over the day.
    """

    requests_s: float = 0.5
    scatter: float = 0.5
    rounds: float = 120.0
    swing: float = 0.1


TRAFFIC = {
    "usual": Traffic(),
    "busy": Traffic(requests_s=3.0),
    "little": Traffic(requests_s=0.03, rounds=60.0),
    "long answers": Traffic(requests_s=0.05, rounds=1500.0, scatter=0.7),
}


class Server:
    """Counters of a server under such traffic. `fault(time)` changes the logits, for example `lambda t: LOGITS - 5`."""

    def __init__(self, traffic: Traffic, seed: int, fault: Callable[[float], np.ndarray] = lambda at_s: LOGITS) -> None:
        self.traffic, self.fault = traffic, fault
        self.random = np.random.default_rng(seed)
        self.at_s = 0.0
        self.tokens = self.requests = self.rounds = 0
        self.reached = np.zeros(DEPTH, dtype=np.int64)
        self.left = np.zeros(0, dtype=np.int64)  # rounds that running requests still have to do
        self.level = np.zeros(0)

    def advance(self, seconds: float) -> LiveCounts:
        """Let time pass; requests arrive all through it and do their rounds one after the other."""
        day = np.sin(2 * np.pi * self.at_s / DAY_S)
        new = self.random.poisson(self.traffic.requests_s * (1 + 0.7 * day) * seconds)
        mix = MIX + self.traffic.swing * day * np.array([1.0, -0.5, -0.5])
        level = KINDS[self.random.choice(3, new, p=mix)] + self.random.normal(0, self.traffic.scatter, new)
        length = np.ceil(self.traffic.rounds * np.exp(self.random.normal(0, 0.9, new))).astype(np.int64)
        room = np.concatenate([np.full(len(self.left), seconds), seconds * self.random.random(new)])
        left, level = np.concatenate([self.left, length]), np.concatenate([self.level, level])
        done = np.minimum(left, (room * ROUNDS_S).astype(np.int64))
        chances = 1 / (1 + np.exp(-(self.fault(self.at_s)[:, None] + level[None, :])))
        reached = done
        for i in range(DEPTH):
            reached = self.random.binomial(reached, chances[i])
            self.reached[i] += reached.sum()
        before = self.rounds + int(self.reached.sum())
        self.rounds += int(done.sum())
        self.requests += int((left == done).sum())
        self.tokens = self.rounds + int(self.reached.sum()) + self.requests
        assert before <= self.tokens
        running = left > done
        self.left, self.level = (left - done)[running], level[running]
        self.at_s += seconds
        return self.counts()

    def counts(self) -> LiveCounts:
        return LiveCounts(
            tokens=self.tokens,
            requests=self.requests,
            rounds=self.rounds,
            drafted=DEPTH * self.rounds,
            accepted=int(self.reached.sum()),
            reached=tuple(int(n) for n in self.reached),
            running=float(len(self.left)),
        )


def reported(traffic: Traffic, seed: int) -> Reference:
    """What a bench of 200 requests of the same kinds would have reported."""
    server = Server(Traffic(200 / 300, traffic.scatter, traffic.rounds, 0.0), seed)
    server.advance(300.0)
    counts = server.advance(3600.0)
    assert counts.rounds
    survival = tuple(n / counts.rounds for n in counts.reached)
    return Reference("in the report", 1 + sum(survival), survival, counts.rounds)


def watched(server: Server, days: float, expected: Reference | None = None, settings: Settings | None = None) -> tuple[Monitor, list[str]]:
    """(monitor, alarms that went on) of so many days, read once a look."""
    monitor = Monitor(settings or Settings(), DEPTH, expected)
    told: list[str] = []
    step_s = monitor.settings.window_s
    for i in range(round(days * DAY_S / step_s)):
        told += [text for text in monitor.read(server.advance(step_s), i * step_s) if text.startswith("ALARM")]
    return monitor, told


def main(argv: Sequence[str]) -> None:
    """False alarms per day, for each traffic; days as the first argument."""
    days = float(argv[0]) if argv else 100.0
    for number, (name, traffic) in enumerate(TRAFFIC.items()):
        began = time.monotonic()
        monitor, told = watched(Server(traffic, number), days, reported(traffic, 1000 + number))
        effect = monitor.dispersion.effect(monitor.window, monitor.running or 0.0)
        print(
            f"{name}: {len(told)} false alarms in {days:g} days ({monitor.looks} looks, {monitor.meter.total.rounds:,} rounds, "
            f"design effect {effect:.1f}, accept_len {monitor.meter.total.accept_len:.3f}); {time.monotonic() - began:.0f} s"
        )
        for text in told[:5]:
            print("  ", text.splitlines()[0])


if __name__ == "__main__":
    main(sys.argv[1:])
