"""verify replay as a command on a finished tiny run: agreement, planted faults, and what cannot be compared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from replay_world import DEPTH, HELDOUT, World, served_rows, total, write_replies
from safetensors.torch import load_file, save_file
from test_verify_replay_served import fake_server
from torch import Tensor
from verify_world import TAPS, serve

from draftsmith import cli
from draftsmith.job import Talk
from draftsmith.metrics import Acceptance
from draftsmith.verify.replay.drafter import load_plain
from draftsmith.verify.replay.folder import Folder
from draftsmith.verify.replay.temperature import draft_probabilities, expected_accepted, sampled


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture
def copy(world: World, tmp_path: Path) -> Path:
    """A run folder that a test may spoil."""
    return Path(shutil.copytree(world.run, tmp_path / "run"))


def replay(world: World, run: Path, *words: object, out: Path | None = None) -> tuple[int, dict[str, Any]]:
    """(exit code, replay.json)."""
    place = out or run / "replay"
    code = cli.main(["verify", "replay", str(world.recipe()), "--run-folder", str(run), *map(str, words), "--quiet"])
    path = place / "replay.json"
    return code, json.loads(path.read_text()) if path.exists() else {}


def codes(result: dict[str, Any], severity: str = "error") -> list[str]:
    return [finding["code"] for finding in result["findings"] if finding["severity"] == severity]


def test_a_sound_run_agrees_number_by_number(world: World, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = replay(world, copy)
    said = capsys.readouterr().out
    assert code == 0 and codes(result) == [], said
    assert world.trained.accepted > 20 and total(world.replies).accepted > 20, "the case must have hits and misses"
    assert result["trained"] == result["replayed_as_trained"] == world.trained.as_dict() and result["trained_gap"] == 0.0
    both = result["served"]["replay"]
    assert both["predicted"] == both["served"] == total(world.replies).as_dict() and both["prompts"] == HELDOUT
    assert result["served"]["source"] == "verify" and result["served"]["left_out"] == 0
    assert said.splitlines()[-2] == "agreement: the drafter alone reaches what training measured and what was served"
    assert set(result["rows"]["by_category"]) == {"code", "prose"}


def test_json_is_one_document(world: World, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    code, result = replay(world, copy, "--json", "--prompts", "5")
    document = json.loads(capsys.readouterr().out)
    assert document == {**result, "exit_code": code} and result["rows"]["samples"] == 5
    assert result["trained"] is None, "a part of the rows is not what training measured"


def spoilt(world: World, copy: Path, order: Sequence[int] | None = None, shift: int = 0) -> Path:
    """Replies of an engine that hands the drafter the taps in another order, or the feature of a neighbour."""

    def as_served(features_TF: Tensor) -> Tensor:
        taps_TKH = features_TF.unflatten(-1, (len(TAPS), -1))
        return taps_TKH[:, list(order or range(len(TAPS)))].flatten(1).roll(-shift, 0)

    return write_replies(copy / "verify" / "float32-speculative.jsonl", served_rows(world.target, world.drafter, world.heldout, as_served))


def test_swapped_taps_are_a_gap_and_are_named(world: World, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoilt(world, copy, order=(2, 1, 0))
    code, result = replay(world, copy)
    assert code == 4 and set(codes(result)) & {"DS801", "DS803"}
    assert result["trained_gap"] == 0.0, "training and export still agree"
    straight = next(fit for fit in result["served"]["suspects"] if fit["says"] == "as trained")
    guilty = next(fit for fit in result["served"]["suspects"] if fit["taps"] == [TAPS[2], TAPS[1], TAPS[0]])
    assert guilty["distance"] == 0.0 and straight["distance"] > 0.04, result["served"]["suspects"]
    said = capsys.readouterr().out
    assert "disagreement: DS80" in said and "what was served is what this drafter reaches when the taps come in the order" in said
    assert f"order {[TAPS[2], TAPS[1], TAPS[0]]}" in said, said


def test_an_export_that_is_not_what_was_trained(world: World, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy / "export" / "model.safetensors"
    tensors = load_file(path)
    tensors["fc.weight"] = tensors["fc.weight"].roll(tensors["fc.weight"].shape[1] // 3, 1)
    save_file(tensors, path, metadata={"format": "pt"})
    shutil.rmtree(copy / "verify")
    code, result = replay(world, copy)
    assert code == 4 and codes(result) == ["DS804"]
    assert "they part at draft" in capsys.readouterr().out


def test_without_anything_to_compare_with_it_is_inconclusive(world: World, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copy / "verify")
    shutil.rmtree(copy / "train")
    code, result = replay(world, copy)
    assert code == 3 and result["trained"] is None and result["served"] is None
    assert "nothing to compare with" in capsys.readouterr().out
    assert result["rows"]["figures"]["teacher_forced"] == world.trained.as_dict()


def test_replies_of_a_file_with_their_own_prompts_and_rounds(world: World, tmp_path: Path) -> None:
    """No run at all: a target, a drafter, token files."""
    rows, replies = tmp_path / "rows.jsonl", tmp_path / "replies.jsonl"
    by_id = {sample.id: sample for sample in world.heldout}
    with rows.open("w") as file:
        for sample in world.heldout:
            ids = sample.token_ids_T.tolist()
            file.write(json.dumps({"id": sample.id, "token_ids": ids, "num_prompt_tokens": sample.num_prompt_tokens}) + "\n")
    with replies.open("w") as file:
        for row in world.replies:
            sample = by_id[row["id"]]
            prompt = sample.token_ids_T[: sample.num_prompt_tokens].tolist()
            file.write(json.dumps({**row, "id": f"x{row['id']}", "prompt_token_ids": prompt}) + "\n")
    words = ["verify", "replay", "--target", world.root / "target", "--drafter", world.run / "export", "--dtype", "float32", "--quiet"]
    words += ["--rows", rows, "--served", replies, "--out", tmp_path / "out", "--depth", DEPTH]
    assert cli.main([str(word) for word in words]) == 0
    result = json.loads((tmp_path / "out" / "replay.json").read_text())
    assert result["served"]["replay"]["predicted"] == total(world.replies).as_dict()
    assert result["rows"]["figures"]["teacher_forced"] == world.trained.as_dict(), "states computed here are those of the store"


def test_a_store_of_more_taps_serves_a_drafter_of_fewer(world: World, copy: Path) -> None:
    """Columns of the drafter's taps are picked from the store's; taps that it has not are computed anew. Both give the same figures."""
    found = {}
    for name, taps in (("picked", [TAPS[0], TAPS[2]]), ("computed", [TAPS[0], 7])):
        config = json.loads((copy / "export" / "config.json").read_text())
        config["draftsmith"]["tap_boundaries"] = taps
        tensors = load_file(copy / "export" / "model.safetensors")
        width = tensors["fc.weight"].shape[1] // len(TAPS)
        tensors["fc.weight"] = torch.cat([tensors["fc.weight"][:, :width], tensors["fc.weight"][:, 2 * width :]], 1).contiguous()
        folder = copy.parent / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**config, "num_aux_hidden_states": 2}))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        code, found[name] = replay(world, copy, "--drafter", folder)
        assert code == 3, "another drafter than the run's: neither training's figure nor verify's replies are of it"
    assert "computed anew" in found["computed"]["rows"]["source"] and "anew" not in found["picked"]["rows"]["source"]
    assert found["picked"]["rows"]["figures"] != found["computed"]["rows"]["figures"]


def test_prompts_that_lost_their_first_token_are_named(world: World, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every prompt of training begins with token 1; the served ones do not."""
    from draftsmith.store import Index, StoredSample, write_shard

    bos = torch.tensor([1])
    framed = []
    for sample in world.heldout:
        ids, n = torch.cat([bos, sample.token_ids_T]), sample.num_prompt_tokens + 1
        states = world.target.states(ids[None])
        framed.append(StoredSample(sample.id, n, ids, torch.arange(len(ids)) >= n, states.features_BTF[0], states.last_BTH[0]))
    index = Index(list(TAPS), world.target.config.hidden_size, "float32", complete=True)
    index.shards = [write_shard(copy / "capture", 0, "heldout", framed)]
    index.write(copy / "capture")
    shutil.rmtree(copy / "train")
    rows = []
    for row, sample in zip(world.replies, world.heldout, strict=True):
        rows.append({**row, "prompt_token_ids": sample.token_ids_T[: sample.num_prompt_tokens].tolist()})
    replies = write_replies(copy / "replies.jsonl", rows)
    _, result = replay(world, copy, "--served", replies)
    [finding] = [finding for finding in result["findings"] if finding["code"] == "DS810"]
    lost = sum(int(sample.token_ids_T[0]) != 1 for sample in world.heldout)
    assert f"{lost} of {HELDOUT} served prompts begin with" in finding["evidence"] and finding["severity"] == "warning"
    _, sound = replay(
        world,
        copy,
        "--served",
        write_replies(copy / "same.jsonl", [bos_row(row, sample) for row, sample in zip(rows, framed, strict=True)]),
    )
    assert "DS810" not in codes(sound, "warning")


def bos_row(row: dict[str, Any], sample: Any) -> dict[str, Any]:
    prompt = sample.token_ids_T[: sample.num_prompt_tokens].tolist()
    return {**row, "prompt_token_ids": prompt, "prompt_tokens": len(prompt)}


def test_answers_shorter_than_a_round_and_servers_that_drafted_nothing(world: World, copy: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt_token_ids": [3, 4], "token_ids": [5, 6, 7]}) + "\n")
    assert replay(world, copy, "--rows", rows) == (3, {}), "nothing is written when nothing can be said"
    silent = [{**row, "rounds": 0, "reached": [0] * DEPTH} for row in world.replies]
    code, result = replay(world, copy, "--served", write_replies(tmp_path / "silent.jsonl", silent))
    assert code == 4 and codes(result) == ["DS803"]
    assert result["served"]["replay"]["gap"] is None and "NaN" not in (copy / "replay" / "replay.json").read_text()


def test_a_server_of_another_depth_is_compared_at_its_own(world: World, copy: Path) -> None:
    def answer(body: dict[str, Any]) -> tuple[list[int], list[int]]:
        return serve(world.target, world.drafter, body["prompt"], body["max_tokens"], 2)

    with fake_server(answer, 2) as (url, _):
        code, result = replay(world, copy, "--url", url, "--output-tokens", "6", "--prompts", "6")
    both = result["served"]["replay"]
    assert code == 0 and result["depth"] == 2 and both["predicted"] == both["served"] and len(both["served"]["reached"]) == 2
    assert len(result["rows"]["figures"]["top1"]) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--target", "X"], "say what to replay"),
        (["--target", "TARGET", "--drafter", "EXPORT"], "nothing to replay on"),
        (["--target", "TARGET", "--drafter", "EXPORT", "--served", "bench"], "--served bench is for a recipe's run"),
        (["RECIPE", "--target", "TARGET"], "a recipe and --target at once"),
        (["RECIPE", "--rows", "/nowhere"], "--rows /nowhere does not exist"),
        (["RECIPE", "--url", "localhost:1", "--served", "verify"], "--served and --url at once"),
        (["RECIPE", "--output-tokens", "4"], "--output-tokens is for a server that is asked"),
        (["RECIPE", "--prompts", "0"], "--prompts 0: expected 1 or more"),
        (["RECIPE", "--temperature", "-1"], "--temperature -1: expected 0"),
    ],
)
def test_words_that_cannot_be_meant(world: World, words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = {"RECIPE": str(world.recipe()), "TARGET": str(world.root / "target"), "EXPORT": str(world.run / "export")}
    code = cli.main(["verify", "replay", *(places.get(word, word) for word in words), "--out", str(tmp_path / "out")])
    assert code == 2 and says in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_running_server_is_asked_and_agrees(world: World, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(body: dict[str, Any]) -> tuple[list[int], list[int]]:
        return serve(world.target, world.drafter, body["prompt"], body["max_tokens"], DEPTH)

    with fake_server(answer, DEPTH) as (url, _):
        code, result = replay(world, copy, "--url", url, "--output-tokens", "8", "--prompts", "8")
    both = result["served"]["replay"]
    assert code == 0 and both["prompts"] == 8 and both["predicted"] == both["served"], capsys.readouterr().out
    assert both["served"]["rounds"] > 20
    code, again = replay(world, copy, "--served", copy / "replay" / "served.jsonl")
    assert code == 0 and again["served"]["replay"] == both, "what was asked is kept"


# --- temperature -----------------------------------------------------------------------------------------------------


def test_expected_acceptance_by_hand() -> None:
    """p = 1/2, 1/4, 1/2; the second draft leaves the text, so that the third is not known."""
    least, most = expected_accepted(torch.tensor([[0.5, 0.25, 0.5]]), torch.tensor([[True, True, False]]))
    assert (float(least), float(most)) == (0.5 + 0.125, 0.5 + 0.125 + 0.125)
    least, most = expected_accepted(torch.tensor([[0.5, 0.25, 0.5]]), torch.ones(1, 3, dtype=torch.bool))
    assert float(least) == float(most) == 0.5 + 0.125 + 0.0625


def test_expected_acceptance_is_what_an_engine_that_samples_accepts(world: World) -> None:
    """Many rounds of the rejection rule on the target's own distribution, against the bounds and the first draft's probability."""
    folder = Folder.open(world.run / "export")
    drafter = load_plain(folder, world.target, TAPS)
    sample = max(world.heldout, key=lambda one: len(one.token_ids_T))
    generator = torch.Generator().manual_seed(1)
    heat, trials, accepted, rows = 0.8, 400, 0, 0
    probability_AK, hit_AK = draft_probabilities(drafter, world.target, sample, DEPTH, heat)
    assert 0 < int(hit_AK.sum()) < hit_AK.numel()
    first = sample.num_prompt_tokens - 1
    firsts = 0.0
    for row in range(first, first + len(hit_AK)):
        tokens = sample.token_ids_T[: row + 2].tolist()
        features_TF = world.target.states(torch.tensor([tokens[:-1]])).features_BTF[0]
        drafts = drafter.draft(features_TF, torch.tensor(tokens), DEPTH).tolist()
        logits = world.target.model(torch.tensor([[*tokens, *drafts]])).logits[0, len(tokens) - 1 : -1]
        p_K = (logits / heat).softmax(-1)[torch.arange(DEPTH), torch.tensor(drafts)]
        assert float(p_K[0]) == pytest.approx(float(probability_AK[row - first, 0]), rel=1e-3)
        coins = torch.rand(trials, DEPTH, generator=generator) < p_K
        accepted += int(coins.cumprod(1).sum())
        firsts += int(coins[:, 0].sum())
        rows += trials
    found = sampled(drafter, world.target, [sample], DEPTH, heat, Talk(quiet=True))
    assert found is not None
    mean = 1 + accepted / rows
    assert found.accept_len[1] - 0.03 <= mean <= found.accept_len[2] + 0.03, (found.accept_len, mean)
    assert found.first_draft[1] == pytest.approx(firsts / rows, abs=0.03)


def test_a_served_temperature_is_explained_and_the_walk_over_sampled_text_is_exact(world: World, copy: Path) -> None:
    """An engine that samples: the text's tokens are drawn, a draft is accepted when it is the token drawn."""
    drawn = torch.Generator().manual_seed(5)
    rows = []
    for sample in world.heldout[:10]:
        prompt = sample.token_ids_T[: sample.num_prompt_tokens].tolist()
        tokens, rounds = sampling_server(world, prompt, 12, 1.2, drawn)
        counts = Acceptance.from_rounds(rounds, DEPTH)
        rows.append(
            {"id": sample.id, "token_ids": tokens, "finish_reason": "length", "rounds": counts.rounds, "reached": list(counts.reached)}
        )
    _, result = replay(world, copy, "--served", write_replies(copy / "hot.jsonl", rows, temperature=1.2))
    both = result["served"]["replay"]
    assert both["predicted"]["rounds"] == both["served"]["rounds"] and both["predicted"]["accept_len"] == both["served"]["accept_len"]
    assert result["served"]["temperature"] == 1.2
    assert result["sampled"]["first_draft"][1] < result["sampled"]["first_draft"][0]
    assert "DS809" in codes(result, "info")


def sampling_server(world: World, prompt: list[int], most: int, heat: float, generator: torch.Generator) -> tuple[list[int], list[int]]:
    """Draws the target's token after each place; a round ends at the first draft that was not drawn. Ends before a round could be cut."""
    tokens, rounds = list(prompt), []

    def draw() -> int:
        logits = world.target.model(torch.tensor([tokens])).logits[0, -1]
        return int(torch.multinomial((logits / heat).softmax(-1), 1, generator=generator))

    with torch.inference_mode():
        tokens.append(draw())
        while len(tokens) - len(prompt) < most:
            features_TF = world.target.states(torch.tensor([tokens[:-1]])).features_BTF[0]
            drafts = world.drafter.draft(features_TF, torch.tensor(tokens), DEPTH).tolist()
            accepted = 0
            tokens.append(draw())
            while accepted < DEPTH and tokens[-1] == drafts[accepted]:
                accepted += 1
                tokens.append(draw())
            rounds.append(accepted)
    return tokens[len(prompt) :], rounds
