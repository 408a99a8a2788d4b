"""Runs one engine and sees to it that the whole process tree ends with the command that started it. Standard library only.

    python supervisor.py PARENT_PID GRACE_S LOG ARGV...

A process of its own, in its own session. It holds the read end of a pipe from its parent (stdin): end of file, SIGTERM or a new
parent mean that the command ended, however it ended (kill -9 included). With PARENT_PID 0 it is detached: it outlives the command,
ends on SIGTERM only, and leaves the engine's exit status in LOG.exit. As a child subreaper it inherits every grandchild whose
parent dies, so the tree is always found by walking down from here. The engine itself gets SIGTERM should this process be killed.
The engine's TMPDIR is a folder of its own, removed with it: engines leave their sockets behind when they are killed.
How a process below the engine ended, while the engine itself goes on, is written to LOG.workers at once (see `Workers`).
Says on stdout "pid N" once the engine runs, or "failed MESSAGE". Exits with the engine's status.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.2  # how often a changed parent is looked for; end of file and exits of processes wake at once
LOOK_S = 1.0  # how often new processes are looked for
# pidfd.h: PIDFD_GET_INFO with 64 bytes, and its PIDFD_INFO_EXIT, which Linux 6.15 and newer fill in for a process that was reaped
GET_INFO, INFO_BYTES, INFO_EXIT = 0xC040FF0B, 64, 8
PF_EXITING = 4  # in the flags of /proc/PID/stat
LIBC = ctypes.CDLL(None, use_errno=True)


def descendants() -> list[int]:
    """Every living process below this one, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = stat_of(int(entry))
            if fields and fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry))
    found, front = [], [os.getpid()]
    while front:
        front = [child for parent in front for child in children.get(parent, [])]
        found += front
    return found


def is_tracker(pid: int) -> bool:
    """multiprocessing's resource tracker, which removes the tree's shared memory after the others are gone."""
    try:
        return b"resource_tracker" in Path("/proc", str(pid), "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def reap(engine: int, status: int | None) -> tuple[int | None, bool]:
    """Collect ended children; returns (the engine's wait status once it has ended, whether any child is left).

    Every orphan below a subreaper becomes its child, so no child left means that the whole tree is gone. A walk through /proc does not say
    so: it misses a process whose parent ends while the walk goes on.
    """
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status, False
        if pid == 0:
            return status, True
        if pid == engine:
            status = ended


def end_tree(engine: int, status: int | None, grace_s: float) -> int | None:
    """SIGTERM, then after the grace SIGKILL, until nothing is left. The resource tracker is killed last."""
    send(descendants(), signal.SIGTERM)
    start = time.monotonic()
    while True:
        status, left = reap(engine, status)
        if not left:
            return status
        waited = time.monotonic() - start
        if waited > grace_s:
            send([pid for pid in descendants() if waited > grace_s + 0.5 or not is_tracker(pid)], signal.SIGKILL)
        time.sleep(0.02)


def start_engine(argv: list[str], log: str, scratch: str) -> int:
    """Fork and exec the engine with its output in the log; returns its pid. The supervisor's own pipes are not passed on."""
    supervisor = os.getpid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    read_error, write_error = os.pipe()  # close-on-exec: end of file means that exec worked
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        try:
            if os.getppid() != supervisor:
                os._exit(1)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.execve(argv[0], argv, {**os.environ, "TMPDIR": scratch})
        except OSError as error:
            os.write(write_error, f"{argv[0]}: {error.strerror}".encode())
        os._exit(127)
    os.close(write_error)
    os.close(output)
    problem = os.read(read_error, 4096).decode()
    os.close(read_error)
    print(f"failed {problem}" if problem else f"pid {pid}", flush=True)
    return pid


class Workers:
    """Processes below the engine that were there in two looks, and how they ended: one JSON line each in LOG.workers.

    A line has pid, title, at (Unix time) and status: the exit code, minus the signal's number, or null where the parent was faster than we.
    """

    def __init__(self, engine: int, log: str, poll: select.poll) -> None:
        self.engine, self.path, self.poll = engine, Path(f"{log}.workers"), poll
        self.looked = self.looked_at_exits = 0.0
        self.titles: dict[int, list[str]] = {}  # pid -> what it was called in each look, the last two
        self.pidfds: dict[int, int] = {}  # pidfd -> pid
        self.noted: set[int] = set()

    def look(self) -> None:
        """Note those that are on their way out, find new processes, and what the others are called now.

        A process with a hundred gigabytes on a GPU takes seconds to end; that it will, and by which signal, is known from the start.
        """
        now = time.monotonic()
        if now - self.looked_at_exits >= POLL_S:
            self.looked_at_exits = now
            watched = set(self.pidfds.values())
            for pid in list(self.titles):
                fields = stat_of(pid)
                if fields and int(fields[6]) & PF_EXITING and fields[-1] != "0":
                    self.note(pid, os.waitstatus_to_exitcode(int(fields[-1])))
                if pid not in watched and (not fields or fields[0] == "Z"):
                    self.forget(pid, exit_status(pid, None))
        if now - self.looked < LOOK_S:
            return
        self.looked = now
        here = [pid for pid in descendants() if pid != self.engine]
        for pid in here:
            if pid not in self.titles:
                try:
                    pidfd = os.pidfd_open(pid)
                    self.pidfds[pidfd] = pid
                    self.poll.register(pidfd, select.POLLIN)
                except OSError:  # it has just ended; or the kernel has no pidfds, or not so many: then it is looked for
                    pass
            self.titles[pid] = [*self.titles.get(pid, []), title_of(pid)][-2:]

    def ended(self, pidfd: int) -> None:
        """A process that was looked at has ended."""
        pid = self.pidfds.pop(pidfd)
        self.forget(pid, exit_status(pid, pidfd))
        self.poll.unregister(pidfd)
        os.close(pidfd)

    def forget(self, pid: int, status: int | None) -> None:
        self.note(pid, status)
        self.noted.discard(pid)
        del self.titles[pid]

    def note(self, pid: int, status: int | None) -> None:
        """Write it down, once."""
        titles = self.titles[pid]
        if len(titles) > 1 and pid not in self.noted:
            self.noted.add(pid)
            line = json.dumps({"pid": pid, "title": titles[-1] or titles[0], "status": status, "at": round(time.time(), 3)})
            with contextlib.suppress(OSError), self.path.open("a") as file:  # a full disk must not end the engine
                file.write(line + "\n")


def title_of(pid: int) -> str:
    """The first word of a process's command line, which is where it puts its title."""
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty when the process is gone. The name in front may hold spaces and parentheses."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def exit_status(pid: int, pidfd: int | None) -> int | None:
    """How a process ended that is not our child: from /proc while it is a zombie, from its pidfd once it was reaped."""
    fields = stat_of(pid)
    if fields and fields[0] == "Z":
        return os.waitstatus_to_exitcode(int(fields[-1]))
    if pidfd is None:
        return None
    info = bytearray(INFO_BYTES)
    struct.pack_into("Q", info, 0, INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, GET_INFO, info)
    except OSError:
        return None
    told = struct.unpack_from("Q", info, 0)[0] & INFO_EXIT
    return os.waitstatus_to_exitcode(struct.unpack_from("i", info, INFO_BYTES - 4)[0]) if told else None


def main() -> int:
    parent, grace_s, log, argv = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    asked_to_stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: asked_to_stop.append(received))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    scratch = tempfile.mkdtemp(prefix="draftsmith-")
    engine = start_engine(argv, log, scratch)
    status: int | None = None
    poll = select.poll()
    for descriptor in (0, wake_read) if parent else (wake_read,):
        poll.register(descriptor, select.POLLIN)
    workers = Workers(engine, log, poll)
    while status is None and not asked_to_stop and parent in (0, os.getppid()):
        ready = {descriptor for descriptor, _ in poll.poll(1000 * POLL_S)}
        for pidfd in ready & workers.pidfds.keys():
            workers.ended(pidfd)
        if wake_read in ready:
            os.read(wake_read, 4096)
        if 0 in ready and os.read(0, 4096) == b"":
            break
        status, _ = reap(engine, status)
        workers.look()
    if status is None:  # stopped: how its processes ended says nothing
        workers.path.unlink(missing_ok=True)
    status = end_tree(engine, status, grace_s)
    shutil.rmtree(scratch, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status) if status is not None else 1
    code = code if code >= 0 else 128 - code
    if not parent:
        Path(f"{log}.exit").write_text(f"{'stopped' if asked_to_stop else 'died'} {code}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
