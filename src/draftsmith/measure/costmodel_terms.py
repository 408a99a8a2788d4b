"""The terms of the cost model: which there are, what they need to know, and which of them a table can decide. See `costmodel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.errors import InvalidMeasurement
from draftsmith.measure.collectives import AllReduce
from draftsmith.models.text_config import num_experts, read_text_config

ALWAYS, OPTIONAL = ("floor", "row", "draft"), ("slot", "draft_slot", "round", "round_slot")
SHARPNESS = (1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Cell:
    """A measured time of one slot: T_ar (depth 0) or T_round. context: tokens already there, for tables that vary it."""

    concurrency: int
    depth: int
    second: float
    context: float = 0.0


@dataclass(frozen=True)
class Shape:
    """What the model must know of target and engine. buckets: batch sizes with a CUDA graph; a batch is padded to the next one.

    vocab, draft_vocab: widths of the logits that several GPUs gather; 0: not gathered, or not known.
    """

    num_experts: int = 0
    top_k: int = 0
    layers: int = 0
    hidden: int = 0
    buckets: tuple[int, ...] = ()
    vocab: int = 0
    draft_vocab: int = 0

    def collectives(self, batch: float, depth: float, all_reduce: AllReduce) -> float:
        """Seconds of a step's or a round's all-reduces (two a layer, one behind the embedding) and gathers (the logits).

        Of its `depth` passes the drafter (one layer) makes the first over all rows of the round, rejected drafts included.
        """
        rows = batch * (depth + 1)
        seconds = (2 * self.layers + 1) * all_reduce.at(rows, self.hidden) + all_reduce.gather(rows, self.vocab)
        if depth:
            for part, times in ((rows, 1), (batch, depth - 1)):
                seconds += times * (3 * all_reduce.at(part, self.hidden) + all_reduce.gather(part, self.draft_vocab))
        return seconds

    def padded(self, concurrency: np.ndarray) -> np.ndarray:
        """Batch sizes that are run; those above the largest bucket are run as they are."""
        if not self.buckets:
            return concurrency
        sizes = np.sort(np.asarray(self.buckets, float))
        at = np.searchsorted(sizes, concurrency)
        return np.where(at < len(sizes), sizes[np.minimum(at, len(sizes) - 1)], concurrency)


def shape_of(target: Path) -> Shape:
    """By the config of a target folder; an empty shape where there is none."""
    return shape_of_config(read_text_config(target)) if (target / "config.json").is_file() else Shape()


def shape_of_config(config: Mapping[str, Any]) -> Shape:
    """Layers, width, vocabulary and experts by a text config."""
    experts = int(num_experts(config))
    top_k = int(config.get("num_experts_per_tok") or config.get("num_experts_per_token") or 0)
    chosen = (experts, top_k) if experts and top_k else (0, 0)
    layers, hidden, vocab = (int(config.get(name) or 0) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
    return Shape(*chosen, layers=layers, hidden=hidden, vocab=vocab)


def expert_union(num_experts: int, top_k: int, rows: np.ndarray | float) -> np.ndarray | float:
    """Share of the experts that `rows` rows touch when each picks top_k at random: 1 - (1 - top_k / E)^rows."""
    return 1 - (1 - top_k / num_experts) ** rows


@dataclass(frozen=True)
class Points:
    """Cells as columns. rows: of one pass of the target; comm: seconds of all collectives, the drafter's among them."""

    concurrency: np.ndarray
    depth: np.ndarray
    context: np.ndarray
    rows: np.ndarray
    comm: np.ndarray

    @classmethod
    def of(cls, cells: Sequence[tuple[float, float, float]], shape: Shape, all_reduce: AllReduce | None) -> Points:
        """cells: (concurrency, depth, context)."""
        concurrency, depth, context = np.asarray(cells, float).reshape(-1, 3).T
        batch = shape.padded(concurrency)
        rows = batch * (depth + 1)
        comm = np.zeros_like(rows)
        if all_reduce is not None:
            comm = np.array([shape.collectives(b, k, all_reduce) for b, k in zip(batch, depth, strict=True)])
        return cls(batch, depth, context, rows, comm)


@dataclass(frozen=True)
class Form:
    """Which terms there are, and how sharp the knee is."""

    terms: tuple[str, ...]
    sharpness: float
    shape: Shape

    def parts(self, values: np.ndarray, at: Points) -> dict[str, np.ndarray]:
        """Seconds by part; they add up to the time."""
        have = dict(zip(self.terms, values, strict=True))
        floor = np.full_like(at.rows, have["floor"])
        if "expert" in have:
            floor = floor + have["expert"] * expert_union(self.shape.num_experts, self.shape.top_k, at.rows)
        slots = at.concurrency * (have.get("slot", 0.0) + have.get("kv", 0.0) * at.context)
        drafts = at.depth * (have["draft"] + have.get("draft_slot", 0.0) * at.concurrency) if "draft" in have else np.zeros_like(at.rows)
        return {
            "pass": (floor**self.sharpness + (have["row"] * at.rows) ** self.sharpness) ** (1 / self.sharpness),
            "collectives": at.comm,
            "draft": drafts,
            "host": slots + np.where(at.depth > 0, have.get("round", 0.0) + have.get("round_slot", 0.0) * at.concurrency, 0.0),
        }

    def seconds(self, values: np.ndarray, at: Points) -> np.ndarray:
        return np.sum(list(self.parts(values, at).values()), axis=0)


def forms(cells: Sequence[Cell], shape: Shape) -> list[Form]:
    """Every form that the cells can decide: at least two more cells than parameters, no term without a contrast in the data."""
    depths = {cell.depth for cell in cells}
    always = [term for term in ALWAYS if term != "draft" or max(depths) > 0]
    always += ["expert"] if shape.num_experts else []
    always += ["kv"] if len({cell.context for cell in cells}) > 1 else []
    optional = [term for term in OPTIONAL if term == "slot" or max(depths) > 0]
    if len(depths - {0}) < 2:
        optional = [term for term in optional if term not in ("round", "round_slot")]
    found = []
    for number in range(len(optional) + 1):
        for more in combinations(optional, number):
            terms = (*always, *more)
            if len(terms) + 2 <= len(cells):
                found += [Form(terms, sharpness, shape) for sharpness in SHARPNESS]
    if not found:
        raise InvalidMeasurement(
            f"{len(cells)} cells cannot decide {len(always)} terms", hint="measure more concurrencies or depths; two cells more than terms"
        )
    return found


def starting(terms: Sequence[str], cells: Sequence[Cell]) -> dict[str, float]:
    """Rough values to begin at: shares of the smallest and of the largest time."""
    least, most = min(cell.second for cell in cells), max(cell.second for cell in cells)
    rows = max(cell.concurrency * (cell.depth + 1) for cell in cells)
    deepest, widest = max(1, *(cell.depth for cell in cells)), max(cell.concurrency for cell in cells)
    context = max(1.0, *(cell.context for cell in cells))
    guess = {"floor": 0.8 * least, "expert": 0.5 * most, "row": 0.3 * most / rows, "draft": 0.3 * least / deepest, "round": 0.1 * least}
    guess |= {"slot": 0.1 * most / widest, "draft_slot": 0.1 * most / (widest * deepest), "round_slot": 0.1 * most / widest}
    guess |= {"kv": 0.1 * most / (widest * context)}
    return {term: guess[term] for term in terms}
