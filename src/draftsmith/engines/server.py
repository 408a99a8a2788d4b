"""Starting engine servers: choose the port, wait until they answer, notice at once when they die, stop them whatever happens."""

from __future__ import annotations

import http.client
import json
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftsmith.engines.death import why
from draftsmith.engines.flags import fixed_port
from draftsmith.engines.process import EngineProcess, inherited
from draftsmith.engines.protocol import Engine, Launch
from draftsmith.engines.readback import changed_settings, changed_variables, planned_variables
from draftsmith.engines.rootcause import read_lines
from draftsmith.engines.secrets import exposure, refuse_secret_flags
from draftsmith.engines.startup import Motion, Startup, doing
from draftsmith.errors import CheckFailed, EnvironmentFailed
from draftsmith.job import Talk
from draftsmith.metrics import Acceptance

POLL_S = 0.1
STALL_S = 120.0  # a start without any sign of life for so long hangs
HTTP_TIMEOUT_S = 20.0
HEALTH_TIMEOUT_S = 5.0  # a hanging server accepts a connection and never answers
LOG_TAIL_BYTES = 400_000


class Server:
    """A running engine server. `ready_s`: seconds from process start to the first healthy answer."""

    def __init__(self, engine: Engine, python: Path, launch: Launch, log: Path, detached: bool = False) -> None:
        """Start the process; it does not answer yet. A detached one outlives us.

        Raises EnvironmentFailed when a fixed port is taken, UsageError for a flag that carries a secret.
        """
        refuse_secret_flags(launch)
        self.engine = engine
        self.launch = launch
        self.log = log
        self.host, self.port = address(launch)
        self.argv = engine.argv(python, launch, self.port)
        self.env = engine.env(launch)
        self.label = engine.name
        self.ready_s = float("nan")
        self.process = EngineProcess(self.argv, self.env, log, detached)
        self.startup = Startup(engine.name, log)
        self.motion = Motion(self.process, log)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def rss_bytes(self) -> int:
        """Resident memory of the server's process tree."""
        return self.process.rss_bytes()

    def get(self, path: str, timeout_s: float = HTTP_TIMEOUT_S) -> tuple[int, str]:
        """(status, body) of a GET. Raises EnvironmentFailed with the root cause when the process died, OSError otherwise."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            await_answer(connection.sock, timeout_s, self.check_alive)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            self.check_alive()
            raise ConnectionError(f"{self.url}{path}: {error!r}") from error
        finally:
            connection.close()

    def get_json(self, path: str) -> Any:
        """A JSON document of the server. Raises EnvironmentFailed when the answer is not 200."""
        return json.loads(self._page(path))

    def post_json(self, path: str, body: dict[str, Any], timeout_s: float = 120.0) -> Any:
        """POST a JSON document, return the answer's. Raises EnvironmentFailed when it is not 200 or the server is gone."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            self.check_alive()
            raise EnvironmentFailed(f"{self.engine.name} did not answer {path}: {error!r}", hint=f"log: {self.log}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise EnvironmentFailed(f"{self.engine.name} answered {response.status} to {path}: {text[:300]}", hint=f"log: {self.log}")
        return json.loads(text)

    def metrics_text(self) -> str:
        """The /metrics page now."""
        return self._page("/metrics")

    def acceptance(self, depth: int) -> Acceptance | None:
        """Cumulative acceptance counts now (difference two calls for a window); None when the server has none."""
        return self.engine.acceptance(self.metrics_text(), depth)

    def generation_tokens(self) -> int | None:
        """Cumulative output tokens now."""
        return self.engine.generation_tokens(self.metrics_text())

    def effective(self) -> dict[str, str]:
        """Settings that took effect, as the server logged them at start and tells them on its pages."""
        return self.engine.effective(self.log.read_text(errors="replace"), pages_of(self, self.engine.info_pages))

    def check_as_planned(self) -> None:
        """Raise CheckFailed when a setting or a variable holds otherwise in the running server than it was planned."""
        wrong = changed_settings(self.engine.requested(self.launch), self.effective())
        if wrong:
            raise CheckFailed(f"{self.engine.name} changed what it was asked for: {'; '.join(wrong)}", hint=f"log: {self.log}")
        wrong = changed_variables(planned_variables(self.env, inherited()), self.process.pids(), self.engine.name)
        if wrong:
            hint = "a wrapper, or the engine itself, changes the environment; set the variable to what the engine needs, or leave it out"
            raise CheckFailed(f"{self.engine.name} runs in another environment than it was given: {'; '.join(wrong[:5])}", hint=hint)

    def check_alive(self) -> None:
        """Raise EnvironmentFailed with the root cause when the engine, or a process without which it cannot serve, has ended."""
        status, lost = self.process.poll(), self.process.lost(self.engine.workers)
        if status is None and lost is None:
            return
        cause, hint = why(self.engine, tail(self.log), lost, status)
        if status is None:
            what = f"{self.engine.name} has lost a process in {self.startup}"
        else:
            what = f"{self.engine.name} died ({f'signal {status - 128}' if status > 128 else f'exit status {status}'}) in {self.startup}"
        if killed := self.process.oom_kills():
            cause = f"the kernel killed {killed} process{'es' if killed > 1 else ''} of this machine for lack of memory ({cause})"
            hint = "lower the cache size or stop other work"
        raise EnvironmentFailed(f"{what}: {cause}", hint=f"{hint}; log: {self.log}")

    def stop(self) -> None:
        """End the server's whole process tree and wait until it is gone."""
        self.process.stop()

    def is_ready(self) -> bool:
        """Does /health answer 200? Raises EnvironmentFailed when the process has died."""
        self.check_alive()
        try:
            return self.get("/health", HEALTH_TIMEOUT_S)[0] == 200
        except ConnectionError:
            return False

    def _page(self, path: str) -> str:
        try:
            status, text = self.get(path)
        except ConnectionError as error:
            raise EnvironmentFailed(f"{self.engine.name} does not answer: {error}", hint=f"log: {self.log}") from error
        if status != 200:
            raise EnvironmentFailed(f"{self.url}{path} answered {status}: {text[:300]}", hint=f"log: {self.log}")
        return text


@contextmanager
def start(
    engine: Engine, python: Path, launch: Launch, log: Path, ready_timeout_s: float, talk: Talk | None = None, label: str = ""
) -> Iterator[Server]:
    """One ready server for the length of a `with`. Raises EnvironmentFailed when it dies or is not ready in time."""
    with start_many(engine, python, [launch], [log], ready_timeout_s, talk, label) as servers:
        yield servers[0]


@contextmanager
def start_many(
    engine: Engine,
    python: Path,
    launches: Sequence[Launch],
    logs: Sequence[Path],
    ready_timeout_s: float,
    talk: Talk | None = None,
    label: str = "",
) -> Iterator[list[Server]]:
    """Several servers started side by side, in the order of `launches`. If one fails, all are stopped."""
    assert len(launches) == len(logs) and len(set(logs)) == len(logs), (len(launches), logs)
    talk = talk or Talk(quiet=True)
    name = f"{engine.name}{f' ({label})' if label else ''}"
    servers: list[Server] = []
    try:
        for launch, log in zip(launches, logs, strict=True):
            servers.append(Server(engine, python, launch, log))
        talk.say(f"{name}: starting {len(servers)} server{'s' if len(servers) > 1 else ''}")
        for number, server in enumerate(servers):
            server.label = f"{name}{f' {number + 1}' if len(servers) > 1 else ''}"
            if warning := exposure(server.launch, server.env):
                talk.say(warning)
        wait_ready(servers, ready_timeout_s, talk)
        for server in servers:
            server.check_as_planned()
        talk.say(f"{name}: ready after {max(server.ready_s for server in servers):.1f} s")
        yield servers
    finally:
        stop_all(servers)


def wait_ready(servers: Sequence[Server], timeout_s: float, talk: Talk, stall_s: float = STALL_S) -> None:
    """Poll until every server is healthy, noticing a dead one within POLL_S. Sets `ready_s`. Raises EnvironmentFailed.

    Says which phase each start is in. A start without a sign of life for `stall_s` (log, processor time, reads) hangs.
    """
    waiting = list(servers)
    while waiting:
        for server in list(waiting):
            now = time.monotonic()
            waited = now - server.process.started
            if server.startup.look():
                talk.say(f"{server.label}: {server.startup}")
            if server.startup.fatal:
                server.check_alive()
                cause, hint = server.engine.explain_death(tail(server.log))
                raise EnvironmentFailed(
                    f"{server.engine.name} cannot go on in {server.startup}: {cause}", hint=f"{hint}; log: {server.log}"
                )
            if server.is_ready():
                server.ready_s = now - server.process.started
                waiting.remove(server)
            elif server.motion.look(now) > stall_s:
                raise EnvironmentFailed(
                    f"{server.engine.name} hangs in {server.startup}: no log line, no processor time, nothing read for {stall_s:.0f} s;"
                    f" {doing(server.process.pids())}",
                    hint=f"last said: {last_line(server.log)}; log: {server.log}",
                )
            elif waited > timeout_s:
                raise EnvironmentFailed(
                    f"{server.engine.name} was not ready after {waited:.0f} s, in {server.startup}; last said: {last_line(server.log)}",
                    hint=f"raise engine.ready_timeout_s, or read the log: {server.log}",
                )
        if waiting:
            time.sleep(POLL_S)


def await_answer(sock: socket.socket, timeout_s: float, look: Callable[[], None]) -> None:
    """Wait until a server writes something. Raises TimeoutError, and what `look` raises: it is called again and again.

    So a dead server is noticed at once; one whose worker died may hold the connection open.
    """
    poll, deadline = select.poll(), time.monotonic() + timeout_s
    poll.register(sock, select.POLLIN)
    while not poll.poll(1000 * min(POLL_S, timeout_s)):
        look()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer in {timeout_s:.1f} s")


def stop_all(servers: Sequence[Server]) -> None:
    """Stop every server: first close all pipes, so that the trees end side by side."""
    for server in servers:
        server.process.ask_to_stop()
    for server in servers:
        server.stop()


def address(launch: Launch) -> tuple[str, int]:
    """(host to connect to, port). A port in the flags must be free; otherwise the system chooses one. Raises EnvironmentFailed."""
    host = str(launch.flags.get("host", "127.0.0.1"))
    connect_to = "127.0.0.1" if host == "0.0.0.0" else host
    port = fixed_port(launch.flags)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that is only in TIME_WAIT is free
        try:
            probe.bind((host, port or 0))
        except OSError as error:
            raise EnvironmentFailed(
                f"cannot use {host}:{port or 'any port'}: {error.strerror}",
                hint="stop the other server, or leave `port` out of engine.flags",
            ) from error
        return connect_to, int(probe.getsockname()[1])


def pages_of(server: Server, paths: Sequence[str]) -> dict[str, str]:
    """The pages that the server has, by path. One that asks for a key, or is switched off, is left out."""
    answers = {path: server.get(path) for path in paths}
    return {path: text for path, (status, text) in answers.items() if status == 200}


def last_line(log: Path) -> str:
    """What the engine said last."""
    said = [line.text.strip() for line in read_lines(tail(log)) if line.text.strip()]
    return said[-1] if said else "nothing"


def tail(log: Path) -> str:
    """The end of a log file, where a dying engine says why."""
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")
