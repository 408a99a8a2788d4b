"""How long a round takes and what it is spent on: from counters of the server, and from the traces of its profiler."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from draftsmith.errors import InvalidMeasurement


@dataclass(frozen=True)
class RoundCounts:
    """Cumulative counters of finished requests. `rounds` are counted per request: a step that serves C requests counts C times.

    decode_s: from first to last token, summed over requests. steps: of the engine, prefills included; None where it does not count them.
    """

    rounds: int
    tokens: int
    requests: int
    decode_s: float
    steps: int | None = None

    def __sub__(self, before: RoundCounts) -> RoundCounts:
        steps = self.steps - before.steps if self.steps is not None and before.steps is not None else None
        return RoundCounts(
            self.rounds - before.rounds,
            self.tokens - before.tokens,
            self.requests - before.requests,
            self.decode_s - before.decode_s,
            steps,
        )


@dataclass(frozen=True)
class LiveCounts:
    """What a metrics page tells of traffic now, cumulative since the server started. None: the server does not tell; () for `reached`.

    rounds, drafted, accepted, reached: of speculation; reached[i] = rounds that accepted at least i + 1 drafts. requests: finished ones.
    running: requests in flight. told_accept_len: the server's own average, over a time of its choosing. born: Unix time of its start.
    """

    tokens: int | None = None
    requests: int | None = None
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    reached: tuple[int, ...] = ()
    running: float | None = None
    told_accept_len: float | None = None
    born: float | None = None


@dataclass(frozen=True)
class Spans:
    """Names that an engine gives to parts of a step in its traces, as patterns.

    begin: the one span of a round that counts rounds. verify and draft: what is added up. prefill: a span around steps that are no rounds.
    unnamed: why a trace may have none of them although the engine was started to name them, and what to do.
    """

    begin: str
    verify: str
    draft: str
    prefill: str | None = None
    unnamed: str = ""


@dataclass(frozen=True)
class Split:
    """Medians over the rounds of a trace, in ms. period: from one verify to the next; host: what is neither verify nor draft."""

    rounds: int
    period_ms: float
    verify_ms: float
    draft_ms: float
    on_gpu: bool

    @property
    def host_ms(self) -> float:
        return max(0.0, self.period_ms - self.verify_ms - self.draft_ms)


@dataclass(frozen=True)
class Event:
    start_us: float
    end_us: float


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a Chrome trace, packed or not."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    content = json.loads(raw)
    return content["traceEvents"] if isinstance(content, dict) else content


def split(events: Iterable[Mapping[str, Any]], spans: Spans) -> Split | None:
    """Where the time of a round goes; None when the trace has no rounds (it is of another process, or the engine names no spans).

    On a GPU the profiler repeats every span on the device's own time line; that one counts, the host only launches.
    Only rounds in a row count: a period with a prefill in it is left out.
    """
    named = [event for event in events if event.get("ph") == "X" and "dur" in event and "annotation" in str(event.get("cat", ""))]
    on_gpu = any(event["cat"] == "gpu_user_annotation" for event in named)
    kind = "gpu_user_annotation" if on_gpu else "user_annotation"
    mine = [event for event in named if event["cat"] == kind]
    prefills = times(mine, spans.prefill) if spans.prefill else []
    begins, verifies, drafts = times(mine, spans.begin), times(mine, spans.verify), times(mine, spans.draft)
    rows: list[tuple[float, float, float]] = []
    for begin, following in pairwise(begins):
        if not inside(begin, prefills) and not inside(following, prefills):
            window = (begin.start_us, following.start_us)
            rows.append((window[1] - window[0], spent(verifies, *window), spent(drafts, *window)))
    if not rows:
        return None
    period, verify, draft = (median(row[i] for row in rows) / 1000 for i in range(3))
    return Split(len(rows), period, verify, draft, on_gpu)


def times(events: Sequence[Mapping[str, Any]], pattern: str) -> list[Event]:
    """The spans of a name; one within another of the same name counts once."""
    found = sorted(
        (Event(event["ts"], event["ts"] + event["dur"]) for event in events if re.search(pattern, event["name"])),
        key=lambda event: (event.start_us, -event.end_us),
    )
    outer: list[Event] = []
    for event in found:
        if not outer or event.start_us >= outer[-1].end_us:
            outer.append(event)
    return outer


def spent(events: Sequence[Event], begin_us: float, end_us: float) -> float:
    return sum(event.end_us - event.start_us for event in events if begin_us <= event.start_us < end_us)


def inside(event: Event, others: Sequence[Event]) -> bool:
    return any(other.start_us <= event.start_us < other.end_us for other in others)


def split_of_folder(paths: Sequence[Path], spans: Spans) -> Split:
    """The split of the rank with the most rounds. Raises InvalidMeasurement when no trace has any."""
    found = [result for path in paths if (result := split(read_trace(path), spans)) is not None]
    if not found:
        hint = "start the server with `serve start RECIPE --trace-dir DIR`, which makes the engine name the parts of a step"
        hint = "; ".join(filter(None, (hint, spans.unnamed)))
        raise InvalidMeasurement(f"{len(paths)} traces, and no round in any of them", hint=hint)
    return max(found, key=lambda result: result.rounds)
