"""verify, part 1: the export's ledger, its vocabulary maps and its logits, with planted faults."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from verify_world import DRAFT_VOCAB, TAPS, make_drafter, make_target, prompts, save_target

from draftsmith.findings import Finding
from draftsmith.models.eagle3 import Eagle3Drafter
from draftsmith.models.target import Target
from draftsmith.verify.exported import compare, folder_findings, largest_difference, vocabulary_findings
from draftsmith.verify.reference import features


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return make_target(save_target(tmp_path_factory.mktemp("target")))


@pytest.fixture
def trained(target: Target) -> Eagle3Drafter:
    return make_drafter(target)


def write_export(folder: Path, drafter: Eagle3Drafter, dtype: torch.dtype = torch.bfloat16, **config: Any) -> Path:
    """An export folder as the format describes it, written by hand."""
    tensors = {name: value.to(dtype) if value.is_floating_point() else value for name, value in drafter.state_dict().items()}
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    shape = drafter.shape
    content = {
        "hidden_size": shape.hidden_size,
        "target_hidden_size": shape.target_hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocab_size,
        "draft_vocab_size": shape.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(TAPS),
        **config,
    }
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def change(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace (None: remove) tensors of an export."""
    tensors = load_file(folder / "model.safetensors")
    for name, value in changes.items():
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    save_file(tensors, folder / "model.safetensors")


def test_a_good_folder_has_no_findings(tmp_path: Path, trained: Eagle3Drafter) -> None:
    tensors, findings = folder_findings(write_export(tmp_path, trained), TAPS)
    assert findings == [] and tensors is not None and tensors.dtypes["fc.weight"] == "BF16"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lm_head.weight": None}, ["DS601"]),
        ({"d2t": None}, ["DS601"]),
        ({"embed_tokens.weight": torch.zeros(2)}, ["DS602"]),
        ({"norm.weight": torch.zeros(31, dtype=torch.bfloat16)}, ["DS603"]),
        ({"norm.weight": torch.zeros(32)}, ["DS604"]),
    ],
)
def test_every_key_is_accounted_for(tmp_path: Path, trained: Eagle3Drafter, changes: dict[str, Any], expected: list[str]) -> None:
    write_export(tmp_path, trained)
    change(tmp_path, **changes)
    assert set(expected) <= set(codes(folder_findings(tmp_path, TAPS)[1]))


def test_other_taps_in_the_config_are_found(tmp_path: Path, trained: Eagle3Drafter) -> None:
    write_export(tmp_path, trained, eagle_aux_hidden_state_layer_ids=[1, 3, 4])
    assert codes(folder_findings(tmp_path, TAPS)[1]) == ["DS606"]


def test_a_damaged_or_absent_folder_is_one_finding(tmp_path: Path, trained: Eagle3Drafter) -> None:
    assert codes(folder_findings(tmp_path, TAPS)[1]) == ["DS600"]
    path = write_export(tmp_path, trained) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert codes(folder_findings(tmp_path, TAPS)[1]) == ["DS600"]


# --- vocabulary ------------------------------------------------------------------------------------------------------


def test_the_vocabulary_of_a_good_drafter(trained: Eagle3Drafter) -> None:
    assert vocabulary_findings(trained.d2t, trained.t2d, trained.target_ids_W) == []


def shifted(trained: Eagle3Drafter) -> tuple[torch.Tensor, torch.Tensor]:
    """Another draft vocabulary, consistent in itself."""
    other = copy.deepcopy(trained)
    unused = next(token for token in range(len(trained.t2d)) if not trained.t2d[token])
    other.set_vocabulary(torch.cat([trained.target_ids_W[1:], torch.tensor([unused])]).sort().values)
    return other.d2t, other.t2d


def test_wrong_maps_are_found(trained: Eagle3Drafter) -> None:
    d2t, t2d, ids = trained.d2t, trained.t2d, trained.target_ids_W
    swapped = d2t.clone()
    swapped[3] += 1
    marked = t2d.clone()
    marked[ids[0]] = False
    absolute = ids.clone()  # target ids stored where offsets belong
    wrong = [(swapped, t2d), (d2t, marked), (absolute, t2d), (d2t.int(), t2d), (d2t - 100, t2d), shifted(trained)]
    for maps in wrong:
        assert codes(vocabulary_findings(*maps, ids)), maps


# --- logits ----------------------------------------------------------------------------------------------------------


def loaded(folder: Path, target: Target) -> Eagle3Drafter:
    """The export read back, without the project's loader."""
    drafter = make_drafter(target, seed=99)
    drafter.load_state_dict(load_file(folder / "model.safetensors"))
    return drafter


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_exported_equals_trained_exactly(tmp_path: Path, target: Target, trained: Eagle3Drafter, dtype: torch.dtype) -> None:
    rows = prompts(3)
    name = {torch.bfloat16: "BF16", torch.float32: "F32"}[dtype]
    exported = loaded(write_export(tmp_path, trained, dtype), target)
    found = compare(exported, trained, name, rows, features(target, rows))
    assert found.equal and found.max_abs_logit_diff == 0.0 and found.tokens == sum(len(row) for row in rows)
    assert (found.max_abs_rounding_diff > 0) == (dtype == torch.bfloat16)


def test_one_changed_weight_is_found(tmp_path: Path, target: Target, trained: Eagle3Drafter) -> None:
    rows = prompts(3)
    write_export(tmp_path, trained)
    weight = load_file(tmp_path / "model.safetensors")["midlayer.mlp.up_proj.weight"]
    weight[5, 7] += weight[5, 7].abs() * 2**-7  # one unit in the last place of bf16
    change(tmp_path, **{"midlayer.mlp.up_proj.weight": weight})
    found = compare(loaded(tmp_path, target), trained, "BF16", rows, features(target, rows))
    assert not found.equal and found.max_abs_logit_diff > 0


def test_nan_never_passes_as_equal() -> None:
    nan = torch.full((2, DRAFT_VOCAB), float("nan"))
    assert largest_difference([nan], [nan]) == float("inf")
    assert largest_difference([torch.ones(2)], [torch.ones(2)]) == 0.0
