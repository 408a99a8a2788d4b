"""Matplotlib -> inline SVG that follows the page: colours are CSS variables, text is text, ids are unique, output is deterministic."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

# Stand-ins that matplotlib draws with; each becomes var(--role) of report.css.
ROLES = {
    "ink": "#010101",
    "muted": "#020202",
    "rule": "#030303",
    "surface": "#040404",
    "baseline": "#050505",
    "speculative": "#060606",
    "predicted": "#070707",
    "training": "#080808",
    "pays": "#090909",
    "fails": "#0a0a0a",
    "unsure": "#0b0b0b",
}
INK, MUTED, RULE, SURFACE = ROLES["ink"], ROLES["muted"], ROLES["rule"], ROLES["surface"]
BASELINE, SPECULATIVE, PREDICTED, TRAINING = ROLES["baseline"], ROLES["speculative"], ROLES["predicted"], ROLES["training"]
VERDICT = {"pays": ROLES["pays"], "does not pay": ROLES["fails"], "inconclusive": ROLES["unsure"]}

WIDTH, HEIGHT = 330, 224  # CSS pixels at scale 1
STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 10.5,
    "axes.edgecolor": RULE,
    "axes.linewidth": 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 10.5,
    "legend.handlelength": 1.2,
    "legend.columnspacing": 1.1,
    "legend.handletextpad": 0.5,
    "lines.linewidth": 1.8,
}


def draw(name: str, label: str, plot: Callable[[Axes], None]) -> str:
    """An <svg> element. name: unique on the page, prefixes every id; label: what a screen reader says; plot: draws on the axes."""
    settings: dict[Any, Any] = {**STYLE, "svg.hashsalt": name}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), layout="constrained")
        FigureCanvasSVG(figure)
        plot(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return themed(buffer.getvalue(), name, label)


def themed(svg: str, name: str, label: str) -> str:
    """The drawing without prolog and metadata, with colours, font and ids of the page."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = body[body.index(">") + 1 :].strip()
    for role, colour in ROLES.items():
        body = body.replace(colour, f"var(--{role})")
    body = re.sub(r" font-family: [^;\"]*;", "", body)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)  # it would style the whole page
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = body.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    head = f'<svg class="plot" role="img" aria-label="{html.escape(label)}" viewBox="0 0 {WIDTH} {HEIGHT}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return head + "\n" + re.sub(r"\n\s*", "\n", body)


def legend_above(ax: Axes, columns: int = 3) -> None:
    """Legend in a row over the plot, left-aligned; nothing when no artist has a label."""
    if ax.get_legend_handles_labels()[0]:
        ax.figure.legend(loc="outside upper left", ncols=columns, borderpad=0, borderaxespad=0.1)
