"""The unit of `serve unit` under a real systemd: it starts, is restarted when its engine is killed, and stops with all its processes.

The engine is the fake one; systemd, its journal and the namespaces that it runs in are real. Skipped where no systemd can be started.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from systemd_machine import SystemdMachine, why_not

PATIENCE_S = 3  # in the place of the unit's 10 s for a restart and for a stop: the test waits for them three times
# runs inside: installs the unit, or prints what `serve status` would say
INSIDE = """
import json, sys
from pathlib import Path
from draftsmith.engines import registry
from draftsmith.serve import environment, records, state
from draftsmith.serve.service import Plan
from engine_fakes import FakeEngine, fake_launch
registry.ENGINES["fake"] = FakeEngine
what, name, out, flags = sys.argv[1], sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4])
if what == "install":
    launch = fake_launch(**flags).with_(env={"NCCL_DEBUG": "WARN", "ODD": 'a "b" $HOME %h ; c'})
    plan = Plan(name, "fake==1", FakeEngine(), Path(sys.executable), launch, Path("/r.yaml"), 20.0)
    environment.service_unit(plan, None, False, None, out)
else:
    print(json.dumps(state.status(records.read(name))))
"""


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdMachine]:
    if reason := why_not():
        pytest.skip(reason)
    try:
        found = SystemdMachine(tmp_path_factory.mktemp("systemd"))
    except OSError as error:
        pytest.skip(str(error))
    yield found
    found.end()


class Service:
    """One unit of ours on that machine."""

    def __init__(self, systemd: SystemdMachine, name: str, env: dict[str, str], **flags: float) -> None:
        self.systemd, self.name, self.unit = systemd, name, f"draftsmith-{name}.service"
        self.env = {**env, "DRAFTSMITH_HOME": str(systemd.units.parent / "home")}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.ask("install", port=port, **flags)
        path = systemd.units / self.unit
        text = path.read_text()
        assert "RestartSec=10\n" in text and "TimeoutStopSec=10\n" in text
        path.write_text(text.replace("Sec=10\n", f"Sec={PATIENCE_S}\n"))
        systemd.systemctl("daemon-reload")

    def ask(self, what: str, **flags: float) -> str:
        done = self.systemd.run(
            [sys.executable, "-c", INSIDE, what, self.name, str(self.systemd.units / self.unit), json.dumps(flags)], self.env
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        return json.loads(self.ask("status"))

    def until(self, state: str, within_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + within_s
        while (told := self.status())["state"] != state:
            assert time.monotonic() < deadline, told
            time.sleep(0.2)
        return told

    def processes(self) -> list[str]:
        """The command lines of what lives in the unit's control group."""
        group = self.systemd.cgroup / "system.slice" / self.unit  # gone with its last process
        pids = (group / "cgroup.procs").read_text().split() if group.exists() else []
        return [Path("/proc", pid, "cmdline").read_text().replace("\0", " ") for pid in pids]


def test_start_restart_stop(systemd: SystemdMachine, child_env: dict[str, str]) -> None:
    service = Service(systemd, "one", child_env, ready_after=1.5, grandchildren=3)
    begin = time.monotonic()
    started = systemd.systemctl("start", service.unit)
    assert started.returncode == 0, started.stderr
    assert time.monotonic() - begin > 1.4  # it returns when the server answers
    told = service.status()
    assert told["state"] == "healthy" and told["health"] == 200 and told["changed"] == []  # the variables arrived, odd ones too
    assert told["systemd"]["ActiveState"] == "active" and told["systemd"]["NRestarts"] == 0
    assert told["journal"] == ["fake engine loads"] and len(told["processes"]) >= 3
    assert len(service.processes()) == 4  # with the orphan in a session of its own

    killed = systemd.systemctl("kill", "--kill-whom=main", "--signal=KILL", service.unit)
    assert killed.returncode == 0, killed.stderr
    told = service.until("died", within_s=5)
    assert told["exit_status"] == 137 and "killed from outside" in told["hint"]
    assert told["systemd"]["Result"] == "signal" and told["systemd"]["ActiveState"] in ("deactivating", "activating")
    told = service.until("healthy", within_s=60)  # once those that ignore SIGTERM are killed, and RestartSec is over
    while (told := service.status())["systemd"]["ActiveState"] == "activating":  # it answers, and systemd has not looked yet
        time.sleep(0.2)
    assert told["state"] == "healthy" and told["systemd"]["NRestarts"] == 1 and len(service.processes()) == 4

    begin = time.monotonic()
    assert systemd.systemctl("stop", service.unit).returncode == 0
    assert service.processes() == [] and service.status()["state"] == "stopped"
    assert time.monotonic() - begin < 40


def test_an_engine_that_dies_while_it_starts(systemd: SystemdMachine, child_env: dict[str, str]) -> None:
    """`systemctl start` fails at once instead of waiting for its time to run out, and the journal's root cause is told."""
    service = Service(systemd, "two", child_env, ready_after=-1, die_after=0.3)
    begin = time.monotonic()
    assert systemd.systemctl("start", service.unit).returncode != 0
    assert time.monotonic() - begin < 5
    told = service.status()
    assert told["state"] == "died" and told["exit_status"] == 3
    assert told["cause"] == "ValueError: the fake engine dies on purpose"
    assert systemd.systemctl("stop", service.unit).returncode == 0
    assert service.until("stopped", within_s=5)["systemd"]["ActiveState"] in ("inactive", "failed")
