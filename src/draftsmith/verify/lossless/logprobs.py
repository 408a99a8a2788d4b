"""The probe of log-probabilities: present for every token, not shifted, the baseline's values within rounding, and greedy tokens the best.

How far the baseline's own values move when it is asked again, alone, is one measure of rounding, but too small a one: a verify step
multiplies other shapes by other kernels than a decode step. Seen in SGLang 0.5.17 in bfloat16, right by every other part of the audit: 95 %
within 0.060 nats, the baseline's own within 0.007. So half of the audit's near-tie is allowed too, and a tenth of it in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftsmith.measure.endpoints import endpoint_named
from draftsmith.measure.messages import BrokenReply
from draftsmith.verify.lossless.probes import Bench, Result, failed, refusals
from draftsmith.verify.lossless.sides import Document, Remote, Spoken, request_for, spoken_of, with_logprobs

NAME, PROMPTS, TOP = "logprobs", 6, 5
LEAST, FACTOR = 0.05, 4.0  # nats: values may differ by FACTOR times the baseline's own 95 % difference, and by LEAST at any rate
HIGH, MIDDLE = 0.5, 0.1  # of the near-tie: what 95 % of the values may differ by, and half of them
BEST = 1e-3  # nats by which a greedy token may lie below its own server's best

Values = list[tuple[list[Spoken], int]]  # per prompt: what was told, and the tokens that usage counts


def probe_logprobs(bench: Bench) -> Result:
    """Ask both servers for the log-probabilities of a few greedy answers, the baseline twice."""
    prompts = bench.prompts[:PROMPTS]
    tokens = min(bench.audit.output_tokens, 64)
    found: dict[str, list[Document]] = {}
    for side in bench.sides:
        found[side.name] = side.documents([with_logprobs(request_for(p, tokens), side.endpoint, TOP) for p in prompts], len(prompts), NAME)
    if refused := refusals(NAME, "DS706", found):
        return refused
    told = {side.name: values_of(side, found[side.name]) for side in bench.sides}
    if silent := [side for side, values in told.items() if values is None]:
        return Result(NAME, "not offered", f"{' and '.join(silent)}: the reply has no log-probabilities")
    ours = told["speculative"] or []
    numbers: dict[str, Any] = {"tokens": sum(len(spoken) for spoken, _ in ours)}
    missing = sum(len(spoken) != count for spoken, count in ours)
    if missing and not sum(len(spoken) != count for spoken, count in told.get("baseline") or ()):
        return failed(
            NAME, "DS706", f"{missing} of {len(ours)} replies have not one value for each token", "values fit no token", **numbers
        )
    theirs = told.get("baseline")
    below = {side: not_best(values or []) for side, values in told.items()}
    numbers["below_own_best"] = below
    if below["speculative"] and not below.get("baseline"):
        evidence = f"{below['speculative']} of {numbers['tokens']} greedy tokens are not the best by the server's own log-probabilities"
        return failed(NAME, "DS706", evidence, "values of other tokens are told, or other tokens are accepted than the best", **numbers)
    if bench.a is None or theirs is None:
        return Result(NAME, "passed", f"{numbers['tokens']} tokens have a value, and each is the best", numbers=numbers)
    requests = [with_logprobs(request_for(p, tokens), bench.a.endpoint, TOP) for p in prompts]
    again = values_of(bench.a, bench.a.documents(requests, 1, f"{NAME}-again")) or []
    return agreement(theirs, again, ours, bench.audit.near_tie, numbers)


def values_of(side: Remote, documents: Sequence[Document]) -> Values | None:
    """What each reply tells; None when one tells nothing."""
    found: Values = []
    for document in documents:
        spoken = spoken_of(document) if document.ok else None
        if spoken is None:
            return None
        found.append((spoken, counted(side, document.body)))
    return found


def counted(side: Remote, body: Mapping[str, Any]) -> int:
    """Tokens by the reply's usage."""
    try:
        return endpoint_named(side.endpoint).read(body).tokens or 0
    except BrokenReply:
        return 0


def not_best(values: Values) -> int:
    """Greedy tokens whose own server tells a better one."""
    return sum(max(token.top.values(), default=token.logprob) - token.logprob > BEST for spoken, _ in values for token in spoken)


def differences(reference: Values, served: Values, shift: int = 0) -> list[float]:
    """|value - value| of each token on the common prefix; shift: the served value is taken so many tokens later."""
    found = []
    for (a, _), (b, _) in zip(reference, served, strict=True):
        for place, (left, right) in enumerate(zip(a, b, strict=False)):
            if left.key != right.key:
                break
            if 0 <= place + shift < len(b):
                found.append(abs(left.logprob - b[place + shift].logprob))
    return [value for value in found if not math.isnan(value)]


def agreement(theirs: Values, again: Values, ours: Values, near_tie: float, numbers: dict[str, Any]) -> Result:
    """Are the speculative server's values the baseline's, up to rounding? near_tie: logits."""
    own, served = differences(theirs, again), differences(theirs, ours)
    if not served:
        return Result(NAME, "inconclusive", "the answers have no common beginning", numbers=numbers)
    moves = (float(np.median(own)), float(np.quantile(own, 0.95))) if own else (0.0, 0.0)
    limit, inner = max(LEAST, HIGH * near_tie, FACTOR * moves[1]), max(LEAST, MIDDLE * near_tie, FACTOR * moves[0])
    middle, high = float(np.median(served)), float(np.quantile(served, 0.95))
    numbers |= {"compared": len(served), "median": middle, "q95": high, "largest": max(served), "limit": limit, "median_limit": inner}
    numbers["baseline_q95"] = moves[1] if own else None
    if high <= limit and middle <= inner:
        return Result(NAME, "passed", f"{len(served)} values agree, 95 % within {high:.2g} nats (limit {limit:.2g})", numbers=numbers)
    for shift in (-1, 1):
        moved = differences(theirs, ours, shift)
        if moved and float(np.quantile(moved, 0.9)) <= limit:
            evidence = f"the values are those of the token {'before' if shift > 0 else 'after'}: shifted by one ({len(moved)} compared)"
            return failed(NAME, "DS706", evidence, "log-probabilities belong to other tokens", **numbers)
    evidence = (
        f"values differ by {middle:.2g} nats in the middle, {high:.2g} at 95 % (limits {inner:.2g}, {limit:.2g}; {len(served)} tokens)"
    )
    return failed(NAME, "DS706", evidence, "log-probabilities are not the target's", **numbers)
