"""The pieces that every writer shares: a config that knows where each value came from, and the tensors of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from draftsmith.convert.drafter import unflatten
from draftsmith.convert.ledger import Ledger


@dataclass
class Config:
    """Paths to values of the result; each `put` and `drop` enters the ledger."""

    ledger: Ledger
    flat: dict[str, Any] = field(default_factory=dict)

    def put(self, path: str, value: Any, sources: Sequence[str] = (), reason: str = "", same: bool = True) -> None:
        """Write a value. sources: paths of the source that said it; `same` is false when the value is another than theirs."""
        assert path not in self.flat, f"{path} is written twice"
        self.flat[path] = value
        if not sources:
            self.ledger.add("config", "computed", None, path, reason)
        for source in sources:
            action = "computed" if not same else "kept" if source == path else "renamed"
            self.ledger.add("config", action, source, path, reason)

    def ensure(self, path: str, value: Any, reason: str) -> None:
        """Write a value that the source did not say."""
        if path not in self.flat:
            self.put(path, value, reason=reason)

    def drop(self, sources: Sequence[str], reason: str) -> None:
        for source in sources:
            self.ledger.add("config", "dropped", source, None, reason)

    def built(self) -> dict[str, Any]:
        return unflatten(self.flat)


@dataclass(frozen=True)
class Written:
    """Everything that the result's folder holds besides files that are carried over. Tensors: name -> source name, or a new tensor."""

    config: dict[str, Any]
    tensors: dict[str, str | Tensor]
