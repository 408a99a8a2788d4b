"""draftsmith watch: read a running server's counters again and again, and say when acceptance is not what it should be."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from draftsmith.engines.counters import values_of
from draftsmith.engines.rounds import LiveCounts
from draftsmith.engines.sglang import rounds as sglang
from draftsmith.engines.vllm import rounds as vllm
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.job import Talk, clock
from draftsmith.manifest import atomic_write_text
from draftsmith.measure.attached import Attached
from draftsmith.watch.counting import Span
from draftsmith.watch.expected import Reference, expected_of
from draftsmith.watch.exposition import Page, address_of, text_of, textfile
from draftsmith.watch.looking import MIN_ROUNDS
from draftsmith.watch.monitor import Monitor, Settings
from draftsmith.watch.view import View, as_dict, interval_record, status_line, window_record

READERS: dict[str, ModuleType] = {"vllm": vllm, "sglang": sglang}
ALARMED, TOO_FEW = 4, 3  # exit codes: a check failed; nothing could be judged


@dataclass(frozen=True)
class Asked:
    """The options. once: judge all that was counted since the server's start, and end. for_s: end after so long."""

    url: str
    expect: Path | None = None
    expect_accept_len: float | None = None
    once: bool = False
    for_s: float | None = None
    prometheus: str | None = None
    textfile: Path | None = None
    json_lines: bool = False
    settings: Settings = field(default_factory=Settings)

    def check(self) -> None:
        """Raise UsageError for options that cannot be meant."""
        settings = self.settings
        if self.expect is not None and self.expect_accept_len is not None:
            raise UsageError("--expect and --expect-accept-len at once", hint="give one of the two")
        if self.expect_accept_len is not None and not 1 < self.expect_accept_len < math.inf:
            raise UsageError(
                f"--expect-accept-len {self.expect_accept_len:g}: tokens per round, bonus included, are above 1",
                hint="for example --expect-accept-len 2.1",
            )
        if self.once and (self.prometheus is not None or self.for_s is not None):
            raise UsageError("--once ends at once: --prometheus and --for-s are for a watch that stays", hint="for cron: --once --textfile")
        given = {"--interval-s": settings.interval_s, "--for-s": 1.0 if self.for_s is None else self.for_s}
        for name, value in given.items():
            if not 0 < value < math.inf:
                raise UsageError(f"{name} {value:g}: expected seconds above 0", hint=f"for example {name} 10")
        if not settings.interval_s <= settings.window_s <= settings.baseline_s:
            raise UsageError(
                f"--interval-s {settings.interval_s:g}, --window-s {settings.window_s:g}, --baseline-s {settings.baseline_s:g}",
                hint="each at least as long as the one before it",
            )
        if not 0 <= settings.margin < 1:
            raise UsageError(f"--margin {settings.margin:g}: expected a share of accept_len from 0 to 1", hint="for example 0.1")
        if self.textfile is not None:
            textfile(self.textfile)
        if self.prometheus is not None:
            address_of(self.prometheus)

    def reference(self) -> Reference | None:
        if self.expect_accept_len is not None:
            return Reference("expected", self.expect_accept_len)
        return None if self.expect is None else expected_of(self.expect)


class Watch:
    """One server, its monitor, and where what it says goes."""

    def __init__(self, asked: Asked, talk: Talk) -> None:
        """Raises UsageError, and EnvironmentFailed when nobody answers at the URL, or without counters of an engine that is known."""
        asked.check()
        expected = asked.reference()
        self.asked, self.talk, self.view = asked, talk, View(talk)
        self.server = Attached(asked.url, "speculative")
        if self.server.engine is None:
            raise EnvironmentFailed(
                f"{self.server.url}/metrics has no counters of vLLM or SGLang",
                hint="SGLang needs --enable-metrics; a router in front of servers has counters of its own: watch the servers behind it",
            )
        self.engine = self.server.engine.name
        self.depth = self.server.depth
        self.notes: list[str] = []
        self.monitor = Monitor(asked.settings, self.depth, self.comparable(expected))
        self.notes += self.added_up()
        self.readings = self.missed = 0
        self.text = ""
        self.begun_s = time.monotonic()
        self.page = Page(asked.prometheus, lambda: self.text) if asked.prometheus is not None else None

    # --- what it begins with ---

    def comparable(self, expected: Reference | None) -> Reference | None:
        """The reference at this server's depth; None, with a note, where its depth makes it another quantity."""
        if expected is None or not expected.survival or not self.depth:
            return expected
        if self.depth < len(expected.survival):
            self.notes.append(f"this server drafts {self.depth}, {expected.source} has {len(expected.survival)}: cut to {self.depth}")
            return expected.at_depth(self.depth)
        if self.depth > len(expected.survival):
            said = f"this server drafts {self.depth}, {expected.source} has {len(expected.survival)}"
            if self.engine == "sglang":
                self.notes.append(f"{said}: cannot be compared without counts by position, so it is left out")
                return None
            self.notes.append(f"{said}: the first {len(expected.survival)} drafts are compared")
        return expected

    def added_up(self) -> list[str]:
        """What hides behind one page: several models (a router, a federation), or the ranks of a data-parallel engine."""
        page, notes = self.server.page("/metrics") or "", []
        for label, what, does in (
            ("model_name", "models", "watch each server by its own address"),
            ("engine", "engine ranks", "all have the same drafter, so a weak one only weighs less"),
        ):
            found = values_of(page, f"{self.engine}:", label)
            if len(found) > 1:
                notes.append(f"this page counts {len(found)} {what} ({', '.join(found)}), which are added up: {does}")
        return notes

    def introduce(self) -> None:
        """Who is watched, held against what, and what this server does not tell."""
        settings, expected = self.server.settings(), self.monitor.expected
        version = f" {settings['engine_version']}" if "engine_version" in settings else ""
        drafts = f"{self.depth} drafts a round" if self.depth else "no drafts (as far as it tells)"
        self.view.tell(f"watching {self.server.model} at {self.server.url}: {self.engine}{version}, {drafts}")
        if expected is not None:
            self.view.tell(
                f"expected accept_len {expected.accept_len:.2f} ({expected.source}); comparable only for traffic like its prompts"
            )
        if self.engine == "sglang":
            self.notes.append(
                "SGLang's counters have no positions and are of finished requests: no alarm by position, answers count when done"
            )
        for note in self.notes:
            self.view.tell(f"note: {note}")
        if self.page is not None:
            others = "; it listens for others than this machine, and asks nobody for a key" if self.page.open_to_others else ""
            self.view.tell(f"Prometheus: {self.page.url}{others}")

    # --- readings ---

    def counts(self) -> LiveCounts:
        """A reading. Raises EnvironmentFailed when there is none."""
        page = self.server.page("/metrics")
        if page is None:
            raise EnvironmentFailed(f"{self.server.url}/metrics answers with an error", hint="is it still starting, or behind a proxy?")
        return READERS[self.engine].live_counts(page)

    def step(self) -> None:
        """One reading, and everything that follows from it."""
        at_s = time.monotonic()
        try:
            told = self.monitor.read(self.counts(), at_s)
            self.readings += 1
        except EnvironmentFailed as error:
            told = self.monitor.missed(error.message, at_s)
            self.missed += 1
        if self.readings == 1 and self.monitor.uncounted:
            told.append("this server counts no rounds and tells an average of its own: only accept_len_one can be judged")
        for text in told:
            self.view.tell(text)
        self.publish()
        if self.asked.json_lines:
            self.line(interval_record(self.monitor, told, time.time()))
        self.view.show(self.monitor)

    def publish(self) -> None:
        """Bring the page and the file up to date. A full disk is told and does not end a watch."""
        self.text = text_of(self.monitor, self.server.url, time.time())
        if self.asked.textfile is not None:
            try:
                atomic_write_text(self.asked.textfile, self.text)
            except EnvironmentFailed as error:
                self.view.tell(error.message)

    def line(self, record: dict[str, Any]) -> None:
        """One JSON line on stdout, as it comes: the answer of a command is printed at its end."""
        assert sys.__stdout__ is not None
        sys.__stdout__.write(json.dumps(record) + "\n")
        sys.__stdout__.flush()

    def run(self) -> str:
        """Read until told to stop, or `for_s` is over; returns why it ended."""
        every, last_s = self.asked.settings.interval_s, self.asked.for_s
        self.begun_s = time.monotonic()
        try:
            while True:
                self.step()
                now_s = time.monotonic() - self.begun_s
                due_s = (math.floor(now_s / every) + 1) * every
                if last_s is not None and due_s > last_s + every / 2:
                    return "time is over"
                time.sleep(due_s - now_s)
        except KeyboardInterrupt:
            return "interrupted"
        except BrokenPipeError:  # whoever read the lines is gone; Python would complain once more at its end
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
            return "nobody reads the lines"
        finally:
            self.view.clear()

    # --- the end ---

    def summary(self, ended: str, seconds: float | None) -> dict[str, Any]:
        monitor = self.monitor
        total, expected = monitor.meter.total, monitor.expected
        bounded = self.asked.once or self.asked.for_s is not None
        too_few = bounded and total.rounds < MIN_ROUNDS and not monitor.uncounted
        code = ALARMED if monitor.alarms.fired else TOO_FEW if too_few else 0
        alarms = {name: asdict(monitor.alarms.state[name]) for name in monitor.alarms.fired}
        for alarm in alarms.values():
            alarm["since_s"] -= self.begun_s
        return {
            "kind": "summary",
            "url": self.server.url,
            "model": self.server.model,
            "engine": self.engine,
            "depth": monitor.depth,
            "ended": ended,
            "seconds": seconds,
            "readings": self.readings,
            "missed": self.missed,
            "restarts": monitor.meter.restarts,
            "looks": monitor.looks,
            "expected": None if expected is None else asdict(expected),
            "total": as_dict(total),
            "window": window_record(monitor),
            "alarms": alarms,
            "notes": self.notes,
            "exit_code": code,
        }


def watch(asked: Asked, talk: Talk) -> tuple[Any, str, int]:
    """(document, text, exit code): 0 without an alarm, 4 when one went on, 3 when a bounded watch saw too few rounds.

    With JSON lines the summary is the last line, and the document None.
    """
    if asked.once:
        return once(asked, talk)
    watching = Watch(asked, talk)
    try:
        watching.introduce()
        ended = watching.run()
    finally:
        if watching.page is not None:
            watching.page.close()
    document = watching.summary(ended, time.monotonic() - watching.begun_s)
    if asked.json_lines and ended != "nobody reads the lines":
        watching.line(document)
    return None, in_words(document, watching.monitor.meter.total), document["exit_code"]


def once(asked: Asked, talk: Talk) -> tuple[Any, str, int]:
    """All that the server has counted since its start, judged as one look."""
    watching = Watch(asked, talk)
    watching.introduce()
    for text in watching.monitor.once(watching.counts()):
        watching.view.tell(text)
    watching.readings = 1
    watching.publish()
    document = watching.summary("once", None)
    few = f"\nfewer than {MIN_ROUNDS} rounds: nothing was judged" if document["exit_code"] == TOO_FEW else ""
    return document, f"since the server's start: {status_line(watching.monitor)}{few}", document["exit_code"]


def in_words(document: dict[str, Any], total: Span) -> str:
    """The last lines for people."""
    lines = [f"{document['ended']} after {clock(document['seconds'])}: {total.rounds:,} rounds, {total.tokens:,} tokens"]
    if total.rounds:
        lines[0] += f", accept_len {total.accept_len:.2f}"
    if document["missed"] or document["restarts"]:
        lines.append(f"{document['missed']} readings failed, {document['restarts']} restarts of the server")
    for name, alarm in document["alarms"].items():
        lines.append(f"alarm {name}, {'still on' if alarm['on'] else 'over'}: {alarm['said']}")
    few = document["exit_code"] == TOO_FEW
    last = f"fewer than {MIN_ROUNDS} rounds: nothing was judged" if few else "no alarm"
    return "\n".join(lines if document["alarms"] else [*lines, last])
