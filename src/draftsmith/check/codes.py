"""The catalog of codes: what each finding means, how it was seen, what to do. Data: codes/*.yaml."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path

import yaml

from draftsmith.errors import UsageError
from draftsmith.yaml_text import LOADER

FOLDER = Path(__file__).with_name("codes")


@cache
def catalog() -> dict[str, dict[str, str]]:
    """Code -> {title, why, fix}, of all files."""
    entries: dict[str, dict[str, str]] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        for code, entry in yaml.load(path.read_text(), Loader=LOADER).items():
            assert code not in entries, f"{code} is in two files of {FOLDER}"
            entries[code] = entry
    return dict(sorted(entries.items()))


def explain(code: str) -> dict[str, str]:
    """One entry. Raises UsageError with the nearest code."""
    wanted = code.upper()
    if wanted not in catalog():
        close = difflib.get_close_matches(wanted, catalog(), n=1, cutoff=0.6)
        hint = f"did you mean {close[0]}?" if close else f"codes: {', '.join(catalog())}"
        raise UsageError(f"no code {code!r}", hint=hint)
    return {"code": wanted, **catalog()[wanted]}


def explained(entry: dict[str, str]) -> str:
    """An entry for people."""
    return f"{entry['code']}: {entry['title']}\n\n{entry['why'].strip()}\n\nfix: {entry['fix'].strip()}"
