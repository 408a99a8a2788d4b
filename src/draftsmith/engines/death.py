"""Why an engine is gone, or about to go: what its log says, and which of its processes ended first."""

from __future__ import annotations

import signal

from draftsmith.engines.process import Ended
from draftsmith.engines.protocol import Engine
from draftsmith.engines.rootcause import UNTOLD

KILLED = "killed from outside, perhaps for lack of memory: lower the cache size or stop other work"
CRASHED = "it crashed in native code; a backend or driver that does not fit is the usual reason"


def why(engine: Engine, log_text: str, lost: Ended | None, status: int | None) -> tuple[str, str]:
    """(cause, hint). `status`: exit status of the engine itself, 128 + N for signal N; None while it still stands.

    The log's cause comes first: an engine often kills its own processes after one of them has said why. Where it says nothing, what counts
    is how the first of its processes ended.
    """
    cause, hint = engine.explain_death(log_text)
    told = hint != UNTOLD
    if lost is not None and (not told or status is None):
        return f"{lost}; {cause}" if told else str(lost), hint if told else hint_of(lost)
    if not told and status == 128 + signal.SIGKILL:
        return cause, KILLED
    return cause, hint


def hint_of(lost: Ended) -> str:
    """What a process's end alone tells."""
    if lost.status in (-signal.SIGKILL, -signal.SIGTERM, None):
        return KILLED
    return CRASHED if lost.status < 0 else UNTOLD
