"""Content of the report -> HTML and Markdown. The same content gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from draftsmith import __version__
from draftsmith.job import clock
from draftsmith.report import figures

HERE = Path(__file__).parent
ABSENT = "absent"
TONE = {"pays": "pays", "does not pay": "fails", "inconclusive": "unsure", "passed": "pays", "failed": "fails"}


def html(content: dict[str, Any]) -> str:
    """One self-contained page."""
    environment = make_environment(autoescape=True, absent=Markup(f'<span class="absent">{ABSENT}</span>'))
    style = Markup((HERE / "report.css").read_text())
    return environment.get_template("report.html.jinja").render(report=content, figures=plots(content), style=style, version=__version__)


def markdown(content: dict[str, Any]) -> str:
    """Short enough for a pull request."""
    environment = make_environment(autoescape=False, absent=ABSENT)
    environment.finalize = markdown_cell
    return environment.get_template("report.md.jinja").render(report=content, version=__version__)


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
    formats: tuple[Callable[..., str], ...] = (number, whole, percent, duration, ms, size, plain, quoted, sentence)
    for form in formats:
        environment.filters[form.__name__] = partial(or_absent, form, absent)
    environment.filters["tone"] = lambda word: TONE.get(word, "none")
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    environment.globals["interval"] = interval
    return environment


def plots(content: dict[str, Any]) -> dict[str, Markup]:
    """The figures for which there is data, by name."""
    verdict, training, break_even = content["verdict"], content["training"], content["break_even"]
    drawn: dict[str, str] = {}
    if verdict and verdict["cells"]:
        drawn["throughput"] = figures.throughput(verdict["cells"])
        drawn["speedup"] = figures.speedup(verdict["cells"])
    if verdict and verdict["canary"]:
        drawn["launches"] = figures.launches(verdict["canary"], verdict["invalid"])
    if content["acceptance"]:
        drawn["acceptance"] = figures.acceptance(content["acceptance"])
    if break_even and break_even["rows"]:
        drawn["break_even"] = figures.break_even(break_even["rows"])
    if training and training["steps"]:
        drawn["loss"] = figures.training_loss(training["steps"], training["evaluations"])
    if training and training["evaluations"]:
        measured = next((row["accept_len"] for row in content["acceptance"] if row["kind"] == "measured"), None)
        drawn["heldout"] = figures.heldout_accept_len(training["evaluations"], measured)
    return {name: Markup(svg) for name, svg in drawn.items()}


# --- formats ---------------------------------------------------------------------------------------------------------


def or_absent(form: Callable[..., str], absent: str, value: Any, *args: Any) -> str:
    """`form(value)`, or the word for what is not there."""
    return absent if value is None else form(value, *args)


def number(value: float, digits: int = 2) -> str:
    return f"{value:,.{digits}f}"


def whole(value: float) -> str:
    return f"{value:,.0f}"


def percent(value: float, digits: int = 1) -> str:
    """With its sign."""
    return f"{100 * value:+.{digits}f} %"


def ms(value_s: float) -> str:
    """Seconds as milliseconds."""
    return f"{1000 * value_s:.1f}"


def duration(value_s: float) -> str:
    """12.3 s, from a minute on 02:03."""
    return f"{value_s:.1f} s" if value_s < 60 else clock(value_s)


def sentence(text: str) -> str:
    """With a capital."""
    return text[:1].upper() + text[1:]


def quoted(text: str) -> str:
    """Text with its spaces and line ends visible."""
    return json.dumps(text, ensure_ascii=False)


def size(num_bytes: float) -> str:
    """In the largest binary unit that leaves at least 1."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def plain(value: Any) -> str:
    """A scalar or a short structure on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(inner(one) for one in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner(one)}" for key, one in value.items()) or "none"
    return str(value)


def inner(value: Any) -> str:
    """Inside a list or mapping: numbers as they were written, deeper structures in brackets."""
    if isinstance(value, list | dict):
        return f"({plain(value)})" if value else "none"
    return ABSENT if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def interval(speedup: dict[str, Any] | None) -> str:
    """1.42–1.57, or the word for what is not there."""
    return ABSENT if speedup is None else f"{speedup['low']:.2f}–{speedup['high']:.2f}"


def markdown_cell(value: Any) -> Any:
    """Text from outside cannot break a table, start a tag or open a code span."""
    if not isinstance(value, str):
        return value
    return str(escape(value)).replace("&#39;", "'").replace("&#34;", '"').replace("|", "\\|").replace("`", "'").replace("\n", " ")
