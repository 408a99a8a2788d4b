"""Break-even where the engine can force acceptance (SGLang, vLLM on a GPU): the launches of a plan, measured in waves, summarised, and
shown on a page.

Launch replicates in turned order (A B C, C B A), a canary in each, two visits when the launches of a replicate run side by side.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from draftsmith.breakeven.model import all_reduce_of, between, observations
from draftsmith.breakeven.page import Subject, write_page
from draftsmith.breakeven.settings import BreakevenSettings
from draftsmith.breakeven.shapes import has_tokenizer
from draftsmith.breakeven.surface import chains_of, surface, timed
from draftsmith.breakeven.sweep import LAUNCHES, WAVES, Planned, Sweep, Waves, started
from draftsmith.breakeven.waves import STREAM_STEP
from draftsmith.engines.flags import spelled
from draftsmith.engines.protocol import Drafting, Engine, Launch
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.job import Job, Talk
from draftsmith.manifest import append_jsonl, atomic_write_json, atomic_write_text, hardware, read_jsonl, tool_versions
from draftsmith.measure.costmodel_terms import shape_of
from draftsmith.models.text_config import num_experts, read_text_config
from draftsmith.settings import EngineSettings, FlagValue

PLAN = "plan.json"
SYNTHETIC_SINCE = Version("0.22")  # vLLM's rejection_sample_method
# the engines' own switches for dummy weights, whose routers may favour a few experts
EVEN = {
    "sglang": {"SGLANG_SIMULATE_UNIFORM_EXPERTS": "1"},
    "vllm": {"VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random"},
}
PROMPT_TOKENS = 64
FORCED = 2.0  # any length will do: a round costs the same whatever is accepted, and 2 every depth can have


@dataclass(frozen=True)
class Models:
    """What is served. drafters: by depth (a DFlash block has a config of its own). dummy: as in `Launch`."""

    target: Path
    drafters: Mapping[int, Path]
    method: str
    dummy: frozenset[str] = frozenset()
    trees: tuple[tuple[int, int, int], ...] = ()  # (steps, top-k, draft tokens)


def forces(settings: EngineSettings) -> bool:
    """Can this engine force an acceptance length? vLLM's CPU engine refuses to, and versions before 0.22 cannot."""
    package, _, version = settings.name.partition("==")
    if package == "sglang":
        return True
    return package == "vllm" and settings.flags.get("device") != "cpu" and Version(version or "0") >= SYNTHETIC_SINCE


def plan(settings: BreakevenSettings, job: Job, models: Models) -> list[Planned]:
    """Baseline, every depth and every tree; each replicate in the reverse order of the one before."""
    kinds: list[tuple[str, Drafting | None]] = [("baseline", None)]
    word = "block" if models.method == "dflash" else "depth"
    for depth in settings.depths:
        drafting = Drafting(models.method, models.drafters[depth], depth, forced_accept_len=FORCED)
        kinds.append((f"{word} {drafting.rows if word == 'block' else depth}", drafting))
    for steps, top_k, tokens in models.trees:
        folder = next(iter(models.drafters.values()))
        kinds.append((f"tree {steps}-{top_k}-{tokens}", Drafting(models.method, folder, steps, (top_k, tokens), FORCED)))
    flags = common_flags(settings, job, models.target)
    even = EVEN[family(job.engine)] if "target" in models.dummy and num_experts(read_text_config(models.target)) else {}
    env = even | job.engine.env
    launches: list[Planned] = []
    for replicate in range(settings.replicates):
        for name, drafting in kinds if replicate % 2 == 0 else kinds[::-1]:
            arm = "speculative" if drafting else "baseline"
            launch = Launch(arm, models.target, flags, env, drafting, job.trust_remote_code, models.dummy)
            launches.append(Planned(len(launches), name, launch, settings.concurrency))
    return launches


def family(settings: EngineSettings) -> str:
    """sglang or vllm."""
    return settings.name.partition("==")[0].removesuffix("-cpu")


def common_flags(settings: BreakevenSettings, job: Job, target: Path) -> dict[str, FlagValue]:
    """The flags of all arms: the user's, and room for the largest concurrency (with speculation SGLang would stop at 48)."""
    most, ours = max(settings.concurrency), dict[str, FlagValue]()
    given = {spelled(name) for name in job.engine.flags}
    if family(job.engine) == "vllm":
        ours |= {"max-num-seqs": most, "stream-interval": STREAM_STEP}
    else:
        version = Version(job.engine.name.partition("==")[2] or "0")
        graphs = "cuda-graph-max-bs-decode" if version >= Version("0.5.16") else "cuda-graph-max-bs"
        ours |= {"max-running-requests": most} | ({} if "cuda-graph-max-bs" in given else {graphs: most})
        ours |= {"sleep-on-idle": True} if settings.start_together else {}
    if not has_tokenizer(target):
        ours["skip-tokenizer-init"] = True
    return {**{name: value for name, value in ours.items() if name not in given}, **job.engine.flags}


def run_sweep(settings: BreakevenSettings, job: Job, models: Models, engine: Engine, python: Path, folder: Path) -> list[dict[str, Any]]:
    """All launches that have not finished in `folder`; the lines of all waves. Raises UsageError when it holds another plan."""
    launches = plan(settings, job, models)
    together = settings.start_together
    load = Waves(
        read_text_config(models.target)["vocab_size"],
        tokens=settings.output_tokens,
        prompt_tokens=settings.prompt_tokens or PROMPT_TOKENS,
        waves=settings.requests_per_slot,
        passes=2 if together else 1,
        seed=settings.seed,
    )
    finished = go_on(folder, {"launches": [planned.head() for planned in launches], "load": vars(load)})
    size = len(launches) // settings.replicates if together else 1
    for begin in range(0, len(launches), size):
        group = [planned for planned in launches[begin : begin + size] if planned.index not in finished]
        if not group:
            continue
        with started(engine, python, group, folder, job.engine.ready_timeout_s, job.talk) as servers:
            sweep = Sweep(folder, load, float("inf"), job.talk)
            sweep.run(servers)
        for planned in (planned for planned, _ in servers if planned.index not in sweep.dead):
            append_jsonl(folder / LAUNCHES, {"launch": planned.index, "finished": time.time()})
            say(planned, read_jsonl(folder / WAVES), job.talk)
    return read_jsonl(folder / WAVES)


def go_on(folder: Path, planned: Mapping[str, Any]) -> set[int]:
    """Launches that finished before; waves of the others are dropped. Raises UsageError when the folder holds another plan."""
    path = folder / PLAN
    content = json.loads(json.dumps(planned))
    if path.exists() and json.loads(path.read_text()) != content:
        raise UsageError(f"{folder} holds another measurement", hint="another --out folder, or delete this one")
    atomic_write_json(path, content)
    finished = {row["launch"] for row in read_jsonl(folder / LAUNCHES) if "finished" in row}
    kept = [row for row in read_jsonl(folder / WAVES) if row["launch"] in finished]
    atomic_write_text(folder / WAVES, "".join(json.dumps(row) + "\n" for row in kept))
    return finished


def say(planned: Planned, rows: Sequence[Mapping[str, Any]], talk: Talk) -> None:
    """One line about a launch."""
    parts = []
    for concurrency in planned.concurrency:
        cell = [
            r for r in rows if (r["launch"], r["concurrency"], r["phase"]) == (planned.index, concurrency, "cell") and "invalid" not in r
        ]
        if cell:
            seconds = sum(r["round_s"] or r["decode_step_s"] for r in cell) / len(cell)
            parts.append(f"{1000 * seconds:.2f} ms at {concurrency}")
    talk.say(f"launch {planned.index + 1}, {planned.name}: {', '.join(parts) or 'nothing valid'}")


def measure(settings: BreakevenSettings, job: Job, models: Models, engine: Engine, python: Path, folder: Path) -> dict[str, Any]:
    """Sweep, summary.json and breakeven.html in `folder`; returns the summary. Raises InvalidMeasurement when nothing can be said."""
    all_reduce = all_reduce_of(settings.collectives, job.engine.flags)
    rows = run_sweep(settings, job, models, engine, python, folder)
    failed = deaths(folder)
    if rows == [] and failed:
        raise EnvironmentFailed(failed[0], hint=f"logs: {folder / 'logs'}")
    cells = observations(timed(rows), chains_of(rows))
    model = between(cells, shape_of(models.target), all_reduce, [gate.concurrency for gate in settings.gates]) if cells else None
    summary = surface(rows, min_speedup=settings.min_speedup, gates=settings.gates, model=model)
    summary["invalid"] += failed
    summary |= {"hardware": hardware(), "tools": tool_versions(), "engine": job.engine.name, "dummy": sorted(models.dummy)}
    atomic_write_json(folder / "summary.json", summary)
    write_page(folder, summary, subject(job, models, settings))
    return summary


def deaths(folder: Path) -> list[str]:
    """Launches that did not come up, or died on the way, and were not made up for since."""
    rows = read_jsonl(folder / LAUNCHES)
    finished = {row["launch"] for row in rows if "finished" in row}
    return [f"launch {row['launch']}, {row['name']}: {row['died']}" for row in rows if "died" in row and row["launch"] not in finished]


def subject(job: Job, models: Models, settings: BreakevenSettings) -> Subject:
    """The head of the page."""
    config = read_text_config(models.target)
    routed = num_experts(config)
    machine = hardware()
    facts = (
        job.engine.name,
        f"{config.get('model_type', 'unknown type')}, {config['num_hidden_layers']} layers of {config['hidden_size']}"
        + (f", {routed} experts" if routed else ""),
        "random weights" if "target" in models.dummy else "the target's own weights",
        f"{models.method}, {settings.output_tokens} tokens an answer"
        + (f" after {settings.prompt_tokens or PROMPT_TOKENS} of prompt" if forces(job.engine) else ""),
        ", ".join(machine["gpus"]) or machine["cpu"],
    )
    return Subject(
        job.target.stem if job.target.is_file() else job.target.resolve().name,
        facts,
        (models.method,),
        "moe" if routed else "dense",
        dummy="target" in models.dummy,
        forced=True,
    )
