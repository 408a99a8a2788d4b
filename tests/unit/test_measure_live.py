"""The live view: in place on a terminal, plain lines elsewhere, nothing when quiet, no colour where none is wanted."""

import io
import re

import pytest

from draftsmith.job import Talk
from draftsmith.measure.live import Live, fit


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)


def screen(text: str) -> list[str]:
    """What a terminal shows in the end: understands newline, cursor up and erase below."""
    lines, row = [""], 0
    for token in re.split(r"(\n|\x1b\[\d*[A-Za-z])", text):
        if token == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif match := re.fullmatch(r"\x1b\[(\d*)([A-Za-z])", token):
            if match[2] == "A":
                row -= int(match[1])
            elif match[2] == "J":
                lines[row:] = [""]
        else:
            lines[row] += token
    return [line for line in lines if line]


def run(stream: io.StringIO, quiet: bool = False) -> Live:
    live = Live(Talk(quiet=quiet), 6, stream)
    live.launch(2, "speculative", 1)
    live.intervals = {"C=1": "1.43x (95 % interval 1.38-1.48, 2 pairs)"}
    live.canaries, live.launch_s = {"baseline": [32.0, 31.0]}, [10.0, 10.0]
    for done in range(4):
        live.last_s = 0.0
        live.progress("cell", "C=1", done, 3)
    return live


def test_a_terminal_shows_one_block() -> None:
    stream = Terminal()
    live = run(stream)
    first, interval, canary = screen(stream.getvalue())
    assert first.startswith("launch 3 of 6, speculative, pair 2: C=1 3/3, at most 00:") and first.endswith(" left")
    assert interval.split() == ["C=1", *["1.43x", "(95", "%", "interval", "1.38-1.48,", "2", "pairs)"]]
    assert canary == "  canary baseline: 31.0 tok/s, first launch 32.0"
    live.clear()
    assert screen(stream.getvalue()) == []


def test_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    run(stream)
    assert "\x1b[1m" in stream.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    run(stream)
    assert "\x1b[1m" not in stream.getvalue()


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_elsewhere_plain_lines(term: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", term)
    stream = Terminal() if term == "dumb" else io.StringIO()
    live = run(stream)
    live.launch_done("speculative: 40.0 tok/s at C=1", 31.0, 12.0)
    live.found({"C=1": "1.43x"}, "look 2")
    assert stream.getvalue() == ""
    told = capsys.readouterr().err
    assert "launch 3 of 6, speculative: 40.0 tok/s at C=1" in told and "so far: C=1 1.43x (look 2)" in told
    assert "\x1b" not in told


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Terminal()
    live = run(stream, quiet=True)
    live.launch_done("done", 31.0, 12.0)
    assert stream.getvalue() == "" and capsys.readouterr().err == ""


def test_lines_are_cut_to_the_width() -> None:
    assert fit("abcdef", 4) == "abc"
    assert fit("\x1b[1mabcdef\x1b[0m", 4) == "\x1b[1mabc\x1b[0m"
    assert fit("ab", 10) == "ab"
