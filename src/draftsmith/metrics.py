"""Every metric, defined once. Training, replay and serving all count acceptance through `Acceptance`.

A round is one draft and one verify. accept_len is the tokens emitted per round INCLUDING the bonus token,
1 + accepted / rounds. survival[i] (i = 0, 1, ...) is the share of rounds that accepted at least i + 1 drafts.

Latency of one request, all from the moment it was sent: TTFT until usage first grew, TTFO until the first content that is not
reasoning, e2e until usage last grew. TPOT leaves out the tokens of the first chunk. The gap between two chunks is a step of the
server, not a token: it is called inter-chunk time. Absent is nan (None in JSON), never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Acceptance:
    """Counts over a set of rounds. `reached[i]` = rounds that accepted at least i + 1 drafts."""

    rounds: int
    reached: tuple[int, ...]

    @classmethod
    def from_rounds(cls, accepted: Iterable[int], depth: int) -> Acceptance:
        """From the number of accepted drafts in each round, 0..depth."""
        accepted = list(accepted)
        assert all(0 <= n <= depth for n in accepted), (depth, max(accepted, default=0))
        return cls(len(accepted), tuple(sum(n > i for n in accepted) for i in range(depth)))

    @classmethod
    def from_matches(cls, matches: Sequence[Sequence[bool]], depth: int) -> Acceptance:
        """From per-round rows of `depth` booleans: did draft i equal the target's token? Only the leading run of True counts."""
        return cls.from_rounds((leading_run(row[:depth]) for row in matches), depth)

    @classmethod
    def from_histogram(cls, histogram: Sequence[int], depth: int) -> Acceptance:
        """From the number of rounds that accepted exactly 0, 1, ... drafts; engines leave out the zeros at its end."""
        assert len(histogram) <= depth + 1, (list(histogram), depth)
        return cls(sum(histogram), tuple(sum(histogram[i + 1 :]) for i in range(depth)))

    def padded(self, depth: int) -> Acceptance:
        """The same counts at a depth that no round may have reached."""
        assert depth >= self.depth, (depth, self.depth)
        return Acceptance(self.rounds, (*self.reached, *[0] * (depth - self.depth)))

    @property
    def depth(self) -> int:
        return len(self.reached)

    @property
    def accepted(self) -> int:
        """Accepted drafts in all."""
        return sum(self.reached)

    @property
    def accept_len(self) -> float:
        """Tokens per round with the bonus token; nan when there was no round."""
        return 1 + self.accepted / self.rounds if self.rounds else math.nan

    @property
    def survival(self) -> tuple[float, ...]:
        """Share of rounds that accepted at least 1, 2, ... drafts."""
        return tuple(n / self.rounds if self.rounds else math.nan for n in self.reached)

    @property
    def conditional(self) -> tuple[float, ...]:
        """Share of rounds that accepted draft i among those that accepted all drafts before it."""
        before = (self.rounds, *self.reached[:-1])
        return tuple(n / b if b else math.nan for n, b in zip(self.reached, before, strict=True))

    def at_depth(self, depth: int) -> Acceptance:
        """The same rounds, had only `depth` drafts been proposed. Exact for a chain, whose drafts do not depend on its depth."""
        assert depth <= self.depth, (depth, self.depth)
        return Acceptance(self.rounds, self.reached[:depth])

    def __add__(self, other: Acceptance) -> Acceptance:
        assert self.depth == other.depth, (self.depth, other.depth)
        return Acceptance(self.rounds + other.rounds, tuple(a + b for a, b in zip(self.reached, other.reached, strict=True)))

    def __sub__(self, before: Acceptance) -> Acceptance:
        """Difference of two cumulative counters of one server."""
        assert self.depth == before.depth, (self.depth, before.depth)
        return Acceptance(self.rounds - before.rounds, tuple(a - b for a, b in zip(self.reached, before.reached, strict=True)))

    def as_dict(self) -> dict[str, object]:
        """JSON form; the counts are the record, the rest is for readers."""
        return {"rounds": self.rounds, "reached": list(self.reached), "accept_len": self.accept_len, "survival": list(self.survival)}

    @classmethod
    def from_dict(cls, content: dict) -> Acceptance:
        return cls(int(content["rounds"]), tuple(int(n) for n in content["reached"]))


def leading_run(row: Sequence[bool]) -> int:
    """How many leading entries are true."""
    for i, hit in enumerate(row):
        if not hit:
            return i
    return len(row)


def output_tok_s(num_tokens: float, window_s: float) -> float:
    """Output tokens (server usage) per second of the measured window."""
    return num_tokens / window_s


def time_per_output_token_s(last_token_s: float, first_chunk_s: float, num_tokens: int, first_chunk_tokens: int) -> float:
    """TPOT of one request: decode time / tokens after the first chunk. The first chunk may carry several tokens; they are not
    decoded inside the window. nan when everything came in the first chunk."""
    rest = num_tokens - first_chunk_tokens
    return (last_token_s - first_chunk_s) / rest if rest > 0 else math.nan


def per_user_tok_s(tpot_s: float) -> float:
    """Speed that one user sees after the first chunk: 1 / TPOT. nan where TPOT is."""
    return 1 / tpot_s if tpot_s > 0 else math.nan


def inter_chunk_s(arrivals_s: Sequence[float]) -> list[float]:
    """Gaps between the chunks of one reply that brought tokens; chunks that were read together have a gap of 0."""
    return [later - earlier for earlier, later in pairwise(arrivals_s)]


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest values, as numpy's default. `values` must not be empty."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def spread(values: Iterable[float]) -> dict[str, float] | None:
    """p50, p90, p99 and mean of what is known; None when nothing is."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return None
    return {
        "p50": percentile(known, 0.5),
        "p90": percentile(known, 0.9),
        "p99": percentile(known, 0.99),
        "mean": math.fsum(known) / len(known),
    }


def wilson_interval(hits: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % interval of a share (E. B. Wilson, 1927); keeps inside 0..1 with few trials. (nan, nan) without trials."""
    if trials == 0:
        return math.nan, math.nan
    share, scale = hits / trials, 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Slo:
    """Limits that a good request keeps, seconds; None is no limit."""

    ttft_s: float | None = None
    ttfo_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def limits(self) -> dict[str, float]:
        return {name: limit for name in ("ttft_s", "ttfo_s", "tpot_s", "e2e_s") if (limit := getattr(self, name)) is not None}

    def met(self, latency: Mapping[str, float]) -> bool:
        """Whether every limit is kept. TPOT of a reply that came in one chunk is nan and breaks no limit; any other nan does."""
        for name, limit in self.limits().items():
            value = latency[name]
            if math.isnan(value) and name == "tpot_s":
                continue
            if not value <= limit:
                return False
        return True


def goodput(met: Sequence[bool], window_s: float) -> dict[str, float]:
    """Share of ALL requests (failed ones are not good) that met the SLOs, its Wilson interval, and good requests per second."""
    good = sum(met)
    low, high = wilson_interval(good, len(met))
    return {"share": good / len(met), "low": low, "high": high, "requests_s": good / window_s}


def break_even_accept_len(round_s: float, decode_step_s: float) -> float:
    """A* = T_round / T_ar: tokens per round from which speculation is faster than plain decoding."""
    return round_s / decode_step_s


def relative_gap(predicted: float, measured: float) -> float:
    """(predicted - measured) / measured."""
    return (predicted - measured) / measured
