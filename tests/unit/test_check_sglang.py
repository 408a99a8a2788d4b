"""SGLang's steps/topk/draft-tokens rules: golden cases and a brute-force count of tree nodes."""

from __future__ import annotations

import pytest
from packaging.version import Version

from draftsmith.check.sglang import Triple, automatic, candidates, resolve

AUTO = Triple(5, 4, 8)


@pytest.mark.parametrize(
    ("asked", "effective", "expected"),
    [
        ((3, 1, 4), Triple(3, 1, 4), []),
        ((4, 1, 24), Triple(4, 1, 5), [("DS412", "error")]),
        ((4, 1, None), Triple(4, 1, 5), [("DS412", "warning")]),
        ((4, 1, 4), Triple(4, 1, 5), [("DS412", "warning")]),
        ((1, 1, 16), Triple(1, 1, 2), [("DS412", "error")]),
        ((5, 4, 8), Triple(5, 4, 8), []),
        ((None, None, None), AUTO, [("DS414", "warning")]),
        ((None, 4, None), None, [("DS411", "error")]),
        ((None, None, 8), None, [("DS411", "error")]),
        ((3, None, None), None, [("DS411", "error")]),
        ((3, None, 4), None, [("DS411", "error")]),
        ((3, 4, None), Triple(3, 4, None), [("DS411", "error")]),
        ((0, 1, 1), Triple(0, 1, 1), [("DS411", "error")]),
        ((2, 2, 7), Triple(2, 2, 7), []),
        ((2, 2, 8), Triple(2, 2, 8), [("DS413", "error")]),
        ((2, 2, 1), Triple(2, 2, 1), [("DS413", "error")]),
    ],
)
def test_triples(asked: tuple[int | None, int | None, int | None], effective: Triple | None, expected: list[tuple[str, str]]) -> None:
    found, findings = resolve(*asked, chosen=AUTO)
    assert found == effective
    assert [(finding.code, finding.severity) for finding in findings] == expected


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("topk", [1, 2, 4])
def test_candidates_count_the_nodes_of_the_beam(steps: int, topk: int) -> None:
    nodes, beam = 0, 1
    for _ in range(steps):
        nodes += beam * topk  # every node of the beam proposes topk children
        beam = topk  # and the best topk of them go on
    assert candidates(steps, topk) == nodes


@pytest.mark.parametrize(
    ("architecture", "version", "expected"),
    [
        ("LlamaForCausalLM", "0.5.23", Triple(5, 4, 8)),
        ("Grok1ForCausalLM", "0.5.23", Triple(5, 4, 8)),
        ("Qwen3ForCausalLM", "0.5.7", Triple(5, 4, 8)),
        ("Qwen3ForCausalLM", "0.5.8", Triple(3, 1, 4)),
        ("DeepseekV3ForCausalLM", "0.5.3", Triple(3, 1, 4)),
        ("Glm4MoeForCausalLM", "0.5.6", Triple(5, 4, 8)),
        ("Glm4MoeForCausalLM", "0.5.7", Triple(3, 1, 4)),
    ],
)
def test_automatic_choice(architecture: str, version: str, expected: Triple) -> None:
    assert automatic(architecture, Version(version)) == expected


def test_a_draft_model_is_always_a_chain() -> None:
    assert automatic("LlamaForCausalLM", Version("0.5.23"), "STANDALONE") == Triple(3, 1, 4)
