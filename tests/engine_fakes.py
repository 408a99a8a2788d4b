"""An engine process that is a few lines of Python, and the `Engine` that starts it. It can die, hang and leave grandchildren."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from draftsmith.engines.protocol import Launch
from draftsmith.engines.rootcause import find_cause
from draftsmith.metrics import Acceptance

# argv: PORT READY_AFTER_S DIE_AFTER_S GRANDCHILDREN WORKER FOLLOW_AFTER_S LOST_PORT; a time below zero means never.
# WORKER 1: one with a title; 2: its end is collected at once, so that it is never a zombie. When it has ended, requests hang as in SGLang,
# and the engine dies FOLLOW_AFTER_S later.
PROGRAM = r"""
import http.server, json, os, signal, subprocess, sys, threading, time
kind, follow_after = int(sys.argv[5]), float(sys.argv[6])
port, ready_after, die_after, grandchildren = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
start = time.monotonic()
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
# one that ignores SIGTERM, one in a session of its own whose parent ends at once, one plain
ORPHAN = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], start_new_session=True)"
for program in (STUBBORN, ORPHAN, "import time; time.sleep(600)")[:grandchildren]:
    child = subprocess.Popen([sys.executable, "-c", program])
    if program == ORPHAN:
        child.wait()
worker = subprocess.Popen(["fake::worker", "600"], executable="/bin/sleep") if kind else None
if kind == 2:
    threading.Thread(target=worker.wait, daemon=True).start()
worker_stat = f"/proc/{worker.pid}/stat" if worker else ""
def lost():
    try:
        return bool(worker) and open(worker_stat).read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
print("fake engine loads", flush=True)
if int(sys.argv[7]):  # as SGLang does: it says that it lost its port, and goes on
    print("ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 1): address already in use", flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        while lost():
            time.sleep(0.1)
        ready = 0 <= ready_after <= time.monotonic() - start
        body = "fake_tokens_total 7\nfake_rounds_total 4\n" if self.path == "/metrics" else json.dumps({"path": self.path})
        self.send_response(200 if ready else 503)
        self.end_headers()
        self.wfile.write(body.encode())
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(400)
        self.end_headers()
        self.wfile.write(b"bad request")
    def log_message(self, *arguments):
        pass

class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    lost_at = None
    def service_actions(self):
        if lost() and self.lost_at is None:
            self.lost_at = time.monotonic()
        if self.lost_at is not None and 0 <= follow_after <= time.monotonic() - self.lost_at:
            os._exit(5)
        if 0 <= die_after <= time.monotonic() - start:
            print("Traceback (most recent call last):\nValueError: the fake engine dies on purpose", flush=True)
            print("RuntimeError: a wrapper reports it upwards", flush=True)
            os._exit(3)

Server(("127.0.0.1", port), Handler).serve_forever(poll_interval=0.02)
"""


class FakeEngine:
    """Flags: ready-after, die-after (seconds), grandchildren (0 to 3), worker (0 to 2), follow-after (seconds), lost-port (0 or 1)."""

    name: ClassVar[str] = "fake"
    served_model: ClassVar[str] = "target"
    endpoint: ClassVar[str] = "completions"
    float32: ClassVar[bool] = True
    info_pages: ClassVar[tuple[str, ...]] = ("/info",)
    workers: ClassVar[str] = "^fake::"

    def argv(self, python: Path, launch: Launch, port: int) -> list[str]:
        defaults = {"ready-after": 0.1, "die-after": -1, "grandchildren": 0, "worker": 0, "follow-after": -1, "lost-port": 0}
        words = (launch.flags.get(name, value) for name, value in defaults.items())
        return [str(python), "-c", PROGRAM, str(port), *map(str, words)]

    def env(self, launch: Launch) -> dict[str, str]:
        return dict(launch.env)

    def acceptance(self, metrics_text: str, depth: int) -> Acceptance | None:
        return Acceptance(4, (3,)) if "fake_rounds_total 4" in metrics_text else None

    def generation_tokens(self, metrics_text: str) -> int | None:
        return 7 if "fake_tokens_total 7" in metrics_text else None

    def effective(self, log_text: str, pages: Mapping[str, str]) -> dict[str, str]:
        return {"info": pages["/info"]} if "/info" in pages else {}

    def requested(self, launch: Launch) -> dict[str, str]:
        return {}

    def with_profiler(self, launch: Launch, folder: Path) -> Launch:
        return launch

    def explain_death(self, log_text: str) -> tuple[str, str]:
        return find_cause(log_text, "fake")


def fake_launch(**flags: float | int) -> Launch:
    """Underscores in names stand for hyphens."""
    return Launch("baseline", Path("/nowhere"), {name.replace("_", "-"): value for name, value in flags.items()})


def alive(pid: int) -> bool:
    """Is the process there and not a zombie?"""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def marked(mark: str) -> list[int]:
    """Living processes whose environment holds DRAFTSMITH_TEST_MARK=mark: a tree that is found even when it was orphaned."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and alive(int(entry.name)):
            try:
                if f"DRAFTSMITH_TEST_MARK={mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


def wait_until_gone(mark: str, timeout_s: float) -> list[int]:
    """Processes of the tree that are still there after at most `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


PYTHON = Path(sys.executable)
