"""Runs that are named on the command line: a run folder, a result folder, a report.json, or a bench folder -> content of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.manifest import Manifest
from draftsmith.report.bench_section import LAUNCHES, SUMMARY
from draftsmith.report.content import READABLE, normal
from draftsmith.report.context import build_bench

REPORT = "report.json"


def open_run(place: Path) -> dict[str, Any]:
    """The newest that `place` has: its report.json, unless bench was measured again since, then bench alone.

    Raises UsageError when there is neither, EnvironmentFailed when a file cannot be read.
    """
    report = next((path for path in (place, place / REPORT, place / "report" / REPORT) if path.is_file()), None)
    bench = next((path for path in (place / "bench", place) if (path / SUMMARY).is_file() and (path / LAUNCHES).is_file()), None)
    if report is not None:
        content = read_report(report)
        if bench is None or not is_newer(bench, content):
            return content
    if bench is None:
        raise UsageError(
            f"{place} has no report and no measurement",
            hint=f"name a run folder, a folder with {REPORT}, or a bench folder with {SUMMARY} and {LAUNCHES}",
        )
    return build_bench(bench, (bench.parent if bench.name == "bench" else bench).resolve().name)


def is_newer(bench: Path, content: dict[str, Any]) -> bool:
    """Does bench's manifest say something else than the report was made from?"""
    manifest = Manifest.read(bench)
    return manifest is not None and manifest.identity != content["provenance"].get("results", {}).get("bench")


def read_report(path: Path) -> dict[str, Any]:
    """report.json of any readable version, as this version has it."""
    hint = f"readable are reports of schema {' and '.join(map(str, READABLE))}; `draftsmith report RECIPE` makes a new one"
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict) or content.get("schema") not in READABLE:
            found = content.get("schema") if isinstance(content, dict) else None
            raise EnvironmentFailed(f"{path} is not a report that this version reads (schema {found})", hint=hint)
        return normal(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise EnvironmentFailed(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}", hint=hint) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EnvironmentFailed(f"{path} is malformed: {error}", hint=hint) from error
