"""convert: what cannot be said is refused with its reason, what is wrong with a folder is said in one line, and nothing is half-written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import convert_folders as folders
import pytest
import torch
from convert_folders import E, H, V, W, eagle3_shapes, read, tables
from safetensors.torch import save_file

from draftsmith import cli

Words = tuple[str, ...]


def attempt(source: Path, to: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, stderr and the JSON of a conversion that is to fail; nothing may be left behind."""
    before = sorted(path.name for path in source.parent.iterdir()) if source.parent.is_dir() else []
    code = cli.main(["convert", str(source), "--to", to, "-o", str(source.parent / "result"), "--json", *more])
    out, err = capsys.readouterr()
    assert sorted(path.name for path in source.parent.iterdir()) == before, "something was left behind"
    return code, err, json.loads(out)


def change(folder: Path, drop: Words = (), extra: dict[str, Any] | None = None, **config: Any) -> Path:
    """Drop and add tensors; config values of ... are removed."""
    old, tensors = read(folder)
    tensors = {name: value for name, value in tensors.items() if name not in drop} | (extra or {})
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({key: value for key, value in {**old, **config}.items() if value is not ...}))
    return folder


# --- what a format cannot say ----------------------------------------------------------------------------------------

QK = {"midlayer.self_attn.q_norm.weight": torch.ones(E), "midlayer.self_attn.k_norm.weight": torch.ones(E)}
BIAS = {f"midlayer.self_attn.{name}_proj.bias": torch.ones(rows) for name, rows in (("q", 32), ("k", 16), ("v", 16))}
NORMS = {"input_norm.weight": torch.ones(3 * H), **{f"fc_norm.{k}.weight": torch.ones(H) for k in range(3)}}
EAGLE3_CASES = [
    ({"norm_before_residual": True}, {}, "sglang", "sglang==0.5.23", "norm_before_residual is set, SGLang 0.5.23 ignores it"),
    ({"norm_before_fc": True}, {"input_norm.weight": torch.ones(3 * H)}, "sglang", "sglang==0.5.16", "implemented since 0.5.17"),
    ({"norm_before_fc": True}, {"input_norm.weight": torch.ones(3 * H)}, "vllm", "vllm==0.17.0", "implemented since 0.18.0"),
    ({}, QK, "sglang", "sglang==0.5.17", "no norm of queries and keys"),
    ({"attention_bias": True}, BIAS, "sglang", "sglang==0.5.17", "no bias in q, k and v"),
    ({"bias": True}, {"fc.bias": torch.ones(H)}, "vllm", "vllm==0.32.0", "fc has no bias in vLLM"),
    ({"norm_before_fc": True, "fc_norm": True}, NORMS, "speculators", "vllm==0.32.0", "one of the two, not both"),
    ({"layer_types": ["sliding_attention"], "sliding_window": 64}, {}, "sglang", "sglang==0.5.23", "see the whole context"),
    ({}, {"midlayer.extra.weight": torch.ones(H)}, "vllm", "vllm==0.32.0", "does not know: layers.0.extra.weight"),
    ({}, {"midlayer.extra.weight": torch.ones(H)}, "sglang", "sglang==0.5.17", "drops them without a word"),
    ({"intermediate_size": 40}, {}, "vllm", "vllm==0.32.0", "another shape than the config says"),
    ({}, {}, "zlab", "sglang==0.5.23", "another network than EAGLE-3"),
]


@pytest.mark.parametrize(("config", "extra", "to", "engine", "reason"), EAGLE3_CASES)
def test_eagle3_that_a_format_cannot_say(
    config: dict[str, Any], extra: dict[str, Any], to: str, engine: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = change(folders.vllm_eagle3(tmp_path / "source"), extra=extra, **config)
    target = folders.write_target(tmp_path / "target")
    code, _, document = attempt(source, to, capsys, "--engine", engine, "--target", str(target))
    refused = [entry["reason"] for entry in document["ledger"] if entry["action"] == "impossible"]
    assert code == 4 and any(reason.replace("layers.0.", "midlayer.") in text or reason in text for text in refused), refused
    assert document["error"]["kind"] == "Refused" and "cannot become" in document["error"]["message"]


FULL, SLIDING = ["full_attention"] * 2, ["sliding_attention"] * 2
BLOCK_CASES = [
    ({"is_causal": True, "layer_types": ...}, "sglang", "sglang==0.5.17", "SGLang 0.5.17 does not read it there"),
    ({"is_causal": True, "layer_types": FULL}, "sglang", "sglang==0.5.16", "SGLang 0.5.16 does not read it there"),
    ({"is_causal": False, "layer_types": SLIDING, "sliding_window": 64}, "sglang", "sglang==0.5.17", "does not read it there"),
    ({"is_causal": True}, "speculators", "vllm==0.32.0", "always look both ways"),
    (
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 64},
        "speculators",
        "vllm==0.32.0",
        "one causality for all",
    ),
    (
        {"dflash_config": {"mask_token_id": 7, "target_layer_ids": [1, 5, 9], "output_multiplier": 2.0}},
        "speculators",
        "vllm==0.32.0",
        "no place",
    ),
    ({"dflash_config": {"mask_token_id": 7, "target_layer_ids": [-1, 5, 9]}}, "sglang", "sglang==0.5.23", "boundary 0"),
    ({"block_size": ...}, "speculators", "vllm==0.32.0", "it is absent"),
    ({"dflash_config": {"mask_token_id": 7, "target_layer_ids": [1, 5, 9], "block_size": 4}}, "vllm", "vllm==0.32.0", "they mean the same"),
    ({"dflash_config": {"mask_token_id": 7, "target_layer_ids": [1, 9, 5]}}, "vllm", "vllm==0.32.0", "do not increase"),
]


@pytest.mark.parametrize(("config", "to", "engine", "reason"), BLOCK_CASES)
def test_dflash_that_a_format_cannot_say(
    config: dict[str, Any], to: str, engine: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = change(folders.zlab_dflash(tmp_path / "source"), **config)
    code, _, document = attempt(source, to, capsys, "--engine", engine)
    refused = [entry["reason"] for entry in document["ledger"] if entry["action"] == "impossible"]
    assert code == 4 and any(reason in text for text in refused), refused


def test_0_5_17_reads_causality_of_full_layers_that_are_named(tmp_path: Path) -> None:
    """models/dflash.py of that release; sliding layers always look back there."""
    source = change(folders.zlab_dflash(tmp_path / "source"), is_causal=True, layer_types=FULL)
    words = ["convert", str(source), "--to", "sglang", "-o", str(tmp_path / "result"), "--engine", "sglang==0.5.17"]
    assert cli.main(words) == 0
    written = json.loads((tmp_path / "result" / "config.json").read_text())
    assert written["is_causal"] is True and written["layer_types"] == FULL


def test_a_reduced_dflash_has_no_place_outside_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = change(
        folders.speculators_dflash(tmp_path / "source"), extra={"lm_head.weight": torch.ones(W, H), **tables()}, draft_vocab_size=W
    )
    for to in ("sglang", "zlab"):
        code, _, document = attempt(source, to, capsys)
        assert code == 4 and "a reduced vocabulary" in document["error"]["message"]
    assert cli.main(["convert", str(source), "--to", "vllm", "-o", str(tmp_path / "vllm")]) == 0


def test_dspark_has_no_place_in_zlabs_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err, document = attempt(folders.dspark(tmp_path / "source"), "zlab", capsys)
    assert code == 4 and "Markov" in document["error"]["message"]
    assert cli.main(["convert", str(tmp_path / "source"), "--to", "zlab", "-o", str(tmp_path / "result")]) == 4
    assert document["error"]["message"] in capsys.readouterr().err and "error:" in err


# --- contradictions --------------------------------------------------------------------------------------------------

CONTRADICTIONS = [
    ({"draft_vocab_size": 8}, (), {}, "it has 16 rows, draft_vocab_size is 8"),
    ({}, ("lm_head.weight",), {}, "no lm_head"),
    ({}, ("d2t", "t2d"), {}, "neither d2t nor t2d"),
    ({}, (), {"t2d": torch.arange(V) < W}, "cannot be read neither as offsets nor as absolute ids"),
    ({}, (), {"d2t": torch.full((W,), V)}, "ids outside"),
    ({}, (), {"d2t": torch.zeros(W)}, "expected one integer per draft token"),
    ({}, ("fc.weight",), {"fc.weight": torch.ones(H, 4 * H)}, "it takes 4 tapped states, the ids name [3, 6, 11]"),
    ({"num_aux_hidden_states": 5}, (), {}, "it says 5"),
    ({"tie_word_embeddings": True}, (), {}, "ties the head to the embedding"),
    ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 6, 11]}}, (), {}, "contradict each other"),
]


@pytest.mark.parametrize(("config", "drop", "extra", "reason"), CONTRADICTIONS)
def test_a_folder_that_contradicts_itself(
    config: dict[str, Any], drop: Words, extra: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = change(folders.vllm_eagle3(tmp_path / "source"), drop, extra, **config)
    code, _, document = attempt(source, "vllm", capsys, "--target", str(folders.write_target(tmp_path / "target")))
    refused = [entry["reason"] for entry in document["ledger"] if entry["action"] == "impossible"]
    assert code == 4 and any(reason in text for text in refused), refused


def test_an_open_d2t_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Few tokens far apart, no mask: offsets and absolute ids are both possible, and only the user knows."""
    ids = torch.arange(W) * 2
    source = change(folders.vllm_eagle3(tmp_path / "source"), ("t2d",), {"d2t": ids})
    code, _, document = attempt(source, "vllm", capsys)
    assert code == 4 and "--d2t offsets or --d2t absolute" in document["error"]["message"]
    for form, expected in (("offsets", ids), ("absolute", ids - torch.arange(W))):
        assert cli.main(["convert", str(source), "--to", "vllm", "-o", str(tmp_path / form), "--d2t", form]) == 0
        assert torch.equal(read(tmp_path / form)[1]["d2t"], expected)


def test_a_speculators_folder_that_does_not_say_norm_before_residual(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = change(folders.speculators_eagle3(tmp_path / "source"), norm_before_residual=...)
    code, _, document = attempt(source, "vllm", capsys)
    assert code == 4 and "vLLM takes true, speculators false" in document["error"]["message"]


# --- what users give -------------------------------------------------------------------------------------------------


def broken(kind: str, folder: Path) -> Path:
    """A folder with one fault."""
    if kind == "absent":
        return folder
    if kind == "empty":
        folder.mkdir()
        return folder
    if kind == "no weights":
        return folders.write_target(folder)
    if kind == "target":
        shapes = {"model.embed_tokens.weight": [V, H], **{f"model.layers.{k}.self_attn.q_proj.weight": [H, H] for k in range(3)}}
        return folders.write(folder, folders.TARGET, shapes)
    if kind == "eagle1":
        return folders.write(
            folder, {"architectures": ["LlamaForCausalLMEagle"]}, {"fc.weight": [H, 2 * H], "layers.0.mlp.up_proj.weight": [H, H]}
        )
    if kind == "unknown":
        return folders.write(folder, {"architectures": ["Medusa"]}, {"heads.0.weight": [H, H]})
    folders.sglang_eagle3(folder)
    weights = folder / "model.safetensors"
    if kind == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    if kind == "truncated header":
        weights.write_bytes(weights.read_bytes()[:20])
    if kind == "shard":
        index = {"weight_map": dict.fromkeys(eagle3_shapes(), "model-00001.safetensors")}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if kind == "json":
        (folder / "config.json").write_text("{")
    if kind == "quantised":
        change(folder, quantization_config={"quant_method": "fp8"})
    if kind == "quantised tensors":
        change(folder, extra={"fc.weight_scale": torch.ones(H)})
    if kind == "peagle":
        change(folder, extra={"mask_hidden": torch.ones(1, 3 * H)})
    return folder


FAULTS = [
    ("absent", 2, "does not exist"),
    ("empty", 2, "has no config.json"),
    ("no weights", 2, "has no *.safetensors"),
    ("target", 2, "whole language model (LlamaForCausalLM, 3 layers), not a drafter"),
    ("unknown", 2, "unknown drafter format (Medusa, 1 tensors)"),
    ("eagle1", 4, "an EAGLE-1/2 head"),
    ("peagle", 4, "P-EAGLE"),
    ("truncated", 4, "damaged or not whole"),
    ("truncated header", 4, "damaged or not whole"),
    ("shard", 4, "names model-00001.safetensors, which is not there"),
    ("json", 4, "is not JSON"),
    ("quantised", 4, "quantization_config (fp8), and no weight is quantised"),
    ("quantised tensors", 4, "quantised drafter (not said; 1 tensors, first fc.weight_scale"),
]


@pytest.mark.parametrize(("kind", "code", "text"), FAULTS)
def test_what_is_wrong_is_said_in_one_error_with_a_hint(
    kind: str, code: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got, err, document = attempt(broken(kind, tmp_path / "source"), "vllm", capsys)
    assert got == code == document["exit_code"] and text in document["error"]["message"], document
    assert document["error"]["hint"] and err.count("error:") == 1


def test_dst_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folders.sglang_eagle3(tmp_path / "source")
    (tmp_path / "result").mkdir()
    code, _, document = attempt(source, "vllm", capsys)
    assert code == 2 and "exists already" in document["error"]["message"] and list((tmp_path / "result").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--to", "sglang", "--engine", "vllm==0.32.0"), "--to sglang is read by sglang"),
        (("--to", "vllm", "--engine", "vllm"), "expected NAME==VERSION"),
        (("--to", "vllm", "--taps", "3,2"), "does not increase"),
        (("--to", "vllm", "--taps", "a"), "expected numbers"),
        (("--to", "vllm", "--target", "nowhere"), "--target nowhere does not exist"),
        (("--to", "vllm", "--source-engine", "vllm==0.32.0"), "SGLang's numbering"),
        (("--to", "tensorrt"), "invalid choice"),
    ],
)
def test_words_that_cannot_be_meant(words: Words, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folders.sglang_eagle3(tmp_path / "source")
    assert cli.main(["convert", str(source), "-o", str(tmp_path / "result"), *words]) == 2
    assert text in capsys.readouterr().err and not (tmp_path / "result").exists()


# --- the depth of a block drafter's target ---------------------------------------------------------------------------


def test_a_block_drafter_says_how_deep_its_target_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """speculators' config does not; SGLang before 0.5.18 then takes the drafter's own two layers for the target's twelve, and stops."""
    source = folders.speculators_dflash(tmp_path / "source")
    code, _, document = attempt(source, "sglang", capsys, "--engine", "sglang==0.5.17")
    assert code == 4 and "takes the drafter's 2 layers for the target's and stops; give --target" in document["error"]["message"]
    target = folders.write_target(tmp_path / "target")
    for to in ("sglang", "zlab"):
        words = ["--to", to, "--engine", "sglang==0.5.17", "--target", str(target), "-o", str(tmp_path / to)]
        assert cli.main(["convert", str(source), *words]) == 0
        assert read(tmp_path / to)[0]["num_target_layers"] == folders.N
    assert cli.main(["convert", str(source), "--to", "sglang", "-o", str(tmp_path / "newest")]) == 0


# --- the order of the draft vocabulary -------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "d2t"), [("offsets", folders.IDS.flip(0) - torch.arange(W)), ("absolute", folders.IDS.flip(0))])
def test_a_vocabulary_in_another_order_is_vouched_for(
    form: str, d2t: torch.Tensor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = change(folders.vllm_eagle3(tmp_path / "source"), extra={"d2t": d2t})
    code, _, document = attempt(source, "vllm", capsys)
    assert code == 4 and "if it was trained so, give --d2t offsets or --d2t absolute" in document["error"]["message"]
    assert cli.main(["convert", str(source), "--to", "vllm", "--d2t", form, "-o", str(tmp_path / "vouched")]) == 0
    capsys.readouterr()
    written = read(tmp_path / "vouched")[1]
    assert torch.equal(written["d2t"] + torch.arange(W), folders.IDS.flip(0))
    other = "offsets" if form == "absolute" else "absolute"
    code, _, document = attempt(tmp_path / "source", "speculators", capsys, "--d2t", other)
    assert code == 4 and f"cannot be read as {other}" in document["error"]["message"]


# --- biases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["vllm", "speculators"])
def test_a_bias_that_the_engine_would_leave_unset_is_written_as_zeros(to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """attention_bias: true gives Llama's layer a bias behind o_proj, which drafters with biases of q, k and v alone do not have."""
    source = change(folders.vllm_eagle3(tmp_path / "source"), extra=BIAS, attention_bias=True)
    assert cli.main(["convert", str(source), "--to", to, "--json", "-o", str(tmp_path / "made")]) == 0
    [entry] = [entry for entry in json.loads(capsys.readouterr().out)["ledger"] if str(entry["target"]).endswith("o_proj.bias")]
    written = read(tmp_path / "made")[1][entry["target"]]
    assert entry["action"] == "computed" and torch.equal(written, torch.zeros(H, dtype=torch.bfloat16))
    source = change(folders.vllm_eagle3(tmp_path / "without"), attention_bias=True)  # a field that came along from the target
    code, _, document = attempt(source, to, capsys)
    assert code == 4 and "4 tensors are missing" in document["error"]["message"]
