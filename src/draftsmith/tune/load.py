"""What is sent: the same requests in every launch that measures a cell, dealt once for all concurrencies."""

from __future__ import annotations

from draftsmith.errors import UsageError
from draftsmith.job import Job
from draftsmith.measure.prompts import HELDOUT, Prompt, Renderer, heldout_prompts, named_prompts
from draftsmith.measure.recorder import Workload
from draftsmith.measure.workload import CellShape, Deck, make_workload
from draftsmith.samples import samples_file
from draftsmith.tune.settings import TuneSettings


def prompts_for(settings: TuneSettings, job: Job) -> list[Prompt]:
    """Held-out prompts of the run's data stage as the engine saw them, the built-in ones, or those of a file. Raises UsageError."""
    if settings.prompts == HELDOUT:
        data = job.folder("data")
        if not samples_file(data, "heldout").is_file():
            raise UsageError(f"no held-out prompts in {data}", hint="tune.prompts=builtin, or run the stage data first")
        return heldout_prompts(data)
    renderer = Renderer(job.target, job.trust_remote_code)
    return [renderer.render(prompt) for prompt in named_prompts(settings.prompts)]


def workload_for(settings: TuneSettings, job: Job, prompts: list[Prompt] | None = None) -> Workload:
    """One cell for each concurrency. A prompt that must be used twice is salted, so that the prefix cache does not know it."""
    known: list[Renderer] = []

    def salt(prompt: Prompt, use: int) -> Prompt:
        if not known:
            known.append(Renderer(job.target, job.trust_remote_code))
        return known[0].salt(prompt, use)

    deck = Deck(prompts_for(settings, job) if prompts is None else prompts, settings.seed, None if prompts else salt)
    shapes = [CellShape(c, n, warmup, settings.output_tokens, settings.warmup_tokens) for c, n, warmup in settings.shapes()]
    return make_workload(deck, shapes, settings.canary_tokens, settings.temperature)
