"""Drafters from elsewhere: every layout gives the figures of the same weights, and what the reference does not compute is refused."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from convert_folders import H, V, read
from replay_world import DEPTH, World
from safetensors.torch import load_file, save_file
from verify_world import TAPS, VOCAB

from draftsmith import cli
from draftsmith.errors import CheckFailed
from draftsmith.models.eagle3 import Eagle3Drafter, Rollout
from draftsmith.verify.replay.drafter import load_plain
from draftsmith.verify.replay.folder import Folder

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "speculators"
KEY = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"), served=False)


def without_ours(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "draftsmith"}


def sglang(config: dict[str, Any], _tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """SpecForge's: nested ids are layer outputs, absolute vocabulary ids in int32."""
    config = without_ours(config)
    del config[KEY]
    _tensors["d2t"] = (_tensors["d2t"] + torch.arange(len(_tensors["d2t"]))).int()
    return {**config, "eagle_config": {KEY: [tap - 1 for tap in TAPS], "use_aux_hidden_state": True}}


def vllm(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Boundaries at the top, layers.0 for midlayer, no t2d."""
    for name in [name for name in tensors if name.startswith("midlayer.")]:
        tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)
    del tensors["t2d"]
    config = without_ours(config)
    del config["eagle_config"]
    return config


def speculators(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    vllm(config, tensors)
    layer = {name: config[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")}
    layer |= {name: config[name] for name in ("vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act", "rope_parameters")}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": config["draft_vocab_size"],
        "norm_before_residual": False,
        KEY: list(TAPS),
        "transformer_layer_config": {"model_type": "llama", "num_hidden_layers": 1, "attention_bias": False, **layer},
    }


def own_embedding(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The target's embedding, stored with the drafter."""
    tensors["embed_tokens.weight"] = TARGETS_EMBEDDING[0].clone()
    return vllm(config, tensors)


TARGETS_EMBEDDING: list[torch.Tensor] = []
FORMS: dict[str, Callable[..., dict[str, Any]]] = {"sglang": sglang, "vllm": vllm, "speculators": speculators, "own": own_embedding}


def foreign(world: World, form: str, folder: Path) -> Path:
    """The run's drafter as another tool would have written it."""
    TARGETS_EMBEDDING[:] = [world.target.embedding_VH.detach()]
    config = json.loads((world.run / "export" / "config.json").read_text())
    tensors = load_file(world.run / "export" / "model.safetensors")
    config = FORMS[form](config, tensors)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def replay(world: World, drafter: Path, out: Path, *more: str) -> tuple[int, dict[str, Any]]:
    words = ["verify", "replay", "--target", str(world.root / "target"), "--drafter", str(drafter), "--dtype", "float32", "--quiet"]
    code = cli.main([*words, "--rows", str(world.run / "capture"), "--depth", str(DEPTH), "--out", str(out), *more])
    path = out / "replay.json"
    return code, json.loads(path.read_text()) if path.exists() else {}


@pytest.mark.parametrize("form", FORMS)
def test_every_layout_gives_the_same_figures(world: World, form: str, tmp_path: Path) -> None:
    code, result = replay(world, foreign(world, form, tmp_path / form), tmp_path / "out")
    assert code == 3, "nothing to compare with: no run, no server"
    assert result["taps"] == list(TAPS)
    assert result["rows"]["figures"]["teacher_forced"] == world.trained.as_dict()
    assert result["drafter"] == str(tmp_path / form), "named as the user knows it, not the folder in between"


def test_an_embedding_of_its_own_is_used(world: World, tmp_path: Path) -> None:
    folder = foreign(world, "own", tmp_path / "own")
    tensors = load_file(folder / "model.safetensors")
    tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"].flip(0).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _, result = replay(world, folder, tmp_path / "out")
    assert result["rows"]["figures"]["teacher_forced"] != world.trained.as_dict()


def test_taps_can_be_given(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = foreign(world, "vllm", tmp_path / "vllm")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, KEY: [1, 3, 6]}))
    _, wrong = replay(world, folder, tmp_path / "wrong")
    _, right = replay(world, folder, tmp_path / "right", "--taps", "2,4,5")
    assert wrong["taps"] == [1, 3, 6] and right["taps"] == list(TAPS)
    assert right["rows"]["figures"]["teacher_forced"] == world.trained.as_dict() != wrong["rows"]["figures"]["teacher_forced"]


def refused(world: World, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    code, _ = replay(world, folder, tmp_path / "out")
    assert code == 4
    return capsys.readouterr().err


def test_norms_of_eagle_3_1_are_computed(world: World) -> None:
    """As speculators 0.9 trains by default. First steps: test_convert_speculators; here what is fed back, by hand."""
    folder = Folder.open(world.run / "export")
    width = folder.tensors["fc.weight"].shape[1]
    generator = torch.Generator().manual_seed(3)
    norms = {"input_norm.weight": 1 + torch.rand(width, generator=generator)}
    changed = Folder(folder.path, {**folder.config, "norm_before_fc": True, "norm_output": True}, {**folder.tensors, **norms})
    drafter, plain = load_plain(changed, world.target, TAPS), load_plain(folder, world.target, TAPS)
    assert isinstance(drafter, Eagle3Drafter) and isinstance(plain, Eagle3Drafter)
    features = torch.randn(1, 6, width, generator=generator)
    tokens, row = torch.randint(VOCAB, (1, 8), generator=generator), torch.tensor([[5]])
    rollout = Rollout(drafter, features, tokens[:, 1:7], row)
    rolled = [drafter.head(rollout.step(tokens[:, 6 + k : 7 + k])) for k in range(2)]
    scaled = features * torch.rsqrt(features.square().mean(-1, keepdim=True) + drafter.shape.rms_norm_eps) * norms["input_norm.weight"]
    again = Rollout(plain, scaled, tokens[:, 1:7], row)
    first = again.step(tokens[:, 6:7])
    again.state_BAD = plain.norm(first)
    assert torch.allclose(rolled[0], plain.head(first), atol=1e-5)
    assert torch.allclose(rolled[1], plain.head(again.step(tokens[:, 7:8])), atol=1e-5)
    unchanged = plain.rollout(features, tokens, row, 2)
    assert all(float((a - b).abs().max()) > 1e-3 for a, b in zip(rolled, unchanged, strict=True)), "the norms change the network"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_hidden_layers": 2}, "it has 2 layers"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "its rotary embedding is scaled (llama3)"),
        ({"hidden_act": "gelu"}, "its activation is gelu"),
        ({"layer_types": ["sliding_attention"]}, "a sliding window"),
        ({"vocab_size": 99}, "its vocabulary has 99 tokens, the target's 24"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "its class is Eagle3DeepseekV2ForCausalLM"),
        ({"quantization_config": {"quant_method": "fp8"}}, "it is quantised"),
    ],
)
def test_another_network_is_refused_with_the_reason(world: World, change: dict[str, Any], says: str) -> None:
    folder = Folder.open(world.run / "export")
    with pytest.raises(CheckFailed, match="cannot be replayed") as caught:
        load_plain(Folder(folder.path, {**folder.config, **change}, folder.tensors), world.target, TAPS)
    assert says in caught.value.message


def test_quantised_weights_are_refused(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = foreign(world, "vllm", tmp_path / "q")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "fc.weight_scale": torch.ones(1)}, folder / "model.safetensors", metadata={"format": "pt"})
    assert "quantised drafter" in refused(world, folder, tmp_path, capsys)


def test_another_targets_drafter_is_refused(world: World) -> None:
    folder = Folder.open(world.run / "export")
    with pytest.raises(CheckFailed, match=r"fc\.weight takes 96 values per token, 2 taps of this target give 64"):
        load_plain(folder, world.target, TAPS[:2])


def test_a_borrowed_head_is_the_targets(world: World) -> None:
    folder = Folder.open(world.run / "export")
    tensors = {name: value for name, value in folder.tensors.items() if name not in ("lm_head.weight", "d2t", "t2d")}
    config = {**folder.config, "draft_vocab_size": None}
    drafter = load_plain(Folder(folder.path, config, tensors), world.target, TAPS)
    assert isinstance(drafter, Eagle3Drafter)
    assert torch.equal(drafter.lm_head.weight, world.target.head_VH) and drafter.target_ids_W.tolist() == list(range(VOCAB))


def test_speculators_own_logits_are_reached_with_its_switch(tmp_path: Path) -> None:
    """norm_before_residual, against the draft logits that speculators 0.9.0 computed (tests/golden/speculators)."""
    spec = importlib.util.spec_from_file_location("make_speculators", GOLDEN / "make.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    maker.prepare(tmp_path)
    inputs = maker.inputs()
    answers = json.loads((GOLDEN / "0.9.0.json").read_text())["cases"]
    config, tensors = read(tmp_path / "sources" / "eagle3_norm_before_residual")
    assert config["norm_before_residual"] is True
    target: Any = SimpleNamespace(
        config=SimpleNamespace(vocab_size=V, hidden_size=H, max_position_embeddings=256),
        embedding_VH=inputs["embedding"],
        head_VH=torch.zeros(V, H),
    )
    for switch, case in ((True, "eagle3_norm_before_residual"), (False, "eagle3_vllm")):
        drafter = load_plain(Folder(tmp_path, {**config, "norm_before_residual": switch}, tensors), target, (3, 6, 11))
        assert isinstance(drafter, Eagle3Drafter)
        tokens = torch.cat([torch.zeros(1, 1, dtype=torch.int64), inputs["next_ids"]], 1)
        features = torch.cat([inputs["features"], torch.zeros(1, 1, 3 * H)], 1)
        ours = drafter.draft_logits(features, tokens)[0]
        theirs = torch.tensor(answers[case]["loaded"]["logits"])
        assert torch.allclose(ours, theirs, atol=2e-4), (case, float((ours - theirs).abs().max()))
