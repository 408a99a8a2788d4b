"""A server as a systemd service: the unit file, and what systemd and its journal say about it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith import __version__
from draftsmith.engines.secrets import is_secret
from draftsmith.errors import UsageError

SHOWN = ("LoadState", "ActiveState", "SubState", "MainPID", "NRestarts", "Result", "ExecMainStatus", "ActiveEnterTimestamp")
ANSWER_S = 10
# Run after the engine's start: `systemctl start` then returns when the server answers, and fails at once when the engine dies before.
WAIT = (
    "import os, time, urllib.request\n"
    "while True:\n"
    "    os.kill(int(os.environ['MAINPID']), 0)\n"
    "    try:\n"
    "        urllib.request.urlopen({url!r}, timeout=30)\n"
    "        break\n"
    "    except OSError:\n"
    "        time.sleep(1)\n"
)


@dataclass(frozen=True)
class Service:
    """What a unit runs. `env_file` holds the secrets; `user`: a unit of the user's own manager instead of the machine's."""

    name: str
    about: str
    argv: Sequence[str]
    env: Mapping[str, str]
    url: str
    ready_timeout_s: float
    env_file: Path | None = None
    user: bool = False
    run_as: str | None = None


def unit_name(name: str) -> str:
    return f"draftsmith-{name}.service"


# What is left out on purpose: settings that take devices, executable memory, address families or set-uid helpers away. GPUs need the
# first two, NCCL the third, and the driver makes its device files with the fourth. A user's own manager cannot mount, so it gets none.
SANDBOX = ("ProtectSystem=full", "ProtectControlGroups=yes", "PrivateTmp=yes", "UMask=0077")


def unit(service: Service) -> str:
    """The text of the unit file. Raises UsageError for a secret that has no file to come from."""
    hidden = [name for name in service.env if is_secret(name)]
    if hidden and service.env_file is None:
        raise UsageError(
            f"{', '.join(hidden)}: a secret does not belong into a unit file, which everybody can read",
            hint="write it into a file that only the service's user can read, and name that with --env-file",
        )
    lines = [
        f"# Made by draftsmith {__version__}. Secrets are not in here: see EnvironmentFile.",
        "[Unit]",
        f"Description={specifiers(one_line(service.about))}",
        "After=network.target",
        "StartLimitIntervalSec=900",
        "StartLimitBurst=4",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={command_line(service.argv)}",
        f"ExecStartPost={command_line([service.argv[0], '-I', '-c', WAIT.format(url=f'{service.url}/health')])}",
        *(f"Environment={quoted(f'{name}={value}')}" for name, value in service.env.items() if not is_secret(name)),
        *([f"EnvironmentFile={specifiers(str(service.env_file))}"] if service.env_file else []),
        *([f"User={service.run_as}"] if service.run_as and not service.user else []),
        "Restart=on-failure",
        "RestartSec=10",
        f"TimeoutStartSec={round(service.ready_timeout_s)}",
        "TimeoutStopSec=30",
        "KillMode=control-group",
        "LimitNOFILE=65536",
        *([] if service.user else ["LimitMEMLOCK=infinity"]),
        "StandardOutput=journal",
        "StandardError=journal",
        f"SyslogIdentifier={unit_name(service.name).removesuffix('.service')}",
        *(() if service.user else SANDBOX),
        "",
        "[Install]",
        f"WantedBy={'default' if service.user else 'multi-user'}.target",
    ]
    return "\n".join(lines) + "\n"


# --- quoting (systemd.syntax, systemd.service, systemd.exec) ---------------------------------------------------------

SAFE = re.compile(r"[A-Za-z0-9_./:=,+@-]+")
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def specifiers(text: str) -> str:
    """% begins a specifier everywhere."""
    return text.replace("%", "%%")


def one_line(text: str) -> str:
    return " ".join(text.split())


def quoted(word: str) -> str:
    """One word as systemd reads it back: quotes around what is not plain, C escapes inside, % doubled."""
    text = specifiers(word)
    if SAFE.fullmatch(text):
        return text
    return '"' + "".join(ESCAPES.get(character, character) for character in text) + '"'


def command_line(argv: Sequence[str]) -> str:
    """The words of an Exec line. There, and only there, $ begins a variable. A lone ; would begin another command."""
    program, *words = argv
    assert program.startswith("/") and "$" not in program, program
    return " ".join([quoted(program), *('"\\x3b"' if word == ";" else quoted(word.replace("$", "$$")) for word in words)])


# --- asking systemd --------------------------------------------------------------------------------------------------


def command(user: bool) -> str:
    return "systemctl --user" if user else "systemctl"


def show(unit: str, user: bool) -> dict[str, Any]:
    """What systemd says about a unit; {"error": why} where it cannot be asked."""
    text, problem = ask([*command(user).split(), "show", unit, "--property", ",".join(SHOWN)])
    return parse_show(text) if not problem else {"error": problem}


def parse_show(text: str) -> dict[str, Any]:
    """`systemctl show`: KEY=VALUE lines."""
    return {
        key: int(value) if value.isdigit() else value
        for key, _, value in (line.partition("=") for line in text.splitlines())
        if key in SHOWN
    }


def journal(unit: str, user: bool, num_lines: int = 2000) -> list[str]:
    """The last lines that a unit wrote; none where there is no journal."""
    text, problem = ask(
        ["journalctl", *(["--user"] if user else []), "--unit", unit, "--lines", str(num_lines), "--output", "cat", "--no-pager"]
    )
    return [] if problem else text.splitlines()


def ask(argv: Sequence[str]) -> tuple[str, str]:
    """(output, "") or ("", what went wrong)."""
    if shutil.which(argv[0]) is None:
        return "", f"{argv[0]} is not installed"
    try:
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except subprocess.TimeoutExpired:
        return "", f"{argv[0]} did not answer in {ANSWER_S} s"
    if ran.returncode != 0:
        return "", (ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"])[0]
    return ran.stdout, ""
