"""Many questions to one imported engine: each is answered in a forked child, so that none sees what another left behind."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Any

Case = dict[str, Any]
Answer = dict[str, Any]
CHANGES = re.compile(
    r"specul|draft|eagle|overlap|attention backend|page.size|max.running|mixed|chunk|quantiz|disabl|overwrit|overrid|deprecat|graph|runner",
    re.I,
)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Talk(logging.Handler):
    """Log messages of the engine that say what was changed: warnings, and lines that name something that speculation touches."""

    def __init__(self, engine: str) -> None:
        super().__init__(logging.INFO)
        self.engine, self.lines = engine, list[str]()
        for name in (None, engine):
            logger = logging.getLogger(name)
            logger.addHandler(self)
            logger.setLevel(min(logger.level or logging.INFO, logging.INFO))

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith((self.engine, "root")):
            return
        text = COLOUR.sub("", record.getMessage()).strip()
        if text not in self.lines and (record.levelno >= logging.WARNING or CHANGES.search(text)):
            self.lines.append(text)


class Kept:
    """Holds what a block raised, whatever it was, where others would catch it: this is a judge of somebody else's code."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.trace = ""

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is not None:
            self.error, self.trace = error, "".join(traceback.format_exception(error))
        return True


def solved(solve: Callable[[Case], Answer], case: Case, engine: str, output: IO[str]) -> Answer:
    """{"effective"} or {"error"}, and what the engine said meanwhile."""
    talk, kept = Talk(engine), Kept()
    answer: Answer = {}
    with kept:
        answer = {"effective": solve(case)}
    if kept.error is not None:
        message = str(kept.error).strip()
        if isinstance(kept.error, SystemExit):  # argparse says why on stderr, and exits with a number
            sys.stderr.flush()
            output.seek(0)
            message = (re.findall(r"error: (.*)", output.read()) or [message])[-1]
        answer = {"error": {"type": type(kept.error).__name__, "message": message}, "trace": kept.trace}
    return {**answer, "said": talk.lines}


def in_a_child(solve: Callable[[Case], Answer], case: Case, engine: str, limit_s: int) -> Answer:
    """Fork, solve there, and read the answer from a pipe. A child that dies or takes too long is an answer too."""
    read_end, write_end = os.pipe()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(limit_s)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                with os.fdopen(write_end, "w") as pipe:
                    json.dump(solved(solve, case, engine, output), pipe, default=str)
            finally:
                os._exit(0)  # whatever happened: the child must not go on with its parent's work
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        if text:
            return json.loads(text)
        output.seek(0)
        last = output.read().strip().splitlines()[-1:]
    name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit status {os.waitstatus_to_exitcode(status)}"
    return {"error": {"type": "Died", "message": f"{name}: {' '.join(last)}".strip()}, "said": []}


def plain(value: Any) -> Any:
    """As JSON can hold it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, bool | int | float | str) for item in value):
        return list(value)
    return str(value)


def options(parser: argparse.ArgumentParser) -> dict[str, bool | str]:
    """Every option string, and what follows it: False nothing, True one value, "optional" or "many"."""
    kinds: dict[Any, bool | str] = {0: False, None: True, "?": "optional", "*": "many", "+": "many"}
    return {name: kinds.get(action.nargs, "many") for action in parser._actions for name in action.option_strings}


def answer_all(solve: Callable[[Case], Answer], engine: str, tools: Callable[[], dict[str, Any]], limit_s: int = 120) -> None:
    """The whole script: argv[1] holds {"cases": [...]}, the answers go to argv[2], with what `tools` says of the engine."""
    with open(sys.argv[1]) as file:
        cases: Sequence[Case] = json.load(file)["cases"]
    answers = [in_a_child(solve, case, engine, limit_s) for case in cases]
    with open(sys.argv[2], "w") as file:
        json.dump({**tools(), "answers": answers}, file)
