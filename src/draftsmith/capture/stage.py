"""capture: the target's hidden states at the tapped boundaries, from the unmodified Hugging Face model, to the sharded store."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftsmith.capture.settings import CaptureSettings
from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Job, Plan
from draftsmith.manifest import sha256_file, tool_versions
from draftsmith.models.device import usable
from draftsmith.models.taps import default_taps
from draftsmith.models.target import Target, load_target
from draftsmith.models.text_config import read_text_config
from draftsmith.samples import Sample, read_samples, samples_file
from draftsmith.store import Index, Shard, StoredSample, bytes_per_token, intact, write_shard

NAME = "capture"
INPUTS = ("data",)
SPLITS = ("heldout", "train")


def taps_of(job: Job) -> tuple[int, ...]:
    """The boundaries that this job taps: as set, or the EAGLE-3 default for the target's depth. Reads config.json only."""
    if job.drafter.taps is not None:
        return job.drafter.taps
    return default_taps(read_text_config(job.target)["num_hidden_layers"])


def plan(settings: CaptureSettings, job: Job) -> Plan:
    """Bytes of the store, and the time at a rate of 600 tokens/s for each 100M parameters on two CPU cores when nothing is known better."""
    config = read_text_config(job.target)
    element = torch.finfo(getattr(torch, settings.dtype)).bits // 8
    per_token = bytes_per_token(len(taps_of(job)), config["hidden_size"], element)
    folder = job.folder("data")
    files = [samples_file(folder, split) for split in SPLITS]
    if not all(file.exists() for file in files):
        return Plan(note=f"{per_token} bytes per token; totals are known once data has run")
    tokens = sum(len(sample.token_ids) for file in files for sample in read_samples(file))
    return Plan(bytes=tokens * per_token, seconds=tokens / 600, note=f"{tokens} tokens x {per_token} bytes")


def run(settings: CaptureSettings, job: Job) -> dict[str, Any]:
    """Write the store; shards that are already there and intact are kept."""
    folder = job.folder(NAME)
    folder.mkdir(parents=True, exist_ok=True)
    taps = taps_of(job)
    device = usable(settings.device, "capture.device")
    target = load_target(job.target, taps, getattr(torch, settings.dtype), job.trust_remote_code, device)
    wanted = plan_shards(job, settings.tokens_per_shard)
    tokens_in_all = sum(len(sample.token_ids) for _, samples in wanted for sample in samples)
    need = tokens_in_all * bytes_per_token(len(taps), target.config.hidden_size, torch.finfo(getattr(torch, settings.dtype)).bits // 8)
    check_space(folder, need)

    index = reusable_index(folder, target, taps, settings, wanted)
    started, done_before = time.monotonic(), sum(shard.tokens for shard in index.shards)
    done = done_before
    for number, (split, samples) in enumerate(wanted):
        if number < len(index.shards):
            continue
        index.shards.append(write_shard(folder, number, split, capture_shard(target, samples, settings.tokens_per_batch)))
        index.write(folder)
        done += index.shards[-1].tokens
        rate = (done - done_before) / (time.monotonic() - started)
        job.talk.progress(
            "capture", done - done_before, tokens_in_all - done_before, started, f"{rate:.0f} tokens/s, {len(index.shards)} shards"
        )
    index.complete = True
    index.write(folder)
    seconds = time.monotonic() - started
    return {
        "taps": list(taps),
        "tokens": done,
        "bytes": sum(shard.bytes for shard in index.shards),
        "shards": len(index.shards),
        "tokens_s": (done - done_before) / seconds if done > done_before else None,
        "dtype": settings.dtype,
        "last_norm_state": index.last_norm_state,
    }


def plan_shards(job: Job, tokens_per_shard: int) -> list[tuple[str, list[Sample]]]:
    """(split, samples) of each shard. Samples are sorted by length, so that batches are dense; the order depends on the data only."""
    shards: list[tuple[str, list[Sample]]] = []
    for split in SPLITS:
        samples = sorted(read_samples(samples_file(job.folder("data"), split)), key=lambda s: (len(s.token_ids), s.id))
        current: list[Sample] = []
        for sample in samples:
            if current and sum(len(s.token_ids) for s in current) + len(sample.token_ids) > tokens_per_shard:
                shards.append((split, current))
                current = []
            current.append(sample)
        if current:
            shards.append((split, current))
    return shards


def reusable_index(
    folder: Path, target: Target, taps: Sequence[int], settings: CaptureSettings, wanted: list[tuple[str, list[Sample]]]
) -> Index:
    """The index to go on from: shards of an earlier start that hold exactly what is wanted, up to the first that does not."""
    old = Index.read(folder)
    kept: list[Shard] = []
    if old is not None:
        for shard, (split, samples) in zip(old.shards, wanted, strict=False):
            if shard.split != split or shard.ids != [sample.id for sample in samples] or not intact(folder, shard):
                break
            kept.append(shard)
    weights = {file.name: sha256_file(file) for file in sorted(Path(target.model.name_or_path).glob("*.safetensors"))}
    source = {"target_weights": weights, "tools": tool_versions(), "engine": f"transformers, eager, {settings.device}"}
    return Index(list(taps), target.config.hidden_size, settings.dtype, source=source, shards=kept)


def capture_shard(target: Target, samples: Sequence[Sample], tokens_per_batch: int) -> list[StoredSample]:
    """Hidden states of one shard's samples, in their order."""
    stored = []
    for batch in dense_batches(samples, tokens_per_batch):
        lengths = [len(sample.token_ids) for sample in batch]
        token_ids_BT = torch.zeros(len(batch), max(lengths), dtype=torch.int64)
        for b, sample in enumerate(batch):
            token_ids_BT[b, : lengths[b]] = tensor(sample.token_ids)
        states = target.states(token_ids_BT)  # causal and padded on the right: real tokens never see padding
        for b, sample in enumerate(batch):
            features, last = states.features_BTF[b, : lengths[b]].cpu(), states.last_BTH[b, : lengths[b]].cpu()
            if not bool(torch.isfinite(last).all()):
                raise EnvironmentFailed(
                    f"sample {sample.id}: the target's hidden states are not finite", hint="capture in float32 (capture.dtype=float32)"
                )
            mask = tensor(sample.loss_mask).bool()
            stored.append(StoredSample(sample.id, sample.num_prompt_tokens, tensor(sample.token_ids), mask, features, last))
    return stored


def dense_batches(samples: Sequence[Sample], tokens_per_batch: int) -> Iterator[list[Sample]]:
    """Consecutive samples whose padded size stays within `tokens_per_batch`."""
    batch: list[Sample] = []
    for sample in samples:
        widest = max(len(s.token_ids) for s in [*batch, sample])
        if batch and widest * (len(batch) + 1) > tokens_per_batch:
            yield batch
            batch = []
        batch.append(sample)
    if batch:
        yield batch


def tensor(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int64)


def check_space(folder: Path, need: int) -> None:
    """Raise EnvironmentFailed when the disk cannot hold the store."""
    free = shutil.disk_usage(folder).free
    if need > free:
        raise EnvironmentFailed(
            f"the hidden-state store needs {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free in {folder}",
            hint="fewer prompts, or another --run-folder",
        )
