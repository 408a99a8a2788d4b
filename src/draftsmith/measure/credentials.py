"""Keys and addresses of servers that run already. A key comes from the environment only, and goes into headers only.

A server that was started with a key in VLLM_API_KEY, as vLLM reads it and `serve start` hands it on, is reached with that same variable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from draftsmith.engines.protocol import Arm
from draftsmith.engines.secrets import KEY_VARIABLE, MASK
from draftsmith.errors import UsageError

VARIABLE = "DRAFTSMITH_API_KEY"


def variables(arm: Arm | None = None) -> tuple[str, ...]:
    """Where a key is looked for, the first that is set counts: for the server of one arm alone, for all, and vLLM's own."""
    return (*([f"{VARIABLE}_{arm.upper()}"] if arm else []), VARIABLE, KEY_VARIABLE)


def api_key(arm: Arm | None = None, env: Mapping[str, str] = os.environ) -> str:
    """The key of a server, of this arm where there are two; "" without any. Raises UsageError for what no header can hold."""
    for name in variables(arm):
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
