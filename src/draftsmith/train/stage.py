"""train: an EAGLE-3 drafter from the captured hidden states."""

from __future__ import annotations

from typing import Any

import torch

from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Job, Plan
from draftsmith.models.checkpoint import save_trained
from draftsmith.models.device import usable
from draftsmith.models.eagle3 import Eagle3Drafter, shape_for
from draftsmith.models.target import Target, load_target
from draftsmith.store import Index, StoredSample, read_store
from draftsmith.train.loop import Run, train
from draftsmith.train.objective import Shortcut, Teacher
from draftsmith.train.settings import TrainSettings
from draftsmith.train.vocabulary import choose_vocabulary, coverage, expected_counts, token_counts
from draftsmith.train.warm_start import warm_start

NAME = "train"
INPUTS = ("capture",)
VOCABULARY_POSITIONS = 8000  # where the target's probabilities are summed to rank rare tokens


def plan(settings: TrainSettings, job: Job) -> Plan:
    """At most the time budget; the planned epochs may end it earlier."""
    return Plan(bytes=350_000_000, seconds=settings.budget_s, note=f"at most {settings.epochs} epochs, {settings.ttt_steps} rollout steps")


def run(settings: TrainSettings, job: Job) -> dict[str, Any]:
    """Train in the stage's folder; a checkpoint there is gone on from."""
    folder = job.folder(NAME)
    folder.mkdir(parents=True, exist_ok=True)
    index = Index.read(job.folder("capture"))
    assert index is not None, "capture has not finished"
    target = load_target(job.target, index.taps, torch.bfloat16, job.trust_remote_code, usable(settings.device, "train.device"))
    samples = {split: list(read_store(job.folder("capture"), split)) for split in ("train", "heldout")}
    for split, found in samples.items():
        if not any(bool(sample.loss_mask_T[2:].any()) for sample in found):
            raise EnvironmentFailed(
                f"the {split} split has no supervised token", hint="look at `draftsmith data show`: is the loss mask empty?"
            )

    counts_V = token_counts(answers(samples["train"]), target.config.vocab_size)
    weight_V = counts_V + expected_counts(target, samples["train"], VOCABULARY_POSITIONS)
    drafter = new_drafter(job, target, weight_V, settings.seed)
    vocabulary = drafter.target_ids_W.cpu()
    covered = {split: coverage(answers(found), vocabulary, drafter.shape.vocab_size) for split, found in samples.items()}
    job.talk.say(
        f"train: {len(samples['train'])} samples, {sum(len(a) for a in answers(samples['train']))} supervised tokens; "
        f"draft vocabulary {len(vocabulary)} covers {100 * covered['heldout']:.1f} % of held-out tokens"
    )
    teacher = Teacher(target.final_norm, target.head_VH, vocabulary)
    frequent_F = weight_V[vocabulary].argsort(descending=True)[: settings.frequent_candidates].sort().values
    shortcut = Shortcut(settings.off_path_share, frequent_F.to(target.device) if settings.frequent_candidates else None)
    result = train(Run(folder, settings, job.talk, drafter, teacher, shortcut, samples["train"], samples["heldout"]))
    if result.ended_by == "budget":
        job.talk.say(
            f"train: the time budget of {settings.budget_s:.0f} s ended it after {result.progress.epoch} of {settings.epochs} epochs"
        )
    save_trained(folder, drafter.eval(), index.taps)
    return {
        "steps": result.progress.step,
        "epochs": result.progress.epoch,
        "ended_by": result.ended_by,
        "tokens": result.progress.tokens,
        "supervised_tokens": sum(len(a) for a in answers(samples["train"])),
        "tokens_s": result.progress.tokens / result.progress.elapsed_s,
        "training_s": result.progress.elapsed_s,
        "loss": result.loss,
        "draft_vocabulary_coverage": covered,
        "heldout": result.heldout.as_dict(),
        "heldout_source": "teacher-forced: every supervised row of the held-out answers starts a round",
    }


def new_drafter(job: Job, target: Target, weight_V: torch.Tensor, seed: int) -> Eagle3Drafter:
    """A drafter of the recipe's shape on the target's device, its vocabulary the heaviest tokens of weight_V, started from the target."""
    torch.manual_seed(seed)
    shape = shape_for(target.config, job.drafter.draft_vocab_size, len(target.taps), job.drafter.intermediate_size)
    drafter = Eagle3Drafter(shape)  # its weights are drawn on the CPU: the same everywhere
    drafter.set_vocabulary(choose_vocabulary(weight_V, shape.draft_vocab_size))
    drafter.to(target.device)
    drafter.set_embedding(target.embedding_VH)
    warm_start(drafter, target)
    return drafter


def answers(samples: list[StoredSample]) -> list[torch.Tensor]:
    """The supervised tokens of each sample."""
    return [sample.token_ids_T[sample.loss_mask_T] for sample in samples]
