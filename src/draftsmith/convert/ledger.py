"""The ledger of a conversion: what became of every tensor, config field and file. Nothing is left out, nothing appears unexplained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["tensor", "config", "file", "drafter"]
Action = Literal["kept", "renamed", "computed", "dropped", "impossible"]


@dataclass(frozen=True)
class Entry:
    """One thing. `source` and `target` are names in the two folders; None where it does not exist."""

    kind: Kind
    action: Action
    source: str | None
    target: str | None
    reason: str = ""

    def line(self) -> str:
        """One line for people."""
        names = self.source or self.target or ""
        if self.source and self.target and self.source != self.target:
            names = f"{self.source} -> {self.target}"
        return f"{self.action:10} {self.kind:7} {names}{f': {self.reason}' if self.reason else ''}"


@dataclass
class Ledger:
    """Entries in the order in which they were settled."""

    entries: list[Entry] = field(default_factory=list)

    def add(self, kind: Kind, action: Action, source: str | None, target: str | None, reason: str = "") -> None:
        self.entries.append(Entry(kind, action, source, target, reason))

    def impossible(self, kind: Kind, name: str | None, reason: str) -> None:
        """Something that the target format cannot say; the conversion is refused."""
        self.add(kind, "impossible", name, None, reason)

    @property
    def refused(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.action == "impossible"]

    def counts(self) -> dict[str, int]:
        """How many entries of each action."""
        return dict(Counter(entry.action for entry in self.entries))

    def unaccounted(self, kind: Kind, sources: Iterable[str], targets: Iterable[str]) -> list[str]:
        """Names of the source that no entry settles, and names of the result that no entry explains."""
        settled = {entry.source for entry in self.entries if entry.kind == kind}
        explained = {entry.target for entry in self.entries if entry.kind == kind}
        return [name for name in sources if name not in settled] + [name for name in targets if name not in explained]

    def as_list(self) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in self.entries]
