"""verify replay: run the exported drafter alone, and hold its figures against training's and a server's. Writes replay.json."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftsmith.errors import EnvironmentFailed, InvalidMeasurement
from draftsmith.findings import Finding, errors
from draftsmith.job import Talk
from draftsmith.manifest import atomic_write_json
from draftsmith.measure.prompts import Prompt, heldout_prompts
from draftsmith.metrics import relative_gap
from draftsmith.models.drafter import Drafter
from draftsmith.models.target import Target, load_target
from draftsmith.models.text_config import read_text_config
from draftsmith.samples import samples_file
from draftsmith.verify.replay.beside import Beside, look
from draftsmith.verify.replay.causes import Trained, by_group
from draftsmith.verify.replay.dflash import DFLASH
from draftsmith.verify.replay.drafter import check_network, load_plain
from draftsmith.verify.replay.figures import Hits, Walked, all_hits, figures, teacher_forced, walked
from draftsmith.verify.replay.folder import Folder, taps_of
from draftsmith.verify.replay.rows import Rows, from_file, from_store, trained_acceptance, what_training_saw
from draftsmith.verify.replay.served import Asking, Told, ask, from_bench, from_verify
from draftsmith.verify.replay.served import from_file as served_from_file
from draftsmith.verify.replay.words import lines, local_findings, trained_findings, verdict
from draftsmith.verify.stage import TORCH_DTYPES


@dataclass(frozen=True)
class Subject:
    """What is replayed. folder: in the plain layout; name: as the user knows it. own: it is what this run exported."""

    target: Path
    folder: Path
    name: str
    depth: int
    dtype: str  # that is served
    own: bool = False
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Sources:
    """Where rows and served replies come from; None: not asked for. run: its stages' folders are looked into."""

    run: Path | None = None
    rows: Path | None = None  # a store or a file, instead of the run's store
    split: str = "heldout"
    limit: int | None = None
    served: str | None = None  # "verify", "bench" or a file; None: verify's replies if they are there
    asking: Asking | None = None
    temperature: float = 0.0

    @property
    def store(self) -> Path | None:
        """The folder of the rows, when they are a capture store's."""
        if self.rows is not None:
            return self.rows if self.rows.is_dir() else None
        capture = self.run / "capture" if self.run is not None else None
        return capture if capture is not None and (capture / "index.json").is_file() else None


def run(subject: Subject, sources: Sources, out: Path, talk: Talk) -> tuple[dict[str, Any], list[str], int]:
    """(content of replay.json, lines for people, exit code 0, 3 or 4). Raises DraftsmithError when something cannot be replayed at all."""
    folder = Folder.open(subject.folder)
    text = read_text_config(subject.target)
    check_network(folder, int(text["vocab_size"]))
    taps = taps_of(folder.config, int(text["num_hidden_layers"]))
    target = load_target(subject.target, taps, TORCH_DTYPES[subject.dtype], subject.trust_remote_code)
    drafter = load_plain(folder, target, taps)  # float32, as the trainer's
    rows = find_rows(sources, target, talk)
    told = find_served(subject, sources, rows, out, talk)
    if told is not None and told.depth is not None:
        subject = replace(subject, depth=told.depth)  # what is compared is compared at the server's depth
    block = subject.depth + 1 if folder.architecture == DFLASH else None
    result: dict[str, Any] = {"drafter": subject.name, "target": str(subject.target), "taps": list(taps)}
    result |= {"depth": subject.depth, "block": block}
    heldout, findings = alone(subject, sources, rows, drafter, talk, result)
    result |= {"served": None, "sampled": None}
    trained = what_training_saw(sources.run) if sources.run is not None and subject.own else Trained(block=block)
    beside = Beside(subject.depth, subject.dtype, target, trained, rows, heldout, subject.own and sources.rows is None)
    if told is not None:
        served = load_plain(folder, target, taps, TORCH_DTYPES[subject.dtype])
        found, more = look(beside, told, drafter, served, talk)
        result |= found
        findings += more
    elif rows is not None:
        findings += local_findings(heldout, subject.depth, trained, "rows")
    result["findings"] = [finding.as_dict() for finding in findings]
    result["verdict"] = verdict(result, findings)
    told_lines, result = lines(result), finite(result)
    atomic_write_json(out / "replay.json", result)
    code = 4 if errors(findings) else 0 if result["trained"] or result["served"] else 3
    return result, [*told_lines, f"written: {out / 'replay.json'}"], code


def finite(content: Any) -> Any:
    """The same with None for what is no number, or has no bound: JSON knows neither."""
    if isinstance(content, dict):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def alone(
    subject: Subject, sources: Sources, rows: Rows | None, drafter: Drafter, talk: Talk, result: dict[str, Any]
) -> tuple[list[Walked], list[Finding]]:
    """The drafter on the rows, beside training's figure where these are its rows. Fills `rows` and `trained` of the result.

    Raises InvalidMeasurement when no row has as many tokens as a round.
    """
    result |= {"rows": None, "trained": None, "replayed_as_trained": None, "trained_gap": None}
    if rows is None:
        return [], []
    own_rows = subject.own and rows.captured and sources.limit is None and sources.rows is None and sources.split == "heldout"
    trained = trained_acceptance(sources.run / "train") if sources.run is not None and own_rows else None
    hits = all_hits(drafter, rows.samples, max(subject.depth, trained.depth if trained else 1), talk)
    shallow = [Hits(one.sample, one.row_A, one.hit_AK[:, : subject.depth], one.there_AK[:, : subject.depth]) for one in hits]
    found = figures(shallow, subject.depth)
    if not found.teacher_forced.rounds:
        evidence = f"{rows.source}: no answer has the {subject.depth + 1} tokens of a whole round"
        raise InvalidMeasurement(evidence, hint="longer answers, or --depth 1")
    answers = [walked(one, rows.categories.get(one.sample.id, "")) for one in shallow]
    result["rows"] = {
        "source": rows.source,
        "samples": len(rows.samples),
        "tokens": sum(len(sample.token_ids_T) for sample in rows.samples),
        "figures": found.as_dict(),
        "by_category": by_group(answers),
    }
    if trained is None:
        return answers, []
    again = teacher_forced(hits, trained.depth)
    gap = relative_gap(again.accept_len, trained.accept_len)
    result |= {"trained": trained.as_dict(), "replayed_as_trained": again.as_dict(), "trained_gap": gap}
    return answers, trained_findings(again, trained)


# --- where things come from ------------------------------------------------------------------------------------------


def find_rows(sources: Sources, target: Target, talk: Talk) -> Rows | None:
    """The rows asked for, else the run's store; None when there is neither. Raises EnvironmentFailed, UsageError."""
    if sources.rows is not None and sources.rows.is_file():
        return from_file(sources.rows, sources.limit, target, talk)
    store = sources.rows or sources.store
    return None if store is None else from_store(store, sources.split, sources.limit, target, talk)


def find_served(subject: Subject, sources: Sources, rows: Rows | None, out: Path, talk: Talk) -> Told | None:
    """Served replies; None when none are asked for or there. Raises EnvironmentFailed when what was asked for is not there."""
    prompts = rows.prompts if rows else {}
    if sources.asking is not None:
        if not prompts:
            raise EnvironmentFailed("no prompts to ask the server", hint="--rows FILE with prompt_token_ids and token_ids, or a run")
        return ask(sources.asking, list(prompts.values()), out, talk)
    known = {**run_prompts(sources.run), **prompts}
    if sources.served not in (None, "verify", "bench"):
        return served_from_file(Path(sources.served), known, sources.temperature)
    if sources.run is None or (sources.served is None and not subject.own):
        return None  # what a run serves is its own export
    if sources.served == "bench":
        told = from_bench(sources.run / "bench", known)
    else:
        told = from_verify(sources.run / "verify", subject.dtype, known)
    if told is None and sources.served is not None:
        hint = f"draftsmith {sources.served} RECIPE first, or --served FILE, or --url URL"
        raise EnvironmentFailed(f"no {sources.served} replies to known prompts in {sources.run}", hint=hint)
    return told


def run_prompts(run: Path | None) -> dict[str, Prompt]:
    """The held-out prompts of a run by id, whatever rows are replayed."""
    if run is None or not samples_file(run / "data", "heldout").is_file():
        return {}
    return {prompt.id: prompt for prompt in heldout_prompts(run / "data")}
