"""How fast plain decoding is here, for the estimates of `--dry-run`: as break-even measured it, or as on two CPU cores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SEEN_TOK_S = {**{c: 32.0 * c for c in range(1, 7)}, 8: 190.0}  # vLLM's CPU build on two cores, a target of 135 M parameters


@dataclass(frozen=True)
class Rates:
    """Output tokens a second of the baseline by concurrency. measured: of this machine, by break-even."""

    by_concurrency: Mapping[int, float]
    measured: bool

    @property
    def source(self) -> str:
        """For the note of an estimate."""
        return "rates as break-even measured them" if self.measured else "the rates of two CPU cores with a 135 M target"

    def at(self, concurrency: int) -> float:
        """tok/s at the nearest concurrency below (else the smallest) that is known; more requests than known count as no faster."""
        known = [c for c in self.by_concurrency if c <= concurrency] or [min(self.by_concurrency)]
        return self.by_concurrency[max(known)]


ASSUMED = Rates(SEEN_TOK_S, measured=False)


def rates(breakeven: Path) -> Rates:
    """Of a run whose break-even stage left `breakeven`/summary.json; ASSUMED while there is none that can be read."""
    try:
        steps = json.loads((breakeven / "summary.json").read_text())["decode_step_s"]
        found = {int(c): int(c) / float(step["value"]) for c, step in steps.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ZeroDivisionError):
        return ASSUMED
    return Rates(found, measured=True) if found else ASSUMED
