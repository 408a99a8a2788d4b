"""conditions.json: everything besides the raw lines that a summary needs, and what must agree before two runs may be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from draftsmith.bench.settings import BenchSettings
from draftsmith.errors import InvalidMeasurement, UsageError
from draftsmith.manifest import atomic_write_json, read_json, read_jsonl, shaped
from draftsmith.measure.protocol import LAUNCHES
from draftsmith.measure.stopping import Looks

CONDITIONS = "conditions.json"
SCHEMA = 1
Unit = Literal["launch", "block"]  # what is replicated: a start of the engine, or a block of requests at a server that keeps running


@dataclass(frozen=True)
class Context:
    """unit: what was replicated. break_even: entries of breakeven/summary.json. reused: requests whose prompt was sent before, unchanged.

    conditions: what must agree for two runs to be compared, flat. drafter: what may differ, because it is what runs are about.
    """

    settings: BenchSettings
    depth: int
    subject: str = "EAGLE-3"
    unit: Unit = "launch"
    break_even: Sequence[Mapping[str, Any]] = ()
    reused: int = 0
    conditions: Mapping[str, Any] = field(default_factory=dict)
    drafter: Mapping[str, Any] = field(default_factory=dict)
    differences: Sequence[Mapping[str, Any]] = ()  # between the arms
    command: str = ""

    @property
    def looks(self) -> Looks:
        return Looks(self.settings.pairs, self.settings.last_pair)

    def break_even_at(self, concurrency: int) -> Mapping[str, Any] | None:
        """The entry of this concurrency and depth; None where breakeven did not measure it."""
        found = [entry for entry in self.break_even if (entry["concurrency"], entry["depth"]) == (concurrency, self.depth)]
        return found[0] if found else None

    def write(self, folder: Path) -> None:
        """conditions.json. Raises InvalidMeasurement when launches that are already there were measured under other conditions."""
        if (folder / CONDITIONS).exists() and read_jsonl(folder / LAUNCHES):
            before = read_context(folder)
            changed = [row for row in differ(before.conditions, self.conditions) if row["matters"]]
            if changed:
                raise InvalidMeasurement(
                    f"{folder} holds launches that were measured under other conditions: {named(changed)}",
                    hint="remove the folder to measure all of it again",
                )
        content = {**asdict(self), "settings": self.settings.model_dump(mode="json")}
        atomic_write_json(folder / CONDITIONS, {"schema": SCHEMA, **content})


def read_context(folder: Path) -> Context:
    """From conditions.json. Raises UsageError when it is not there or of another version."""
    path = folder / CONDITIONS
    if not path.exists():
        raise UsageError(f"no {CONDITIONS} in {folder}", hint="expected the folder of a bench, for example RUN_FOLDER/bench")
    content = read_json(path)
    if content.pop("schema", None) != SCHEMA:
        raise UsageError(f"{path} was written by another version", hint="run the bench again")
    with shaped(path):
        found = TypeAdapter(Context).validate_python(content)
        for entry in found.break_even:
            needed = ("concurrency", "depth", "accept_len", *(("round_s", "decode_step_s") if "round_s" in entry else ()))
            if wrong := [name for name in needed if not isinstance(entry[name], int | float)]:
                raise ValueError(f"{wrong[0]} of break_even is {entry[wrong[0]]!r}")
        return found


# --- comparing conditions --------------------------------------------------------------------------------------------

HARMLESS = ("draftsmith",)  # recorded, but two runs that differ in it can still be compared


def differ(a: Mapping[str, Any], b: Mapping[str, Any], names: tuple[str, str] = ("before", "now")) -> list[dict[str, Any]]:
    """Keys whose values differ, each with both values and whether that matters."""
    keys = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))
    return [{"key": key, names[0]: a.get(key), names[1]: b.get(key), "matters": key not in HARMLESS} for key in keys]


def named(differences: Sequence[Mapping[str, Any]]) -> str:
    """key (this, that); ..."""
    shown = []
    for row in differences:
        values = [shorten(value) for key, value in row.items() if key not in ("key", "matters")]
        shown.append(f"{row['key']} ({', '.join(values)})")
    return "; ".join(shown)


def shorten(value: Any) -> str:
    """A digest is told by its first characters."""
    text = "absent" if value is None else str(value)
    return f"{text[:12]}..." if len(text) == 64 and " " not in text else text[:120]
