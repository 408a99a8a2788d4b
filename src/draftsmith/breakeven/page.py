"""A break-even summary -> one self-contained HTML page: the surface, the curve with published lengths, the words, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from draftsmith import __version__
from draftsmith.breakeven.curve import curve
from draftsmith.breakeven.depths import ACCEPTED
from draftsmith.breakeven.intervals import INSIDE
from draftsmith.manifest import atomic_write_text

HERE = Path(__file__).parent
STYLE = HERE.parent / "page.css"  # one look for all pages
PAGE = "breakeven.html"
BENCHMARK_ORDER = ("MT-Bench", "mean", "coding", "HumanEval", "GSM8K", "MATH")


@dataclass(frozen=True)
class Subject:
    """What was measured, for the head of the page. `family`: "moe" or "dense", picks the drafters to compare with."""

    title: str
    facts: tuple[str, ...]
    algorithms: tuple[str, ...] = ("eagle3",)
    family: str = "dense"
    dummy: bool = False  # the target had random weights
    forced: bool = False  # acceptance was forced by the engine


def published() -> list[dict[str, Any]]:
    """Published accept_len, each with its source."""
    return yaml.safe_load((HERE / "published.yaml").read_text())


def comparable(subject: Subject) -> list[dict[str, Any]]:
    """Those of the algorithms that were measured, on targets of the same kind."""
    return [e for e in published() if e["algorithm"] in subject.algorithms and e["family"] == subject.family]


def reference_lines(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line a drafter: its everyday benchmark."""
    lines = []
    for entry in entries:
        name = next(name for name in BENCHMARK_ORDER if name in entry["lengths"])
        lines.append({"label": f"{entry['drafter']}, {entry['target']}", "accept_len": entry["lengths"][name]})
    return lines


def bias(subject: Subject, distinct: Mapping[str, float], measured: Sequence[str]) -> list[str]:
    """What the figures do not hold, as far as it applies; `measured` are sentences about what was measured of it. distinct: share of
    different tokens in a wave, by kind."""
    texts = [
        "The interval of a field is about this machine and this build; a longer context makes both times longer, the round's more.",
        "A request's prefill is in neither time. Over whole answers the speed-up is nearer to 1 than the one of decoding alone.",
    ]
    if subject.dummy and subject.family == "moe":
        texts.append(
            "With random weights the experts are drawn evenly at random in both arms, by the engine's own switch. Trained routers "
            "send neighbouring tokens to the same experts more often, so a verify step wakes fewer: the needed accept_len is too high "
            "here at low concurrency, where not all experts are awake anyway."
        )
    if subject.dummy:
        texts.append(
            "Random weights decode meaningless text: times depend on shapes, and a target whose cost depends on its data is not covered."
        )
    if subject.forced:
        texts.append(
            "Forced acceptance gives all requests of a round the same length. A real drafter's lengths scatter, which ends requests at "
            "different moments and costs a little occupancy. Trees are forced with one fixed token."
        )
    if subject.forced and not (subject.dummy and subject.family == "moe"):
        texts.append(repetition(subject, distinct))
    return [*texts, *measured]


def repetition(subject: Subject, distinct: Mapping[str, float]) -> str:
    """What it does that tokens repeat themselves when they are forced, or chosen by random weights."""
    shares = ", ".join(f"{share:.1%} with {name}" for name, share in distinct.items())
    seen = f" Of the tokens of a wave so many were different: {shares}." if shares else ""
    if subject.family == "moe":
        return (
            "Forced tokens repeat themselves, and a router sends equal tokens to equal experts: what decodes fewer different tokens than "
            "real text wakes fewer experts and looks too cheap. A round then makes the needed accept_len too low, a baseline too high."
            + seen
        )
    return "Forced tokens repeat themselves. A dense target computes the same for any token, so its times should not feel it." + seen


def render(summary: Mapping[str, Any], subject: Subject, measured_bias: Sequence[str] = ()) -> str:
    """The page. summary: of `surface.surface` or `summary.summarise`."""
    entries = [{"name": f"depth {e['depth']}", "rows": e["depth"] + 1, **e} for e in summary["break_even"]]
    concurrency = sorted({e["concurrency"] for e in entries})
    names = list(dict.fromkeys(e["name"] for e in sorted(entries, key=lambda e: (e["rows"], e["name"]))))
    by_place = {(e["name"], e["concurrency"]): e | {"colour": heat(e)} for e in entries}
    rows = {e["name"]: e["rows"] for e in entries}
    methods = {e.get("method", "eagle3") for e in entries}
    blocks = methods == {"dflash"}
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["drafting"] = lambda depth: f"block {depth + 1}" if blocks else f"depth {depth}"
    return environment.get_template("page.html.jinja").render(
        title=subject.title,
        subject=subject.facts,
        style=Markup(STYLE.read_text()),
        tone={"yes": "fails", "unsure": "unsure"}.get(summary.get("stop", "yes" if summary["advice"] else "no"), "pays"),
        word="block" if blocks else "chain" if methods == {"eagle3"} else "chain or block",
        once=any(e.get("interval") == INSIDE for e in entries),
        model=model_table(summary.get("cost_model")),
        canary=summary.get("canary", ()),
        sentence=summary["advice"] or sentence(entries),
        concurrency=concurrency,
        surface=[{"name": n, "rows": rows[n], "fields": [by_place.get((n, c)) for c in concurrency]} for n in names],
        curve=Markup(curve(entries, reference_lines(comparable(subject)))),
        depths=summary["depth_worth_training"],
        shares=ACCEPTED,
        pays_if=[e["pays_if"] for e in entries],
        steps={int(c): value["value"] for c, value in summary["decode_step_s"].items()},
        source=summary["source"],
        note=summary["note"],
        findings=summary["findings"],
        invalid=[text if isinstance(text, str) else f"launch {text['launch']}: {text['reason']}" for text in summary["invalid"]],
        bias=bias(subject, summary.get("distinct", {}), measured_bias),
        published=comparable(subject),
        version=__version__,
    )


def model_table(model: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The cost model's entries as lines of a table; None when no model was asked for."""
    if model is None or model["why"]:
        return dict(model) if model else None
    places = {(e["depth"], e["concurrency"]): {**e, "colour": heat(e)} for e in model["break_even"]}
    concurrency, depths = (sorted({place[i] for place in places}) for i in (1, 0))
    lines = [{"depth": d, "fields": [places.get((d, c)) for c in concurrency]} for d in depths]
    return {**model, "concurrency": concurrency, "lines": lines}


def sentence(entries: Sequence[Mapping[str, Any]]) -> str:
    """The easiest and the hardest place, in one sentence."""
    paying = [e for e in entries if e["accept_len"] < e["ceiling"]]
    if not paying:
        return "Nothing can pay here: every round costs more than all its tokens would save."
    easiest = min(paying, key=lambda e: e.get("needed_share") or (e["accept_len"] - 1) / e["depth"])
    best = max(paying, key=lambda e: e["ceiling"] / e["accept_len"])
    lost = sorted({e["concurrency"] for e in entries} - {e["concurrency"] for e in paying})
    text = (
        f"Easiest at {easiest['concurrency']} at a time with {easiest['name']}: pays from {easiest['accept_len']:.2f} tokens per round on. "
        f"The most there is to win: {best['ceiling'] / best['accept_len']:.2f}x, at {best['concurrency']} with {best['name']}."
    )
    return text + (f" At {', '.join(map(str, lost))} at a time nothing can pay." if lost else "")


def heat(entry: Mapping[str, Any]) -> str:
    """Background of a field: green where little is needed of what is possible, red where the ceiling is near or passed."""
    share = (entry["accept_len"] - 1) / entry["depth"]  # of the drafts that must be right on average
    if share >= 1:
        return "color-mix(in srgb, var(--fails) 34%, var(--surface))"
    tone, strength = ("--pays", 1 - 2 * share) if share < 0.5 else ("--fails", 2 * share - 1)
    return f"color-mix(in srgb, var({tone}) {max(0, min(30, round(30 * strength)))}%, var(--surface))"


def write_page(folder: Path, summary: Mapping[str, Any], subject: Subject, measured_bias: Sequence[str] = ()) -> Path:
    """Write breakeven.html into `folder`."""
    atomic_write_text(folder / PAGE, render(summary, subject, measured_bias))
    return folder / PAGE
