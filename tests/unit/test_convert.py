"""convert: there and back for every pair that is possible, on random small drafters; logits before and after; the ledger."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import convert_folders as folders
import pytest
import torch
from convert_folders import IDS, KEY, E, H, V, W, eagle3_shapes, layer, read, tables
from safetensors.torch import save_file

from draftsmith import cli
from draftsmith.convert.drafter import flatten, unflatten
from draftsmith.manifest import Manifest
from draftsmith.models.checkpoint import load_strictly, shape_from_config
from draftsmith.models.eagle3 import Eagle3Drafter

Maker = Callable[..., Path]
EAGLE3: dict[str, Maker] = {
    "sglang": folders.sglang_eagle3,
    "vllm": folders.vllm_eagle3,
    "speculators": folders.speculators_eagle3,
}
DFLASH: dict[str, Maker] = {"zlab": folders.zlab_dflash, "speculators": folders.speculators_dflash}
PAIRS = [
    *[("eagle3", one, other) for one in EAGLE3 for other in EAGLE3],
    *[("dflash", one, other) for one in DFLASH for other in ("sglang", "vllm", "speculators", "zlab")],
    *[("dspark", "sglang", other) for other in ("sglang", "vllm", "speculators")],
]


def run(*words: str | Path) -> int:
    return cli.main(["convert", *map(str, words)])


def converted(source: Path, to: str, name: str, *more: str | Path) -> Path:
    """The folder made, or an assertion."""
    target = folders.write_target(source.parent / "target")
    output = source.parent / name
    assert run(source, "--to", to, "-o", output, "--target", target, *more) == 0
    return output


def ledger_of(folder: Path) -> list[dict[str, Any]]:
    manifest = Manifest.read(folder)
    assert manifest is not None and manifest.damaged(folder) == []
    return manifest.summary["ledger"]


def make(kind: str, fmt: str, folder: Path) -> Path:
    if kind == "dspark":
        return folders.dspark(folder)
    return {"eagle3": EAGLE3, "dflash": DFLASH}[kind][fmt](folder)


def vary(folder: Path, kind: str, seed: int) -> None:
    """Random changes that every format of the kind can say: vocabulary, taps, switches, embedding, types, rope."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    config, tensors = read(folder)
    inner = config.get("transformer_layer_config", config)
    if kind == "eagle3":
        ids = torch.randperm(V, generator=generator)[:W].sort().values
        tensors |= tables(ids)
        taps = sorted(rng.sample(range(2, 12), 3))
        if KEY in config:
            config[KEY] = taps
        else:
            config["eagle_config"][KEY] = [number - 1 for number in taps]
        switch = rng.choice(["", "fc_norm", "norm_before_fc", "norm_output"])
        if switch:
            config[switch] = True
        if switch == "fc_norm":
            tensors |= {f"fc_norm.{number}.weight": torch.randn(H, generator=generator) for number in range(3)}
        if switch == "norm_before_fc":
            tensors["input_norm.weight"] = torch.randn(3 * H, generator=generator)
        if rng.random() < 0.5:
            tensors["embed_tokens.weight"] = torch.randn(V, H, generator=generator)
    elif kind == "dflash":
        config["block_size"] = rng.choice([4, 8, 16])
    dtype = rng.choice([torch.bfloat16, torch.float16, torch.float32])
    tensors = {name: value.to(dtype) if value.is_floating_point() else value for name, value in tensors.items()}
    rope = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    if rng.random() < 0.3 and "rope_parameters" in inner:
        inner["rope_parameters"] = rope
    inner["initializer_range"] = rng.random()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("kind", "fmt", "other"), PAIRS)
def test_there_and_back(kind: str, fmt: str, other: str, seed: int, tmp_path: Path) -> None:
    """Tensors bit-equal under their old names; every config field again where it was; what is new was computed, as the ledgers say."""
    source = make(kind, fmt, tmp_path / "source")
    vary(source, kind, seed)
    middle = converted(source, other, "middle")
    back = converted(middle, fmt, "back")
    (before, tensors), (after, returned) = read(source), read(back)
    assert returned.keys() == tensors.keys()
    for name, value in tensors.items():
        assert returned[name].dtype == value.dtype and torch.equal(returned[name], value), name
    flat, flat_back = flatten(before), flatten(after)
    assert {path: flat_back.get(path, "absent") for path in flat} == flat
    computed = {entry["target"] for folder in (middle, back) for entry in ledger_of(folder) if entry["action"] == "computed"}
    origin = {entry["target"]: entry["source"] for entry in ledger_of(back) if entry["kind"] == "config"}
    new = [path for path in flat_back if path not in flat and path not in computed and origin[path] not in computed]
    assert new == []


@pytest.mark.parametrize(("kind", "fmt", "other"), PAIRS)
def test_the_ledger_accounts_for_everything(kind: str, fmt: str, other: str, tmp_path: Path) -> None:
    """Seen from outside: each name of both folders is in exactly one place of the ledger that explains it; kept means equal."""
    source = make(kind, fmt, tmp_path / "source")
    result = converted(source, other, "result")
    (before, tensors), (after, written) = read(source), read(result)
    entries = ledger_of(result)
    for kind_, old, new in (("config", flatten(before), flatten(after)), ("tensor", tensors, written)):
        mine = [entry for entry in entries if entry["kind"] == kind_]
        assert {entry["source"] for entry in mine} - {None} == set(old)
        assert {entry["target"] for entry in mine} - {None} == set(new)
        for entry in mine:
            if entry["action"] in ("kept", "renamed"):
                a, b = old[entry["source"]], new[entry["target"]]
                assert torch.equal(a, b) if kind_ == "tensor" else a == b, entry
                assert (entry["source"] == entry["target"]) == (entry["action"] == "kept"), entry
            else:
                assert entry["reason"], entry
    assert not any(entry["action"] == "impossible" for entry in entries)


def reference(folder: Path) -> Eagle3Drafter:
    config, tensors = read(folder)
    return load_strictly(Eagle3Drafter(shape_from_config({"rope_theta": 1000.0, **config})), tensors, folder).float()


def test_logits_are_equal_before_and_after(tmp_path: Path) -> None:
    """In our reference implementation, bit for bit, through every EAGLE-3 format in turn."""
    source = folders.sglang_eagle3(tmp_path / "source")
    vllm = converted(source, "vllm", "vllm")
    speculators = converted(vllm, "speculators", "speculators")
    back = converted(speculators, "sglang", "sglang", "--engine", "sglang==0.5.11")
    generator = torch.Generator().manual_seed(3)
    features, tokens = torch.randn(1, 9, 3 * H, generator=generator), torch.randint(V, (1, 9), generator=generator)
    embedding = torch.randn(V, H, generator=generator)
    logits = []
    for folder in (source, vllm, back):
        drafter = reference(folder)
        drafter.set_embedding(embedding)
        logits.append(drafter.draft_logits(features, tokens))
    assert float(logits[0].detach().std()) > 0.1
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2])


def test_paths_are_taken_apart_and_put_together() -> None:
    config = {"a": 1, "eagle_config": {"x": [1]}, "draftsmith": {"carried": {"eagle_config.y": True}, "z": 2}, "rope": {"k": 1}}
    assert flatten(config) == {
        "a": 1,
        "eagle_config.x": [1],
        "draftsmith.carried.eagle_config.y": True,
        "draftsmith.z": 2,
        "rope": {"k": 1},
    }
    assert unflatten(flatten(config)) == config


# --- what the files say ----------------------------------------------------------------------------------------------


def test_the_card_is_carried_over_with_a_note(tmp_path: Path) -> None:
    source = folders.sglang_eagle3(tmp_path / "source")
    (source / "README.md").write_text("---\nlicense: mit\n---\n# A drafter\n\nText.\n")
    (source / "LICENSE").write_text("MIT")
    (source / "dflash.py").write_text("print()")
    result = converted(source, "speculators", "result")
    card = (result / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n---\n> **Converted** by Draftsmith") and card.endswith("# A drafter\n\nText.\n")
    assert "boundaries [3, 6, 11]" in card and (result / "LICENSE").read_text() == "MIT" and not (result / "dflash.py").exists()
    files = {entry["source"]: entry["action"] for entry in ledger_of(result) if entry["kind"] == "file"}
    assert files == {"README.md": "computed", "LICENSE": "kept", "dflash.py": "dropped"}


# --- the head and the vocabulary -------------------------------------------------------------------------------------


def with_tensors(folder: Path, change: Callable[[dict[str, Any]], Any], **config: Any) -> Path:
    """Change a folder's tensors and config in place; a config value of ... removes the key."""
    old, tensors = read(folder)
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({k: v for k, v in {**old, **config}.items() if v is not ...}))
    return folder


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (lambda t: t.pop("t2d"), {"t2d": "from d2t"}),
        (lambda t: t.pop("d2t"), {"d2t": "from t2d"}),
        (lambda t: t.update(d2t=IDS.clone()), {"d2t": "absolute"}),
        (lambda t: t.update(d2t=t["d2t"].to(torch.int32), t2d=t["t2d"].to(torch.uint8)), {"d2t": "int32 to int64", "t2d": "uint8 to bool"}),
    ],
)
@pytest.mark.parametrize("to", ["sglang", "vllm", "speculators"])
def test_every_form_of_the_vocabulary_becomes_the_same(change: Callable[..., None], how: dict[str, str], to: str, tmp_path: Path) -> None:
    source = with_tensors(folders.sglang_eagle3(tmp_path / "source"), change)
    result = converted(source, to, "result")
    _, written = read(result)
    assert torch.equal(written["d2t"], tables()["d2t"]) and torch.equal(written["t2d"], tables()["t2d"])
    assert written["d2t"].dtype == torch.int64 and written["t2d"].dtype == torch.bool
    entries = {entry["target"]: entry for entry in ledger_of(result) if entry["target"] in ("d2t", "t2d")}
    for name, entry in entries.items():
        assert entry["action"] == ("computed" if name in how else "kept") and how.get(name, "") in entry["reason"]


def test_old_names_of_the_draft_vocabulary_size(tmp_path: Path) -> None:
    source = folders.sglang_eagle3(tmp_path / "source", truncated_vocab_size=W)
    config, _ = read(converted(source, "sglang", "result"))
    assert config["draft_vocab_size"] == W and "truncated_vocab_size" not in config


@pytest.mark.parametrize(("to", "expected"), [("sglang", None), ("vllm", "absent"), ("speculators", V)])
def test_a_borrowed_head_stays_borrowed(to: str, expected: Any, tmp_path: Path) -> None:
    source = with_tensors(folders.vllm_eagle3(tmp_path / "source"), lambda t: [t.pop(n) for n in ("lm_head.weight", "d2t", "t2d")])
    with_tensors(source, lambda t: None, draft_vocab_size=...)
    config, written = read(converted(source, to, "result"))
    assert config.get("draft_vocab_size", "absent") == expected and "lm_head.weight" not in written
    _, back = read(converted(tmp_path / "result", "vllm", "back"))
    assert back.keys() == read(source)[1].keys()


def test_a_tied_head(tmp_path: Path) -> None:
    """SGLang takes the embedding as head; for the others the head is written out."""
    source = with_tensors(folders.sglang_eagle3(tmp_path / "source"), lambda t: [t.pop(n) for n in ("lm_head.weight", "d2t", "t2d")])
    with_tensors(source, lambda t: t.update({"embed_tokens.weight": torch.randn(V, H)}), draft_vocab_size=V, tie_word_embeddings=True)
    kept, _ = read(converted(source, "sglang", "kept"))
    assert kept["tie_word_embeddings"] is True
    config, written = read(converted(source, "vllm", "result"))
    assert config["tie_word_embeddings"] is False and torch.equal(written["lm_head.weight"], written["embed_tokens.weight"])


def test_an_identity_table_of_a_full_vocabulary_is_dropped(tmp_path: Path) -> None:
    def full(tensors: dict[str, Any]) -> None:
        tensors |= {"lm_head.weight": torch.randn(V, H), **tables(torch.arange(V))}

    source = with_tensors(folders.sglang_eagle3(tmp_path / "source"), full, draft_vocab_size=V)
    _, written = read(converted(source, "vllm", "result"))
    assert "d2t" not in written and "t2d" not in written


# --- deeper and other heads ------------------------------------------------------------------------------------------


def test_the_norm_of_later_layers_changes_its_name(tmp_path: Path) -> None:
    """vLLM norms a later layer's input with input_layernorm, SGLang with hidden_norm."""
    shapes = {**eagle3_shapes("layers.0."), **layer("layers.1.", H, first=False)}
    source = folders.vllm_eagle3(tmp_path / "source", num_hidden_layers=2)
    config, _ = read(source)
    folders.write(source, config, shapes, tables())
    middle = converted(source, "sglang", "middle")
    _, tensors = read(middle)
    assert torch.equal(tensors["layers.1.hidden_norm.weight"], read(source)[1]["layers.1.input_layernorm.weight"])
    _, back = read(converted(middle, "vllm", "back"))
    assert back.keys() == read(source)[1].keys()


def test_a_head_with_queries_and_keys_normed_goes_to_vllm_as_qwen3(tmp_path: Path) -> None:
    """DeepSpec's EAGLE-3: five taps, layer outputs at the top level."""
    shapes = {**eagle3_shapes("layers.0.", taps=5, rows=V), "embed_tokens.weight": [V, H]}
    shapes |= {"layers.0.self_attn.q_norm.weight": [E], "layers.0.self_attn.k_norm.weight": [E]}
    source = folders.sglang_eagle3(tmp_path / "source", architectures=["Qwen3Eagle3Model"], model_type="qwen3", draft_vocab_size=V)
    config, _ = read(source)
    del config["eagle_config"], config["draft_vocab_size"]
    folders.write(source, {**config, "target_layer_ids": [1, 3, 5, 7, 9]}, shapes)
    config, _ = read(converted(source, "vllm", "vllm"))
    assert (
        config["architectures"] == ["Eagle3Qwen3ForCausalLM"] and config[KEY] == [2, 4, 6, 8, 10] and config["num_aux_hidden_states"] == 5
    )
    config, _ = read(converted(source, "speculators", "speculators"))
    assert config[KEY] == [2, 4, 6, 8, 10] and config["transformer_layer_config"]["num_aux_hidden_states"] == 5
    assert config["transformer_layer_config"]["model_type"] == "qwen3" and config["draft_vocab_size"] == V


def test_an_embedding_that_is_not_the_targets_is_refused_for_sglang_only(tmp_path: Path) -> None:
    target = folders.write_target(tmp_path / "target")
    save_file({"model.embed_tokens.weight": torch.randn(V, H).to(torch.bfloat16)}, target / "model.safetensors")
    source = with_tensors(
        folders.vllm_eagle3(tmp_path / "source"), lambda t: t.update({"embed_tokens.weight": torch.randn(V, H).to(torch.bfloat16)})
    )
    assert run(source, "--to", "sglang", "-o", tmp_path / "a", "--target", target) == 4
    assert run(source, "--to", "vllm", "-o", tmp_path / "b", "--target", target) == 0
