"""The hidden-state store: what is written is what the model computed, damage is found, a killed capture goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from draftsmith.capture import stage
from draftsmith.capture.settings import CaptureSettings
from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Job, Talk
from draftsmith.models.target import load_target
from draftsmith.samples import Sample, write_samples
from draftsmith.settings import DrafterSettings, EngineSettings
from draftsmith.store import Index, read_store
from tiny import VOCAB, save_tiny_target

SETTINGS = CaptureSettings(dtype="float32", tokens_per_batch=64, tokens_per_shard=60)


def make_samples(count: int, seed: int) -> list[Sample]:
    """Random prompts of 3..8 tokens with answers of 4..12."""
    rng = np.random.default_rng(seed)
    samples = []
    for i in range(count):
        prompt, answer = int(rng.integers(3, 9)), int(rng.integers(4, 13))
        ids = rng.integers(0, VOCAB, prompt + answer).astype(np.int32)
        mask = np.array([0] * prompt + [1] * answer, dtype=np.uint8)
        samples.append(Sample(f"s{seed}-{i}", "test", [{"role": "user", "content": "x"}], ids, mask, prompt, "length"))
    return samples


def make_job(folder: Path, train: int = 12, heldout: int = 6) -> Job:
    """A run folder whose data stage has left samples, with the tiny target."""
    target = save_tiny_target(folder / "target")
    run = folder / "run"
    (run / "data").mkdir(parents=True)
    write_samples(run / "data" / "samples-train.parquet", make_samples(train, 1))
    write_samples(run / "data" / "samples-heldout.parquet", make_samples(heldout, 2))
    drafter = DrafterSettings(taps=(1, 3, 5), draft_vocab_size=32)
    return Job(run, target, EngineSettings(name="none==0"), drafter, Talk(quiet=True))


def test_store_holds_what_the_target_computes(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    summary = stage.run(SETTINGS, job)
    target = load_target(job.target, (1, 3, 5), torch.float32)
    by_id = {sample.id: sample for sample in [*make_samples(12, 1), *make_samples(6, 2)]}
    stored = [*read_store(job.folder("capture"), "train"), *read_store(job.folder("capture"), "heldout")]
    assert {sample.id for sample in stored} == by_id.keys()
    for sample in stored:
        original = by_id[sample.id]
        assert sample.token_ids_T.tolist() == original.token_ids.tolist()
        assert sample.loss_mask_T.tolist() == original.loss_mask.astype(bool).tolist()
        assert sample.num_prompt_tokens == original.num_prompt_tokens
        states = target.states(sample.token_ids_T[None])
        torch.testing.assert_close(sample.features_TF, states.features_BTF[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(sample.last_TH, states.last_BTH[0], rtol=1e-4, atol=1e-4)
    assert summary["tokens"] == sum(len(sample.token_ids) for sample in by_id.values())


def test_a_killed_capture_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that were finished are not computed again; the result is the same as of a straight run."""
    straight = make_job(tmp_path / "a")
    stage.run(SETTINGS, straight)
    job = make_job(tmp_path / "b")
    calls = 0
    write = stage.write_shard

    def die_at_the_third(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(stage, "write_shard", die_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        stage.run(SETTINGS, job)
    with pytest.raises(EnvironmentFailed, match="not complete"):
        list(read_store(job.folder("capture"), "train"))
    first = (job.folder("capture") / "shard-00000.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(stage, "write_shard", write)
    stage.run(SETTINGS, job)
    assert (job.folder("capture") / "shard-00000.safetensors").stat().st_mtime_ns == first
    for one, two in zip(Index.read(job.folder("capture")).shards, Index.read(straight.folder("capture")).shards, strict=True):  # type: ignore[union-attr]
        assert one == two


def test_a_damaged_shard_is_computed_again(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    stage.run(SETTINGS, job)
    shard = job.folder("capture") / "shard-00001.safetensors"
    good = shard.read_bytes()
    shard.write_bytes(good[:-10])
    with pytest.raises(EnvironmentFailed, match="damaged"):
        for split in ("heldout", "train"):
            list(read_store(job.folder("capture"), split))
    stage.run(SETTINGS, job)
    assert shard.read_bytes() == good


def test_plan_states_the_bytes_before_anything_is_written(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    plan = stage.plan(SETTINGS, job)
    summary = stage.run(SETTINGS, job)
    assert 0 <= summary["bytes"] - plan.bytes < 1000 * summary["shards"]  # headers and offsets


def test_full_disk_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 1000})())
    with pytest.raises(EnvironmentFailed, match="are free"):
        stage.run(SETTINGS, job)
