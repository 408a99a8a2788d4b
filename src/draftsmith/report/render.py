"""Content of the report -> HTML, Markdown and the section for a model card. The same content gives the same bytes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from draftsmith import __version__
from draftsmith.report import figures_acceptance, figures_bench, figures_timeline, figures_training, views
from draftsmith.report.formats import ABSENT, FORMATS, TONE, interval, markdown_cell, number, or_absent, rate

HERE = Path(__file__).parent
VIEWS = (
    views.headline,
    views.tone_of,
    views.categories,
    views.latency_rows,
    views.present,
    views.units,
    views.estimates,
    views.noise_share,
    views.num_invalid,
    views.machine,
    views.other_tools,
)


def html(content: dict[str, Any]) -> str:
    """One self-contained page."""
    return page("report.html.jinja", report=content, figures=plots(content))


def page(template: str, **shown: Any) -> str:
    """An HTML template with the style inside."""
    environment = make_environment(autoescape=True, absent=Markup(f'<span class="absent">{ABSENT}</span>'))
    style = Markup((HERE.parent / "page.css").read_text())  # one look for all pages
    return environment.get_template(template).render(style=style, version=__version__, **shown)


def markdown(content: dict[str, Any]) -> str:
    """Short enough for a pull request."""
    return text("report.md.jinja", report=content)


def text(template: str, **shown: Any) -> str:
    """A Markdown template."""
    environment = make_environment(autoescape=False, absent=ABSENT)
    environment.finalize = markdown_cell
    return environment.get_template(template).render(version=__version__, **shown)


def make_environment(autoescape: bool, absent: str) -> Environment:
    """Jinja with the number formats; None becomes `absent` in every one of them."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for form in FORMATS:
        environment.filters[form.__name__] = partial(or_absent, form, absent)
    environment.filters["tone"] = lambda word: TONE.get(word, "none")
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    environment.globals.update(
        {view.__name__: view for view in VIEWS}, interval=interval, as_rate=rate, as_three=partial(number, digits=3), few=views.FEW
    )
    return environment


def plots(content: dict[str, Any]) -> dict[str, Markup]:
    """The figures for which there is data, by name."""
    verdict, training, break_even = content["verdict"], content["training"], content["break_even"]
    drawn: dict[str, str] = bench_plots(verdict) if verdict else {}
    if content["acceptance"]:
        for key in ("survival", "conditional"):
            drawn[key] = figures_acceptance.by_position(content["acceptance"], key)
    if rows := views.categories(verdict):
        drawn["category"] = figures_acceptance.by_category(rows, views.overall_accept_len(verdict))
    if break_even and break_even["rows"]:
        drawn["break_even"] = figures_acceptance.break_even(break_even["rows"])
    if training and training["steps"]:
        drawn["loss"] = figures_training.training_loss(training["steps"], training["evaluations"])
    if training and training["evaluations"]:
        measured = next((row["accept_len"] for row in content["acceptance"] if row["kind"] == "measured"), None)
        drawn["heldout"] = figures_training.heldout_accept_len(training["evaluations"], measured)
    return {name: Markup(svg) for name, svg in drawn.items()}


def bench_plots(verdict: dict[str, Any]) -> dict[str, str]:
    """Pareto where per-user speed was measured, else bars of throughput; speed-up; timeline."""
    cells = verdict["cells"]
    drawn: dict[str, str] = {}
    if any(figures_bench.pareto_points(cells, arm) for arm in views.ARMS):
        drawn["pareto"] = figures_bench.pareto(cells)
    if any(cell[f"{arm}_tok_s"]["mean"] is not None for cell in cells for arm in views.ARMS):
        drawn["throughput"] = figures_bench.throughput(cells, figures_bench.HEIGHT if "pareto" in drawn else figures_bench.TALL)
    if any(cell["speedup"] for cell in cells):
        drawn["speedup"] = figures_bench.speedup(cells)
    if any(row["canary_tok_s"] is not None for row in verdict["timeline"]):
        drawn["timeline"] = figures_timeline.timeline(verdict["timeline"], views.noise_share(verdict))
    return drawn
