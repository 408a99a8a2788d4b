"""verify wiring: faults in a few rows, which medians over all rows forgive; scaled tensors; correct wiring over many draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from test_verify_wiring import DTYPES, LENGTHS, TAPS, WHO, everywhere, ids, one, rows_of, served_in, states, told
from torch import Tensor

from draftsmith.verify.wiring.features import TOLERANCES, Rows, look
from draftsmith.verify.wiring.run import candidates
from draftsmith.verify.wiring.words import findings_of, store_findings
from tiny import VOCAB

ANSWER = 4  # tokens at the end of each request: 12 of 91 rows


@pytest.fixture(params=list(DTYPES))
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


def behind(dtype: str, wrong: Sequence[Rows]) -> list[Rows]:
    """Right rows of the prompts and wrong ones of the answers."""
    requests = []
    for right, other in zip(rows_of(served_in(dtype), states(dtype), TAPS), wrong, strict=True):
        end = len(right.features_TF) - ANSWER
        requests.append(replace(right, features_TF=torch.cat([right.features_TF[:end], other.features_TF[end:]]), num_prompt=end))
    return requests


@pytest.mark.parametrize(
    ("taps", "shift", "code", "says"),
    [
        (TAPS, -1, "DS906", "in 12 of 91 rows, all behind the prompt (the first: row 35 of request 1), the feature of token p -1"),
        (TAPS, 1, "DS906", "the feature of token p +1 is in the place of token p's"),
        ((2, 4, 6), 0, "DS901", "in 12 of 91 rows, all behind the prompt (the first: row 35 of request 1), every tap is one layer late"),
        ((0, 2, 4), 0, "DS901", "every tap is one layer early"),
        ((5, 1, 3), 0, "DS905", "in 12 of 91 rows, all behind the prompt (the first: row 35 of request 1), the values are no state"),
    ],
)
def test_a_fault_in_the_rows_of_answers_alone_is_named(
    dtype: str,
    taps: tuple[int, ...],
    shift: int,
    code: str,
    says: str,
) -> None:
    wrong = rows_of(served_in(dtype), states(dtype), taps, shift)
    finding = one(told(behind(dtype, wrong), dtype))
    assert (finding.code, finding.severity) == (code, "error") and says in finding.evidence, finding.evidence


def test_one_row_with_the_feature_of_another_token_is_named(dtype: str) -> None:
    """The last row of the prompt, which an engine fills when the first token has been sampled."""
    requests = rows_of(served_in(dtype), states(dtype), TAPS)
    requests[0].features_TF[35] = requests[0].features_TF[34].clone()
    finding = one(told([replace(request, num_prompt=36) for request in requests], dtype))
    assert finding.code == "DS906" and "in 1 of 91 rows, all of the prompt (the first: row 35 of request 1)" in finding.evidence


def test_a_single_row_of_nowhere_is_no_fault(dtype: str) -> None:
    """A router that chose another expert at a near-tie does that."""
    requests = rows_of(served_in(dtype), states(dtype), TAPS)
    requests[0].features_TF[20] *= 1.5
    assert told(requests, dtype) == []


def test_two_kinds_of_strays_are_two_findings(dtype: str) -> None:
    requests = behind(dtype, rows_of(served_in(dtype), states(dtype), TAPS, -1))
    requests[1] = behind(dtype, rows_of(served_in(dtype), states(dtype), (2, 4, 6)))[1]
    findings = told(requests, dtype)
    assert [finding.code for finding in findings] == ["DS906", "DS901"]
    assert "in 8 of 91 rows" in findings[0].evidence and "in 4 of 91 rows" in findings[1].evidence


def test_a_store_with_stray_rows_is_named(dtype: str) -> None:
    rows = behind(dtype, rows_of(served_in(dtype), states(dtype), TAPS, -1))
    store = [replace(request, input_ids_T=None, positions_T=None, num_prompt=None) for request in rows]
    finding = one(store_findings(look(store, TAPS, TOLERANCES[dtype])))
    assert finding.code == "DS909" and "in 12 of 91 rows (the first: row 35 of request 1)" in finding.evidence


@pytest.mark.parametrize(
    ("trained", "place", "factor", "says"),
    [
        ((0, 3, 5), 0, 32**0.5, "tap 1 is boundary 0 times 5.66"),  # an embedding scale that one of both leaves out, or applies twice
        ((0, 3, 5), 0, 32**-0.5, "tap 1 is boundary 0 times 0.177"),
        (TAPS, 1, 2.0, "tap 2 is boundary 3 times 2"),
    ],
)
def test_a_scaled_tensor_is_named(dtype: str, trained: tuple[int, ...], place: int, factor: float, says: str) -> None:
    def scale(state_TJH: Tensor) -> Tensor:
        state_TJH = state_TJH.clone()
        state_TJH[:, trained[place]] *= factor
        return state_TJH

    served = [scale(state) for state in served_in(dtype)]
    finding = one(told(rows_of(served, states(dtype), trained), dtype, trained, trained))
    assert finding.code == "DS905" and says in finding.evidence, finding.evidence


DISTURB: dict[str, Callable[[Tensor], Tensor]] = {
    "float32": lambda state: state * (1 + 1e-6 * torch.randn_like(state)),
    "float16": lambda state: state.half(),
    "bfloat16": lambda state: (state * (1 + 0.01 * torch.randn_like(state))).to(torch.bfloat16),
}


@pytest.mark.parametrize("kind", DISTURB)
def test_correct_wiring_is_never_accused(kind: str) -> None:
    """Thirty draws of texts and noise, with repeated tokens among them, whose neighbours hold almost the same states."""
    torch.manual_seed(0)
    target = everywhere("float32")
    for draw in range(30):
        text = [torch.randint(3, VOCAB, (length,)).tolist() for length in LENGTHS]
        text[0][10:16] = [text[0][10]] * 6
        requests = []
        for tokens in text:
            mine = candidates(target, tokens)
            features = DISTURB[kind](mine[:, list(TAPS)]).flatten(1)[: len(tokens) - 1]
            positions = torch.arange(len(tokens) - 1)
            requests.append(Rows(tokens, features, mine, torch.tensor(tokens[1:]), positions, num_prompt=len(tokens) - ANSWER))
        wiring = look(requests, TAPS, TOLERANCES[kind])
        assert findings_of(wiring, WHO, ids(TAPS, TAPS)) == [], draw
        assert wiring.strays == ()
