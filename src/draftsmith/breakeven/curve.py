"""The break-even curve as one inline SVG: needed accept_len over concurrency, a line per kind of drafting, published lengths beside it.

Written by hand because it has few marks and must follow the page's colours; colours are CSS variables of page.css.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 720, 340
LEFT, RIGHT, TOP, BOTTOM = 46, 216, 14, 40
SHADES = (100, 82, 66, 52, 40, 30, 22, 16)  # per cent of the series' colour, from the first line on
GAP = 13  # between two labels
NUMBER = 22  # what a concurrency takes below the plot
LABEL = 33  # characters of one
LONGEST = 20  # characters of a name that fit beside the plot


def curve(entries: Sequence[Mapping[str, Any]], published: Sequence[Mapping[str, Any]]) -> str:
    """An <svg> element. entries: rows of the break-even table; published: {"label", "accept_len"} of each reference line."""
    concurrency = sorted({e["concurrency"] for e in entries})
    highest = max([e["accept_len_high"] for e in entries] + [line["accept_len"] for line in published])
    top = min(max(2.0, math.ceil(highest * 1.05)), 2 + math.ceil(max(e["accept_len"] for e in entries)) * 2)

    def x(c: float) -> float:
        low, high = math.log2(concurrency[0]), math.log2(concurrency[-1])
        return LEFT + (WIDTH - LEFT - RIGHT) * ((math.log2(c) - low) / (high - low) if high > low else 0.5)

    def y(length: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (min(max(length, 0.0), top) / top)

    marks = [axes(concurrency, int(top), x, y)]
    labels: list[tuple[float, str, str]] = []
    for line in published:
        if line["accept_len"] <= top:
            at = y(line["accept_len"])
            marks.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="var(--predicted)" stroke-dasharray="2 4"/>')
            labels.append((at, line["label"], "var(--predicted)"))
    for number, name in enumerate(dict.fromkeys(e["name"] for e in sorted(entries, key=lambda e: e["rows"]))):
        points = sorted((e for e in entries if e["name"] == name), key=lambda e: e["concurrency"])
        share = SHADES[min(number, len(SHADES) - 1)]
        colour = f"color-mix(in srgb, var(--speculative) {share}%, var(--baseline))"
        marks += series(points, colour, x, y)
        short = name if len(name) <= LONGEST else name.split(",")[0]
        labels.append((y(points[-1]["accept_len"]), f"{short} (at most {points[-1]['ceiling']})", colour))
    marks += spread(labels)
    title = f"accept_len needed to break even over concurrency {concurrency[0]} to {concurrency[-1]}"
    head = f'<svg class="plot" role="img" aria-label="{escape(title)}" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="11" fill="none">'
    return "\n".join([head, *marks, "</svg>"])


def axes(concurrency: Sequence[int], top: int, x: Any, y: Any) -> str:
    """Grid, ticks and names of the axes. The line at 1 is plain decoding."""
    parts = []
    every = max(1, top // 8)
    for length in range(0, top + 1, every):
        weight = 1.6 if length == 1 else 0.8
        parts.append(f'<path d="M{LEFT} {y(length):.1f}H{WIDTH - RIGHT}" stroke="var(--rule)" stroke-width="{weight}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(length) + 4:.1f}" text-anchor="end" fill="var(--muted)">{length}</text>')
    for c in apart(concurrency, x):
        parts.append(f'<text x="{x(c):.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle" fill="var(--muted)">{c}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 6}" fill="var(--muted)">requests at a time</text>')
    return "\n".join(parts)


def apart(concurrency: Sequence[int], x: Any) -> list[int]:
    """Those of the numbers below the plot that do not run into a larger one; the smallest and the largest always."""
    kept = [concurrency[-1]]
    for c in reversed(concurrency[1:-1]):
        if min(x(kept[-1]) - x(c), x(c) - x(concurrency[0])) >= NUMBER:
            kept.append(c)
    return sorted({*kept, concurrency[0]})


def series(points: Sequence[Mapping[str, Any]], colour: str, x: Any, y: Any) -> list[str]:
    """One line, its interval as whiskers, and an open dot where not even full acceptance is enough."""
    path = "L".join(f"{x(p['concurrency']):.1f} {y(p['accept_len']):.1f}" for p in points)
    marks = [f'<path d="M{path}" stroke="{colour}" stroke-width="1.8"/>']
    for p in points:
        at, fill = x(p["concurrency"]), "var(--surface)" if p["accept_len"] >= p["ceiling"] else colour
        marks.append(f'<path d="M{at:.1f} {y(p["accept_len_low"]):.1f}V{y(p["accept_len_high"]):.1f}" stroke="{colour}"/>')
        marks.append(f'<circle cx="{at:.1f}" cy="{y(p["accept_len"]):.1f}" r="3" fill="{fill}" stroke="{colour}"/>')
    return marks


def shortened(text: str) -> str:
    """A label that fits the margin; the table below the plot has whole names."""
    return text if len(text) <= LABEL else f"{text[: LABEL - 1].rstrip()}…"


def spread(labels: Sequence[tuple[float, str, str]]) -> list[str]:
    """Names at the right edge, pushed apart so that none lies on another."""
    placed, marks = -math.inf, []
    for at, text, colour in sorted(labels):
        placed = max(at, placed + GAP)
        marks.append(f'<text x="{WIDTH - RIGHT + 10}" y="{placed + 4:.1f}" fill="{colour}">{escape(shortened(text))}</text>')
    return marks
