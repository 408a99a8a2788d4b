"""When are two texts the same, nearly the same, or one text repeating itself?"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

SHINGLE = 3  # words
NEAR = 0.6  # Jaccard similarity of the shingle sets from which two prompts count as one


def normalise(text: str) -> str:
    """Lower-case words and digits, one space between them: punctuation, case and spacing do not make a new prompt."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join("".join(c if c.isalnum() or c in "+#" else " " for c in folded).split())


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """Runs of SHINGLE words of the normalised text; a shorter text is one run."""
    words = normalise(text).split()
    return frozenset(tuple(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1)))


class Seen:
    """The prompts kept so far, searchable for equal and near-equal ones."""

    def __init__(self) -> None:
        self.exact: set[str] = set()
        self.sets: list[frozenset[tuple[str, ...]]] = []
        self.where: dict[tuple[str, ...], list[int]] = defaultdict(list)

    def add(self, text: str) -> None:
        self.exact.add(normalise(text))
        runs = shingles(text)
        for run in runs:
            self.where[run].append(len(self.sets))
        self.sets.append(runs)

    def like(self, text: str) -> str | None:
        """ "duplicate", "near-duplicate", or None for a new text."""
        if normalise(text) in self.exact:
            return "duplicate"
        runs = shingles(text)
        shared = Counter(place for run in runs for place in self.where.get(run, ()))
        near = any(common / (len(runs) + len(self.sets[place]) - common) >= NEAR for place, common in shared.items())
        return "near-duplicate" if near else None


def repeated_share(items: Sequence[Hashable], n: int) -> float:
    """Share of items that lie in an n-gram which has occurred before: 0 for fresh text, near 1 for a loop of any period."""
    seen: set[tuple[Hashable, ...]] = set()
    covered: set[int] = set()
    for start in range(len(items) - n + 1):
        gram = tuple(items[start : start + n])
        if gram in seen:
            covered.update(range(start, start + n))
        seen.add(gram)
    return len(covered) / len(items) if items else 0.0
