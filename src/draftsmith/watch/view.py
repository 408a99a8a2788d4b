"""A watch for people and for programs: one line in place on a terminal, now and then a plain line elsewhere, JSON lines on stdout."""

from __future__ import annotations

import math
import sys
import time
from datetime import UTC, datetime
from typing import Any, TextIO

from draftsmith.job import Talk
from draftsmith.measure.live import fit, on_terminal, strong
from draftsmith.watch.counting import Span
from draftsmith.watch.monitor import Monitor

PLAIN_EVERY_S = 60.0


def status_line(monitor: Monitor) -> str:
    """accept_len with its interval, what is expected, shares by position, speed, alarms."""
    window = monitor.window
    if not monitor.up:
        return "no reading"
    if window.rounds:
        value, low, high = monitor.interval()
        parts = [f"accept_len {value:.2f} ({low:.2f}-{high:.2f})"]
    elif monitor.uncounted:
        parts = [f"accept_len {monitor.told_accept_len:.2f} as the server tells it, not counted"]
    else:
        parts = ["no rounds"]
    if monitor.expected is not None:
        parts[0] += f", expected {monitor.expected.accept_len:.2f}"
    if window.survival:
        parts.append("by draft " + " ".join(f"{100 * share:.0f}" for share in window.survival) + " %")
    parts.append(f"{window.rounds:,} rounds")
    if window.seconds:
        parts.append(f"{window.tok_s:.1f} tok/s")
    if monitor.running is not None:
        parts.append(f"{monitor.running:.0f} running")
    parts.append(f"ALARM {', '.join(monitor.alarms.on)}" if monitor.alarms.on else "no alarm")
    return " | ".join(parts)


class View:
    """Where lines go: what happened stays, how it is now is drawn in place on a terminal and said once a minute elsewhere."""

    def __init__(self, talk: Talk, stream: TextIO | None = None) -> None:
        self.talk, self.stream = talk, stream or sys.stderr
        self.open = False
        self.last_s = -math.inf

    def tell(self, text: str) -> None:
        """Something that happened."""
        self.clear()
        self.talk.say(text)

    def show(self, monitor: Monitor) -> None:
        """How it is now."""
        if self.talk.quiet:
            return
        if on_terminal(self.stream):
            text = status_line(monitor)
            self.clear()
            self.stream.write(fit(strong(text) if monitor.alarms.on else text, columns()))
            self.stream.flush()
            self.open = True
        elif time.monotonic() - self.last_s >= PLAIN_EVERY_S:
            self.last_s = time.monotonic()
            self.talk.say(status_line(monitor))

    def clear(self) -> None:
        """Take the line off the terminal."""
        if self.open:
            self.stream.write("\r\x1b[2K")
            self.open = False


def columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns


# --- for programs ----------------------------------------------------------------------------------------------------


def known(value: float) -> float | None:
    return None if math.isnan(value) else value


def as_dict(span: Span) -> dict[str, Any]:
    """Counts and what follows from them; absent is null."""
    return {
        "seconds": span.seconds,
        "rounds": span.rounds,
        "drafted": span.drafted,
        "accepted": span.accepted,
        "reached": list(span.reached) or None,
        "accept_len": known(span.accept_len),
        "survival": list(span.survival) or None,
        "tokens": span.tokens,
        "tok_s": span.tok_s if span.seconds else None,
    }


def interval_record(monitor: Monitor, told: list[str], now_unix_s: float) -> dict[str, Any]:
    """One line of --json."""
    return {
        "kind": "interval",
        "time": datetime.fromtimestamp(now_unix_s, UTC).isoformat(timespec="milliseconds"),
        "up": monitor.up,
        "interval": None if monitor.last is None else as_dict(monitor.last),
        "window": window_record(monitor),
        "requests_running": monitor.running,
        "server_accept_len": monitor.told_accept_len,
        "alarms": monitor.alarms.on,
        "events": told,
    }


def window_record(monitor: Monitor) -> dict[str, Any]:
    _, low, high = monitor.interval()
    effect = monitor.dispersion.effect(monitor.window, monitor.running or 0.0)
    return as_dict(monitor.window) | {"low": known(low), "high": known(high), "design_effect": effect}
