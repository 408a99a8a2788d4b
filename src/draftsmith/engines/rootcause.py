"""Finding, in the log of a dead engine, the one line that says why it died.

Known ways to die are data: `causes.yaml`, one table per engine and one for all. Everything else is read off the tracebacks: the first
exception that is not a mere report of another one. An exception without words (a bare assert) gets its source line and the flags in it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).with_name("causes.yaml")
UNTOLD = "see the log"  # the hint when the log names no cause
LONGEST = 500  # characters of a cause line that are shown


@dataclass(frozen=True)
class Cause:
    """A known way to die: what kind, a pattern that the cause line matches, and what to change (its {names} are the pattern's groups)."""

    kind: str
    pattern: re.Pattern[str]
    hint: str
    last: bool = False  # only when no exception tells more
    fatal: bool = False  # a start cannot succeed after it, although the engine may go on


@dataclass(frozen=True)
class Line:
    """One line of a log without its prefix. `quiet`: the engine logged it as information or a warning, so it killed nobody."""

    text: str
    quiet: bool


@cache
def causes(engine: str) -> tuple[Cause, ...]:
    """The engine's own causes, then those of all engines."""
    rows = rows_of(engine, "causes")
    return tuple(
        Cause(row["kind"], re.compile(row["pattern"]), row["hint"], row.get("last", False), row.get("fatal", False)) for row in rows
    )


@cache
def patterns(engine: str, part: str) -> tuple[re.Pattern[str], ...]:
    """`wrappers`: exceptions that only say that another process failed. `harmless`: lines that are no death."""
    return tuple(re.compile(pattern) for pattern in rows_of(engine, part))


def is_fatal(log_line: str, engine: str) -> bool:
    """Is the start lost, whatever the engine still does?"""
    return any(cause.pattern.search(log_line) for cause in causes(engine) if cause.fatal)


def rows_of(engine: str, part: str) -> list[Any]:
    """One part of the engine's table, and the same of all engines."""
    tables = yaml.safe_load(TABLE.read_text())
    return [*tables.get(engine, {}).get(part, []), *tables["common"][part]]


# what engines print in front of a log line: "(EngineCore pid=12) ERROR 11-29 15:11:20 [core.py:1] ", "[2026-11-29 15:11:20 TP0] "
PREFIX = re.compile(
    r"^(?:\([^)]*pid=\d+\) ?)*"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+\d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?|(?P<web>INFO|WARNING|ERROR): +)?"
    r"(?:\[\d{4}-\d\d-\d\d [^\]]*\] ?(?:(?P<web2>INFO|WARNING|ERROR): +)?)?"
)
EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception|Interrupt|Exit|Failure)\b(?::.*)?$")
INLINE = re.compile(r"^(?:Scheduler hit an exception|Initialization failed\. warmup error): (Traceback .*)$")
FRAME = re.compile(r'^\s+File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
CODE = re.compile(r'^(\t|   |  File ")')  # two spaces alone begin a message that belongs to the exception above
HANDLING = "During handling of the above exception, another exception occurred:"
# failed look-ups, which their handlers turn into an exception that says more
LOOKUPS = re.compile(
    r"^(?:[\w.]+\.)?(?:KeyError|IndexError|AttributeError|StopIteration|[A-Z]\w*(?:NotFound|HTTP|Connection|Offline\w*)Error)\b"
)
# exceptions that mean nothing without the place they come from
WORDLESS = re.compile(
    r"^(?:[\w.]+\.)?(?:[A-Z]\w*(?:Error|Exception):?$|(?:KeyError|IndexError)\b|(?:TypeError|AttributeError): .*NoneType)"
)
ARGUMENTS = {"self", "args", "server_args", "engine_args"}  # objects whose attributes are flags


def read_lines(log_text: str) -> list[Line]:
    """The lines of a log; a progress bar's rewritten line counts as several."""
    found = []
    for line in re.split(r"[\r\n]", log_text):
        match = PREFIX.match(line)
        assert match is not None
        level = match["level"] or match["web"] or match["web2"]
        text = INLINE.sub(r"\1", line[match.end() :].rstrip())
        found.append(Line(text, level in ("DEBUG", "INFO", "WARNING")))
    return found


def find_cause(log_text: str, engine: str) -> tuple[str, str]:
    """(root-cause line, hint) by the tables of one engine.

    A known cause wins; otherwise the first exception that is neither a wrapper nor a look-up that its handler explains better; otherwise
    the last line that says something. The first exception is the root: later ones report it upwards.
    """
    lines = read_lines(log_text)
    if found := known_cause(lines, engine, last=False):
        return found
    said = [number for number, line in enumerate(lines) if line.text.strip() and not is_wrapper(line.text, engine)]
    thrown = [number for number in said if EXCEPTION.match(lines[number].text)]
    roots = [number for number in thrown if not (LOOKUPS.match(lines[number].text) and is_handled(lines, number, thrown))]
    for number in roots:
        return shown(lines, number), flags_hint(lines, number) or "see the log for the whole traceback"
    if found := known_cause(lines, engine, last=True):
        return found
    spoken = [number for number in said if not CODE.match(lines[number].text)]
    return (lines[spoken[-1]].text.strip()[:LONGEST] if spoken else "the log is empty"), UNTOLD


def known_cause(lines: Sequence[Line], engine: str, last: bool) -> tuple[str, str] | None:
    """The first cause of the tables that a line of the log shows."""
    harmless = patterns(engine, "harmless")
    for cause in causes(engine):
        for number, line in enumerate(lines) if cause.last == last else ():
            match = None if line.quiet or CODE.match(line.text) else cause.pattern.search(line.text)
            if match and not any(pattern.search(line.text) for pattern in harmless):
                groups = {name: value or "" for name, value in match.groupdict().items()}
                return groups.get("cause") or shown(lines, number), cause.hint.format(**groups)
    return None


def is_wrapper(text: str, engine: str) -> bool:
    return any(pattern.search(text) for pattern in patterns(engine, "wrappers"))


def is_handled(lines: Sequence[Line], number: int, thrown: Sequence[int]) -> bool:
    """Was another exception, which is not a wrapper, raised while this one was handled?"""
    after = (line.text.strip() for line in lines[number + 1 : number + 4])
    return HANDLING in after and thrown[-1] > number


def shown(lines: Sequence[Line], number: int) -> str:
    """The line with what its neighbours add: a validation error's message, the source of an exception without words."""
    text = lines[number].text.strip()
    if "ValidationError" in text:
        details = (line.text.strip() for line in lines[number + 1 : number + 6])
        starts = ("Value error", "Input should", "Assertion failed", "Field required", "Unexpected keyword", "Extra inputs")
        detail = next((detail for detail in details if detail.startswith(starts)), "")
        where = lines[number + 1].text.strip() if detail and lines[number + 1].text.strip() != detail else ""
        text = f"{text} {where + ': ' if where else ''}{detail.split(' [type=')[0]}".strip()
    elif WORDLESS.match(text) and (frame := frame_before(lines, number)):
        path, line, source = frame
        text = f"{text.rstrip(':')} at {Path(path).name}:{line}: {source}"
    return text[:LONGEST]


def flags_hint(lines: Sequence[Line], number: int) -> str:
    """For an exception without words: the flags that its source line reads."""
    if not WORDLESS.match(lines[number].text.strip()):
        return ""
    frame = frame_before(lines, number)
    flags = list(dict.fromkeys(flags_in(frame[2]))) if frame else []
    return f"the flags behind it: {', '.join(flags)}" if flags else ""


def frame_before(lines: Sequence[Line], number: int) -> tuple[str, int, str] | None:
    """(file, line, source) of the innermost frame above an exception line. The source is the file's own statement where it can be read."""
    for above in range(number - 1, -1, -1):
        text = lines[above].text
        if match := FRAME.match(text):
            printed = " ".join(line.text.strip() for line in lines[above + 1 : number] if not re.fullmatch(r"[\s~^|]*", line.text))
            path, line = match["path"], int(match["line"])
            return path, line, statement_at(Path(path), line) or printed
        if not text.startswith((" ", "\t")) and text.strip():
            return None
    return None


def statement_at(path: Path, line: int) -> str:
    """The innermost statement of a Python file that covers a line, on one line; "" when the file cannot be read."""
    try:
        text = path.read_text()
        tree = ast.parse(text)
    except (OSError, UnicodeDecodeError, SyntaxError):
        return ""
    covering = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)]
    if not covering:
        return ""
    node = min(covering, key=lambda node: (node.end_lineno or node.lineno) - node.lineno)
    if isinstance(node, ast.If | ast.While):  # the condition, not the whole block
        return f"{'if' if isinstance(node, ast.If) else 'while'} {ast.unparse(node.test)}:"
    return ast.unparse(node)


def flags_in(source: str) -> Iterator[str]:
    """`self.speculative_num_steps is None` -> --speculative-num-steps."""
    for owner, name in re.findall(r"\b(\w+)\.([a-z][a-z0-9_]+)\b(?!\()", source):
        if owner in ARGUMENTS:
            yield f"--{name.replace('_', '-')}"
