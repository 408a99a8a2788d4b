"""One question to a server that we may not have started."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from draftsmith.engines.server import await_answer
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.measure.credentials import api_key, headers_for
from draftsmith.measure.pages import ask


def connect(url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    """(connection, path with query) for an http URL. Raises UsageError."""
    hint = "for example http://127.0.0.1:8000"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{url!r} is not the URL of a server: {error}", hint=hint) from None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(f"{url!r} is not the URL of a server", hint=hint)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(host, port, timeout=timeout_s), (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def answer(url: str, timeout_s: float, look: Callable[[], None]) -> int | None:
    """The status of a GET, or None when nobody answers in time, or when `look`, called while it waits, raises an OSError."""
    connection, path = connect(url, timeout_s)
    try:
        connection.request("GET", path, headers=headers_for(api_key()))
        await_answer(connection.sock, timeout_s, look)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def fetch(url: str, body: Any = None, timeout_s: float = 120.0) -> tuple[int, str]:
    """(status, text) of a GET, or of a POST when there is a body. Raises EnvironmentFailed when nobody answers."""
    connect(url, timeout_s)  # refuses what is no URL; nothing is sent
    try:
        return ask(url, body, api_key(), timeout_s)
    except ConnectionError as error:
        raise EnvironmentFailed(f"{url} does not answer: {error}", hint="draftsmith serve status") from error
