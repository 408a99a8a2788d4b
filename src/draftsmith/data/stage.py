"""data: prompt mix -> the target's own answers -> token ids + loss mask.

    prompts       written ones by seed, then the target's own (synthesised.jsonl) -> prompts.jsonl
    answers       held-out prompts first, greedily, then training prompts -> answers.jsonl, one line per reply
    samples       degenerate answers dropped and counted, every mask checked -> samples-train.parquet, samples-heldout.parquet

Every reply is on disk before the next step, so a killed stage asks only for what is missing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from draftsmith.data.answers import Asker, Journal
from draftsmith.data.mask import MaskRecord, check_sample, make_sample
from draftsmith.data.prompts import Mix, Prompt, Split, choose_written, shuffled, split_synthesised
from draftsmith.data.settings import DataSettings
from draftsmith.data.synthesis import accepted, synthesise, tell_shortfall
from draftsmith.data.template import ChatTemplate
from draftsmith.engines.protocol import Launch
from draftsmith.engines.registry import engine_for
from draftsmith.engines.server import start_many
from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Job, Plan
from draftsmith.manifest import append_jsonl, atomic_write_text, read_jsonl
from draftsmith.measure.client import Request
from draftsmith.measure.rates import rates
from draftsmith.samples import Sample, samples_file, write_samples

NAME = "data"
INPUTS = ("check",)
PROMPTS, SYNTHESISED, ANSWERS, STARTS = "prompts.jsonl", "synthesised.jsonl", "answers.jsonl", ".starts.jsonl"
SPLITS: tuple[Split, ...] = ("train", "heldout")

# for plan() only
ASSUMED_TOK_S = 300.0  # one vLLM CPU engine on one core with 64 requests in flight, 135 M parameters
ASSUMED_READY_S = 35.0
ASSUMED_PROMPT_TOKENS = 50
BYTES_PER_TOKEN = 16  # JSON digits and text in answers.jsonl, ids and mask in parquet


def plan(settings: DataSettings, job: Job) -> Plan:
    """Launches, time and bytes, from assumed rates."""
    mix, engines = Mix.of(settings), len(settings.replica_env)
    choose_written(mix, settings.hold_out, settings.seed, settings.categories)  # raises when the templates do not give so many
    prompts = settings.written + settings.synthesised + settings.heldout
    known = rates(job.folder("breakeven"))
    rate = (known.at(settings.concurrency) if known.measured else ASSUMED_TOK_S) * engines
    asking_s = prompts * 0.9 * settings.max_answer_tokens / rate
    if settings.budget_s is not None:
        asking_s = min(asking_s, settings.budget_s)
    synthesis_s = 1.25 * mix.synthesised * settings.synthesis_max_tokens / 2 / rate
    size = int(prompts * (ASSUMED_PROMPT_TOKENS + settings.max_answer_tokens) * BYTES_PER_TOKEN)
    whose = "measured by break-even" if known.measured else "with a 135 M target on CPU"
    note = f"{prompts} prompts at {rate:.0f} tok/s, the rate of {engines} engine{'s' if engines > 1 else ''} {whose}"
    return Plan(launches=engines, bytes=size, seconds=ASSUMED_READY_S + synthesis_s + asking_s, note=note)


def run(settings: DataSettings, job: Job) -> dict[str, Any]:
    """Make the samples in job.folder("data"); return the summary. Raises CheckFailed (template), EnvironmentFailed (engine, disk)."""
    folder = job.folder(NAME)
    folder.mkdir(parents=True, exist_ok=True)
    written = choose_written(Mix.of(settings), settings.hold_out, settings.seed, settings.categories)
    template = ChatTemplate.load(job.target, job.trust_remote_code)
    template.check()
    with Engines(settings, job) as engines:
        prompts, dropped = all_prompts(settings, folder, template, written, engines)
        answers = answer_all(settings, folder, template, prompts, engines)
    samples, bad = make_samples(prompts, answers, template)
    for split in SPLITS:
        write_samples(samples_file(folder, split), samples[split])
    user_end = template.user_turn.end if settings.synthesised else ""
    MaskRecord(str(job.target), template.generation_prompt, user_end, sorted(template.end_ids), len(answers.rows)).write(folder)
    summary = summarise(samples, prompts, answers, {"prompts": dict(dropped), "answers": dict(bad)})
    summary["synthesised_wanted"] = Mix.of(settings).synthesised
    summary["engine_s"] = round(engine_seconds(folder), 1)
    job.talk.say(
        f"data: {summary['samples']['train']} train and {summary['samples']['heldout']} held-out samples, "
        f"{summary['supervised_tokens']['train']} supervised tokens, {summary['tok_s']:.0f} tok/s"
    )
    return summary


# --- engines ---------------------------------------------------------------------------------------------------------


class Engines:
    """Engines that start when first needed (a stage whose replies are all there starts none) and stop at the end of the `with`."""

    def __init__(self, settings: DataSettings, job: Job) -> None:
        self.settings = settings
        self.job = job
        self.stack = ExitStack()
        self.asker: Asker | None = None

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *problem: Any) -> None:
        self.stack.__exit__(*problem)

    def get(self) -> Asker:
        """The running engines, started side by side."""
        if self.asker is None:
            job, folder = self.job, self.job.folder(NAME)
            engine, python = engine_for(job.engine)
            base = Launch("baseline", job.target, job.engine.flags, job.engine.env, trust_remote_code=job.trust_remote_code)
            launches = [base.with_(env=extra) for extra in self.settings.replica_env]
            logs = [folder / f"engine-{number}.log" for number in range(len(launches))]
            started = start_many(engine, python, launches, logs, job.engine.ready_timeout_s, job.talk, "data")
            servers = self.stack.enter_context(started)
            append_jsonl(folder / STARTS, {"ready_s": max(server.ready_s for server in servers)})
            self.asker = Asker(servers, engine.served_model, self.settings.concurrency, job.talk, engine.endpoint)
        return self.asker


def engine_seconds(folder: Path) -> float:
    """Time in which engines were starting or answering, over all starts of the stage."""
    asking = sum(Journal(folder / name).asked_s for name in (SYNTHESISED, ANSWERS))
    return asking + sum(row["ready_s"] for row in read_jsonl(folder / STARTS))


# --- steps -----------------------------------------------------------------------------------------------------------


def all_prompts(
    settings: DataSettings, folder: Path, template: ChatTemplate, written: list[Prompt], engines: Engines
) -> tuple[list[Prompt], Counter[str]]:
    """(the prompt mix, dropped synthesised prompts by reason); written to prompts.jsonl once it is whole."""
    mix, journal = Mix.of(settings), Journal(folder / SYNTHESISED)
    if mix.synthesised and not (folder / PROMPTS).exists():
        synthesise(engines.get(), template, journal, mix.synthesised, written, settings)
    texts, dropped = accepted(journal, None, template, written, settings.synthesis_openings)
    tell_shortfall(mix.synthesised, len(texts), len(journal.rows), engines.job.talk)
    if len(texts) > mix.synthesised:
        dropped["not needed"] += len(texts) - mix.synthesised
    prompts = [*written, *split_synthesised(texts[: mix.synthesised], mix, settings.seed)]
    atomic_write_text(folder / PROMPTS, "".join(json.dumps(asdict(prompt), ensure_ascii=False) + "\n" for prompt in prompts))
    return prompts, dropped


def answer_all(settings: DataSettings, folder: Path, template: ChatTemplate, prompts: list[Prompt], engines: Engines) -> Journal:
    """Ask for every answer that is not there yet: held-out prompts first, then training prompts until budget_s."""
    journal = Journal(folder / ANSWERS)

    def requests(split: Split) -> list[Request]:
        chosen = shuffled((prompt for prompt in prompts if prompt.split == split), settings.seed)
        heat = settings.temperature if split == "train" else 0.0
        return [
            Request(
                id=prompt.id,
                prompt_token_ids=template.prompt_ids(prompt.text),
                max_tokens=settings.max_answer_tokens,
                temperature=heat,
                seed=(settings.seed + int(prompt.id, 16)) % 2**31 if heat else None,
            )
            for prompt in chosen
            if prompt.id not in journal.rows
        ]

    heldout, train = requests("heldout"), requests("train")
    left_s = None if settings.budget_s is None else settings.budget_s - journal.asked_s
    if train and (left_s is None or left_s > 0):
        engines.get().ask("answers", [*heldout, *train], journal, left_s)  # one queue: no engine waits for the last held-out answer
    if any(request.id not in journal.rows for request in heldout):
        engines.get().ask("held-out answers", heldout, journal)
    return journal


def make_samples(prompts: Iterable[Prompt], answers: Journal, template: ChatTemplate) -> tuple[dict[Split, list[Sample]], Counter[str]]:
    """(samples of each split in prompt order, dropped answers by reason). Raises CheckFailed for a mask that is wrong."""
    samples: dict[Split, list[Sample]] = {split: [] for split in SPLITS}
    dropped: Counter[str] = Counter()
    for prompt in prompts:
        row = answers.rows.get(prompt.id)
        if row is None:
            dropped["not asked: budget_s was over"] += 1
            continue
        sample, fault = make_sample(prompt, row, template)
        check_sample(sample, row, template)
        if fault:
            dropped[fault] += 1
        else:
            samples[prompt.split].append(sample)
    for split in SPLITS:
        if not samples[split]:
            raise EnvironmentFailed(
                f"no usable {split} sample: {dict(dropped)}", hint="raise data.budget_s if it was over, else look at answers.jsonl"
            )
    return samples, dropped


def summarise(
    samples: dict[Split, list[Sample]], prompts: list[Prompt], answers: Journal, dropped: dict[str, dict[str, int]]
) -> dict[str, Any]:
    """Counts for the manifest and the report."""
    asked_s = answers.asked_s
    return {
        "samples": {split: len(samples[split]) for split in SPLITS},
        "sources": {split: dict(sorted(Counter(sample.source for sample in samples[split]).items())) for split in SPLITS},
        "tokens": {split: sum(len(sample.token_ids) for sample in samples[split]) for split in SPLITS},
        "supervised_tokens": {split: sum(int(sample.loss_mask.sum()) for sample in samples[split]) for split in SPLITS},
        "finish_reasons": {split: dict(Counter(sample.finish_reason for sample in samples[split])) for split in SPLITS},
        "prompts": len(prompts),
        "dropped": dropped,
        "answer_tokens": answers.tokens,
        "answer_s": round(asked_s, 1),
        "tok_s": round(answers.tokens / asked_s, 1) if asked_s else 0.0,
    }
