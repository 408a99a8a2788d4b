"""Keys and addresses of servers that somebody else started. A key comes from the environment only, and goes into headers only."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from draftsmith.engines.protocol import Arm
from draftsmith.engines.secrets import MASK
from draftsmith.errors import UsageError

VARIABLE = "DRAFTSMITH_API_KEY"


def variable_of(arm: Arm) -> str:
    """The variable for the server of one arm alone."""
    return f"{VARIABLE}_{arm.upper()}"


def api_key(arm: Arm, env: Mapping[str, str] = os.environ) -> str:
    """The key of this arm's server, else the common one; "" without any. Raises UsageError for what no header can hold."""
    for name in (variable_of(arm), VARIABLE):
        if key := env.get(name, "").strip():
            if not key.isascii() or not key.isprintable() or " " in key:
                raise UsageError(f"{name} holds characters that no key has", hint="expected printable ASCII without blanks")
            return key
    return ""


def headers_for(key: str) -> dict[str, str]:
    """What carries the key; {} without one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def hidden(text: str, key: str) -> str:
    """`text` without the key: servers repeat a key that they refuse."""
    return text.replace(key, MASK) if key else text


def server_url(given: str) -> str:
    """The address before /v1. Raises UsageError for what is no address of a server, or holds a secret."""
    url = (given if "://" in given else f"http://{given}").rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(url)
        ok = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not re.search(r"[\s\x00-\x1f\x7f]", given)
        (parts.hostname or "").encode("idna")
    except ValueError:
        ok, parts = False, None
    if not ok or parts is None:
        raise UsageError(f"--url {given!r} is not the address of a server", hint="for example http://10.0.0.5:8000")
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError(
            f"--url for {parts.hostname}: an address here has no user, password or query, since it is written into the results",
            hint=f"give the key as the variable {VARIABLE}, which is sent as Authorization: Bearer",
        )
    return url
