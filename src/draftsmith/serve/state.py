"""How a server is: looked up in its record, in /proc, on /health, in its log, and with systemd where a unit runs it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftsmith.engines.death import why
from draftsmith.engines.process import Ended, lost_worker, resident_pages, tree
from draftsmith.engines.protocol import Engine
from draftsmith.engines.readback import changed_settings, changed_variables
from draftsmith.engines.registry import ENGINES
from draftsmith.engines.secrets import MASK
from draftsmith.engines.server import tail
from draftsmith.engines.startup import Startup, title
from draftsmith.errors import EnvironmentFailed
from draftsmith.serve import systemd
from draftsmith.serve.http import answer, fetch
from draftsmith.serve.records import Record

HEALTH_TIMEOUT_S = 5.0


def status(record: Record) -> dict[str, Any]:
    """How a server is: state healthy, changed, starting, unhealthy, failing, died or stopped, with what speaks for it."""

    def look() -> None:
        """A server that has lost a process may hold the connection open and never answer."""
        if lost_of(record):
            raise ConnectionError

    answered = answer(f"{record.url}/health", HEALTH_TIMEOUT_S, look)
    service = systemd.show(record.unit, record.user_unit) if record.unit else None
    alive = record.alive() if service is None else systemd.runs(service)
    found: dict[str, Any] = {
        "name": record.name,
        "state": "",
        "url": record.url,
        "engine": record.engine,
        "arm": record.arm,
        "recipe": record.recipe,
        "health": answered or "no answer",
        "log": record.log,
        "ready_s": record.ready_s,
        "planned": record.planned,
        "effective": record.effective,
    }
    if service is not None:
        invocation = str(service.get("InvocationID") or "")
        found |= {"systemd": service, "journal": systemd.journal(str(record.unit), record.user_unit, invocation)}
    pids = tree(record.pid or (service or {}).get("MainPID") or 0) if alive else []
    lost = lost_of(record)
    if alive and lost is not None:
        found |= failing(record, found, lost)
    elif alive and answered == 200:
        try:
            found["changed"] = changed(record, log_text(record, found), pids)
            found["state"] = "changed" if found["changed"] else "healthy"
        except EnvironmentFailed as error:  # it is just going away
            found |= {"state": "unhealthy", "health": error.message, "phase": phase(record, found)}
    elif alive:
        ready = record.ready_s is not None or (service or {}).get("ActiveState") == "active"
        found |= {"state": "unhealthy" if ready else "starting", "phase": phase(record, found)}
    else:
        found |= ended(record, found)
    if pids:
        page = os.sysconf("SC_PAGE_SIZE")
        found["rss_bytes"] = sum(page * resident_pages(pid) for pid in pids)
        found["processes"] = [{"pid": pid, "title": title(pid)} for pid in pids]
    return found


def changed(record: Record, log: str, pids: Sequence[int]) -> list[str]:
    """What holds otherwise in the running server than it was planned: settings by its pages and log, variables by its processes."""
    engine = engine_of(record)
    answers = {path: fetch(f"{record.url}{path}", timeout_s=HEALTH_TIMEOUT_S) for path in engine.info_pages}
    pages = {path: text for path, (code, text) in answers.items() if code == 200}
    open_variables = {name: value for name, value in record.env.items() if value != MASK}
    return changed_settings(record.planned, engine.effective(log, pages)) + changed_variables(open_variables, pids, engine.name)


def log_text(record: Record, found: Mapping[str, Any]) -> str:
    """The end of the server's output, from its log file or from the journal."""
    if record.unit:
        return "\n".join(found.get("journal", []))
    return tail(Path(record.log)) if Path(record.log).exists() else ""


def phase(record: Record, found: Mapping[str, Any]) -> str:
    """How far the start has come."""
    startup = Startup(engine_of(record).name, Path(record.log))
    for line in log_text(record, found).splitlines():
        startup.read(line)
    return str(startup)


def ended(record: Record, found: Mapping[str, Any]) -> dict[str, Any]:
    """Why a server is not there any more."""
    service = found.get("systemd") if record.unit else None
    if service is not None and systemd.stopped(service):
        return {"state": "stopped"}
    left = Path(f"{record.log}.exit")
    word, _, code = left.read_text().strip().partition(" ") if service is None and left.exists() else ("", "", "")
    if word == "stopped":
        return {"state": "stopped"}
    status, lost = systemd.exit_status(service) if service is not None else int(code) if code else None, lost_of(record)
    cause, hint = why(engine_of(record), log_text(record, found), lost, 1 if status is None else status)
    first = {"first_to_end": str(lost)} if lost else {}
    return {"state": "died", "exit_status": status, "cause": cause, "hint": hint, **first}


def lost_of(record: Record) -> Ended | None:
    """The first process of a server that failed, while the engine above it may still stand. A unit has no supervisor of ours to see it."""
    return None if record.unit else lost_worker(Path(record.log), engine_of(record).workers)


def failing(record: Record, found: Mapping[str, Any], lost: Ended) -> dict[str, Any]:
    """An engine that still stands and cannot serve: it has lost a process, and will follow it."""
    cause, hint = why(engine_of(record), log_text(record, found), lost, None)
    return {"state": "failing", "cause": cause, "hint": hint, "first_to_end": str(lost), "exit_status": None}


def engine_of(record: Record) -> Engine:
    return ENGINES[record.engine.partition("==")[0]]()
