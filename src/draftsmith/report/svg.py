"""Matplotlib -> inline SVG that follows the page: colours are CSS variables, text is text, ids are unique, output is deterministic."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

# Stand-ins that matplotlib draws with; each becomes var(--role) of page.css.
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

COMMAS = FuncFormatter(lambda value, _: f"{value:,.0f}")  # tok/s on an axis
NOTE: dict[str, Any] = {
    "textcoords": "offset points",
    "ha": "center",
    "va": "bottom",
    "fontsize": 10.5,
    "color": INK,
}  # a value beside its mark
PATCH: dict[str, Any] = {"facecolor": SURFACE, "edgecolor": "none", "pad": 1.5}  # behind a value that stands on a line

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


def draw(name: str, title: str, desc: str, plot: Callable[..., None], panels: tuple[float, ...] = (1,), height: float = HEIGHT) -> str:
    """An <svg> element. name: unique on the page, prefixes every id; title, desc: what a screen reader says; plot: draws on one Axes per
    entry of `panels` (their heights, one over the other); height: CSS pixels at scale 1.
    """
    settings: dict[Any, Any] = {**STYLE, "svg.hashsalt": name}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=panels, sharex=True)[:, 0]
        plot(*axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return themed(buffer.getvalue(), name, title, desc, height)


def themed(svg: str, name: str, title: str, desc: str, height: float = HEIGHT) -> str:
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
    body = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), body)  # a hundredth of a pixel is enough
    head = (
        f'<svg class="plot" role="img" aria-labelledby="{name}-title {name}-desc" viewBox="0 0 {WIDTH} {height:g}"'
        f' xmlns:xlink="http://www.w3.org/1999/xlink">\n<title id="{name}-title">{html.escape(title)}</title>'
        f'\n<desc id="{name}-desc">{html.escape(desc)}</desc>'
    )
    return head + "\n" + re.sub(r"\n\s*", "\n", body)


def legend_above(ax: Axes, columns: int = 3) -> None:
    """Legend in a row over the plot, left-aligned; nothing when no artist has a label."""
    if ax.get_legend_handles_labels()[0]:
        ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside upper left", ncols=columns, borderpad=0, borderaxespad=0.1)


def cut(text: str, longest: int) -> str:
    """A name that fits, with an ellipsis where it had to end; the page has it in full."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places for labels at least `gap` apart, each as near to where it is wanted as the others allow (least squares in order)."""
    blocks: list[list[float]] = []  # [sum of (wanted - own offset), labels]: a block is moved as one
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    for rank, index in enumerate(order):
        blocks.append([wanted[index] - rank * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            last = blocks.pop()
            blocks[-1] = [blocks[-1][0] + last[0], blocks[-1][1] + last[1]]
    levels = [total / count for total, count in blocks for _ in range(int(count))]
    places = [0.0] * len(wanted)
    for rank, index in enumerate(order):
        places[index] = levels[rank] + rank * gap
    return places
