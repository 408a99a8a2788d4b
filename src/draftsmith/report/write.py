"""Writing a report: of one run, or of several side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from draftsmith.errors import UsageError
from draftsmith.manifest import MANIFEST, atomic_write_json, atomic_write_text, make_folder
from draftsmith.report.card import model_card
from draftsmith.report.context import NO_VERDICT
from draftsmith.report.figures_joined import forest
from draftsmith.report.join import join
from draftsmith.report.render import html, markdown, page, text
from draftsmith.report.sources import open_run

Answer = tuple[dict[str, Any], str, int]


def write_report(folder: Path, content: dict[str, Any]) -> None:
    """report.json, report.md, report.html and the section for a model card."""
    atomic_write_json(folder / "report.json", content)
    atomic_write_text(folder / "report.md", markdown(content))
    atomic_write_text(folder / "report.html", html(content))
    atomic_write_text(folder / "model_card.md", model_card(content))


def write_joined(folder: Path, joined: dict[str, Any]) -> str:
    """report.json, report.md and report.html of several runs; returns the Markdown."""
    drawn = {name: Markup(forest(rows, name, label)) for name, rows, label in forests(joined)}
    short = text("joined.md.jinja", joined=joined)
    atomic_write_json(folder / "report.json", joined)
    atomic_write_text(folder / "report.md", short)
    atomic_write_text(folder / "report.html", page("joined.html.jinja", joined=joined, figures=drawn))
    return short


def forests(joined: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]], str | None]]:
    """(name, rows, load) of each plot: a run per line at each load, or a load per line where a group has one run."""
    for number, group in enumerate(joined["groups"], 1):
        if len(group["runs"]) == 1:
            rows = [{**row, "run": load["label"]} for load in group["loads"] for row in load["rows"]]
            plots = [(f"forest-{number}-1", rows, None)]
        else:
            plots = [(f"forest-{number}-{place}", load["rows"], load["label"]) for place, load in enumerate(group["loads"], 1)]
        yield from (plot for plot in plots if any(row["speedup"] for row in plot[1]))


def report_of(places: Sequence[Path], output: Path) -> Answer:
    """`draftsmith report RUN...`: (JSON document, text for stdout, exit code). One run is shown by itself, several side by side.

    Raises UsageError when a run is named twice or `output` is the folder of a finished stage, which nothing may change.
    """
    if (output / MANIFEST).exists():
        raise UsageError(f"{output} belongs to a finished stage", hint="choose another folder with --output")
    nearest = next(place for place in (output, *output.resolve().parents) if place.exists())
    if not nearest.is_dir():
        raise UsageError(f"{nearest} is a file", hint="choose a folder with --output")
    named = [place.resolve() for place in places]
    twice = next((place for place in named if named.count(place) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is named twice", hint="name every run once")
    contents = [open_run(place) for place in places]
    make_folder(output, "--output")
    if len(contents) == 1:
        write_report(output, contents[0])
        verdict = contents[0]["verdict"]
        said = verdict["sentence"] if verdict else NO_VERDICT
        return contents[0], f"report: {output / 'report.html'}\n{said}", 0
    joined = join([(str(place), content) for place, content in zip(places, contents, strict=True)])
    short = write_joined(output, joined)
    return joined, f"{short}\nreport: {output / 'report.html'}", 0
