"""What a running experiment shows: on a terminal a block of lines that is drawn in place, elsewhere plain lines now and then.

The block is there only while requests run; it is wiped before anything else is said, so it never gets between other lines.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from draftsmith.job import Talk, clock

REDRAW_S = 0.2


def on_terminal(stream: TextIO) -> bool:
    """Can lines be drawn again?"""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Live:
    """Where an experiment is, and what it has found so far.

    total_launches: the most there will be. unit: what they are called. intervals: label of a cell -> text, as the last look left it.
    """

    def __init__(self, talk: Talk, total_launches: int, stream: TextIO | None = None, unit: str = "launch") -> None:
        self.talk = talk
        self.unit = unit
        self.total = total_launches
        self.stream = stream or sys.stderr
        self.drawn = 0  # lines of the block on the screen
        self.last_s = 0.0
        self.where = ""
        self.intervals: dict[str, str] = {}
        self.name = ""
        self.canaries: dict[str, list[float]] = {}  # of the launches of each name: arms have speeds of their own
        self.launch_s: list[float] = []
        self.begun_s = time.monotonic()
        self.number = 0

    @property
    def in_place(self) -> bool:
        return not self.talk.quiet and on_terminal(self.stream)

    # --- what the experiment tells ---

    def launch(self, number: int, name: str, pair: int) -> None:
        """Launch `number` (from 0) begins to be measured."""
        self.number, self.name, self.begun_s = number, name, time.monotonic()
        pair_text = f", pair {pair + 1}" if pair >= 0 else ""  # launches of the noise floor are called so
        self.where = f"{self.unit} {number + 1} of {self.total}, {name}{pair_text}"

    def progress(self, phase: str, label: str, done: int, total: int) -> None:
        """`done` of `total` requests of a phase have ended."""
        now = time.monotonic()
        if self.talk.quiet or (now - self.last_s < REDRAW_S and 0 < done < total):
            return
        self.last_s = now
        if self.in_place:
            self.draw(self.block(phase, label, done, total))
        elif phase == "cell":
            self.talk.progress(f"{self.where}, {label}", done, total, self.begun_s, f"{done} of {total} requests")

    def launch_done(self, text: str, canary_tok_s: float | None, took_s: float) -> None:
        """A launch has ended; took_s: with its start."""
        self.clear()
        if canary_tok_s:
            self.canaries.setdefault(self.name, []).append(canary_tok_s)
        self.launch_s.append(took_s)
        self.talk.say(f"{self.unit} {self.number + 1} of {self.total}, {text}")

    def found(self, intervals: Mapping[str, str], note: str = "") -> None:
        """The intervals after a pair, by cell; said once, and kept on the block."""
        self.intervals = dict(intervals)
        if intervals:
            self.talk.say(f"so far: {'; '.join(f'{label} {text}' for label, text in intervals.items())}{f' ({note})' if note else ''}")

    # --- drawing ---

    def left_s(self) -> float | None:
        """Seconds until the last planned launch has ended, at the pace so far; None before the first has ended."""
        if not self.launch_s:
            return None
        mean = sum(self.launch_s) / len(self.launch_s)
        return max(0.0, (self.total - self.number) * mean - (time.monotonic() - self.begun_s))

    def block(self, phase: str, label: str, done: int, total: int) -> list[str]:
        """The lines of the block."""
        left = self.left_s()
        eta = f", at most {clock(left)} left" if left is not None else ""
        what = label if phase == "cell" else phase
        lines = [f"{strong(self.where)}: {what} {done}/{total}{eta}"]
        lines += [f"  {label:12} {text}" for label, text in self.intervals.items()]
        lines += [f"  canary {name}: {rates[-1]:.1f} tok/s, first {self.unit} {rates[0]:.1f}" for name, rates in self.canaries.items()]
        return lines

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the block. Lines are cut to the terminal's width, so that a line is one row."""
        width = shutil.get_terminal_size().columns
        self.clear()
        for line in lines:
            self.stream.write(fit(line, width) + "\n")
        self.drawn = len(lines)
        self.stream.flush()

    def clear(self) -> None:
        """Take the block off the screen."""
        if self.drawn:
            self.stream.write(f"\x1b[{self.drawn}A\x1b[J")
            self.stream.flush()
            self.drawn = 0


def strong(text: str) -> str:
    """Bold, unless NO_COLOR asks for plain text."""
    return text if os.environ.get("NO_COLOR") else f"\x1b[1m{text}\x1b[0m"


def fit(line: str, width: int) -> str:
    """Cut to `width` - 1 visible characters; escape sequences have no width, and a bold start is closed again."""
    visible, i, out = 0, 0, ""
    while i < len(line) and visible < width - 1:
        if line[i] == "\x1b":
            end = line.index("m", i) + 1
            out += line[i:end]
            i = end
            continue
        out += line[i]
        visible, i = visible + 1, i + 1
    return out + ("\x1b[0m" if i < len(line) and "\x1b[" in out else "")
