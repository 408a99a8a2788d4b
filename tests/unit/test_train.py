"""Training: the objective against brute force, resumed = straight, it learns, and the drafter folder goes there and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_capture_store import SETTINGS as CAPTURE
from test_capture_store import make_job

from draftsmith.capture import stage as capture
from draftsmith.decode.chain import draft_matches, generate
from draftsmith.errors import CheckFailed, EnvironmentFailed
from draftsmith.export import stage as export
from draftsmith.export.settings import ExportSettings
from draftsmith.job import Job
from draftsmith.manifest import read_jsonl
from draftsmith.metrics import Acceptance
from draftsmith.models.checkpoint import load_exported, load_trained, shape_from_config, write_random_drafter
from draftsmith.models.target import load_target
from draftsmith.store import StoredSample, read_store
from draftsmith.train import loop, stage
from draftsmith.train.batches import collate, plan_batches, supervised_rows
from draftsmith.train.loop import learning_rate_factor
from draftsmith.train.objective import Shortcut, Teacher, acceptance, rollout_steps, target_index, total_loss
from draftsmith.train.settings import TrainSettings
from draftsmith.train.vocabulary import choose_vocabulary, coverage, expected_counts, token_counts
from tiny import VOCAB, tiny_drafter, tiny_target

SETTINGS = TrainSettings(epochs=4, budget_s=1e6, tokens_per_batch=40, checkpoint_every_s=0.0, evaluate_every_s=1e6, learning_rate=5e-3)


def stored(length: int, prompt: int, seed: int) -> StoredSample:
    """A sample of the tiny target's own greedy text, with its hidden states."""
    target = tiny_target()
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(0, VOCAB, (prompt,), generator=generator)
    ids = torch.cat([start, torch.tensor(generate(target, None, start, length - prompt, 1)[0])])
    states = target.states(ids[None])
    return StoredSample(f"s{seed}", prompt, ids, torch.arange(length) >= prompt, states.features_BTF[0].clone(), states.last_BTH[0].clone())


@torch.no_grad()
def test_matches_and_acceptance_against_brute_force() -> None:
    """The batched, padded objective finds the same matches as each text by itself."""
    target = tiny_target()
    drafter = tiny_drafter(target, draft_vocab_size=VOCAB)
    samples = [stored(14, 4, 0), stored(19, 6, 1), stored(9, 5, 2)]
    teacher = Teacher(target.final_norm, target.head_VH, drafter.target_ids_W)
    steps = rollout_steps(drafter, teacher, collate(samples, 3), 3, target_index(drafter))
    rounds = []
    for b, sample in enumerate(samples):
        T = len(sample.token_ids_T)
        alone = draft_matches(drafter, sample.features_TF, sample.token_ids_T, sample.num_prompt_tokens, 3)
        for a, row in enumerate(supervised_rows(sample.loss_mask_T).tolist()):
            assert [bool(step.match_BA[b, a]) for step in steps] == alone[a].tolist()
            if row + 4 < T:
                found = alone[a].tolist()
                rounds.append(found.index(False) if False in found else 3)
    assert acceptance(steps) == Acceptance.from_rounds(rounds, 3)


@torch.no_grad()
def test_loss_is_cross_entropy_with_the_renormalised_target() -> None:
    """One row by hand: softmax of the target's logits over the draft vocabulary against log-softmax of the draft's."""
    target = tiny_target()
    drafter = tiny_drafter(target, draft_vocab_size=32)
    sample = stored(12, 4, 0)
    teacher = Teacher(target.final_norm, target.head_VH, drafter.target_ids_W)
    index = target_index(drafter)
    steps = rollout_steps(drafter, teacher, collate([sample], 2), 2, index)
    full = target.logits(sample.last_TH[None])[0]
    logits = drafter.rollout(
        sample.features_TF[None],
        torch.cat([sample.token_ids_T, torch.zeros(2, dtype=torch.int64)])[None],
        supervised_rows(sample.loss_mask_T)[None],
        2,
    )
    for k, step in enumerate(steps):
        expected, count = 0.0, 0
        for a, row in enumerate(supervised_rows(sample.loss_mask_T).tolist()):
            if row + 2 + k < 12 and index[sample.token_ids_T[row + 2 + k]] >= 0:
                wanted = full[row + 1 + k][drafter.target_ids_W].softmax(-1)
                expected -= float((wanted * logits[k][0, a].log_softmax(-1)).sum())
                count += 1
        assert int(step.weight_sum) == count
        assert float(step.loss_sum) == pytest.approx(expected, rel=1e-5)
    means = [float(step.loss_sum / step.weight_sum) for step in steps]
    assert float(total_loss(steps, 0.5)) == pytest.approx(means[0] + 0.5 * means[1])


@torch.no_grad()
def test_narrowed_rollout_keeps_the_rows_that_an_engine_reaches() -> None:
    """With off_path_share 0, step k holds exactly the rows whose drafts before k were all right, with the same logits."""
    target = tiny_target()
    drafter = tiny_drafter(target, draft_vocab_size=VOCAB)
    torch.manual_seed(5)
    samples = [stored(30, 4, seed) for seed in range(4)]
    batch = collate(samples, 3)
    teacher, index = Teacher(target.final_norm, target.head_VH, drafter.target_ids_W), target_index(drafter)
    full = rollout_steps(drafter, teacher, batch, 3, index)
    narrow = rollout_steps(drafter, teacher, batch, 3, index, Shortcut(off_path_share=0.0))
    assert int(full[0].match_BA.sum()) > 0, "no draft is right: the test would show nothing"
    alive = full[0].match_BA
    for k in (1, 2):
        reached = alive & full[k].exists_BA
        assert int(narrow[k].exists_BA.sum()) == int(reached.sum())
        assert int(narrow[k].match_BA.sum()) == int((reached & full[k].match_BA).sum())
        alive = alive & full[k].match_BA


def test_supervised_rows_of_two_answers() -> None:
    """Rows never cross from one answer into the next prompt."""
    mask = torch.tensor([0, 0, 1, 1, 1, 0, 0, 1, 1, 0]).bool()
    assert supervised_rows(mask).tolist() == [1, 2, 6]  # tokens (2,3), (3,4), (7,8) are both answers


def test_batches_cover_every_sample_once_and_depend_on_seed_and_epoch_only() -> None:
    rows = [5, 0, 30, 7, 12, 12, 1, 29]
    batches = plan_batches(rows, 32, seed=1, epoch=2)
    assert sorted(i for batch in batches for i in batch) == [0, 2, 3, 4, 5, 6, 7]
    assert all(max(rows[i] for i in batch) * len(batch) <= 32 or len(batch) == 1 for batch in batches)
    assert batches == plan_batches(rows, 32, seed=1, epoch=2)
    assert any(plan_batches(rows, 32, seed=1, epoch=e) != batches for e in range(3, 9))


def test_vocabulary_is_the_most_frequent_tokens_in_order() -> None:
    ids = [torch.tensor([7, 7, 7, 3, 3, 9]), torch.tensor([9, 9, 1])]
    counts = token_counts(ids, 12)
    assert choose_vocabulary(counts, 3).tolist() == [3, 7, 9]
    assert coverage(ids, choose_vocabulary(counts, 3), 12) == pytest.approx(8 / 9)
    assert choose_vocabulary(counts, 6).tolist() == [0, 1, 2, 3, 7, 9]  # ties go to the smallest ids


def test_expected_counts_are_the_targets_summed_probabilities() -> None:
    target = tiny_target()
    samples = [stored(14, 4, 0), stored(11, 3, 1)]
    expected = torch.zeros(VOCAB, dtype=torch.float64)
    for sample in samples:
        logits = target.logits(sample.last_TH[None])[0]
        for i in range(sample.num_prompt_tokens - 1, len(sample.token_ids_T) - 1):
            expected += logits[i].softmax(-1)
    torch.testing.assert_close(expected_counts(target, samples, positions=1000), expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_scoring_candidates_is_scoring_a_smaller_vocabulary() -> None:
    """With every id a candidate nothing changes; with some, softmax and argmax run over those alone."""
    target = tiny_target()
    drafter = tiny_drafter(target, draft_vocab_size=32)
    batch = collate([stored(14, 4, 0), stored(19, 6, 1)], 3)
    teacher, index = Teacher(target.final_norm, target.head_VH, drafter.target_ids_W), target_index(drafter)
    full = rollout_steps(drafter, teacher, batch, 3, index)
    for one, two in zip(full, rollout_steps(drafter, teacher, batch, 3, index, Shortcut(frequent_F=torch.arange(32))), strict=True):
        assert torch.equal(one.match_BA, two.match_BA)
        torch.testing.assert_close(one.loss_sum, two.loss_sum)
    few = Shortcut(frequent_F=torch.tensor([0, 5]))
    wanted = index[batch.token_ids_BT[batch.mask_BT]]
    candidates = few.candidates(wanted)
    assert candidates is not None
    assert set(candidates.tolist()) == {0, 5, *wanted[wanted >= 0].tolist()}
    some = rollout_steps(drafter, teacher, batch, 1, index, few)[0]
    state = drafter.rollout(batch.features_BTF, batch.token_ids_BT, batch.row_BA, 1)[0][..., candidates]
    drafted = candidates[state.argmax(-1)]
    at = index[batch.token_ids_BT.gather(1, batch.row_BA + 2)]
    assert torch.equal(some.match_BA, (drafted == at) & some.exists_BA & (at >= 0))


def test_schedule_warms_up_and_decays() -> None:
    factors = [learning_rate_factor(share / 100, 0.1) for share in range(101)]
    assert factors[0] < 0.1 < max(factors) <= 1.0
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[-1] == pytest.approx(0.02)


@pytest.fixture
def captured(tmp_path: Path) -> Job:
    job = make_job(tmp_path)
    summary = capture.run(CAPTURE, job)
    finish(job, "capture", summary)
    return job


def finish(job: Job, name: str, summary: dict) -> None:
    from draftsmith.manifest import Manifest

    Manifest(name, {}, {}, {}, summary).write(job.folder(name))


@pytest.mark.parametrize("shallow_share", [0.0, 0.5])
def test_resumed_equals_straight(captured: Job, monkeypatch: pytest.MonkeyPatch, shallow_share: float) -> None:
    """Stopped at an arbitrary step and started again: the same weights, the same metrics, bit for bit."""
    settings = SETTINGS.model_copy(update={"shallow_share": shallow_share})
    straight = stage.run(settings, captured)
    weights = load_file(captured.folder("train") / "drafter.safetensors")
    lines = [line for line in read_jsonl(captured.folder("train") / "metrics.jsonl") if "loss" in line]
    captured.folder("train").rename(captured.run / "straight")
    do_step = loop.step
    for stop_at in (3, 9):
        count = 0

        def stopping(*args: object, stop_at: int = stop_at) -> float:
            nonlocal count
            count += 1
            if count > stop_at:
                raise KeyboardInterrupt
            return do_step(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "step", stopping)
        with pytest.raises(KeyboardInterrupt):
            stage.run(settings, captured)
    monkeypatch.setattr(loop, "step", do_step)
    resumed = stage.run(settings, captured)
    again = load_file(captured.folder("train") / "drafter.safetensors")
    assert again.keys() == weights.keys()
    for name, value in weights.items():
        assert torch.equal(value, again[name]), name
    relines = [line for line in read_jsonl(captured.folder("train") / "metrics.jsonl") if "loss" in line]
    assert [(line["step"], line["loss"]) for line in relines] == [(line["step"], line["loss"]) for line in lines]
    assert resumed["heldout"] == straight["heldout"]
    assert straight["ended_by"] == "epochs"


def test_the_first_share_of_a_run_trains_the_first_draft_only(captured: Job) -> None:
    stage.run(SETTINGS.model_copy(update={"shallow_share": 0.5}), captured)
    lines = [line for line in read_jsonl(captured.folder("train") / "metrics.jsonl") if "loss" in line]
    steps = [line["ttt_steps"] for line in lines]
    assert steps == sorted(steps) and set(steps) == {1, SETTINGS.ttt_steps}
    assert abs(steps.count(1) - len(steps) / 2) <= 1
    before, after = lines[steps.count(1) - 1]["loss"], lines[steps.count(1)]["loss"]
    assert after < 1.5 * before  # a mean over rollout steps, not a sum: it does not jump where the rollout becomes longer


def test_budget_ends_training_and_says_so(captured: Job) -> None:
    summary = stage.run(SETTINGS.model_copy(update={"budget_s": 1e-3, "epochs": 1000}), captured)
    assert summary["ended_by"] == "budget"
    assert summary["steps"] < 1000


def test_training_learns(captured: Job) -> None:
    summary = stage.run(SETTINGS.model_copy(update={"epochs": 60}), captured)
    losses = [line["loss"] for line in read_jsonl(captured.folder("train") / "metrics.jsonl") if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
    assert summary["heldout"]["rounds"] > 0


def test_no_supervised_token_is_an_error(captured: Job) -> None:
    found = list(read_store(captured.folder("capture"), "train"))
    empty = [
        StoredSample(s.id, s.num_prompt_tokens, s.token_ids_T, torch.zeros_like(s.loss_mask_T), s.features_TF, s.last_TH) for s in found
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "read_store", lambda _folder, _split: iter(empty))
        with pytest.raises(EnvironmentFailed, match="no supervised token"):
            stage.run(SETTINGS, captured)


@pytest.fixture
def exported(captured: Job) -> Job:
    finish(captured, "train", stage.run(SETTINGS, captured))
    export.run(ExportSettings(), captured)
    return captured


def test_exported_is_trained_rounded_to_bfloat16(exported: Job) -> None:
    target = load_target(exported.target, (1, 3, 5))
    trained, served = load_trained(exported.folder("train"), target), load_exported(exported.folder("export"), target)
    for (name, one), two in zip(trained.state_dict().items(), served.state_dict().values(), strict=True):
        assert torch.equal(one.to(torch.bfloat16).to(one.dtype) if one.is_floating_point() else one, two), name
    config = json.loads((exported.folder("export") / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 4]
    assert shape_from_config(config) == trained.shape
    assert "accept_len" in (exported.folder("export") / "README.md").read_text()


def damage(folder: Path, change: str) -> None:
    """One fault in an exported folder."""
    tensors = load_file(folder / "model.safetensors")
    if change == "missing":
        del tensors["lm_head.weight"]
    elif change == "renamed":
        tensors["layers.0.mlp.up_proj.weight"] = tensors.pop("midlayer.mlp.up_proj.weight")
    elif change == "shape":
        tensors["fc.weight"] = tensors["fc.weight"][:, :-1].contiguous()
    elif change == "absolute d2t":
        tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"])) + VOCAB
    elif change == "t2d":
        tensors["t2d"] = ~tensors["t2d"]
    elif change == "dtype":
        tensors["d2t"] = tensors["d2t"].to(torch.int32)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "missing lm_head.weight"),
        ("renamed", r"missing midlayer.mlp.up_proj.weight; unknown layers.0.mlp.up_proj.weight"),
        ("shape", "fc.weight is"),
        ("absolute d2t", "strictly increasing target ids"),
        ("t2d", "t2d marks other tokens"),
        ("dtype", "d2t is torch.int32"),
    ],
)
def test_every_fault_of_a_drafter_folder_is_named(exported: Job, change: str, message: str) -> None:
    damage(exported.folder("export"), change)
    with pytest.raises(CheckFailed, match=message):
        load_exported(exported.folder("export"), load_target(exported.target, (1, 3, 5)))


def test_random_drafter_has_the_recipes_shape(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    folder = write_random_drafter(job.target, job.drafter, tmp_path / "drafter", seed=3)
    drafter = load_exported(folder, load_target(job.target, (1, 3, 5)))
    assert drafter.shape.draft_vocab_size == 32
    assert torch.equal(drafter.target_ids_W, torch.arange(32))
    before = torch.get_rng_state()
    write_random_drafter(job.target, job.drafter, tmp_path / "again", seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
