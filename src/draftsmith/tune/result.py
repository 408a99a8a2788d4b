"""What a tune found, as tune.json has it and as the terminal shows it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from draftsmith.job import Job
from draftsmith.manifest import hardware, tool_versions
from draftsmith.tune.candidates import Arm, Drafter
from draftsmith.tune.emit import Best, switch_off_above
from draftsmith.tune.experiment import Experiment
from draftsmith.tune.ranking import Choice, ratio, scatter
from draftsmith.tune.run import Found, Row
from draftsmith.tune.settings import TuneSettings

PAYS, NEVER, UNSURE = 0, 1, 3  # exit codes
WORDS = {"does not pay": "does not pay", "inconclusive": "is inconclusive"}


def document(job: Job, drafter: Drafter, settings: TuneSettings, experiment: Experiment, found: Found) -> Row:
    """The content of tune.json."""
    known = found.known
    places = [place(experiment, found, c) for c in settings.concurrency]
    content: Row = {
        "engine": job.engine.name,
        "target": job.target.name,
        "drafter": {"folder": str(drafter.folder), "method": drafter.method, "block": drafter.block or None},
        "settings": settings.model_dump(mode="json"),
        "acceptance": known.accepted.as_dict() if known.accepted else None,
        "cost_model": known.model.as_dict() if known.model else None,
        "sources": dict(known.sources),
        "not_predicted": known.why,
        "candidates": [fate.as_dict() for fate in found.fates],
        "left_out": experiment.deaths(),
        "concurrency": places,
        "environments": [
            {"kind": kind, "name": name, "variables": dict(settings.env_sets[name]), "effect": effect.as_dict() if effect else None}
            for kind, effects in found.environments.items()
            for name, effect in effects.items()
        ],
        "environment": environment(found, settings),
        "engine_takes": found.emitted.as_dict(),
        "schedule_check": [{"concurrency": c, **row} for c, row in found.schedule.items()],
        "findings": findings(found.schedule, found.best),
        "switch_off_above": switch_off_above(found.best),
        "invalid": experiment.invalid(),
        "launches": len(experiment.rows("probe", "screen", "confirm", "schedule", valid=False)),
        "hardware": hardware(),
        "tools": tool_versions(),
    }
    return content | {"verdict": sentence(content), "exit_code": exit_code(content)}


def environment(found: Found, settings: TuneSettings) -> Row:
    """Which environment each of the two servers gets; {} is the recipe's own."""
    choice = next(iter(found.choices.values()))
    names = {"baseline": found.baseline.env_set, "drafter": choice.arm.env_set}
    return {kind: {"name": name, "variables": dict(settings.env_sets.get(name, {}))} for kind, name in names.items()}


def place(experiment: Experiment, found: Found, concurrency: int) -> Row:
    """One concurrency: every arm with its rates, what was chosen and why, and the confirmed speed-up."""
    rates = experiment.rates(concurrency, "screen")
    spread = scatter(rates) if rates else None
    plain = rates.get(found.baseline)
    arms = []
    for arm, values in sorted(rates.items(), key=lambda item: item[0].complexity):
        counted = experiment.acceptance(arm, concurrency)
        over = ratio(values, plain, spread).as_dict() if plain and spread and arm != found.baseline else None
        arms.append({"arm": arm.name, "tok_s": values, "over_baseline": over, "accept_len": counted.accept_len if counted else None})
    choice, serve = found.choices.get(concurrency), found.best[concurrency]
    return {
        "concurrency": concurrency,
        "arms": arms,
        "chosen": choice.arm.name if choice else None,
        "why": choice.why if choice else "no candidate could be measured",
        "speedup": found.speedups.get(concurrency),
        "foretold": foretold(found, choice, concurrency),
        "serve": serve.as_dict() if serve else None,
    }


def foretold(found: Found, choice: Choice | None, concurrency: int) -> Row | None:
    """What was predicted of the arm that was confirmed; None without a prediction."""
    candidate = choice.arm.candidate if choice else None
    fates = (fate for fate in found.fates if (fate.candidate, fate.concurrency) == (candidate, concurrency))
    return next((fate.predicted.as_dict() for fate in fates if fate.predicted), None)


def findings(schedule: Mapping[int, Row], best: Best) -> list[str]:
    """Where the schedule does not keep what was confirmed without it."""
    found = []
    for concurrency, row in schedule.items():
        if row["verdict"] == "does not pay":
            what = (
                "loses with the schedule what it wins without" if best[concurrency] else "is slowed down by a schedule that drafts nothing"
            )
            found.append(f"at {concurrency} at a time the engine {what}: {bounds(row)} of plain decoding; use two servers")
    return found


def exit_code(content: Mapping[str, Any]) -> int:
    """0 when some place pays and nothing that decides it is invalid; 1 when no place pays; 3 when that cannot be told."""
    verdicts = [row["speedup"]["verdict"] if row["speedup"] else "inconclusive" for row in content["concurrency"]]
    if any(row["phase"] == "confirm" for row in content["invalid"]):
        return UNSURE
    if "pays" in verdicts:
        return PAYS
    return NEVER if set(verdicts) == {"does not pay"} else UNSURE


def sentence(content: Mapping[str, Any]) -> str:
    """The result in one sentence."""
    parts = []
    for row in content["concurrency"]:
        speedup, at = row["speedup"], row["concurrency"]
        if speedup is None or speedup["ratio"] is None:
            parts.append(f"at {at} at a time nothing valid was measured")
        elif speedup["verdict"] == "pays":
            parts.append(f"at {at} at a time {speedup['arm']} is {bounds(speedup)} as fast as plain decoding")
        else:
            parts.append(f"at {at} at a time the best, {speedup['arm']}, {WORDS[speedup['verdict']]}: {bounds(speedup)}")
    off = content["switch_off_above"]
    nowhere = " Switch speculation off." if exit_code(content) == NEVER else " Nothing was shown to pay."
    tail = "" if off is None else nowhere if off == 0 else f" Switch it off above {off} at a time."
    return "; ".join(parts)[:1].upper() + "; ".join(parts)[1:] + "." + tail


def bounds(speedup: Mapping[str, Any]) -> str:
    """1.31x (1.27 to 1.35)."""
    return f"{speedup['ratio']:.2f}x ({speedup['low']:.2f} to {speedup['high']:.2f})"


# --- the terminal ----------------------------------------------------------------------------------------------------


def told(content: Mapping[str, Any]) -> str:
    """A table of every candidate at every concurrency, what the engine takes, and the verdict as the last line."""
    lines = [f"{'at a time':>9}  {'candidate':14} {'predicted':>35}  {'screened':>24}  {'confirmed':>20}  note"]
    for row in content["concurrency"]:
        fates = [fate for fate in content["candidates"] if fate["concurrency"] == row["concurrency"]]
        lines += table_rows(row, fates, {kind: of["name"] for kind, of in content["environment"].items()})
    for effect in content["environments"]:
        text = "not measured" if effect["effect"] is None else ratio_text(effect["effect"])
        lines.append(f"environment {effect['name']}, {effect['kind']}: {text} the recipe's own")
    lines += [f"left out: {name}: {reason}" for name, reason in content["left_out"].items()]
    lines += [f"invalid: launch {row['launch']}, {row['arm']}: {row['reason']}" for row in content["invalid"]]
    takes = content["engine_takes"]
    lines += [f"serve with: {served_with(content)}"] if takes["flags"] else []
    lines += [f"schedule: {words_of(takes['schedule'])}"] if takes["schedule"] else []
    lines += [f"note: {note}" for note in takes["notes"]]
    for row in content["schedule_check"]:
        lines.append(f"the schedule at {row['concurrency']} at a time: {bounds(row) if row['ratio'] else row['reason']}")
    lines += [f"note: {finding}" for finding in content["findings"]]
    return "\n".join([*lines, content["verdict"]])


def served_with(content: Mapping[str, Any]) -> str:
    """The variables and the speculative flags of the launch, as a shell takes them."""
    variables = content["environment"]["drafter"]["variables"]
    return "".join(f"{name}={shlex.quote(value)} " for name, value in variables.items()) + shlex.join(content["engine_takes"]["flags"])


def table_rows(row: Mapping[str, Any], fates: Sequence[Mapping[str, Any]], environments: Mapping[str, str]) -> list[str]:
    """The lines of one concurrency, each server in the environment that it gets: the baseline's rate, then every candidate."""
    arms = {arm["arm"]: arm for arm in row["arms"]}
    suffix = f" @{environments['drafter']}" if environments["drafter"] else ""
    lines = []
    base = arms.get(Arm(None, environments["baseline"]).name)
    if base:
        lines.append(f"{row['concurrency']:>9}  {'baseline':14} {'':>35}  {mean(base['tok_s']):>18.1f} tok/s")
    for fate in fates:
        predicted = fate["predicted"]
        guess = f"{ratio_text(predicted)} {predicted['label']}" if predicted else "none"
        arm = arms.get(fate["name"] + suffix)
        seen = "" if arm is None or arm["over_baseline"] is None else ratio_text(arm["over_baseline"])
        speedup = row["speedup"]
        mine = speedup is not None and speedup["arm"].split(" @")[0] == fate["name"]
        sure = bounds(speedup) if speedup is not None and mine and speedup["ratio"] else ""
        note = row["why"] if mine else fate["reason"] if fate["state"] == "pruned" else ""
        lines.append(f"{row['concurrency']:>9}  {fate['name']:14} {guess:>35}  {seen:>24}  {sure:>20}  {note}".rstrip())
    return lines


def ratio_text(found: Mapping[str, Any]) -> str:
    """1.31x (1.27 to 1.35), or 1.31x where nothing was launched twice."""
    return f"{found['value']:.2f}x" + (f" ({found['low']:.2f} to {found['high']:.2f})" if found["low"] is not None else "")


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def words_of(schedule: Sequence[Mapping[str, Any]]) -> str:
    """1 to 2: 5 drafts; 3 to 8: 2 drafts; from 9 on: off."""
    parts = []
    for entry in schedule:
        where = f"from {entry['from']} on" if entry["to"] is None else f"{entry['from']} to {entry['to']}"
        parts.append(f"{where}: {entry['drafts']} draft{'s' if entry['drafts'] != 1 else ''}" if entry["drafts"] else f"{where}: off")
    return "; ".join(parts)
