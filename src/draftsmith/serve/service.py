"""serve start, logs, stop: engines that outlive the command that started them, each under a supervisor of its own.

A server is one process tree (engines/supervisor.py in its detached form) and one record (records.py). How it is, state.py looks up.
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

from draftsmith.engines.process import GRACE_S, start_ticks, tree
from draftsmith.engines.protocol import Engine, Launch
from draftsmith.engines.secrets import KEY_VARIABLE, exposure, masked, masked_argv
from draftsmith.engines.server import Server, wait_ready
from draftsmith.engines.startup import Startup
from draftsmith.errors import UsageError
from draftsmith.job import Talk
from draftsmith.serve import records, systemd
from draftsmith.serve.records import Record
from draftsmith.serve.state import ended, engine_of


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
        key = {KEY_VARIABLE: os.environ[KEY_VARIABLE]} if KEY_VARIABLE in os.environ else {}
        launch = plan.launch.with_(env={**key, **plan.launch.env, **plan.secrets, records.MARK: mark})
        if warning := exposure(launch, launch.env):
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


# --- stop ------------------------------------------------------------------------------------------------------------


def stop(name: str) -> dict[str, Any]:
    """End a server's whole tree and forget it. A server that is gone is no error; the answer says so, and whether it `runs` still."""
    with records.only_one(name):
        record = records.read(name)
        if record is None:
            return {"name": name, "stopped": 0, "runs": False, "said": f"no server {name} is known: nothing to stop"}
        if record.unit:
            return stop_unit(record)
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
        return {"name": name, "stopped": len(pids), "runs": False, "said": said}


def stop_unit(record: Record) -> dict[str, Any]:
    """A server that systemd runs is systemd's to stop: what to type. One that is not installed is forgotten."""
    shown = systemd.show(str(record.unit), record.user_unit)
    found = {"name": record.name, "stopped": 0, "runs": not systemd.stopped(shown) and "error" not in shown}
    if shown.get("LoadState") == "not-found":
        records.forget(record.name)
        return {**found, "runs": False, "said": f"{record.name}: the unit {record.unit} is not installed (any more); forgotten"}
    if not found["runs"]:
        return {**found, "said": f"{record.name}: the unit {record.unit} does not run"}
    return {**found, "said": f"{record.name} is run by systemd and goes on: {systemd.command(record.user_unit)} stop {record.unit}"}


def wait_gone(record: Record, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while record.alive() and time.monotonic() < deadline:
        time.sleep(0.02)


def why_ended(record: Record) -> str:
    found = ended(record, {})
    return f"{found['state']}: {found['cause']}" if "cause" in found else found["state"]


# --- logs ------------------------------------------------------------------------------------------------------------


def phase_lines(record: Record, lines: Sequence[str]) -> list[str]:
    """The lines of a log that begin a phase of the start, each after the phase's name."""
    startup = Startup(engine_of(record).name, Path(record.log))
    found = []
    for line in lines:
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
