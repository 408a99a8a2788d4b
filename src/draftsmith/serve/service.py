"""serve start, status, logs, stop: engines that outlive the command that started them, each under a supervisor of its own.

A server is one process tree (engines/supervisor.py in its detached form) and one record (records.py). Nothing else remembers it: what
`status` says is looked up there, in /proc, on /health, in the log, and with systemd where a unit runs it.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from draftsmith.engines.death import why
from draftsmith.engines.process import GRACE_S, Ended, lost_worker, resident_pages, start_ticks, tree
from draftsmith.engines.protocol import Engine, Launch
from draftsmith.engines.readback import changed_settings, changed_variables
from draftsmith.engines.registry import ENGINES
from draftsmith.engines.secrets import MASK, exposure, masked, masked_argv
from draftsmith.engines.server import Server, tail, wait_ready
from draftsmith.engines.startup import Startup, title
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.job import Talk
from draftsmith.serve import records, systemd
from draftsmith.serve.http import answer, fetch
from draftsmith.serve.records import Record

HEALTH_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Plan:
    """What `start` is to start. `secrets`: variables that reach the engine and no record; their names are known to be secret."""

    name: str
    engine_name: str
    engine: Engine
    python: Path
    launch: Launch
    recipe: Path
    ready_timeout_s: float
    secrets: Mapping[str, str] = field(default_factory=dict)
    trace_folder: Path | None = None


# --- start -----------------------------------------------------------------------------------------------------------


def start(plan: Plan, talk: Talk, foreground: bool = False) -> Record:
    """Start a server, record it, wait until it is ready and runs as planned. In the foreground: until it ends.

    Raises UsageError when a server of that name runs or is being started, EnvironmentFailed when it dies, hangs or is late, CheckFailed
    when it runs otherwise than planned. Whatever goes wrong, Ctrl-C included, no process stays behind.
    """
    with records.only_one(plan.name):
        before = records.read(plan.name)
        if before is not None and before.alive():
            raise UsageError(
                f"server {plan.name} already runs at {before.url} (pid {before.pid})", hint=f"draftsmith serve stop {plan.name}"
            )
        log = records.log_path(plan.name)
        if log.exists():
            log.replace(log.with_suffix(".log.old"))
        mark = f"{plan.name}/{uuid.uuid4().hex}"
        launch = plan.launch.with_(env={**plan.secrets, records.MARK: mark})
        if warning := exposure(launch, {**os.environ, **launch.env}):
            talk.say(warning)
        with ExitStack() as unless_ready:
            server = Server(plan.engine, plan.python, launch, log, detached=not foreground)
            unless_ready.callback(records.forget, plan.name)
            unless_ready.callback(server.stop)
            server.label = plan.name
            record = recorded(plan, server, mark)
            talk.say(f"{plan.name}: starting at {server.url}, log {log}")
            wait_ready([server], plan.ready_timeout_s, talk)
            server.check_as_planned()
            record = record.with_(ready_s=round(server.ready_s, 2), effective=server.effective())
            records.write(record)
            talk.say(f"{plan.name}: ready after {server.ready_s:.1f} s")
            unless_ready.pop_all()
    if foreground:
        attend(server, plan.name)
    return record


def attend(server: Server, name: str) -> None:
    """Stay until the server dies (raises EnvironmentFailed) or the command is interrupted; then it is gone."""
    try:
        while True:
            server.check_alive()
            time.sleep(0.2)
    finally:
        server.stop()
        records.forget(name)


def recorded(plan: Plan, server: Server, mark: str) -> Record:
    """Write down a process that has just been started, before anything can go wrong with it."""
    pid = server.process.supervisor.pid
    public = {name: value for name, value in server.env.items() if name not in plan.secrets and name != records.MARK}
    record = Record(
        name=plan.name,
        engine=plan.engine_name,
        recipe=str(plan.recipe),
        arm=plan.launch.arm,
        url=server.url,
        log=str(server.log),
        argv=masked_argv(server.argv),
        env=masked(public) | masked(dict.fromkeys(plan.secrets, "")),
        planned=plan.engine.requested(plan.launch),
        mark=mark,
        pid=pid,
        start_ticks=start_ticks(pid),
        boot=records.boot_id(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        trace_folder=str(plan.trace_folder) if plan.trace_folder else None,
    )
    records.write(record)
    return record


# --- status ----------------------------------------------------------------------------------------------------------


def named(name: str | None) -> list[Record]:
    """The record of that name, or all. Raises UsageError for a name that nobody knows."""
    known = records.all_records()
    if name is None:
        return known
    found = [record for record in known if record.name == name]
    if not found:
        names = ", ".join(record.name for record in known) or "none"
        raise UsageError(f"no server {name!r}", hint=f"known: {names}; draftsmith serve start RECIPE")
    return found


def status(record: Record) -> dict[str, Any]:
    """How a server is: state healthy, changed, starting, unhealthy, failing, died or stopped, with what speaks for it."""

    def look() -> None:
        """A server that has lost a process may hold the connection open and never answer."""
        if lost_of(record):
            raise ConnectionError

    answered = answer(f"{record.url}/health", HEALTH_TIMEOUT_S, look)
    service = systemd.show(record.unit, record.user_unit) if record.unit else None
    alive = record.alive() if service is None else service.get("ActiveState") in ("active", "activating", "reloading")
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
        found |= {"systemd": service, "journal": systemd.journal(str(record.unit), record.user_unit)}
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
    if record.unit and (found["systemd"] or {}).get("ActiveState") in (None, "inactive"):
        return {"state": "stopped"}
    left = Path(f"{record.log}.exit")
    word, _, code = left.read_text().strip().partition(" ") if left.exists() else ("", "", "")
    if word == "stopped":
        return {"state": "stopped"}
    status, lost = int(code) if code else None, lost_of(record)
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


# --- stop ------------------------------------------------------------------------------------------------------------


def stop(name: str) -> dict[str, Any]:
    """End a server's whole tree and forget it. A server that is gone is no error; the answer says so."""
    with records.only_one(name):
        record = records.read(name)
        if record is None:
            return {"name": name, "stopped": 0, "said": f"no server {name} is known: nothing to stop"}
        if record.unit and systemd.show(record.unit, record.user_unit).get("LoadState") == "not-found":
            records.forget(name)
            return {"name": name, "stopped": 0, "said": f"{name}: the unit {record.unit} is not installed (any more); forgotten"}
        if record.unit:
            return {"name": name, "stopped": 0, "said": f"{name} is run by systemd: {systemd.command(record.user_unit)} stop {record.unit}"}
        was_alive = record.alive()
        pids = set(records.marked(record.mark)) | (set(tree(record.pid)) if was_alive and record.pid else set())
        if was_alive and record.pid:
            records.kill([record.pid], signal.SIGTERM)
            wait_gone(record, GRACE_S + 5)
        left = records.marked(record.mark)
        while left:  # the supervisor was killed, or is stuck
            records.kill(left)
            time.sleep(0.05)
            left = records.marked(record.mark)
        said = f"{name}: stopped, {len(pids)} processes ended" if pids else f"{name} had already ended: {why_ended(record)}"
        if pids and not was_alive:
            said = f"{name}: its supervisor was gone; {len(pids)} processes that it left behind were ended"
        records.forget(name)
        return {"name": name, "stopped": len(pids), "said": said}


def wait_gone(record: Record, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while record.alive() and time.monotonic() < deadline:
        time.sleep(0.02)


def why_ended(record: Record) -> str:
    found = ended(record, {})
    return f"{found['state']}: {found['cause']}" if "cause" in found else found["state"]


# --- logs ------------------------------------------------------------------------------------------------------------


def phase_lines(record: Record) -> list[str]:
    """The lines of a log that begin a phase of the start, each after the phase's name."""
    startup = Startup(engine_of(record).name, Path(record.log))
    found = []
    for line in Path(record.log).read_text(errors="replace").replace("\r", "\n").splitlines():
        before = startup.name
        startup.read(line)
        if startup.name != before:
            found.append(f"{startup.name:18} {line}")
    return found


def follow(record: Record) -> Iterator[str]:
    """The log as it grows, until the server ends."""
    with Path(record.log).open(errors="replace") as file:
        while True:
            if text := file.read():
                yield text
            elif not record.alive():
                return
            else:
                time.sleep(0.2)
