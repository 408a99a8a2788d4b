"""What must not be seen: names whose values stay out of command lines, unit files, records and reports. And who may reach a server."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence

from draftsmith.engines.flags import spelled
from draftsmith.engines.protocol import Launch
from draftsmith.errors import UsageError

# whole words: HF_TOKEN and VLLM_API_KEY, not TOKENIZERS_PARALLELISM or max-num-batched-tokens
SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIALS?)(?=_|$)", re.I)
MASK = "(hidden)"
KEY_VARIABLE = "VLLM_API_KEY"


def is_secret(name: str) -> bool:
    """Does the name of a variable or a flag say that its value is a secret?"""
    return SECRET.search(name.lstrip("-").replace("-", "_")) is not None


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """The variables with secret values hidden."""
    return {name: MASK if is_secret(name) else value for name, value in env.items()}


def masked_argv(argv: Sequence[str]) -> list[str]:
    """A command line with the values of secret flags hidden."""
    words: list[str] = []
    for word in argv:
        flag, separator, _ = word.partition("=")
        if words and words[-1].startswith("--") and "=" not in words[-1] and is_secret(words[-1]) and not word.startswith("--"):
            words.append(MASK)
        elif separator and flag.startswith("--") and is_secret(flag):
            words.append(f"{flag}={MASK}")
        else:
            words.append(word)
    return words


def refuse_secret_flags(launch: Launch) -> None:
    """Every user of a machine can read every command line. Raises UsageError for a flag that carries a secret."""
    for name, value in launch.flags.items():
        if is_secret(name) and isinstance(value, str):
            raise UsageError(
                f"engine flag {spelled(name)!r} would put a secret on the command line, where every user of the machine can read it",
                hint=f"give it as a variable from a file that only you can read (--env-file); vLLM reads its key from {KEY_VARIABLE}",
            )


def exposure(launch: Launch, env: Mapping[str, str]) -> str:
    """A warning when others than this machine can reach the server and nothing asks them for a key; "" otherwise."""
    host = str(launch.flags.get("host", "127.0.0.1"))
    has_key = bool(env.get(KEY_VARIABLE)) or any(spelled(name) == "api-key" and value for name, value in launch.flags.items())
    if is_loopback(host) or has_key:
        return ""
    return f"WARNING: the server listens on {host} without an API key: whoever can reach this machine can use it, and read its metrics"


def is_loopback(host: str) -> bool:
    """Can only this machine reach a server that listens there?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
