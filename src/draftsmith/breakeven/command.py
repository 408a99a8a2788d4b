"""`draftsmith breakeven` without a recipe: a target, or only its config.json, an engine, and how it would draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from draftsmith.breakeven import lockstep, stage
from draftsmith.breakeven.lockstep import Models
from draftsmith.breakeven.page import PAGE
from draftsmith.breakeven.settings import BreakevenSettings
from draftsmith.breakeven.shapes import has_weights, target_folder, write_drafter_config
from draftsmith.engines.registry import engine_for
from draftsmith.errors import UsageError
from draftsmith.job import Job, Talk
from draftsmith.manifest import read_json
from draftsmith.settings import DrafterSettings, EngineSettings, FlagValue, Gate, numbers

METHODS = ("eagle3", "dflash")
OPTIONS = {"output_tokens": "--tokens", "prompt_tokens": "--context"}  # where the setting has another name
STOPS = {"no": 0, "yes": 1, "unsure": 3}  # exit codes


@dataclass(frozen=True)
class Asked:
    """The words of the command. `trees`: "3-4-16" is 3 steps, top-k 4, 16 draft tokens. `context`: tokens of every prompt.
    `draft_vocab`: of a drafter that is made here."""

    engine: str
    target: Path
    drafter: Path | None = None
    algorithm: str = "eagle3"
    depths: str = "1,3,5"
    concurrency: str = "1,4,16,64"
    trees: str = ""
    replicates: int = 2
    tokens: int = 160
    context: int | None = None
    draft_vocab: int = 32000
    min_speedup: tuple[str, ...] = ()
    collectives: str | None = None
    together: bool = False
    python: str | None = None
    out: Path | None = None


def breakeven(asked: Asked, pasted: Sequence[str], talk: Talk) -> tuple[dict[str, Any], str, int]:
    """Measure and summarise. Exit code 3 when a launch or a wave had to be left out, or when it cannot be told whether full acceptance
    reaches the speed-up that is asked for; 1 when it does not."""
    source = asked.target
    name = source.stem if source.is_file() else source.resolve().name
    folder = asked.out or Path("runs") / f"{name}_breakeven"
    settings = settings_of(asked)
    engine_settings = EngineSettings(name=asked.engine, python=asked.python, flags=flags_of(pasted), ready_timeout_s=900.0)
    engine, python = engine_for(engine_settings)
    job = Job(folder, source, engine_settings, DrafterSettings(draft_vocab_size=asked.draft_vocab), talk)
    if lockstep.forces(engine_settings):
        models = models_of(asked, job, settings, folder)
        summary = lockstep.measure(settings, job, models, engine, python, folder)
        page = folder / PAGE
    else:
        page = with_counters(asked, job, settings)
        summary = read_json(page.parent / "summary.json")
    invalid = [f"left out: {reason}" for reason in summary["invalid"]]
    notes = [f"note: {text}" for text in (*summary["findings"], summary["note"]) if text]
    text = [*(entry["pays_if"] for entry in summary["break_even"]), *notes, *invalid, f"page: {page}", summary["advice"]]
    return summary | {"page": str(page)}, "\n".join(filter(None, text)), 3 if invalid else STOPS[summary["stop"]]


def settings_of(asked: Asked) -> BreakevenSettings:
    """The words as the stage's settings. Raises UsageError naming the option."""
    if asked.draft_vocab < 1:
        raise UsageError(f"--draft-vocab {asked.draft_vocab}: expected 1 or more", hint="--draft-vocab 32000")
    try:
        return BreakevenSettings(
            depths=numbers("--depths", asked.depths, different=True),
            concurrency=numbers("--concurrency", asked.concurrency, different=True),
            output_tokens=asked.tokens,
            prompt_tokens=asked.context,
            replicates=asked.replicates,
            start_together=asked.together,
            collectives=asked.collectives,
            **bars(asked.min_speedup),
        )
    except ValidationError as error:
        problem = error.errors()[0]
        name = str(problem["loc"][0]) if problem["loc"] else ""
        option = OPTIONS.get(name, f"--{name.replace('_', '-')}")
        raise UsageError(f"{option} {problem['input']}: {problem['msg']}", hint="draftsmith breakeven --help") from None


def bars(words: Sequence[str]) -> dict[str, Any]:
    """["1.2", "1.1@4"] -> {"min_speedup": 1.2, "gates": (1.1 at 4,)}. Raises UsageError."""
    anywhere = [word for word in words if "@" not in word]
    try:
        found: dict[str, Any] = {"min_speedup": float(anywhere[-1].removesuffix("x"))} if anywhere else {}
        gates = tuple(Gate.model_validate(word) for word in words if "@" in word)
    except (ValueError, ValidationError):
        raise UsageError(f"--min-speedup {' '.join(words)}: not a speed-up", hint="--min-speedup 1.2, or 1.1@4: at concurrency 4") from None
    return found | {"gates": gates}


def with_counters(asked: Asked, job: Job, settings: BreakevenSettings) -> Path:
    """An engine that cannot force acceptance: as the recipe's stage does it, with a drafter of random weights and the server's counters."""
    forcing = "SGLang, or vLLM 0.22 or newer on a GPU,"
    if asked.algorithm != "eagle3" or asked.trees or asked.drafter is not None:
        raise UsageError(f"{asked.engine}: only EAGLE-3 chains of random weights are measured here", hint=f"{forcing} can do the rest")
    if not job.target.is_dir() or not has_weights(job.target):
        raise UsageError(f"{asked.engine} needs a target with weights here", hint=f"{forcing} can take a config.json alone")
    stage.run(settings, job)
    return job.folder(stage.NAME) / PAGE


def models_of(asked: Asked, job: Job, settings: BreakevenSettings, folder: Path) -> Models:
    """The folders that are served; what has no weights gets random ones."""
    target = target_folder(job.target, folder / "models" / "target")
    if asked.algorithm not in METHODS:
        raise UsageError(f"unknown algorithm {asked.algorithm!r}", hint=f"one of: {', '.join(METHODS)}")
    if asked.drafter is not None:
        if not (asked.drafter / "config.json").is_file():
            raise UsageError(f"no config.json in {asked.drafter}", hint="--drafter takes a drafter folder, with or without weights")
        drafters = dict.fromkeys(settings.depths, asked.drafter)
    elif asked.algorithm == "dflash":
        drafters = {
            depth: write_drafter_config(target, job.drafter, folder / "models" / f"block-{depth + 1}", "dflash", depth + 1)
            for depth in settings.depths
        }
    else:
        drafters = dict.fromkeys(
            settings.depths, write_drafter_config(target, job.drafter, folder / "models" / "drafter", engine=job.engine.name)
        )
    dummy = {"target"} if not has_weights(target) else set()
    dummy |= {"drafter"} if not all(has_weights(made) for made in drafters.values()) else set()
    return Models(target, drafters, asked.algorithm, frozenset(dummy), trees_of(asked.trees))


def trees_of(text: str) -> tuple[tuple[int, int, int], ...]:
    """ "3-4-16,5-8-32" -> ((3, 4, 16), (5, 8, 32)). Raises UsageError for a tree that cannot be."""
    found = []
    for word in filter(None, text.split(",")):
        parts = word.split("-")
        if len(parts) != 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise UsageError(f"--trees: {word!r} is not STEPS-TOPK-TOKENS", hint="--trees 3-4-16")
        steps, top_k, tokens = (int(part) for part in parts)
        most = top_k + (steps - 1) * top_k * top_k + 1
        if top_k < 2 or not steps < tokens <= most:
            raise UsageError(
                f"--trees: {word!r} needs top-k 2 or more, and more than {steps} and at most {most} tokens", hint="or --depths"
            )
        found.append((steps, top_k, tokens))
    return tuple(found)


def flags_of(words: Sequence[str]) -> dict[str, FlagValue]:
    """Engine flags as typed behind `--` -> a mapping. A word without dashes is the value of the flag before it."""
    flags: dict[str, FlagValue] = {}
    last = None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            flags[name] = typed(value) if equals else True
            last = None if equals else name
        elif last is None:
            raise UsageError(f"engine flags: {word!r} belongs to no flag", hint="-- --attention-backend triton --mem-fraction-static 0.8")
        else:
            flags[last] = typed(word)
            last = None
    return flags


def typed(word: str) -> FlagValue:
    """A whole number as such (a port must be one), anything else as written."""
    return int(word) if word.isdecimal() else word
