"""What will be launched and sent: the order of launches, the cells, and the conditions under which that happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftsmith.bench.context import Context
from draftsmith.bench.settings import BenchSettings
from draftsmith.engines.protocol import Launch
from draftsmith.job import Job
from draftsmith.manifest import Manifest, canonical_hash, hardware, tool_versions
from draftsmith.measure.launching import launch_for
from draftsmith.measure.loads import ClosedLoad, Load, label_of, load_dict
from draftsmith.measure.messages import Request
from draftsmith.measure.prompts import Prompt
from draftsmith.measure.protocol import NOISE_PAIR, launch_arms
from draftsmith.measure.recorder import VISIBLE, Cell, Planned, Workload
from draftsmith.measure.sleeping import switch_for
from draftsmith.measure.traces import read_trace
from draftsmith.measure.workload import CellShape, Deck, make_workload

ALGORITHM_NAMES = {"eagle3": "EAGLE-3"}


def plan_launches(settings: BenchSettings, job: Job) -> list[Planned]:
    """The noise floor, then A B B A A B ...; with two sets of GPUs each pair has the sets the other way round than the one before."""
    arms = {"baseline": launch_for(job), "speculative": launch_for(job, job.folder("export"), job.drafter.depth)}
    if settings.mode == "sleep":
        switch = switch_for(job.engine.name.partition("==")[0])
        arms = {arm: switch.prepared(launch) for arm, launch in arms.items()}
    first = settings.noise_launches
    noise = [Planned(i, NOISE_PAIR, "baseline (noise floor)", on_set(arms["baseline"], settings, 0)) for i in range(first)]
    launches = []
    for place, arm in enumerate(launch_arms(settings.last_pair)):
        pair = place // 2
        gpu_set = (pair + (arm == "speculative")) % 2 if settings.gpu_sets else 0
        launches.append(Planned(first + place, pair, arm, on_set(arms[arm], settings, gpu_set), gpu_set=gpu_set))
    return noise + launches


def on_set(launch: Launch, settings: BenchSettings, gpu_set: int) -> Launch:
    """The launch, bound to one of the two sets of GPUs if there are any."""
    if not settings.gpu_sets:
        return launch
    return launch.with_(env={VISIBLE: ",".join(map(str, settings.gpu_sets[gpu_set]))})


def plan_workload(settings: BenchSettings, deck: Deck, render: Callable[[Prompt], Prompt] | None = None) -> Workload:
    """Canary, warm-ups and cells, dealt from `deck`: closed loops first, then the open loads. render: for prompts of a trace."""
    asked = [(length, *shape) for length in settings.lengths for shape in settings.shapes()]
    shapes = [CellShape(c, requests, warmup, length, settings.warmup_tokens) for length, c, requests, warmup in asked]
    closed = make_workload(deck, shapes, settings.canary_tokens, settings.temperature)
    cells = [replace(cell, output_tokens=told(settings, shape.output_tokens)) for cell, shape in zip(closed.cells, shapes, strict=True)]
    for load in settings.loads:
        for length in settings.lengths if load.file is None else (None,):
            warmup = deck.deal(load.warmup_requests, settings.warmup_tokens, settings.temperature, ignore_eos=True)
            if length is None:
                filler = [token for prompt in deck.prompts for token in prompt.token_ids]
                found = read_trace(Path(load.file or ""), filler, render)[: load.requests]
                requests = tuple(replace(request, extra=deck.extra) for request in found)
            else:
                requests = deck.deal(load.requests, length, settings.temperature)
            cells.append(Cell(load.warmup_requests, warmup, requests, load.load(), told(settings, length)))
    return Workload(closed.canary, tuple(cells))


def told(settings: BenchSettings, length: int | None) -> int | None:
    """The limit of a cell's answers, where it tells the cell from others."""
    return length if len(settings.lengths) > 1 else None


def described_cells(settings: BenchSettings) -> list[dict[str, Any]]:
    """concurrency, label, load and limit of the answers of every cell, in the order of `plan_workload`."""
    rows: list[tuple[int, Load, int | None]] = [(c, ClosedLoad(c), length) for length in settings.lengths for c in settings.concurrency]
    for load in settings.loads:
        rows += [(load.warmup_requests, load.load(), length) for length in (settings.lengths if load.file is None else (None,))]
    return [
        {"concurrency": c, "label": label_of(load, told(settings, length)), "load": load_dict(load), "max_tokens": length}
        for c, load, length in rows
    ]


def workload_digest(workload: Workload) -> str:
    """Digest of every prompt and length in its order: two runs with the same one asked the same."""
    requests = [workload.canary, *(request for cell in workload.cells for request in (*cell.warmup, *cell.requests))]
    return canonical_hash([asked_of(request) for request in requests])


def asked_of(request: Request) -> list[Any]:
    """What of a request the answer depends on."""
    fields = [list(request.prompt_token_ids), request.text, [dict(m) for m in request.messages], request.max_tokens, request.ignore_eos]
    return [*fields, dict(request.extra)] if request.extra else fields


def conditions_of(settings: BenchSettings, job: Job, workload: Workload) -> dict[str, Any]:
    """What must agree before this run may be compared with another one."""
    made = Manifest.read(job.folder("export"))
    machine = hardware()
    gpus = [[part.strip() for part in line.split(",")] for line in machine["gpus"]]
    flags = {f"flag {key}": value for key, value in sorted(job.engine.flags.items()) if not key.startswith(("speculative", "spec-"))}
    return {
        "engine": job.engine.name,
        "target": made.config.get("target", {}).get("files") if made else None,
        "dtype": job.engine.flags.get("dtype") or dtype_of(job),
        "prompts": workload_digest(workload),
        "sampling": f"temperature {settings.temperature:g}, seed {0 if settings.temperature else None}",
        "endpoint": settings.endpoint,
        "mode": settings.mode,
        "gpu": sorted(row[0] for row in gpus),
        "driver": gpus[0][2] if gpus and len(gpus[0]) > 2 else None,
        "cpu": f"{machine['cpu']}, {machine['cores']} cores",
        "draftsmith": tool_versions()["draftsmith"],
        **flags,
        **{f"variable {key}": value for key, value in sorted(job.engine.env.items())},
    }


def dtype_of(job: Job) -> str | None:
    """What the target's config says; None when it says nothing."""
    path = job.target / "config.json"
    content: Mapping[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content.get("dtype") or content.get("torch_dtype")


def drafter_of(job: Job) -> dict[str, Any]:
    """What this run is about; another run may differ in it."""
    made = Manifest.read(job.folder("export"))
    weights = made.outputs.get("model.safetensors") if made else None
    return {"algorithm": job.drafter.algorithm, "depth": job.drafter.depth, "weights": weights}


def make_context(settings: BenchSettings, job: Job, workload: Workload, reused: int) -> Context:
    """Everything that the summary needs besides the raw lines."""
    drafter = drafter_of(job)
    break_even: Sequence[Mapping[str, Any]] = job.read("breakeven", "summary.json")["break_even"]
    return Context(
        settings=settings,
        depth=job.drafter.depth,
        subject=ALGORITHM_NAMES[job.drafter.algorithm],
        unit="block" if settings.mode == "sleep" else "launch",
        break_even=break_even,
        reused=reused,
        conditions=conditions_of(settings, job, workload),
        drafter=drafter,
        differences=[{"key": f"drafter {key}", "baseline": None, "speculative": value, "matters": False} for key, value in drafter.items()],
        command=f"draftsmith bench RECIPE --run-folder {job.run.name}",
    )
