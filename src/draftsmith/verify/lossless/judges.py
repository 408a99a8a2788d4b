"""Who says how far two tokens lie apart: the local target, or the baseline server by its log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from draftsmith.measure.messages import Request
from draftsmith.measure.prompts import Prompt
from draftsmith.models.target import Target
from draftsmith.verify.lossless.sides import Document, Key, Remote, Spoken, request_for, spoken_of, with_logprobs
from draftsmith.verify.sequences import Answer, Divergence

MOST, FEWEST = 20, 5  # log-probabilities asked for at a position; some servers give no more than the smaller number
AT_ONCE = 4


class LocalJudge:
    """The unmodified target in float32."""

    name = "the local target in float32"

    def __init__(self, target: Target) -> None:
        self.target = target

    def gaps(self, parted: Sequence[Divergence], expected: Sequence[Answer], served: Sequence[Answer], limit: float) -> list[float]:
        """Exact, whatever the limit."""
        from draftsmith.verify.reference import last_logits, logit_gap

        by_id = {answer.id: answer for answer in expected}
        prefixes = [[*by_id[d.id].prompt, *by_id[d.id].tokens[: d.position]] for d in parted]
        return [logit_gap(logits_V, d.reference, d.served) for d, logits_V in zip(parted, last_logits(self.target, prefixes), strict=True)]


class ServerJudge:
    """The baseline: asked for the next token after the common prefix, or, where prompts have no token ids, for the whole answer again."""

    name = "log-probabilities of the baseline"

    def __init__(self, baseline: Remote, prompts: Sequence[Prompt]) -> None:
        self.baseline = baseline
        self.prompts = {prompt.id: prompt for prompt in prompts}
        self.count = MOST
        self.asked = 0

    def gaps(self, parted: Sequence[Divergence], expected: Sequence[Answer], served: Sequence[Answer], limit: float) -> list[float]:
        """nan where the server tells no log-probabilities, or too few."""
        left, right = ({answer.id: answer for answer in side} for side in (expected, served))
        by_prefix = [d for d in parted if left[d.id].prompt]
        by_answer = [d for d in parted if not left[d.id].prompt]
        found: dict[str, float] = {}
        for d, document in zip(by_prefix, self.ask([self.after(d, left[d.id]) for d in by_prefix]), strict=True):
            spoken = spoken_of(document)
            found[d.id] = gap(spoken[0], (d.reference, d.served), limit) if spoken else math.nan
        again = [request_for(self.prompts[d.id], len(left[d.id].tokens)) for d in by_answer]
        for d, document in zip(by_answer, self.ask(again), strict=True):
            found[d.id] = gap_in_answer(spoken_of(document) or [], d, left[d.id], right[d.id], limit)
        return [found[d.id] for d in parted]

    def after(self, divergence: Divergence, answer: Answer) -> Request:
        """One more token after the common prefix."""
        prefix = (*answer.prompt, *answer.tokens[: divergence.position])
        return Request(divergence.id, prefix, 1, ignore_eos=True)

    def ask(self, requests: Sequence[Request]) -> list[Document]:
        if not requests:
            return []
        self.asked += 1
        label = f"gaps-{self.asked}"
        found = self.documents(requests, label)
        if self.count == MOST and all(document.status == 400 for document in found):
            self.count = FEWEST
            found = self.documents(requests, label)
        return found

    def documents(self, requests: Sequence[Request], label: str) -> list[Document]:
        asked = [with_logprobs(request, self.baseline.endpoint, self.count) for request in requests]
        return self.baseline.documents(asked, AT_ONCE, label)


def gap(spoken: Spoken, tokens: Sequence[Key | None], limit: float) -> float:
    """Best log-probability minus the worse of the two tokens'; inf for a token that is missing.

    A token that is not among those told is worse than all of them; when that alone is above `limit` it is the answer, else nan is.
    """
    if any(token is None for token in tokens):
        return math.inf
    told = {**spoken.top, spoken.key: spoken.logprob}
    best, worst_told = max(told.values()), min(told.values())
    known = [told[token] for token in tokens if token in told]
    if len(known) == len(tokens):
        return best - min(known)
    return best - worst_told if best - worst_told >= limit else math.nan


def gap_in_answer(spoken: Sequence[Spoken], divergence: Divergence, reference: Answer, served: Answer, limit: float) -> float:
    """The gap from the whole answer said again with log-probabilities; nan when it is another answer this time."""
    if spoken and all(isinstance(token.key, int) for token in spoken):
        keys = [token.key for token in spoken]
        if keys[: divergence.position + 1] == list(reference.tokens[: divergence.position + 1]):
            return gap(spoken[divergence.position], (divergence.reference, divergence.served), limit)
    return gap_in_text(spoken, divergence.position, text_of(reference), text_of(served), limit)


def text_of(answer: Answer) -> str:
    """The text of an answer that is kept as code points; "" when some token cannot be one."""
    return "".join(map(chr, answer.tokens)) if all(token < 0x110000 for token in answer.tokens) else ""


def gap_in_text(spoken: Sequence[Spoken], position: int, reference: str, served: str, limit: float) -> float:
    """The same by text: the token that covers the first differing character, and the likeliest one that the other text goes on with."""
    start = 0
    for token in spoken:
        piece = str(token.key)
        if not reference.startswith(piece, start):
            return math.nan
        if start + len(piece) > position:
            other = continuation({**token.top, token.key: token.logprob}, served[start:])
            return math.nan if other is None else gap(token, (token.key, other), limit)
        start += len(piece)
    return math.nan


def continuation(told: Mapping[Key, float], text: str) -> Key | None:
    """The longest told token with which `text` begins."""
    fitting = [key for key in told if key != "" and text.startswith(str(key))]
    return max(fitting, key=lambda key: len(str(key)), default=None)
