"""verify wiring: each known mistake is planted in features of a real forward pass and named; correct wiring is never accused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from draftsmith.errors import InvalidMeasurement
from draftsmith.findings import Finding
from draftsmith.models.taps import KEY
from draftsmith.models.target import Target
from draftsmith.verify.wiring.features import TOLERANCES, Rows, look
from draftsmith.verify.wiring.ids import Ids
from draftsmith.verify.wiring.run import candidates
from draftsmith.verify.wiring.words import findings_of, store_findings
from tiny import LAYERS, VOCAB, tiny_target

torch.set_num_threads(1)
TAPS = (1, 3, 5)
LENGTHS = (40, 23, 31)  # tokens of the requests
WHO = "vllm 0.32.0"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def texts(vocabulary: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(3, vocabulary, (length,), generator=generator).tolist() for length in LENGTHS]


def everywhere(dtype: str) -> Target:
    """The tiny target with taps at every boundary; its weights are what bfloat16 holds exactly, as published ones are."""
    model = tiny_target(torch.bfloat16).model.to(DTYPES[dtype])
    return Target(model, range(LAYERS + 1))


@cache
def states(dtype: str) -> list[Tensor]:
    """Candidates [T, N + 2, H] of the tiny target in that dtype."""
    target = everywhere(dtype)
    return [candidates(target, text) for text in texts(VOCAB)]


def rows_of(served: Sequence[Tensor], ours: Sequence[Tensor], taps: Sequence[int], shift: int = 0) -> list[Rows]:
    """Requests whose row p has the served features of token p + shift at `taps`, the next token's embedding, and position p."""
    requests = []
    for text, mine, theirs in zip(texts(VOCAB), ours, served, strict=True):
        features_TF = theirs[:, list(taps)].flatten(1).roll(-shift, 0)[: len(text) - 1]
        requests.append(Rows(text, features_TF, mine, torch.tensor(text[1:]), torch.arange(len(text) - 1)))
    return requests


def ids(trained: Sequence[int], written: Sequence[int] | None) -> Ids:
    """For an engine whose ids are boundaries, and whose default is 2, 3, 4."""
    read = (2, 3, 4) if written is None else tuple(written)
    return Ids(KEY, None if written is None else tuple(written), read, tuple(trained))


def told(requests: Sequence[Rows], dtype: str, trained: Sequence[int] = TAPS, written: Sequence[int] | None = TAPS) -> list[Finding]:
    return findings_of(look(requests, trained, TOLERANCES[dtype]), WHO, ids(trained, written))


def one(findings: Sequence[Finding]) -> Finding:
    assert len(findings) == 1, [finding.line() for finding in findings]
    return findings[0]


@pytest.fixture(params=list(DTYPES))
def dtype(request: pytest.FixtureRequest) -> str:
    """Of the served features and of our own pass."""
    return request.param


def served_in(dtype: str) -> list[Tensor]:
    """What another engine would have: in bfloat16 the same pass, rounded elsewhere (float32 inside, rounded at the end)."""
    return [state.to(DTYPES[dtype]) for state in states("float32")]


@pytest.mark.parametrize("trained", [(1, 3, 5), (0, 2, 4), (2, 3, LAYERS), (4,), (0, 1, 2, 3, 4, 5, 6)])
def test_correct_wiring_is_not_accused(dtype: str, trained: tuple[int, ...]) -> None:
    requests = rows_of(served_in(dtype), states(dtype), trained)
    wiring = look(requests, trained, TOLERANCES[dtype])
    assert findings_of(wiring, WHO, ids(trained, trained)) == []
    assert all(tap.kind == "right" for tap in wiring.taps)
    assert (wiring.feature_shift, wiring.token_shift, wiring.token_share, wiring.position_offset) == (0, 1, 1.0, 0)
    if dtype == "bfloat16":
        assert max(tap.error for tap in wiring.taps) > TOLERANCES["float32"]  # the noise is there, and is forgiven


@pytest.mark.parametrize(
    ("passed", "trained", "written", "code", "says", "fix"),
    [
        ((1, 4, 5), (1, 3, 5), (1, 4, 5), "DS901", "tap 2 is one layer late", "write [1, 3, 5]"),
        ((0, 2, 4), (1, 3, 5), (1, 3, 5), "DS901", "every tap is one layer early", "write [2, 4, 6]"),
        ((2, 4, 6), (1, 3, 5), (1, 3, 5), "DS901", "every tap is one layer late", "write [0, 2, 4]"),
        ((1, 2, 6), (1, 3, 5), (1, 3, 5), "DS901", "tap 2 is one layer early, tap 3 is one layer late", "did not follow"),
        ((2, 3, 4), (1, 3, 5), None, "DS901", "passes [2, 3, 4]", f"write [1, 3, 5] under {KEY}"),
        ((1, 3, 5), (0, 1, 3), (1, 3, 5), "DS904", "one entry late", "write [0, 1, 3]"),
        ((0, 1, 3), (1, 3, 5), (0, 1, 3), "DS904", "one entry early", "write [1, 3, 5]"),
        ((1, 3), (1, 3, 5), (1, 3), "DS904", "concatenates 2 tensors", "write [1, 3, 5]"),
        ((1, 3, 5, 6), (1, 3, 5), (1, 3, 5), "DS904", "concatenates 4 tensors", "write [1, 3, 5]"),
        ((1, 5, 3), (1, 3, 5), (1, 3, 5), "DS903", "[1, 5, 3] instead of [1, 3, 5]", "did not follow"),
        (
            (1, 3, LAYERS + 1),
            (1, 3, LAYERS),
            (1, 3, LAYERS),
            "DS902",
            "tap 3 of vllm 0.32.0 is the last hidden state AFTER",
            "leave boundary 6",
        ),
    ],
)
def test_each_wrong_tap_is_named(
    dtype: str, passed: tuple[int, ...], trained: tuple[int, ...], written: tuple[int, ...] | None, code: str, says: str, fix: str
) -> None:
    finding = one(told(rows_of(served_in(dtype), states(dtype), passed), dtype, trained, written))
    assert (finding.code, finding.severity) == (code, "error")
    assert says in finding.evidence, finding.evidence
    assert fix in finding.fix, finding.fix


def test_a_slid_list_names_the_missing_embedding(dtype: str) -> None:
    """The costliest one: trained on the embedding and two layers, served three layers."""
    finding = one(told(rows_of(served_in(dtype), states(dtype), (2, 4, 6)), dtype, (0, 2, 4), (2, 4, 6)))
    assert finding.code == "DS904" and "the embedding output is missing" in finding.evidence


def test_ids_that_are_right_already_are_not_advised_again(dtype: str) -> None:
    """The engine would have to be asked for layer -1: nothing that one can write."""
    finding = one(told(rows_of(served_in(dtype), states(dtype), (1, 2, 3)), dtype, (0, 1, 2), (0, 1, 2)))
    assert "write [-1" not in finding.fix, finding.fix


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_shift_of_the_features_is_named(dtype: str, shift: int) -> None:
    finding = one(told(rows_of(served_in(dtype), states(dtype), TAPS, shift), dtype))
    assert finding.code == "DS906" and f"token p {shift:+d}" in finding.evidence


def test_a_shift_of_the_embeddings_is_named(dtype: str) -> None:
    requests = rows_of(served_in(dtype), states(dtype), TAPS)
    own = [replace(request, input_ids_T=torch.tensor(request.tokens[:-1])) for request in requests]
    finding = one(told(own, dtype))
    assert finding.code == "DS907" and "token p +0 instead of p + 1" in finding.evidence


def test_one_wrong_embedding_is_named(dtype: str) -> None:
    """The last row of a prompt is the one that engines have got wrong: it needs the token just sampled."""
    requests = rows_of(served_in(dtype), states(dtype), TAPS)
    assert requests[0].input_ids_T is not None
    requests[0].input_ids_T[20] = 0
    finding = one(told(requests, dtype))
    assert finding.code == "DS907" and "98.9 % of 91 rows" in finding.evidence


@pytest.mark.parametrize(("factor", "offset", "says"), [(1, 1, "start at 1 instead of 0"), (0, 0, "not numbered one by one")])
def test_positions_are_looked_at(dtype: str, factor: int, offset: int, says: str) -> None:
    requests = rows_of(served_in(dtype), states(dtype), TAPS)
    moved = [replace(request, positions_T=torch.arange(len(request.features_TF)) * factor + offset) for request in requests]
    finding = one(told(moved, dtype))
    assert finding.code == "DS908" and says in finding.evidence


def stale(dtype: str, by: float) -> list[Tensor]:
    """States of the same target after a little more training: every matrix moved by a share of its size."""
    target = everywhere(dtype)
    generator = torch.Generator().manual_seed(9)
    for parameter in target.model.parameters():
        if parameter.ndim == 2:
            noise = torch.randn(parameter.shape, generator=generator) * parameter.float().std() * by
            parameter.data += noise.to(parameter.dtype)
    return [candidates(target, text) for text in texts(VOCAB)]


def test_another_revision_of_the_target_is_named(dtype: str) -> None:
    finding = one(told(rows_of(stale(dtype, 0.1), states(dtype), TAPS), dtype))
    assert (finding.code, finding.severity) == ("DS905", "error")
    assert "taps the trained boundaries, but the values are not this target's" in finding.evidence


def test_a_little_more_than_rounding_is_a_doubt_and_no_fault(dtype: str) -> None:
    """Targets deeper than those that the tolerances were measured on may round more."""
    scaled = [state * (1 + 2 * TOLERANCES[dtype]) for state in states(dtype)]
    finding = one(told(rows_of(scaled, states(dtype), TAPS), dtype))
    assert (finding.code, finding.severity) == ("DS905", "warning")
    store = store_findings(look(rows_of(scaled, states(dtype), TAPS), TAPS, TOLERANCES[dtype]))
    assert (one(store).code, one(store).severity) == ("DS909", "warning")


def test_a_doubt_hides_no_fault(dtype: str) -> None:
    scaled = [state * (1 + 2 * TOLERANCES[dtype]) for state in states(dtype)]
    findings = told(rows_of(scaled, states(dtype), (1, 4, 5)), dtype, written=(1, 4, 5))
    assert [(finding.code, finding.severity) for finding in findings] == [("DS905", "warning"), ("DS901", "error")]
    assert "tap 2 is one layer late" in findings[1].evidence


def test_values_of_nowhere_are_not_given_a_layer(dtype: str) -> None:
    finding = one(told(rows_of([torch.randn_like(state) for state in served_in(dtype)], states(dtype), TAPS), dtype))
    assert finding.code == "DS905" and "no boundary of this target" in finding.evidence


def test_nan_fits_nothing() -> None:
    requests = rows_of([torch.full_like(state, float("nan")) for state in states("float32")], states("float32"), TAPS)
    assert one(told(requests, "float32")).code == "DS905"


def test_a_stale_store_is_named_and_a_fresh_one_is_not(dtype: str) -> None:
    def store(held: Sequence[Tensor]) -> list[Finding]:
        rows = [replace(request, input_ids_T=None, positions_T=None) for request in rows_of(held, states(dtype), TAPS)]
        return store_findings(look(rows, TAPS, TOLERANCES[dtype]))

    assert store(served_in(dtype)) == []
    assert one(store(stale(dtype, 0.1))).code == "DS909"


def test_what_cannot_be_judged_is_refused() -> None:
    requests = rows_of(states("float32"), states("float32"), TAPS)
    with pytest.raises(InvalidMeasurement, match="at least 16"):
        look([replace(requests[0], features_TF=requests[0].features_TF[:9])], TAPS, TOLERANCES["float32"])
    with pytest.raises(InvalidMeasurement, match="no multiple of the target's width"):
        look([replace(request, features_TF=request.features_TF[:, :-1]) for request in requests], TAPS, TOLERANCES["float32"])
