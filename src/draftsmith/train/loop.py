"""The training loop: batches, schedule, optimizer, checkpoints, held-out acceptance."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from draftsmith.job import Talk
from draftsmith.manifest import append_jsonl, atomic_write_text, read_jsonl
from draftsmith.metrics import Acceptance
from draftsmith.models.eagle3 import Eagle3Drafter
from draftsmith.store import StoredSample
from draftsmith.train.batches import Batch, batches, collate, plan_batches, supervised_rows
from draftsmith.train.objective import Shortcut, Teacher, acceptance, rollout_steps, target_index, total_loss
from draftsmith.train.settings import TrainSettings
from draftsmith.train.state import Progress, load_checkpoint, save_checkpoint

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Run:
    """What the loop works with; none of it is replaced during a run."""

    folder: Path
    settings: TrainSettings
    talk: Talk
    drafter: Eagle3Drafter
    teacher: Teacher
    shortcut: Shortcut
    train: Sequence[StoredSample]
    heldout: Sequence[StoredSample]

    @property
    def device(self) -> torch.device:
        return self.drafter.fc.weight.device

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16)


@dataclass(frozen=True)
class Result:
    """How a run ended. heldout is teacher-forced acceptance at the last step."""

    progress: Progress
    ended_by: str  # "epochs" or "budget"
    heldout: Acceptance
    loss: float


def learning_rate_factor(share: float, warmup_share: float) -> float:
    """Linear warm-up, then half a cosine down to 2 % at share = 1."""
    if share < warmup_share:
        return (share + 0.1 * warmup_share) / (1.1 * warmup_share)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min((share - warmup_share) / (1 - warmup_share), 1.0)))


def make_optimizer(drafter: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """AdamW; norms are not decayed."""
    matrices = [p for p in drafter.parameters() if p.ndim >= 2]
    vectors = [p for p in drafter.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95), fused=True)


def train(run: Run) -> Result:
    """Train from the checkpoint in the run's folder, or from the start, until the planned epochs or the time budget are done.

    The schedule follows the share of planned steps, or of the time budget where the machine is slower than planned; a run that the
    budget does not touch depends on nothing but its inputs and the seed.
    """
    settings, index_V = run.settings, target_index(run.drafter)
    optimizer = make_optimizer(run.drafter, settings)
    progress = load_checkpoint(run.folder, run.drafter, optimizer) or Progress()
    drop_lines_after(run.folder / METRICS, progress.step)
    rows = [len(supervised_rows(sample.loss_mask_T)) for sample in run.train]
    steps_in_all = sum(len(plan_batches(rows, settings.tokens_per_batch, settings.seed, epoch)) for epoch in range(settings.epochs))
    clock = Clock(progress.elapsed_s)
    last_saved = last_evaluated = progress.elapsed_s
    loss, heldout = math.nan, evaluate(run, index_V)
    measured = measured_at(heldout, progress.step)
    run.drafter.train()

    def share() -> float:
        return max(progress.step / steps_in_all, progress.elapsed_s / settings.budget_s)

    if progress.step == 0:
        append_jsonl(run.folder / METRICS, {"evaluation": True, "step": 0, "elapsed_s": 0.0, "acceptance": heldout.as_dict()})
    while progress.epoch < settings.epochs and share() < 1:
        epoch = batches(run.train, settings.tokens_per_batch, settings.ttt_steps, settings.seed, progress.epoch)
        for number, batch in enumerate(epoch):
            if number < progress.batch:
                continue
            clock.start()
            factor = learning_rate_factor(share(), settings.warmup_share)
            ttt_steps = 1 if share() < settings.shallow_share else settings.ttt_steps
            loss = step(run, optimizer, batch.to(run.device), index_V, settings.learning_rate * factor, ttt_steps)
            progress.step, progress.batch = progress.step + 1, number + 1
            progress.tokens += int(batch.valid_BA.sum())
            progress.elapsed_s = clock.stop()
            record_step(run, progress, loss, factor, ttt_steps)
            detail = f"loss {loss:.3f}, {measured}, {progress.tokens / progress.elapsed_s:.0f} tokens/s"
            run.talk.progress("train", share(), 1.0, time.monotonic() - progress.elapsed_s, detail)
            if share() >= 1:
                break
            if progress.elapsed_s - last_evaluated > settings.evaluate_every_s:
                last_evaluated, heldout = progress.elapsed_s, record_evaluation(run, progress, index_V)
                measured = measured_at(heldout, progress.step)
            if progress.elapsed_s - last_saved > settings.checkpoint_every_s:
                last_saved = progress.elapsed_s
                save_checkpoint(run.folder, progress, run.drafter, optimizer)
        else:
            progress.epoch, progress.batch = progress.epoch + 1, 0
            continue
        break
    save_checkpoint(run.folder, progress, run.drafter, optimizer)
    ended_by = "epochs" if progress.step >= steps_in_all else "budget"
    return Result(progress, ended_by, record_evaluation(run, progress, index_V), loss)


def measured_at(heldout: Acceptance, step: int) -> str:
    """What is shown until the next evaluation, with when it was true."""
    return f"held-out accept_len {heldout.accept_len:.2f} {f'at step {step}' if step else 'before training'}"


class Clock:
    """Training time, without evaluation, checkpoints and the time that the process was not running."""

    def __init__(self, elapsed_s: float) -> None:
        self.elapsed_s = elapsed_s
        self.begun = 0.0

    def start(self) -> None:
        self.begun = time.perf_counter()

    def stop(self) -> float:
        self.elapsed_s += time.perf_counter() - self.begun
        return self.elapsed_s


def step(run: Run, optimizer: torch.optim.Optimizer, batch: Batch, index_V: Tensor, learning_rate: float, ttt_steps: int) -> float:
    """One optimizer step over `ttt_steps` rollout steps; returns their weighted mean loss, comparable over any number of them."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    with run.autocast():
        steps = rollout_steps(run.drafter, run.teacher, batch, ttt_steps, index_V, run.shortcut)
    loss = total_loss(steps, run.settings.step_decay)
    loss.backward()
    nn.utils.clip_grad_norm_(run.drafter.parameters(), run.settings.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item() / sum(run.settings.step_decay**k for k in range(ttt_steps))


@torch.no_grad()
def evaluate(run: Run, index_V: Tensor) -> Acceptance:
    """Teacher-forced held-out acceptance by depth, over every supervised row."""
    was_training = run.drafter.training
    run.drafter.eval()
    rows = [len(supervised_rows(sample.loss_mask_T)) for sample in run.heldout]
    parts = []
    for indices in plan_batches(rows, 2 * run.settings.tokens_per_batch, seed=0, epoch=0):
        batch = collate([run.heldout[i] for i in indices], run.settings.ttt_steps).to(run.device)
        with run.autocast():
            parts.append(acceptance(rollout_steps(run.drafter, run.teacher, batch, run.settings.ttt_steps, index_V)))
    run.drafter.train(was_training)
    return sum(parts[1:], parts[0])


def record_step(run: Run, progress: Progress, loss: float, factor: float, ttt_steps: int) -> None:
    rate = progress.tokens / progress.elapsed_s
    line = {"step": progress.step, "epoch": progress.epoch, "elapsed_s": progress.elapsed_s, "loss": loss, "tokens": progress.tokens}
    append_jsonl(run.folder / METRICS, {**line, "tokens_s": rate, "lr": run.settings.learning_rate * factor, "ttt_steps": ttt_steps})


def record_evaluation(run: Run, progress: Progress, index_V: Tensor) -> Acceptance:
    heldout = evaluate(run, index_V)
    line = {"evaluation": True, "step": progress.step, "elapsed_s": progress.elapsed_s, "acceptance": heldout.as_dict()}
    append_jsonl(run.folder / METRICS, line)
    return heldout


def drop_lines_after(path: Path, step_number: int) -> None:
    """Forget metrics of steps that the checkpoint does not know; they are done again."""
    if not path.exists():
        return
    kept = [line for line in read_jsonl(path) if 0 < step_number >= line["step"]]
    atomic_write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
