"""Do two servers sample from the same distribution? A permutation test on token counts, and what it would have found. Pure.

For each prompt both servers give many answers of n tokens. Under equality two answers to a prompt, one of each server, may be exchanged;
so the k-th answers of both are a pair, and pairs are exchanged at random: exact, whatever the dependence of tokens inside an answer. The
statistic of a place is the two-sample chi-square of its counts, added up over the prompts; places are each position, each two
neighbouring positions, and all positions together. Holm over all places and ways of sampling. Tokens seen fewer than RARE times in both
together are one class: the pooled counts do not change in an exchange, so the test stays exact.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

RARE = 5
LOOK, LOOK_P = 999, 0.01  # exchanges of a first look; when it gives p < LOOK_P, anew with as many as the level needs
POWER, EXPERIMENTS = 0.8, 200
SHIFTS = (0.02, 0.03, 0.05, 0.07, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7)  # total variations at which the power is looked up
END = -1  # after the end of an answer


@dataclass(frozen=True)
class Place:
    """One test. p: by exchanges; adjusted: after Holm. total_variation: between the empirical distributions, mean over prompts."""

    name: str
    p: float
    adjusted: float
    total_variation: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Sampled:
    """What was found for one way of sampling. detectable: total variation of a shift at one position that is found with 80 % power."""

    label: str
    prompts: int
    samples: int
    tokens: int
    places: list[Place]
    detectable: dict[str, float | None]

    @property
    def worst(self) -> Place:
        return min(self.places, key=lambda place: place.adjusted)

    @property
    def smallest_found(self) -> float | None:
        """The weakest position's detectable total variation; None when some position has not even the largest one."""
        values = list(self.detectable.values())
        return max((v for v in values if v is not None), default=None) if None not in values else None


def padded(answers: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """[answers, length]: tokens, END after the end."""
    rows = [[*answer[:length], *[END] * (length - len(answer[:length]))] for answer in answers]
    return np.array(rows, dtype=np.int64).reshape(len(answers), length)


def classes(values_S: np.ndarray) -> np.ndarray:
    """[S, K] one-hot classes of a column, the rare ones together; a column of one class has K = 0."""
    found, inverse, counts = np.unique(values_S, return_inverse=True, return_counts=True)
    kept = np.flatnonzero(counts >= RARE)
    column_of = np.full(len(found), len(kept))
    column_of[kept] = np.arange(len(kept))
    columns = column_of[inverse]
    number = len(kept) + int((counts < RARE).any())
    return np.eye(number, dtype=np.float32)[columns] if number > 1 else np.zeros((len(values_S), 0), np.float32)


def place_columns(tokens_SN: np.ndarray) -> dict[str, np.ndarray]:
    """Name of a place -> its classes [S, K]."""
    length = tokens_SN.shape[1]
    found = {f"token {n + 1}": classes(tokens_SN[:, n]) for n in range(length)}
    for n in range(1, length):
        _, pairs = np.unique(tokens_SN[:, n - 1 : n + 1], axis=0, return_inverse=True)
        found[f"tokens {n} and {n + 1}"] = classes(pairs.reshape(-1))
    return found


def null_and_seen(
    places: Sequence[Mapping[str, np.ndarray]], number: int, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """(statistics [number] under exchange, the observed one) of each place and of "all tokens", summed over prompts.

    places: per prompt the classes [2 P, K] of all answers, the first server's P first. The chi-square of equally many answers is
    sum (a - b)^2 / (a + b); an exchange turns the sign of one pair's part in a - b.
    """
    names = list(places[0])
    null = {name: np.zeros(number) for name in names}
    seen = dict.fromkeys(names, 0.0)
    for columns in places:
        together = np.concatenate(list(columns.values()), axis=1)
        edges = np.cumsum([0, *(part.shape[1] for part in columns.values())])
        pairs = len(together) // 2
        apart_PK, totals_K = together[:pairs] - together[pairs:], together.sum(0)
        signs_RP = rng.integers(0, 2, (number, pairs), dtype=np.int8).astype(np.float32) * 2 - 1
        parts_RK = (signs_RP @ apart_PK) ** 2 / totals_K
        observed_K = apart_PK.sum(0) ** 2 / totals_K
        for name, low, high in zip(names, edges[:-1], edges[1:], strict=True):
            null[name] += parts_RK[:, low:high].sum(-1)
            seen[name] += float(observed_K[low:high].sum())
    single = [name for name in names if name.startswith("token ")]
    null["all tokens"] = np.sum([null[name] for name in single], axis=0)
    seen["all tokens"] = sum(seen[name] for name in single)
    return null, seen


def p_values(null: Mapping[str, np.ndarray], seen: Mapping[str, float]) -> dict[str, float]:
    """(1 + exchanges with a statistic at least as large) / (1 + exchanges)."""
    return {name: float((1 + (null[name] >= seen[name] - 1e-6).sum()) / (1 + len(null[name]))) for name in null}


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p values (1979)."""
    adjusted, running = {}, 0.0
    for place, (name, value) in enumerate(sorted(p.items(), key=lambda entry: entry[1])):
        running = max(running, min(1.0, (len(p) - place) * value))
        adjusted[name] = running
    return adjusted


def total_variation(a_S: np.ndarray, b_S: np.ndarray) -> float:
    """Between the empirical distributions of two columns."""
    values = np.unique(np.concatenate([a_S, b_S]))
    return float(sum(abs((a_S == value).mean() - (b_S == value).mean()) for value in values) / 2)


def equality_test(
    label: str, first: Sequence[np.ndarray], second: Sequence[np.ndarray], alpha: float, ways: int = 1, seed: int = 0
) -> Sampled:
    """first, second: per prompt the tokens [S, N] of either server. ways: how many ways of sampling share alpha."""
    rng = np.random.default_rng(seed)
    length = first[0].shape[1]
    pairs = [min(len(a), len(b)) for a, b in zip(first, second, strict=True)]
    first, second = [a[:n] for a, n in zip(first, pairs, strict=True)], [b[:n] for b, n in zip(second, pairs, strict=True)]
    places = [place_columns(np.concatenate([a, b])) for a, b in zip(first, second, strict=True)]
    null, seen = null_and_seen(places, LOOK, rng)
    p = p_values(null, seen)
    level = alpha / (ways * len(p))
    if min(p.values()) < LOOK_P:  # the first look rejects nothing; what does has its own permutations
        sure, seen = null_and_seen(places, math.ceil(2 / level), rng)
        p = p_values(sure, seen)
    adjusted = holm(p)
    apart = {
        f"token {n + 1}": float(np.mean([total_variation(a[:, n], b[:, n]) for a, b in zip(first, second, strict=True)]))
        for n in range(length)
    }
    detectable = {
        f"token {n + 1}": detectable_shift(first, second, n, critical(null[f"token {n + 1}"], level, len(first)), rng)
        for n in range(length)
    }
    found = [Place(name, value, min(1.0, ways * adjusted[name]), apart.get(name)) for name, value in p.items()]
    return Sampled(label, len(first), min(map(len, (*first, *second))), length, found, detectable)


def critical(null: np.ndarray, level: float, prompts: int) -> float:
    """The (1 - level) quantile of a statistic under exchange, by the gamma distribution of its mean and variance.

    Where every answer has the same token nothing can be exchanged; another token in each prompt is then worth one degree of freedom.
    """
    mean, variance = float(null.mean()), float(null.var())
    if variance < 1e-9:
        return float(stats.chi2.isf(level, prompts))
    return float(stats.gamma.isf(level, mean**2 / variance, scale=variance / mean))


def shifted(p_K: np.ndarray, amount: float) -> np.ndarray:
    """[K + 1]: `amount` taken from the most frequent class and given to the others in proportion, or to a new one when there is none."""
    q = np.append(p_K, 0.0)
    top = int(q.argmax())
    amount = min(amount, float(q[top]))
    others = q.copy()
    others[top] = 0.0
    others = others / others.sum() if others.sum() > 0 else np.append(np.zeros(len(p_K)), 1.0)
    q[top] -= amount
    return q + amount * others


def detectable_shift(
    first: Sequence[np.ndarray], second: Sequence[np.ndarray], position: int, limit: float, rng: np.random.Generator
) -> float | None:
    """Smallest of SHIFTS, in every prompt at this position, whose statistic is above `limit` in 80 % of simulated experiments.

    The true distribution is taken as the pooled one. None when not even the largest is found so often.
    """
    pooled = []
    for a, b in zip(first, second, strict=True):
        _, counts = np.unique(np.concatenate([a[:, position], b[:, position]]), return_counts=True)
        frequent = counts[counts >= RARE]
        rest = counts[counts < RARE].sum()
        p = np.append(frequent, rest) if rest else frequent
        pooled.append((p / p.sum(), len(a)))

    def found(amount: float) -> bool:
        statistic = np.zeros(EXPERIMENTS)
        for p, size in pooled:
            counts_a = rng.multinomial(size, np.append(p, 0.0), EXPERIMENTS)
            counts_b = rng.multinomial(size, shifted(p, amount), EXPERIMENTS)
            statistic += ((counts_a - counts_b) ** 2 / np.maximum(counts_a + counts_b, 1)).sum(-1)
        return float((statistic > limit).mean()) >= POWER

    place = bisect_left(SHIFTS, True, key=found)
    return SHIFTS[place] if place < len(SHIFTS) else None
