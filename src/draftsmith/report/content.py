"""report.json as types, version 2: raw numbers, what is not there is null, never 0. `schema/report-2.json` is its JSON Schema.

Version 1 (up to Draftsmith 0.1) had fewer keys: all keys since then may be absent, so version 1 is read as it is. Keys that are not known
are dropped, so that a summary may carry more than the report shows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from draftsmith.report.bench_parts import Counted, Data, Part, Verdict, without_nan

SCHEMA = 2
READABLE = (1, 2)
SCHEMA_FILE = Path(__file__).parent / "schema" / f"report-{SCHEMA}.json"


class Subject(Part):
    """What was measured."""

    target: str | None
    engine: str | None
    drafter: str | None
    depth: int | None


class Series(Counted):
    """Acceptance from one source. kind: training, predicted, served (verify), measured (bench)."""

    kind: Literal["training", "predicted", "served", "measured"]
    short: str
    name: str


class Prediction(Part):
    """A number that was foretold, beside what was measured. gap: (predicted - measured) / measured."""

    quantity: str
    source: str
    predicted: float
    measured: float
    gap: float


class Command(Part):
    """What repeats the run. recipe: the text of recipe.yaml; null when there was none."""

    line: str | None = None
    recipe: str | None = None


class Report(Part):
    """Everything that the report shows. A stage that has not finished is null, and named in `absent`."""

    schema_version: Literal[2] = Field(SCHEMA, alias="schema")
    title: str
    subject: Subject
    verdict: Verdict | None
    acceptance: list[Series]
    predicted_beside_measured: list[Prediction]
    break_even: Data | None
    verify: Data | None
    training: Data | None
    data: Data | None
    check_stage: Data | None = Field(alias="check")
    capture: Data | None
    export: Data | None
    serve: Data | None
    times: Data | None
    provenance: Data
    command: Command
    absent: list[str]


def normal(content: Any) -> dict[str, Any]:
    """report.json of any readable version -> the version of today, every key there. Raises ValueError (pydantic's, with the place)."""
    content = without_nan(content)
    if isinstance(content, dict) and content.get("schema") in READABLE:
        content = {**content, "schema": SCHEMA}
    whole = without_nan(Report.model_validate(content).model_dump(mode="json", by_alias=True))
    rows = whole["break_even"]["rows"] if whole["break_even"] else []
    for cell in whole["verdict"]["cells"] if whole["verdict"] else []:
        need = next((r for r in rows if (r["concurrency"], r["depth"]) == (cell["concurrency"], whole["subject"]["depth"])), None)
        if (
            cell["break_even_accept_len"] is None and cell["concurrency"] is not None and need is not None
        ):  # summaries of version 1 leave it to the breakeven stage
            cell["break_even_accept_len"] = {"value": need["accept_len"], "low": need["low"], "high": need["high"]}
    return whole


def json_schema(model: type[Part]) -> str:
    """The JSON Schema of a report, as it is shipped (scripts/report_schema.py writes it)."""
    schema = model.model_json_schema(by_alias=True, mode="serialization")
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"
