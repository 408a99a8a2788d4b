"""One question to a server that we may not have started: no proxy, and its key in a header that goes to nobody else."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from draftsmith.measure.credentials import headers_for, hidden

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # as the load client, which knows no proxy either


def ask(url: str, body: Any = None, key: str = "", timeout_s: float = 20.0) -> tuple[int, str]:
    """(status, text) of a GET, or of a POST of JSON when there is a body; an error status is an answer too.

    Raises ConnectionError with the reason when nobody answers in time. The reason never holds the key.
    """
    try:
        request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), {"Content-Type": "application/json"})
        for name, value in headers_for(key).items():
            request.add_unredirected_header(name, value)
        try:
            answer = DIRECT.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return answer.status or 0, answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ConnectionError(hidden(str(why) or type(why).__name__, key)) from None
