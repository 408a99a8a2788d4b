"""tune.json -> one self-contained HTML page in the look of the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from draftsmith import __version__
from draftsmith.manifest import atomic_write_text
from draftsmith.tune.result import PAYS, UNSURE, bounds, ratio_text, served_with, words_of

HERE = Path(__file__).parent
STYLE = HERE.parent / "page.css"  # one look for all pages
PAGE = "tune.html"


def render(content: Mapping[str, Any]) -> str:
    """The page."""
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"bounds": bounds, "ratio": ratio_text, "schedule": words_of, "command": served_with}
    tone = {PAYS: "pays", UNSURE: "unsure"}.get(content["exit_code"], "fails")
    machine = content["hardware"]
    where = ", ".join(machine["gpus"]) or machine["cpu"]
    facts = (content["engine"], content["drafter"]["method"], where, f"{content['launches']} launches")
    return environment.get_template("page.html.jinja").render(
        content=content, tone=tone, facts=facts, style=Markup(STYLE.read_text()), version=__version__
    )


def write_page(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write tune.html into `folder`."""
    atomic_write_text(folder / PAGE, render(content))
    return folder / PAGE
