"""tune: predict, prune, measure the survivors, confirm the best against the baseline, and say what to start the engine with.

Everything is computed from the raw lines in the folder; what was known when it began (the recipe's break-even table, the drafter's
acceptance) is kept in known.json, so that going on after a kill plans the same launches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.errors import InvalidMeasurement
from draftsmith.job import Job
from draftsmith.manifest import atomic_write_json, read_json, read_jsonl
from draftsmith.measure.costmodel_terms import Cell, shape_of
from draftsmith.measure.protocol import LAUNCHES, replies_of
from draftsmith.measure.statistics import geometric_mean, num_pairs, verdict
from draftsmith.measure.stopping import Looks
from draftsmith.measure.window import decode_s, seconds_per_token
from draftsmith.metrics import Acceptance
from draftsmith.tune.candidates import Arm, Candidate, Drafter
from draftsmith.tune.emit import ADAPTIVE_CONFIG, Emitted, emit, fixed_choice
from draftsmith.tune.experiment import Experiment, Setting
from draftsmith.tune.predict import Fate, Knowledge, costs_of, fitted, prune
from draftsmith.tune.ranking import Choice, Ratio, better_environment, choose, environment_effect
from draftsmith.tune.settings import TuneSettings

KNOWN = "known.json"
Row = dict[str, Any]
OWN = "measured by tune"


@dataclass(frozen=True)
class Found:
    """What the phases came to. choices, speedups: by concurrency. best: how to draft where it pays."""

    fates: Sequence[Fate]
    known: Knowledge
    choices: Mapping[int, Choice]
    baseline: Arm
    environments: Mapping[str, Mapping[str, Ratio | None]]
    speedups: Mapping[int, Row]
    best: Mapping[int, Candidate | None]
    emitted: Emitted
    schedule: Mapping[int, Row]


# --- what is known before ---------------------------------------------------------------------------------------------


def read_known(job: Job, folder: Path, drafter: Drafter, fresh: Collection[str]) -> Row:
    """known.json, made at the first start: break-even entries of the recipe's run, and acceptance from its bench, if those are `fresh`."""
    path = folder / KNOWN
    if not path.exists():
        entries = job.read("breakeven", "summary.json")["break_even"] if "breakeven" in fresh else []
        counted = acceptance_of_bench(job, drafter) if "bench" in fresh else None
        atomic_write_json(path, {"break_even": entries, "acceptance": counted.as_dict() if counted else None})
    return read_json(path)


def acceptance_of_bench(job: Job, drafter: Drafter) -> Acceptance | None:
    """Counts of the recipe's bench over all its valid launches; None for a drafter from elsewhere."""
    if drafter.folder != job.folder("export"):
        return None
    total = None
    for row in read_jsonl(job.folder("bench") / LAUNCHES):
        for cell in row["cells"] if not row["invalid"] else ():
            if cell["acceptance"]:
                counted = Acceptance.from_dict(cell["acceptance"])
                if total is not None and total.depth != counted.depth:
                    return None
                total = counted if total is None else total + counted
    return total


# --- prediction ------------------------------------------------------------------------------------------------------


def knowledge(experiment: Experiment, candidates: Sequence[Candidate], settings: TuneSettings, known: Row) -> Knowledge:
    """Everything that predictions need; what is missing is measured first (phase probe). Raises InvalidMeasurement when that fails."""
    if len(candidates) <= settings.keep:
        return Knowledge(None, None, {}, {}, "nothing to prune: as many candidates as are measured")
    deepest = deepest_of(candidates)
    counted = Acceptance.from_dict(known["acceptance"]) if known["acceptance"] else None
    sources = {"acceptance": "the recipe's bench", "costs": "breakeven"}
    probes: list[Arm] = []
    if not known["break_even"]:
        probes = [Arm(None), Arm(shallowest_of(candidates))]
        sources["costs"] = OWN
    if counted is None or counted.depth < deepest.depth or not known["break_even"]:
        probes.append(Arm(deepest))
    if probes:
        experiment.add("probe", dict.fromkeys(dict.fromkeys(probes), settings.concurrency), 1)
        experiment.run()
    if counted is None or counted.depth < deepest.depth:
        counted, sources["acceptance"] = experiment.acceptance(Arm(deepest)), f"{OWN}: {deepest.name}"
        if counted is None:
            raise InvalidMeasurement(said_why(experiment, deepest), hint="is it the right drafter? draftsmith verify says what is wrong")
    cells, measured = costs_of(known["break_even"]) if known["break_even"] else (own_cells(experiment), {})
    model, why = fitted(cells, shape_of(experiment.setting.job.target))
    return Knowledge(counted, model, measured, sources, why)


def deepest_of(candidates: Sequence[Candidate]) -> Candidate:
    """The chain (or block) whose acceptance tells that of all candidates."""
    depth = max(candidate.depth for candidate in candidates)
    kind = "block" if candidates[0].kind == "block" else "chain"
    return Candidate(kind, depth, depth + 1)


def shallowest_of(candidates: Sequence[Candidate]) -> Candidate:
    """The other end, so that the cost model sees two depths."""
    least = min(candidate.depth for candidate in candidates)
    kind = "block" if candidates[0].kind == "block" else "chain"
    depth = least if least < deepest_of(candidates).depth else 1
    return Candidate(kind, depth, depth + 1)


def said_why(experiment: Experiment, candidate: Candidate) -> str:
    reasons = [row["reason"] for row in experiment.invalid()] or list(experiment.deaths().values())
    return f"the acceptance of {candidate.name} was not counted: {reasons[0] if reasons else 'no launch'}"


def own_cells(experiment: Experiment) -> list[Cell]:
    """T_ar and T_round of the probes: decode time of all slots over tokens, or over the rounds that the server counted."""
    cells = []
    for step, row in experiment.rows("probe"):
        for cell in row["cells"]:
            replies = replies_of(experiment.folder, row["launch"], "cell", cell["concurrency"])
            depth = step.arm.candidate.depth if step.arm.candidate else 0
            seconds = sum(map(decode_s, replies)) / cell["acceptance"]["rounds"] if depth else seconds_per_token(replies)
            cells.append(Cell(cell["concurrency"], depth, seconds))
    return cells


# --- measuring -------------------------------------------------------------------------------------------------------


def screen(experiment: Experiment, fates: Sequence[Fate], settings: TuneSettings) -> None:
    """Launch every survivor in every environment; nothing when there is only one arm for each concurrency."""
    environments = ["", *settings.env_sets]
    kept: dict[Candidate, list[int]] = {}
    for fate in fates:
        if fate.state == "measured":
            kept.setdefault(fate.candidate, []).append(fate.concurrency)
    if len(environments) == 1 and all(sum(c in places for places in kept.values()) == 1 for c in settings.concurrency):
        return
    arms: dict[Arm, Sequence[int]] = {}
    for name in environments:
        arms[Arm(None, name)] = settings.concurrency
        arms |= {Arm(candidate, name): places for candidate, places in kept.items()}
    experiment.add("screen", arms, settings.rounds)
    experiment.run()


def pick(experiment: Experiment, fates: Sequence[Fate], settings: TuneSettings) -> tuple[dict[int, Choice], Arm, Row]:
    """(choice at each concurrency, baseline arm, effects of the environments). One environment for each of the two: it belongs to a
    process, not to a request."""
    cells = {c: experiment.rates(c, "screen") for c in settings.concurrency}
    effects: Row = {
        kind: {name: environment_effect(cells, name, kind == "baseline") for name in settings.env_sets} for kind in ("baseline", "drafter")
    }
    plain = better_environment(effects["baseline"], settings.margin)
    drafting = better_environment(effects["drafter"], settings.margin)
    choices = {}
    for c in settings.concurrency:
        rates = {arm: values for arm, values in cells[c].items() if arm.candidate and arm.env_set == drafting}
        if not rates:  # one candidate only, so it was not screened; or nothing of it was valid
            alive = [f.candidate for f in fates if (f.concurrency, f.state) == (c, "measured") and not experiment.dead(Arm(f.candidate))]
            if not alive:
                continue
            rates = {Arm(alive[0], drafting): [1.0]}
        choices[c] = choose(rates, settings.margin)
    return choices, Arm(None, plain), effects


def confirm(experiment: Experiment, choices: Mapping[int, Choice], baseline: Arm, settings: TuneSettings) -> dict[int, Row]:
    """The best of each concurrency against the baseline, A B B A; only these launches count. -> speed-up by concurrency."""
    arms: dict[Arm, list[int]] = {baseline: sorted(choices)}
    for c, choice in choices.items():
        arms.setdefault(choice.arm, []).append(c)
    looks = Looks(settings.pairs, settings.last_pair)
    experiment.add("confirm", arms, settings.last_pair)

    def after(pairs: int) -> str:
        if not looks.first <= pairs < looks.last:
            return ""
        rows = [speedup_of(experiment, "confirm", c, baseline, choice.arm, looks) for c, choice in choices.items()]
        clear = all(row["verdict"] != "inconclusive" for row in rows)
        return "decided" if clear else ""

    experiment.run(after)
    return {c: speedup_of(experiment, "confirm", c, baseline, choice.arm, looks) for c, choice in choices.items()}


def speedup_of(experiment: Experiment, phase: Any, concurrency: int, baseline: Arm, arm: Arm, looks: Looks) -> Row:
    """Speed-up of an arm at a concurrency with the interval that its pairs are entitled to."""
    launches = experiment.measured(concurrency, phase, baseline, arm)
    counted = experiment.acceptance(arm, concurrency)
    row: Row = {"arm": arm.name, "pairs": num_pairs(launches), "accept_len": counted.accept_len if counted else None}
    row["survival"] = list(counted.survival) if counted else None
    if num_pairs(launches) < 2:
        nothing = {"ratio": None, "low": None, "high": None, "verdict": "inconclusive"}
        return row | nothing | {"reason": "fewer than two valid launches of each"}
    found = looks.interval(launches, num_pairs(launches))
    return row | {"ratio": found.value, "low": found.low, "high": found.high, "df": found.df, "verdict": verdict(found), "reason": ""}


def check_schedule(
    experiment: Experiment, emitted: Emitted, best: Mapping[int, Candidate | None], arms: tuple[Arm, str], settings: TuneSettings
) -> dict[int, Row]:
    """The schedule as the engine is given it, against the baseline at every concurrency: engines have been seen to lose speed where a
    schedule switches. arms: the baseline, and the environment of the other server."""
    baseline, env_set = arms
    if len(emitted.ranges) < 2 or emitted.drafting is None or settings.check_schedule == "never":
        return {}
    depth = emitted.drafting.depth
    arm = Arm(Candidate("schedule", depth, depth + 1), env_set)
    launch = experiment.setting.launch(arm, emitted.drafting, emitted.extra_flags)
    both = {baseline: settings.concurrency, arm: settings.concurrency}
    experiment.add("schedule", both, 2, {arm.name: launch}, [c for c, candidate in best.items() if candidate is None])
    experiment.run()
    looks = Looks(2, 2)
    rows = {c: speedup_of(experiment, "schedule", c, baseline, arm, looks) for c in settings.concurrency}
    for c in (c for c, candidate in best.items() if candidate is None):  # the few rounds there are of a batch that fills or empties
        rows[c] |= {"accept_len": None, "survival": None}
    return rows


# --- all of it -------------------------------------------------------------------------------------------------------


def measure(
    setting: Setting, candidates: Sequence[Candidate], settings: TuneSettings, fresh: Collection[str] = ()
) -> tuple[Experiment, Found]:
    """All phases. fresh: stages of the run that are finished for this recipe.

    Raises EnvironmentFailed when the baseline does not come up, InvalidMeasurement when nothing can be predicted or measured.
    """
    experiment, job = Experiment(setting), setting.job
    known = knowledge(experiment, candidates, settings, read_known(job, setting.folder, setting.drafter, fresh))
    fates = prune(candidates, settings.concurrency, known, settings.keep)
    for fate in fates:
        if fate.state == "pruned":
            job.talk.say(f"tune: C={fate.concurrency} {fate.candidate.name} is not measured: {fate.reason}")
    screen(experiment, fates, settings)
    choices, baseline, environments = pick(experiment, fates, settings)
    if not choices:
        raise InvalidMeasurement(f"no candidate could be measured: {said(experiment)}", hint=f"logs: {setting.folder / 'logs'}")
    speedups = confirm(experiment, choices, baseline, settings)
    best: dict[int, Candidate | None] = dict.fromkeys(settings.concurrency)
    best |= {c: choices[c].arm.candidate for c, row in speedups.items() if row["verdict"] == "pays"}
    env_set = next(iter(choices.values())).arm.env_set
    fixed = fixed_choice(best, mean_rates(experiment, settings, env_set)) if any(best.values()) else None
    emitted = emit(best, fixed, setting.drafter, job.engine.name, setting.folder, job.engine.flags)
    if emitted.config is not None:
        atomic_write_json(setting.folder / ADAPTIVE_CONFIG, emitted.config)
    checked = check_schedule(experiment, emitted, best, (baseline, env_set), settings)
    return experiment, Found(fates, known, choices, baseline, environments, speedups, best, emitted, checked)


def said(experiment: Experiment) -> str:
    reasons = [f"{name}: {reason}" for name, reason in experiment.deaths().items()]
    reasons += [f"{row['arm']}: {row['reason']}" for row in experiment.invalid()]
    return "; ".join(reasons[:3]) or "nothing was valid"


def mean_rates(experiment: Experiment, settings: TuneSettings, env_set: str) -> dict[int, dict[Candidate, float]]:
    """Geometric mean of tok/s by concurrency and candidate, in one environment."""
    found = {}
    for c in settings.concurrency:
        rates = experiment.rates(c, "screen", "confirm")
        found[c] = {
            arm.candidate: geometric_mean(values) for arm, values in rates.items() if arm.candidate is not None and arm.env_set == env_set
        }
    return found
