"""What a watch knows: readings in, told events and alarms out. No clock and no network, so that whole days can be simulated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from draftsmith.engines.rounds import LiveCounts
from draftsmith.job import clock
from draftsmith.watch.alarms import Alarms
from draftsmith.watch.counting import Meter, Span, between
from draftsmith.watch.expected import Reference
from draftsmith.watch.looking import MIN_ROUNDS, Test, speculates, tests_of
from draftsmith.watch.spread import Dispersion, critical, half_width

DAY_S = 86400.0
ROUNDS_OF_ONE = 500  # rounds in a row without an accepted draft
TOKENS_OF_NONE = 500  # decoded tokens in a row without a round
IDLE_S = 60.0
LONG = 12  # looks that make a long one, which sees what is too small for one
MIN_LOOKS = 3  # of the watch's own start, before something is held against it
BALANCER = 3  # restarts among so few readings are none
AMONG = 10


@dataclass(frozen=True)
class Settings:
    """window_s: least length of a look, and what is shown. baseline_s: the watch's own start, which decay is measured from.

    margin: share of accept_len that may be lost without an alarm: traffic changes over a day.
    """

    interval_s: float = 10.0
    window_s: float = 300.0
    baseline_s: float = 3600.0
    margin: float = 0.1


@dataclass
class Monitor:
    """depth: drafts per round as far as known. expected: what the user or a report expects, already cut to the server's depth."""

    settings: Settings
    depth: int
    expected: Reference | None = None
    alarms: Alarms = field(default_factory=Alarms)
    dispersion: Dispersion = field(default_factory=Dispersion)
    look: Span = field(default_factory=Span)
    long: list[Span] = field(default_factory=list)
    base: Span = field(default_factory=Span)
    base_looks: int = 0
    looks: int = 0
    up: bool = True
    last: Span | None = None  # of the last interval
    running: float | None = None
    told_accept_len: float | None = None
    at_s: float = 0.0

    def __post_init__(self) -> None:
        self.meter = Meter(self.settings.window_s)
        self.barren, self.draftless = 0, Span()  # rounds since the last accepted draft, and what was decoded since the last round
        self.decoding = Span()  # since the last judgement of how much comes without drafts
        self.uncounted = False  # the server tells an average of its own, and no rounds
        self.quiet_s, self.quiet_told = 0.0, False
        self.lost_s = 0.0
        self.resets: list[bool] = []

    # --- readings ---

    def read(self, counts: LiveCounts, at_s: float) -> list[str]:
        """Take a reading; returns what there is to tell."""
        told = [] if self.up else [f"answers again after {clock(at_s - self.lost_s)}"]
        self.up, self.at_s = True, at_s
        self.take(counts)
        span, reset = self.meter.read(counts, at_s)
        self.last = span
        self.resets = [*self.resets[1 - AMONG :], reset]
        if reset:
            told.append(self.begin_again(counts))
        if span is not None:
            told += [*self.idle(span), *self.rows(span), *self.without_drafts(span), *self.add(span)]
        return told

    def take(self, counts: LiveCounts) -> None:
        """What needs no difference."""
        self.running, self.told_accept_len = counts.running, counts.told_accept_len
        self.uncounted = counts.rounds is None and self.depth > 0 and bool(counts.told_accept_len)

    def missed(self, why: str, at_s: float) -> list[str]:
        """No reading: nobody answers, or not with counters. Told when it begins."""
        self.last, self.at_s = None, at_s
        if not self.up:
            return []
        self.up, self.lost_s = False, at_s
        return [f"no reading: {why}; going on"]

    def begin_again(self, counts: LiveCounts) -> str:
        """Another process answers. What it is held against stays, unless it drafts otherwise."""
        self.look, self.draftless, self.decoding, self.barren, self.long = Span(), Span(), Span(), 0, []
        self.quiet_s = 0.0
        self.dispersion.forget_last()
        said = "the server restarted (its counters began again): this interval is left out"
        if self.base.reached and len(counts.reached) != len(self.base.reached):
            self.base, self.base_looks = Span(), 0
            self.depth = len(counts.reached)
            self.expected = None if self.expected is None else self.expected.at_depth(self.depth)
            said += f"; it now has counters for {self.depth} drafts a round, so the start of the watch is forgotten"
        if sum(self.resets) == BALANCER:
            said += "; that often it is rather several servers behind one address: watch each by its own"
        return said

    def once(self, counts: LiveCounts) -> list[str]:
        """Judge all that the server has counted since its start, as one look."""
        self.take(counts)
        self.meter.last = counts
        self.last = span = between(LiveCounts(), counts, 0.0)
        self.meter.spans.append(span)
        self.meter.total = span
        told = list(self.rows(span))
        if span.decoded >= TOKENS_OF_NONE and not self.uncounted:
            told += self.alarms.judge("not_speculating", *speculates(span), self.at_s)
        return told + (list(self.judge(span, tests_per_day=2.0 * max(1, self.depth))) if span.rounds >= MIN_ROUNDS else [])

    # --- what needs no statistics ---

    def idle(self, span: Span) -> Iterator[str]:
        """No traffic is told, and is no alarm."""
        if span.tokens or span.rounds:
            if self.quiet_told:
                yield f"traffic again after {clock(self.quiet_s)}"
            self.quiet_s, self.quiet_told = 0.0, False
            return
        self.quiet_s += span.seconds
        if self.quiet_s >= IDLE_S and not self.quiet_told:
            self.quiet_told = True
            yield f"no rounds in the last {clock(self.quiet_s)}: no traffic"

    def rows(self, span: Span) -> Iterator[str]:
        """Many rounds in a row without an accepted draft, or many tokens without a round."""
        if self.uncounted:  # the server's own average of 1.00 is one round per token
            hit, rounds = self.told_accept_len != 1.0, span.decoded
        else:
            hit, rounds = span.accepted > 0, span.rounds
        self.barren = 0 if hit else self.barren + rounds
        said = "drafts are accepted" if hit else f"accept_len exactly 1.00 over {self.barren:,} rounds"
        yield from self.alarms.judge("accept_len_one", self.barren >= ROUNDS_OF_ONE, hit, said, self.at_s)
        self.draftless = Span() if span.rounds or self.uncounted else self.draftless + span
        if self.draftless.decoded >= TOKENS_OF_NONE:
            at = f", {self.running:.0f} requests running" if self.running is not None else ""
            said = f"{self.draftless.decoded:,} decoded tokens in a row without a round{at}"
            yield from self.alarms.judge("not_speculating", True, False, said, self.at_s)

    def without_drafts(self, span: Span) -> Iterator[str]:
        """Most tokens came without drafts, in a window's worth of traffic; it may have too few rounds for a look."""
        self.decoding = Span() if self.uncounted else self.decoding + span
        if self.decoding.seconds >= self.settings.window_s and self.decoding.decoded >= TOKENS_OF_NONE:
            yield from self.alarms.judge("not_speculating", *speculates(self.decoding), self.at_s)
            self.decoding = Span()

    # --- looks ---

    def add(self, span: Span) -> Iterator[str]:
        """Collect a look, and judge it when it is whole."""
        self.look += span
        if self.look.seconds < self.settings.window_s or self.look.rounds < MIN_ROUNDS:
            return
        look, self.look = self.look, Span()
        self.looks += 1
        before = self.alarms.on
        tests_per_day = 4 * (max(1, self.depth) + 1) * DAY_S / self.settings.window_s
        yield from self.judge(look, tests_per_day)
        self.long = [*self.long[1 - LONG :], look] if set(before) <= set(self.alarms.on) else []
        if len(self.long) == LONG:
            yield from self.judge(sum(self.long, Span()), tests_per_day, clears=False)
        if {*before, *self.alarms.on} - {"drift_from_report"}:  # a report of other prompts says nothing against the start of the watch
            self.dispersion.forget_last()
            return
        self.dispersion.add(look, self.running or 0.0)
        if self.base.seconds < self.settings.baseline_s or self.base_looks < MIN_LOOKS:
            self.base += look
            self.base_looks += 1

    def judge(self, look: Span, tests_per_day: float, clears: bool = True) -> Iterator[str]:
        """All tests of a look. An alarm with several tests goes on when one is bad and off when all are good; a long look ends none."""
        effect = self.dispersion.effect(look, self.running or 0.0)
        limit = critical(tests_per_day, self.dispersion.df)
        by_name: dict[str, list[Test]] = {}
        for test in self.tests(look, effect):
            by_name.setdefault(test.name, []).append(test)
        for name, tests in by_name.items():
            worst = min(tests, key=lambda test: (test.value - test.threshold) / test.error)
            good = clears and all(test.good() for test in tests)
            yield from self.alarms.judge(name, worst.bad(limit), good, worst.said, self.at_s)

    def tests(self, look: Span, effect: float) -> Iterator[Test]:
        if self.expected is not None:
            yield from tests_of(look, self.expected, effect, self.settings.margin, "drift_from_report")
        if self.base_looks >= MIN_LOOKS:
            base = Reference.of("at the start of the watch", self.base.acceptance, by_position=bool(self.base.reached))
            yield from tests_of(look, base, effect, self.settings.margin, "decay")

    # --- what is shown ---

    @property
    def window(self) -> Span:
        return self.meter.window

    def interval(self) -> tuple[float, float, float]:
        """(accept_len, low, high) of the window; nan without rounds."""
        window = self.window
        half = half_width(window, self.dispersion.effect(window, self.running or 0.0))
        value = window.accept_len
        return value, value if math.isnan(value) else max(1.0, value - half), value + half
