"""What acceptance is held against: a number, a report, what a run measured or predicted, or the watch's own first hour."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.errors import UsageError
from draftsmith.metrics import Acceptance

PLACES = ("report.json", "report/report.json", "bench/summary.json", "summary.json", "verify/verify.json", "verify.json")
HINT = "a run folder whose verify or bench has finished, its export folder, or a report.json; or --expect-accept-len 2.1"
KINDS = ("measured", "served", "predicted")  # the first that a report has; teacher-forced training acceptance is not what is served


@dataclass(frozen=True)
class Reference:
    """source: in words. survival: () when only accept_len is known. rounds: how many it is from; None is a number without uncertainty."""

    source: str
    accept_len: float
    survival: tuple[float, ...] = ()
    rounds: int | None = None

    @classmethod
    def of(cls, source: str, acceptance: Acceptance, by_position: bool = True) -> Reference:
        return cls(source, acceptance.accept_len, acceptance.survival if by_position else (), acceptance.rounds)

    @property
    def variance(self) -> float:
        """Of the drafts that one round accepts: by position exact, else the least that a whole number with this mean can have."""
        mean = self.accept_len - 1
        if self.survival:
            return sum((2 * i + 1) * share for i, share in enumerate(self.survival)) - mean**2
        return (mean % 1) * (1 - mean % 1)

    def at_depth(self, depth: int) -> Reference:
        """Had only so many drafts been proposed: exact for a chain. Unchanged when it is not as deep, or not known by position."""
        if not self.survival or depth >= len(self.survival):
            return self
        return Reference(self.source, 1 + sum(self.survival[:depth]), self.survival[:depth], self.rounds)


def expected_of(place: Path) -> Reference:
    """From a run folder or a result folder, its export folder, a report.json, bench's summary.json or verify's verify.json.

    What was served in bench counts first (all loads together), then what verify served, then what replay predicted. Raises UsageError when
    there is none of these.
    """
    for path in candidates(place):
        if path.is_file():
            found = read(path)
            if found is not None:
                return found
    raise UsageError(
        f"{place} has no accept_len that was served or predicted",
        hint=HINT,
    )


def candidates(place: Path) -> Iterator[Path]:
    """Files to look into. The folder of an exported drafter says nothing itself: the run around it does."""
    if place.is_file():
        yield place
        return
    for folder in (place, place.resolve().parent) if (place / "config.json").is_file() else (place,):
        yield from (folder / name for name in PLACES)


def read(path: Path) -> Reference | None:
    """The reference that a file holds, or None. Raises UsageError for a file that cannot be read."""
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise ValueError("expected an object")
        counted, kind = first_kind(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UsageError(f"--expect: {path} is not readable as a report or a summary: {error!r}", hint=HINT) from None
    return Reference.of(f"{kind}, {path}", counted) if counted else None


def first_kind(content: Mapping[str, Any]) -> tuple[Acceptance | None, str]:
    """(counts, what they are) of the best kind that a report, a bench summary or verify.json has."""
    if "acceptance" in content:
        for kind in KINDS:
            if counted := together([row for row in content["acceptance"] if row["kind"] == kind]):
                return counted, {"measured": "served in bench", "served": "served in verify", "predicted": "replay, predicted"}[kind]
    if "cells" in content:
        return together([cell["acceptance"] for cell in content["cells"] if cell.get("acceptance")]), "served in bench"
    replay = content.get("replay") or {}
    for kind, words in (("served", "served in verify"), ("predicted", "replay, predicted")):
        if replay.get(kind) and (counted := together([replay[kind]])):
            return counted, words
    return None, ""


def together(rows: Sequence[Mapping[str, Any]]) -> Acceptance | None:
    """The sum of counts, as deep as all of them are; None without rounds."""
    counts = [counted for row in rows if (counted := Acceptance.from_dict(dict(row))).rounds]
    if not counts:
        return None
    depth = min(counted.depth for counted in counts)
    return sum((counted.at_depth(depth) for counted in counts[1:]), counts[0].at_depth(depth))
