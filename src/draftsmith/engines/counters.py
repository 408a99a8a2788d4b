"""Reading a Prometheus text page: one function, used by every engine."""

from __future__ import annotations

import math
import re
from contextlib import suppress

SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+\d+)?$")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


def samples(metrics_text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """(labels, value) of every sample of one metric, in page order. NaN, infinity and what is no number at all tell nothing."""
    found = []
    for line in metrics_text.splitlines():
        if not line.startswith(name):
            continue
        match = SAMPLE.match(line)
        if match and match["name"] == name:
            with suppress(ValueError):
                if math.isfinite(value := float(match["value"])):
                    found.append((dict(LABEL.findall(match["labels"] or "")), value))
    return found


def total(metrics_text: str, name: str) -> int | None:
    """Sum of a counter over all its labels (several engine ranks), or None when the page does not have it."""
    found = samples(metrics_text, name)
    return round(sum(value for _, value in found)) if found else None


def total_by(metrics_text: str, name: str, label: str) -> dict[str, int]:
    """Sum of a counter for each value of one label."""
    totals: dict[str, int] = {}
    for labels, value in samples(metrics_text, name):
        if label in labels:
            totals[labels[label]] = totals.get(labels[label], 0) + round(value)
    return totals


def gauge(metrics_text: str, name: str) -> float | None:
    """Sum of a gauge over all its labels, or None when the page does not have it."""
    found = samples(metrics_text, name)
    return sum(value for _, value in found) if found else None


def values_of(metrics_text: str, prefix: str, label: str) -> list[str]:
    """The different values of a label over all metrics whose names begin with `prefix`, sorted."""
    lines = [line for line in metrics_text.splitlines() if line.startswith(prefix)]
    found = {
        value for line in lines if (match := SAMPLE.match(line)) for name, value in LABEL.findall(match["labels"] or "") if name == label
    }
    return sorted(found)
