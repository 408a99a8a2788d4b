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

SHOWN = ("LoadState", "ActiveState", "SubState", "MainPID", "NRestarts", "Result", "ExecMainCode", "ExecMainStatus")
SHOWN += ("ActiveEnterTimestamp", "InvocationID", "ActiveEnterTimestampMonotonic", "ExecMainStartTimestampMonotonic")
EXITED = 1  # CLD_EXITED: ExecMainStatus is an exit code; otherwise it is a signal's number
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
    """What a unit runs. `env_file` holds the secrets; `user`: a unit of the user's own manager instead of the machine's.

    in_tmp: paths below /tmp or /var/tmp that it needs, which a /tmp of its own would hide.
    """

    name: str
    about: str
    argv: Sequence[str]
    env: Mapping[str, str]
    url: str
    ready_timeout_s: float
    env_file: Path | None = None
    user: bool = False
    run_as: str | None = None
    in_tmp: Sequence[str] = ()


def unit_name(name: str) -> str:
    return f"draftsmith-{name}.service"


# What is left out on purpose: settings that take devices, executable memory, address families or set-uid helpers away. GPUs need the
# first two, NCCL the third, and the driver makes its device files with the fourth. A user's own manager cannot mount, so it gets none.
SANDBOX = ("ProtectSystem=full", "ProtectControlGroups=yes", "UMask=0077")
OWN_TMP = "PrivateTmp=yes"


def sandbox(service: Service) -> list[str]:
    """What a unit of the machine is shut off from."""
    if service.user:
        return []
    hidden = [f"# no {OWN_TMP}: it would hide {one_line(path)} (most machines empty that place when they start)" for path in service.in_tmp]
    return [*SANDBOX, *(hidden or [OWN_TMP])]


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
        "TimeoutStopSec=10",
        "KillMode=control-group",
        "LimitNOFILE=65536",
        *([] if service.user else ["LimitMEMLOCK=infinity"]),
        "StandardOutput=journal",
        "StandardError=journal",
        f"SyslogIdentifier={unit_name(service.name).removesuffix('.service')}",
        *sandbox(service),
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


def follow_command(unit: str, user: bool) -> str:
    """What shows a unit's output as it comes."""
    return f"journalctl{' --user' if user else ''} --follow --unit {unit}"


def show(unit: str, user: bool) -> dict[str, Any]:
    """What systemd says about a unit; {"error": why} where it cannot be asked."""
    text, problem = ask([*command(user).split(), "show", unit, "--property", ",".join(SHOWN)])
    return parse_show(text) if not problem else {"error": problem}


def parse_show(text: str) -> dict[str, Any]:
    """`systemctl show`: KEY=VALUE lines."""
    return {
        key: int(value) if value.isdigit() and key != "InvocationID" else value
        for key, _, value in (line.partition("=") for line in text.splitlines())
        if key in SHOWN
    }


def runs(shown: Mapping[str, Any]) -> bool:
    """Is there a process, or about to be? Not while systemd waits to restart one that failed."""
    return shown.get("ActiveState") in ("active", "activating", "reloading") and shown.get("SubState") != "auto-restart"


def stopped(shown: Mapping[str, Any]) -> bool:
    """Was it never started, has it been stopped, or is it being stopped?

    A stop that had to end processes which ignore SIGTERM leaves "failed" with the result "timeout". So does a start that took too long, but
    then the service has not been active since its main process began.
    """
    state, result = shown.get("ActiveState"), shown.get("Result")
    was_active = int(shown.get("ActiveEnterTimestampMonotonic") or 0) > int(shown.get("ExecMainStartTimestampMonotonic") or 0)
    being = state == "deactivating" and result == "success"
    return state in (None, "inactive") or being or (state in ("deactivating", "failed") and result == "timeout" and was_active)


def exit_status(shown: Mapping[str, Any]) -> int | None:
    """How the main process ended last, as a shell tells it: 128 + N for signal N. None when it has not ended."""
    code, status = shown.get("ExecMainCode"), shown.get("ExecMainStatus")
    if not code or not isinstance(status, int):
        return None
    return status if code == EXITED else 128 + status


def journal(unit: str, user: bool, invocation: str = "", num_lines: int = 2000) -> list[str]:
    """The last lines that a unit wrote; none where there is no journal. `invocation`: only of that run of it, not of earlier ones."""
    words = ["journalctl", *(["--user"] if user else []), "--unit", unit, "--lines", str(num_lines), "--output", "cat", "--no-pager"]
    text, problem = ask([*words, f"_SYSTEMD_INVOCATION_ID={invocation}"] if invocation else words)
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
