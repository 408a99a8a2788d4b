"""Which hidden states does the drafter really get? Pure: features as served, and what the target has at every boundary of the same tokens.

Shapes: T rows of one request, K taps, H target width, J = N + 2 candidates: boundary 0..N, then boundary N after the final norm.
Row p holds the feature of token p; a drafter of the EAGLE family reads it beside the embedding of token p + 1, at position p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from draftsmith.errors import InvalidMeasurement
from draftsmith.verify.wiring.rows import Strays, strays_of

OTHER_SHIFTS = (-1, 1)  # of tokens, tried when nothing fits at 0
MIN_ROWS = 16
DOUBTFUL = 3  # so many times the tolerance may still be rounding, in a target deeper than those it was measured on
Kind = Literal["right", "doubtful", "other", "unknown"]  # the trained boundary, that with more than rounding, another one, none
HOPELESS = 1e9  # the relative error of what is no number, or has nothing to be compared with
# largest median relative error of features that are the same but for rounding; SmolLM2: 0.011 in bfloat16, the next boundary is 0.19 away
TOLERANCES = {"float32": 2e-3, "float16": 1e-2, "bfloat16": 3e-2}


@dataclass(frozen=True)
class Rows:
    """One request: what the drafter was given, and the target's own states of the same tokens."""

    tokens: Sequence[int]  # T + 1 or more: every row has a next token
    features_TF: Tensor
    candidates_TJH: Tensor
    input_ids_T: Tensor | None = None  # None: features without their partners, as in a store
    positions_T: Tensor | None = None
    num_prompt: int | None = None  # rows from here on are of the answer


@dataclass(frozen=True)
class Tap:
    """One of the concatenated tensors. Candidates are numbered as in `Rows`; errors are medians of the rows' relative errors."""

    expected: int | None  # boundary; None: the drafter was trained on fewer tensors
    nearest: int
    error: float  # against the nearest
    cosine: float
    expected_error: float
    kind: Kind
    scale: float | None = None  # of a tensor that is the expected one but for this factor


@dataclass(frozen=True)
class Wiring:
    """What was found. feature_shift: row p holds the feature of token p + shift (right: 0). None: not looked at, or nothing fits."""

    taps: tuple[Tap, ...]
    trained: tuple[int, ...]
    num_layers: int
    tolerance: float
    rows: int
    feature_shift: int
    token_shift: int | None  # row p meets the embedding of token p + shift (right: 1)
    token_share: float | None  # of the rows, for that shift
    position_offset: int | None  # row p sits at position p + offset (right: 0)
    positions_seen: bool
    strays: tuple[Strays, ...] = ()  # rows that do not hold what the others hold; looked for where those are right

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def look(requests: Sequence[Rows], trained: Sequence[int], tolerance: float) -> Wiring:
    """Find what each tensor is, which token it is of, which embedding it meets and where it sits.

    trained: the boundaries that the drafter was trained on. tolerance: see TOLERANCES. Raises InvalidMeasurement for too few rows, or
    features whose width is no multiple of the target's.
    """
    hidden = requests[0].candidates_TJH.shape[-1]
    width = requests[0].features_TF.shape[-1]
    rows = sum(len(request.features_TF) for request in requests)
    if rows < MIN_ROWS:
        raise InvalidMeasurement(f"{rows} rows of features, at least {MIN_ROWS} are needed", hint="use longer or more prompts")
    if width % hidden:
        raise InvalidMeasurement(
            f"the drafter gets {width} values per token, which is no multiple of the target's width {hidden}",
            hint="is this the drafter's target? compare target_hidden_size in its config.json",
        )
    shift, errors_KJ, cosines_KJ = best_shift(requests, width // hidden, tolerance)
    taps = tuple(read_tap(errors_KJ[k], cosines_KJ[k], trained[k] if k < len(trained) else None, tolerance) for k in range(len(errors_KJ)))
    right = shift == 0 and len(taps) == len(trained) and all(tap.kind in ("right", "doubtful") for tap in taps)
    token_shift, share = token_alignment(requests)
    return Wiring(
        taps=tuple(scaled(tap, k, requests, len(taps), tolerance) for k, tap in enumerate(taps)),
        trained=tuple(trained),
        num_layers=requests[0].candidates_TJH.shape[1] - 2,
        tolerance=tolerance,
        rows=rows,
        feature_shift=shift,
        token_shift=token_shift,
        token_share=share,
        position_offset=position_offset(requests),
        positions_seen=requests[0].positions_T is not None,
        strays=strays_of(requests, trained, DOUBTFUL * tolerance) if right else (),
    )


def best_shift(requests: Sequence[Rows], num_taps: int, limit: float) -> tuple[int, Tensor, Tensor]:
    """(shift, errors, cosines). Another token's features are believed only where every tensor fits there, and not here."""
    here = distances(requests, num_taps, 0)
    for shift in (0, *OTHER_SHIFTS):
        errors_KJ, cosines_KJ = distances(requests, num_taps, shift) if shift else here
        if float(errors_KJ.min(1).values.max()) <= limit:
            return shift, errors_KJ, cosines_KJ
    return 0, *here


def distances(requests: Sequence[Rows], num_taps: int, shift: int) -> tuple[Tensor, Tensor]:
    """(median relative error, median cosine), both [K, J], of row p against the candidates of token p + shift.

    Medians over all rows: the first token's huge activations, and a row that a near-tie changed, do not decide.
    """
    count = requests[0].candidates_TJH.shape[1]
    errors: list[Tensor] = []
    cosines: list[Tensor] = []
    for request in requests:
        served_TKH = request.features_TF.float().unflatten(-1, (num_taps, -1))
        first, end = max(0, -shift), min(len(served_TKH), len(request.candidates_TJH) - shift)
        served_TKH = served_TKH[first:end]
        candidates_TJH = request.candidates_TJH[first + shift : end + shift]
        pairs = [compare(served_TKH, candidates_TJH[:, j].float()) for j in range(count)]
        errors.append(torch.stack([error for error, _ in pairs], -1))
        cosines.append(torch.stack([cosine for _, cosine in pairs], -1))
    return torch.cat(errors).median(0).values, torch.cat(cosines).median(0).values


def compare(served_TKH: Tensor, candidate_TH: Tensor) -> tuple[Tensor, Tensor]:
    """Relative error and cosine [T, K] of every tap against one candidate. What is no number is hopelessly wrong."""
    wanted_T1H = candidate_TH[:, None]
    error_TK = (served_TKH - wanted_T1H).norm(dim=-1) / wanted_T1H.norm(dim=-1).clamp_min(1e-20)
    cosine_TK = torch.nn.functional.cosine_similarity(served_TKH, wanted_T1H, dim=-1)
    return error_TK.nan_to_num(nan=HOPELESS, posinf=HOPELESS), cosine_TK.nan_to_num(nan=0.0)


def read_tap(errors_J: Tensor, cosines_J: Tensor, expected: int | None, limit: float) -> Tap:
    """What one tensor is. The expected candidate is taken when it fits and none fits twice as well (deep targets change slowly)."""
    nearest = int(errors_J.argmin())
    error = float(errors_J[nearest])
    expected_error = HOPELESS if expected is None else float(errors_J[expected])
    kind: Kind = "other" if nearest != expected and error <= DOUBTFUL * limit else "unknown"
    if expected is not None and expected_error <= min(DOUBTFUL * limit, max(2 * error, 1e-6)):
        nearest, error, kind = expected, expected_error, "right" if expected_error <= limit else "doubtful"
    return Tap(expected, nearest, error, float(cosines_J[nearest]), expected_error, kind)


def scaled(tap: Tap, place: int, requests: Sequence[Rows], num_taps: int, limit: float) -> Tap:
    """The tap with its factor, where it is none of the candidates, and the expected one times one number."""
    if tap.kind != "unknown" or tap.expected is None:
        return tap
    served = [request.features_TF.float().unflatten(-1, (num_taps, -1))[:, place] for request in requests]
    served_TH = torch.cat(served)
    wanted = [request.candidates_TJH[: len(rows), tap.expected] for rows, request in zip(served, requests, strict=True)]
    wanted_TH = torch.cat(wanted).float()
    ratio_T = (served_TH * wanted_TH).sum(-1) / wanted_TH.square().sum(-1).clamp_min(1e-20)
    factor = float(ratio_T.nan_to_num().median())
    error_T1, _ = compare(served_TH[:, None], factor * wanted_TH)
    return replace(tap, scale=factor) if float(error_T1.median()) <= DOUBTFUL * limit else tap


def token_alignment(requests: Sequence[Rows]) -> tuple[int | None, float | None]:
    """The shift at which the most rows meet the embedding of token p + shift, and their share; shift None when fewer than half do."""
    if requests[0].input_ids_T is None:
        return None, None
    shares = {}
    for shift in (1, 0, 2, -1):
        same, of = 0, 0
        for request in requests:
            assert request.input_ids_T is not None
            ids, tokens = request.input_ids_T.tolist(), request.tokens
            pairs = [(ids[p], tokens[p + shift]) for p in range(len(ids)) if 0 <= p + shift < len(tokens)]
            same, of = same + sum(a == b for a, b in pairs), of + len(pairs)
        shares[shift] = same / of
    best = max(shares, key=lambda shift: shares[shift])
    return (best if shares[best] >= 0.5 else None), shares[best]


def position_offset(requests: Sequence[Rows]) -> int | None:
    """The one offset of all positions; None when they are not numbered one by one."""
    offsets = {
        int(offset)
        for request in requests
        if request.positions_T is not None
        for offset in request.positions_T - torch.arange(len(request.positions_T))
    }
    return offsets.pop() if len(offsets) == 1 else None
