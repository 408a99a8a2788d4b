"""Finding, in the log of a dead engine, the one line that says why it died."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A known way to die: a pattern that the cause line matches, and what to change."""

    pattern: str
    hint: str


# causes that do not depend on the engine; an engine puts its own before these
COMMON = (
    Cause(
        r"unrecognized arguments: .*|error: argument .*",
        "fix the flag in engine.flags; `draftsmith engine probe NAME` lists the speculative ones",
    ),
    Cause(
        r"Address already in use", "another process took the port between check and start: run the command again, or choose another port"
    ),
    Cause(r"No space left on device", "free some disk space"),
    Cause(r"CUDA out of memory|OutOfMemoryError.*", "lower the engine's memory fraction, max-model-len or max-num-seqs"),
    Cause(r"MemoryError|Cannot allocate memory", "free some memory, or lower the engine's cache size"),
    Cause(r"No module named .*", "the environment is incomplete: `draftsmith engine remove NAME`, then `draftsmith engine add NAME`"),
)

# what engines print in front of a log line: "(EngineCore pid=12) ERROR 11-29 15:11:20 [core.py:1] "
PREFIX = re.compile(
    r"^(\([^)]*pid=\d+\)\s*)*((ERROR|WARNING|INFO|CRITICAL)\s+\d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]\s?)?(\[\d{4}-\d\d-\d\d [^\]]*\]\s?)?"
)
EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*)?(?:Error|Exception|Interrupt|Exit|Failure)\b(?::.*)?$")


def plain_lines(log_text: str) -> list[str]:
    """Log lines without process and level prefixes."""
    return [PREFIX.sub("", line).rstrip() for line in log_text.splitlines()]


def find_cause(log_text: str, known: Sequence[Cause], wrappers: Sequence[str]) -> tuple[str, str]:
    """(root-cause line, hint).

    A known cause wins; otherwise the first exception line that is not one of the `wrappers` (exceptions that only say that another
    process failed); otherwise the last line that says something. The first exception is the root: later ones report it upwards.
    """
    lines = plain_lines(log_text)
    for cause in known:
        pattern = re.compile(cause.pattern)
        for line in lines:
            if pattern.search(line) and not line.startswith((" ", "\t")):
                return line.strip(), cause.hint
    for number, line in enumerate(lines):
        if EXCEPTION.match(line) and not any(re.search(wrapper, line) for wrapper in wrappers):
            return with_detail(lines, number), "see the log for the whole traceback"
    spoken = [line.strip() for line in lines if line.strip() and not any(re.search(wrapper, line) for wrapper in wrappers)]
    return (spoken[-1] if spoken else "the log is empty"), "see the log"


def with_detail(lines: Sequence[str], number: int) -> str:
    """A pydantic ValidationError carries its message on the next lines: join the first of them that says what is wrong."""
    line = lines[number].strip()
    if "ValidationError" in line:
        details = (later.strip() for later in lines[number + 1 : number + 6])
        detail = next(
            (text for text in details if text.startswith(("Value error", "Input should", "Assertion failed", "Field required"))), ""
        )
        line = f"{line} {detail.split(' [type=')[0]}".strip()
    return line
