"""A watch as Prometheus reads it: the text, a page of its own on this machine, or a file for node_exporter's textfile collector.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4). What is not known is left out, never 0.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from draftsmith.engines.secrets import is_loopback
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.watch.alarms import KINDS
from draftsmith.watch.monitor import Monitor

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[dict[str, str], float]


def text_of(monitor: Monitor, server: str, now_unix_s: float) -> str:
    """The whole page. server: the label that tells several watches apart."""
    lines: list[str] = []
    for name, kind, about, found in families(monitor, now_unix_s):
        known = [(labels, value) for labels, value in found if not math.isnan(value)]
        if known:
            lines += [f"# HELP draftsmith_{name} {about}", f"# TYPE draftsmith_{name} {kind}"]
            lines += [f"draftsmith_{name}{{{labels_text({'server': server, **labels})}}} {value!r}" for labels, value in known]
    return "\n".join(lines) + "\n"


def labels_text(labels: dict[str, str]) -> str:
    escaped = {name: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for name, value in labels.items()}
    return ",".join(f'{name}="{value}"' for name, value in escaped.items())


def families(monitor: Monitor, now_unix_s: float) -> Iterator[tuple[str, str, str, Sequence[Sample]]]:
    """(name, type, help, samples) of every metric; a sample that is nan is not known."""
    total, window, nan = monitor.meter.total, monitor.window, math.nan
    value, low, high = monitor.interval()
    yield "up", "gauge", "Whether the last reading of the server's counters succeeded.", one(float(monitor.up))
    yield "accept_len", "gauge", "Tokens per round with the bonus token, over the window.", one(value)
    yield "accept_len_low", "gauge", "Lower end of the 95 % interval of draftsmith_accept_len.", one(low)
    yield "accept_len_high", "gauge", "Upper end of the 95 % interval of draftsmith_accept_len.", one(high)
    expected = monitor.expected
    yield "expected_accept_len", "gauge", "accept_len that the report or the user expects.", one(expected.accept_len if expected else nan)
    survival = [({"position": str(i + 1)}, share) for i, share in enumerate(window.survival)]
    yield "survival", "gauge", "Share of rounds that accepted at least this many drafts, over the window.", survival
    alarms = [({"name": name}, float(monitor.alarms.state[name].on)) for name in KINDS]
    yield "alarm", "gauge", "Whether an alarm is on.", alarms
    drafted = nan if total.drafted is None else float(total.drafted)
    yield "rounds_total", "counter", "Rounds counted by this watch.", one(float(total.rounds))
    yield "drafted_tokens_total", "counter", "Draft tokens counted by this watch.", one(drafted)
    yield "accepted_tokens_total", "counter", "Accepted draft tokens counted by this watch.", one(float(max(0, total.accepted)))
    yield "output_tokens_total", "counter", "Output tokens counted by this watch.", one(float(total.tokens))
    yield "restarts_total", "counter", "Restarts of the server that this watch saw.", one(float(monitor.meter.restarts))
    yield "output_tokens_per_second", "gauge", "Output tokens per second, over the window.", one(window.tok_s if window.seconds else nan)
    yield "requests_running", "gauge", "Requests in flight as the server tells.", one(nan if monitor.running is None else monitor.running)
    yield "last_read_timestamp_seconds", "gauge", "Unix time of the last attempt to read.", one(now_unix_s)


def one(value: float) -> Sequence[Sample]:
    return [({}, value)]


# --- a page ----------------------------------------------------------------------------------------------------------


def address_of(given: str) -> tuple[str, int]:
    """(host, port) of ":9109", "9109" or "HOST:9109"; this machine alone unless a host is named. Raises UsageError."""
    host, _, port = given.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise UsageError(f"--prometheus {given!r} is no port", hint="for example --prometheus :9109 (this machine only), or 10.0.0.5:9109")
    return host.strip("[]") or "127.0.0.1", int(port)


class Page:
    """/metrics on a port of its own, from a thread; `text` is called for every request. Raises EnvironmentFailed when the port is taken."""

    def __init__(self, given: str, text: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.partition("?")[0] in ("/metrics", "/")
                body = (text() if found else "only /metrics is here\n").encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet: stderr is the view's."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """A reader that hung up is no event of the watch."""

        host, port = address_of(given)
        try:
            self.server = Server((host, port), Handler)
        except OSError as error:
            hint = "another port; 0 lets the system choose"
            raise EnvironmentFailed(f"--prometheus {given}: cannot listen on {host}:{port}: {error.strerror}", hint=hint) from None
        self.url = f"http://{host}:{self.server.server_address[1]}/metrics"
        self.open_to_others = not is_loopback(host)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def textfile(path: Path) -> Path:
    """The file, if the collector would read it. Raises UsageError."""
    if path.suffix != ".prom":
        hint = f"--textfile {path.with_suffix('.prom')}"
        raise UsageError(f"--textfile {path}: node_exporter reads only files that end in .prom", hint=hint)
    if not path.parent.is_dir():
        raise UsageError(f"--textfile {path}: there is no folder {path.parent}", hint="the folder of --collector.textfile.directory")
    return path
