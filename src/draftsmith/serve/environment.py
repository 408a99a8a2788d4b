"""Files with variables, and the unit of a planned launch."""

from __future__ import annotations

import getpass
import os
import re
import stat
from pathlib import Path

from draftsmith.engines.flags import fixed_port
from draftsmith.engines.secrets import exposure, masked, masked_argv, refuse_secret_flags
from draftsmith.errors import UsageError
from draftsmith.manifest import atomic_write_bytes
from draftsmith.serve import records, systemd
from draftsmith.serve.records import Record
from draftsmith.serve.service import Plan

DEFAULT_PORT = 8000
TMP = (Path("/tmp"), Path("/var/tmp"))
TMP_PATH = re.compile(r"/(?:var/)?tmp/[^\s\"',;:=]+")


def read_env_file(path: Path) -> dict[str, str]:
    """NAME=VALUE lines as systemd's EnvironmentFile has them: comments, blank lines, quotes around a value. Raises UsageError."""
    try:
        text, mode = path.read_text(), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise UsageError(f"cannot read {path}: {why}", hint="--env-file takes lines of NAME=VALUE") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"{path} can be read by others", hint=f"chmod 600 {path}")
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip().isidentifier():
            raise UsageError(
                f"{path}, line {number}: not NAME=VALUE", hint="one variable a line; # begins a comment"
            )  # the line itself may be a secret
        value = value.strip()
        found[name.strip()] = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
    return found


def in_tmp(plan: Plan) -> list[str]:
    """Interpreter, target, drafter, and existing paths among flags and variables that lie below /tmp or /var/tmp, links followed."""
    launch = plan.launch
    named = [plan.python, launch.target, *([launch.drafting.folder] if launch.drafting else [])]
    said = " ".join(map(str, [*launch.flags.values(), *launch.env.values()]))
    named += [path for word in TMP_PATH.findall(said) if (path := Path(word)).exists()]
    return sorted({str(path) for path in named for place in TMP if below(path, place)})


def below(path: Path, place: Path) -> bool:
    """Does a path lie in a folder, as it is written or at the end of its links? A virtual environment's interpreter is a link."""
    return any(place in found.parents for found in (path, path.resolve(), path.parent.resolve()))


def service_unit(plan: Plan, env_file: Path | None, user: bool, run_as: str | None, out: Path | None) -> tuple[str, Record]:
    """(text of the unit file, record); both are written when `out` is given. Raises UsageError for a secret on the command line."""
    refuse_secret_flags(plan.launch)
    if out is not None and out.is_dir():
        raise UsageError(f"--out {out} is a folder", hint=f"name the file: --out {out / systemd.unit_name(plan.name)}")
    port = fixed_port(plan.launch.flags) or DEFAULT_PORT
    host = str(plan.launch.flags.get("host", "127.0.0.1"))
    url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
    argv = plan.engine.argv(plan.python, plan.launch, port)
    env = plan.engine.env(plan.launch)
    drafting = plan.launch.drafting
    about = f"{plan.name}: {plan.engine_name} serves {plan.launch.target.name}"
    about += f" with {drafting.method} at depth {drafting.depth}" if drafting else " without a drafter"
    account = run_as or (None if os.geteuid() == 0 else getpass.getuser())
    service = systemd.Service(
        plan.name, about, argv, env, url, plan.ready_timeout_s, env_file.absolute() if env_file else None, user, account, in_tmp(plan)
    )
    text = systemd.unit(service)
    if warning := exposure(plan.launch, {**env, **plan.secrets}):
        text = f"# {warning}\n{text}"
    record = Record(
        name=plan.name,
        engine=plan.engine_name,
        recipe=str(plan.recipe),
        arm=plan.launch.arm,
        url=url,
        log="",
        argv=masked_argv(argv),
        env=masked(env),
        planned=plan.engine.requested(plan.launch),
        unit=systemd.unit_name(plan.name),
        user_unit=user,
    )
    if out is not None:
        with records.only_one(plan.name):
            before = records.read(plan.name)
            if before is not None and before.alive():
                raise UsageError(f"server {plan.name} runs (pid {before.pid})", hint=f"draftsmith serve stop {plan.name}, or --name")
            atomic_write_bytes(out, text.encode())
            records.write(record)
    return text, record


def install_hint(out: Path, unit: str, user: bool) -> str:
    """What to type to put the unit to work."""
    folder = "~/.config/systemd/user" if user else "/etc/systemd/system"
    ask = systemd.command(user)
    return f"{out}\ninstall it: install -D -m 644 {out} {folder}/{unit} && {ask} daemon-reload && {ask} enable --now {unit}"
