"""The local target as the baseline of an audit: it answers the same requests, greedy and sampled. Suffixes: B rows, T tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from draftsmith.job import Talk
from draftsmith.measure.messages import Reply, Request
from draftsmith.models.target import Target

ROWS = 32  # answers that are made side by side


class LocalSide:
    """The unmodified target, through transformers' own generate. name: how findings call it."""

    name = "local"

    def __init__(self, target: Target, talk: Talk, seed: int = 0) -> None:
        self.target, self.talk = target, talk
        self.seed = seed

    def replies(self, requests: Sequence[Request], concurrency: int, label: str) -> list[Reply]:
        """Answers in the order of the requests. Those with the same settings and prompt length are made side by side."""
        torch.manual_seed(self.seed)
        started, found = time.monotonic(), {}
        order = sorted(range(len(requests)), key=lambda place: self.kind(requests[place]))
        for _, same in groupby(order, key=lambda place: self.kind(requests[place])):
            places = list(same)
            for start in range(0, len(places), ROWS):
                part = places[start : start + ROWS]
                found |= zip(part, self.generate([requests[place] for place in part]), strict=True)
                self.talk.progress(f"{label}, {self.name}", len(found), len(requests), started)
        return [found[place] for place in range(len(requests))]

    def kind(self, request: Request) -> tuple[Any, ...]:
        """What requests must share to be rows of one batch."""
        return (len(request.prompt_token_ids), request.max_tokens, request.temperature, request.top_p, request.extra.get("top_k", -1))

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        from transformers import GenerationConfig

        first = requests[0]
        assert first.prompt_token_ids, "the local target answers token ids only"
        ids_BT = torch.tensor([list(request.prompt_token_ids) for request in requests])
        ends = self.ends()
        sampled = {"do_sample": True, "temperature": first.temperature, "top_p": first.top_p, "top_k": max(0, first.extra.get("top_k", -1))}
        config = GenerationConfig(
            max_new_tokens=first.max_tokens,
            eos_token_id=ends or None,
            pad_token_id=0,
            **(sampled if first.temperature else {"do_sample": False}),
        )
        out_BT = self.target.model.generate(ids_BT, attention_mask=torch.ones_like(ids_BT), generation_config=config)
        return [reply_of(request, row[ids_BT.shape[1] :].tolist(), ends) for request, row in zip(requests, out_BT, strict=True)]

    def ends(self) -> list[int]:
        """Tokens that end an answer, as the engines read them: generation_config, else config."""
        own = getattr(self.target.model, "generation_config", None)
        found = getattr(own, "eos_token_id", None)
        found = self.target.config.eos_token_id if found is None else found
        return [] if found is None else [found] if isinstance(found, int) else list(found)


def reply_of(request: Request, tokens: list[int], ends: Sequence[int]) -> Reply:
    """The answer up to and with its end; what follows is padding."""
    end = next((place for place, token in enumerate(tokens) if token in ends), None)
    if end is not None:
        tokens = tokens[: end + 1]
    reason = "length" if end is None else "stop"
    return Reply(request.id, True, completion_tokens=len(tokens), finish_reason=reason, token_ids=tuple(tokens), category=request.category)
