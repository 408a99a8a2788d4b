"""A systemd of its own: process 1 of new namespaces, with only the units that a test gives it. Needs root and systemd's programs.

It has its own processes, mounts and control groups; the machine's systemd, if there is one, and its units are not touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from draftsmith.engines.process import children_of

SYSTEMD, JOURNALD = Path("/lib/systemd/systemd"), Path("/lib/systemd/systemd-journald")
READY_S = 20
# targets that other units name; journald without what a machine's own needs
EMPTY = ("sysinit", "basic", "shutdown", "network", "multi-user")
UNITS = {
    "test.target": "[Unit]\nDefaultDependencies=no\nWants=systemd-journald.service\nAfter=systemd-journald.service\nAllowIsolate=yes\n",
    "systemd-journald.socket": "[Unit]\nDefaultDependencies=no\n[Socket]\nListenStream=/run/systemd/journal/stdout\n"
    "ListenDatagram=/run/systemd/journal/socket\nPassCredentials=yes\n",
    "systemd-journald.service": "[Unit]\nDefaultDependencies=no\nRequires=systemd-journald.socket\nAfter=systemd-journald.socket\n"
    f"[Service]\nType=notify\nExecStart={JOURNALD}\nStandardOutput=null\n",
    **{f"{name}.target": "[Unit]\nDefaultDependencies=no\n" for name in EMPTY},
}
BOOT = """
set -e
echo $$ > "$2"/cgroup.procs
exec unshare --mount --pid --fork --cgroup --kill-child --propagation private sh -ec '
  mount -t tmpfs tmpfs /run
  umount -R /sys/fs/cgroup || true
  mount -t cgroup2 none /sys/fs/cgroup
  mount -t proc proc /proc
  mkdir -p /run/log/journal
  export container=test SYSTEMD_UNIT_PATH="$0"
  exec /lib/systemd/systemd --system --unit=test.target --log-target=console --show-status=no
' "$1"
"""


def why_not() -> str:
    """Why no systemd can be started here; "" when it may be tried."""
    if os.geteuid() != 0:
        return "only root can make the namespaces"
    missing = [str(path) for path in (SYSTEMD, JOURNALD) if not path.exists()]
    missing += [name for name in ("unshare", "nsenter", "systemctl", "journalctl") if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return "" if cgroup2() else "no cgroup2 is mounted"


def cgroup2() -> Path | None:
    """Where the unified hierarchy of control groups is mounted."""
    rows = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return next((Path(row[1]) for row in rows if row[2] == "cgroup2"), None)


class SystemdMachine:
    """A running systemd. `units`: the only folder that it reads units from."""

    def __init__(self, folder: Path) -> None:
        """Boot. Raises OSError, with what it said, when it does not come up."""
        self.units = folder / "units"
        self.units.mkdir()
        for name, text in UNITS.items():
            (self.units / name).write_text(text)
        root = cgroup2()
        assert root is not None
        self.cgroup = root / f"draftsmith-test-{os.getpid()}"
        self.cgroup.mkdir()
        self.log = folder / "boot.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(["sh", "-c", BOOT, "sh", str(self.units), str(self.cgroup)], stdout=log, stderr=log)
        self.init = 0
        deadline = time.monotonic() + READY_S
        while self.run(["systemctl", "is-active", "test.target"]).returncode != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise OSError(f"systemd does not start here: {self.log.read_text()[-500:]}")
            time.sleep(0.1)

    def run(self, argv: list[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A command inside."""
        self.init = self.init or next(iter(children_of(self.process.pid)), 0)
        words = ["nsenter", "--target", str(self.init), "--mount", "--pid", "--cgroup", "--", *argv]
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)

    def systemctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(["systemctl", *words])

    def end(self) -> None:
        """With its process 1 everything inside ends."""
        if self.init:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
        try:
            self.process.wait(5)  # unshare collects process 1
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        deadline = time.monotonic() + 5
        groups = [self.cgroup, *(path for path in self.cgroup.rglob("*") if path.is_dir())]
        for group in sorted(groups, key=lambda path: -len(path.parts)):
            while group.exists() and time.monotonic() < deadline:
                try:
                    group.rmdir()
                except OSError:  # its processes are still ending
                    time.sleep(0.05)
