"""convert against speculators 0.9.0: what its own loader made of our folders, its own converter of the same sources, and the draft logits
of its model, in tests/golden/speculators/0.9.0.json (made by make.py there).

DRAFTSMITH_SPECULATORS_PYTHON=PYTHON asks a real installation again; environment.py there makes one in half a minute.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from convert_folders import H, V, read
from torch import Tensor

from draftsmith.convert.drafter import flatten
from draftsmith.models.checkpoint import load_strictly, shape_from_config
from draftsmith.models.eagle3 import Eagle3Drafter

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "speculators"
ANSWERS: dict[str, Any] = json.loads((GOLDEN / "0.9.0.json").read_text())["cases"]
FILLED = {"verifier_lm_head.weight", "verifier_norm.weight", "embed_tokens.weight"}  # from the target, when it loads
# what its own converter writes otherwise, and why ours is right
DIFFERENT = {
    "eagle3_vllm": {"layer.rope_parameters"},  # it reads rope_theta only and falls back to 10000 when a config has rope_parameters
    "eagle3_norm_before_residual": {"layer.rope_parameters"},
    "dflash_zlab": {"sliding_window_non_causal"},  # false, which vLLM takes as: causal in every layer; full layers look both ways
}


def maker() -> ModuleType:
    """tests/golden/speculators/make.py."""
    spec = importlib.util.spec_from_file_location("make_speculators", GOLDEN / "make.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources and what convert makes of them today."""
    folder = tmp_path_factory.mktemp("speculators")
    maker().prepare(folder)
    return folder


def digest(tensor: Tensor) -> str:
    value = tensor.float() if tensor.is_floating_point() else tensor
    return f"{list(tensor.shape)} {hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()[:16]}"


@pytest.mark.parametrize("case", ANSWERS)
def test_its_loader_finds_every_tensor_and_field_where_we_put_it(case: str, root: Path) -> None:
    config, tensors = read(root / "converted" / case)
    answer = ANSWERS[case]["loaded"]
    assert answer["class"] == config["architectures"][0] and answer["unset"] == []
    mine = {name: digest(value) for name, value in tensors.items()}
    loaded = answer["tensors"]
    filled = FILLED | ({"lm_head.weight"} if case.startswith("d") else set())
    assert set(answer["filled"]) <= filled and loaded.keys() == mine.keys()
    overwritten = filled if case == "dspark" else set()  # a full head and embedding are always the target's
    assert {name: loaded.get(name) for name in mine if name not in overwritten} == {n: d for n, d in mine.items() if n not in overwritten}
    flat = flatten(config)
    for name, value in answer["config"].items():
        if name != "layer":
            assert flat[name] == value, name
    layer = {name: value for name, value in answer["config"]["layer"].items() if value is not None}
    if "layer_types" not in config["transformer_layer_config"]:  # the class of a Qwen3 layer fills it in
        assert set(layer.pop("layer_types", ["full_attention"])) == {"full_attention"}
    assert {name: config["transformer_layer_config"][name] for name in layer} == layer


@pytest.mark.parametrize("case", [case for case in ANSWERS if "own" in ANSWERS[case]])
def test_its_converter_agrees(case: str, root: Path) -> None:
    """Tensors without exception; config fields but for the named differences, which are faults of the other."""
    _, tensors = read(root / "converted" / case)
    own = ANSWERS[case]["own"]
    assert {name: digest(value) for name, value in tensors.items()} == own["tensors"]
    ours = flatten_answer(ANSWERS[case]["loaded"]["config"])
    theirs = flatten_answer(own["config"])
    assert {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)} == DIFFERENT.get(case, set())


def flatten_answer(config: dict[str, Any]) -> dict[str, Any]:
    return {**{k: v for k, v in config.items() if k != "layer"}, **{f"layer.{k}": v for k, v in config["layer"].items()}}


@pytest.mark.parametrize("case", ["eagle3_sglang", "eagle3_vllm", "variant_norms", "variant_before_fc", "variant_full"])
def test_its_model_computes_what_ours_does(case: str, root: Path) -> None:
    """First-step draft logits of its network on our converted folder against our reference on the source."""
    config, tensors = read(root / "sources" / case)
    reference = Eagle3Drafter(shape_from_config({"rope_theta": 1000.0, **config}))
    reference.add_norms(*(bool(config.get(name)) for name in ("norm_before_fc", "fc_norm", "norm_output")))
    if "d2t" not in tensors:
        tensors |= {"d2t": torch.zeros(V, dtype=torch.int64), "t2d": torch.ones(V, dtype=torch.bool)}
    drafter = load_strictly(reference, tensors, root).float()
    inputs = maker().inputs()
    drafter.set_embedding(inputs["embedding"])
    tokens = torch.cat([torch.zeros(1, 1, dtype=torch.int64), inputs["next_ids"]], 1)
    features = torch.cat([inputs["features"], torch.zeros(1, 1, 3 * H)], 1)
    ours = drafter.draft_logits(features, tokens)[0].detach()
    theirs = torch.tensor(ANSWERS[case]["loaded"]["logits"])
    assert float(theirs.std()) > 0.1 and torch.allclose(ours, theirs, atol=2e-4), float((ours - theirs).abs().max())


def test_the_switch_changes_its_network() -> None:
    """norm_before_residual is another network, not another spelling: the same weights give other logits."""
    plain, switched = (torch.tensor(ANSWERS[case]["loaded"]["logits"]) for case in ("eagle3_vllm", "eagle3_norm_before_residual"))
    assert float((plain - switched).abs().max()) > 0.1


@pytest.mark.skipif("DRAFTSMITH_SPECULATORS_PYTHON" not in os.environ, reason="speculators is not installed; the golden answers stand in")
def test_a_real_installation_still_answers_so(tmp_path: Path) -> None:
    answers = maker().ask(os.environ["DRAFTSMITH_SPECULATORS_PYTHON"], tmp_path)
    assert answers["cases"].keys() == ANSWERS.keys()
    for case, answer in answers["cases"].items():
        logits, golden = answer["loaded"].pop("logits", None), dict(ANSWERS[case]["loaded"])
        expected = golden.pop("logits", None)
        assert answer["loaded"] == golden and answer.get("own") == ANSWERS[case].get("own"), case
        assert (logits is None) == (expected is None)
        assert logits is None or torch.allclose(torch.tensor(logits), torch.tensor(expected), atol=1e-4)
