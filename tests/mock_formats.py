"""How the mock server says the same answer at each endpoint: the shapes that vLLM and SGLang send."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mock_server import Behaviour


@dataclass
class Moment:
    """Where an answer is: tokens `old` to `new` of `ids` are in this chunk."""

    behaviour: Behaviour
    body: dict[str, Any]
    ids: list[int]
    reason: str
    fault: str
    old: int = 0
    new: int = 0
    histogram: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.histogram:
            self.histogram = [0] * (self.behaviour.depth + 1)

    def at(self, old: int, new: int) -> Moment:
        moment = replace(self, old=old, new=new)
        moment.histogram = self.histogram
        return moment

    @property
    def last(self) -> str | None:
        """The finish reason, in the chunk with the last token."""
        return self.reason if self.old < self.new == len(self.ids) else None

    @property
    def shown(self) -> list[int]:
        """The token ids that this chunk shows."""
        if self.fault == "buffered":
            return self.ids if self.last else []
        return self.ids[self.old + 1 : self.new] if self.fault == "lost_ids" and self.old == 0 else self.ids[self.old : self.new]

    def usage(self) -> dict[str, Any]:
        count = self.new
        if self.fault == "shrinking_usage" and self.new > len(self.ids) // 2:
            count -= 2
        if self.fault == "too_many":
            count += 100
        prompt = len(self.body["prompt"]) - (1 if self.fault == "prompt_cut" else 0)
        counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        if self.behaviour.thinking:
            thought = count + 7 if self.fault == "more_reasoning" else min(count, self.behaviour.thinking)
            counts["completion_tokens_details"] = {"reasoning_tokens": thought}
        return counts

    def usage_now(self) -> dict[str, Any]:
        return {} if self.fault in ("no_usage", "trailing_usage") else {"usage": self.usage()}


def text_of(ids: list[int]) -> str:
    return "".join(f" …{i}" for i in ids)


class CompletionsFormat:
    """/v1/completions of vLLM."""

    @staticmethod
    def normal(body: dict[str, Any]) -> dict[str, Any]:
        return body

    @staticmethod
    def chunk(moment: Moment) -> dict[str, Any]:
        choice = {"index": 0, "text": text_of(moment.shown), "token_ids": moment.shown, "finish_reason": moment.last}
        return {"choices": [choice], **moment.usage_now()}

    @classmethod
    def whole(cls, moment: Moment) -> dict[str, Any]:
        return cls.chunk(moment)

    @staticmethod
    def trailing(moment: Moment) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        if moment.behaviour.accepted:
            rounds = sum(moment.histogram)
            extra = {"metrics": {"speculative_decoding": {"acceptance_histogram": moment.histogram, "num_spec_steps": rounds}}}
        return {"choices": [], "usage": moment.usage(), **extra}


class ChatFormat:
    """/v1/chat/completions of vLLM with a reasoning parser. The content of the message is its token ids, for the mock's sake."""

    @staticmethod
    def normal(body: dict[str, Any]) -> dict[str, Any]:
        prompt = [int(word) for word in re.findall(r"\d+", body["messages"][-1]["content"])]
        return {**body, "prompt": prompt or [1]}

    @staticmethod
    def parts(moment: Moment) -> dict[str, Any]:
        """vLLM's name is `reasoning`, that of SGLang and older versions `reasoning_content`."""
        border = min(max(moment.behaviour.thinking - moment.old, 0), len(moment.shown))
        thought, said = moment.shown[:border], moment.shown[border:]
        name = "reasoning" if moment.ids[0] % 2 else "reasoning_content"
        return {name: text_of(thought)} | ({"content": text_of(said)} if said or not thought else {})

    @classmethod
    def chunk(cls, moment: Moment) -> dict[str, Any]:
        choice = {"index": 0, "delta": cls.parts(moment), "token_ids": moment.shown, "finish_reason": moment.last}
        return {"choices": [choice], **moment.usage_now()}

    @classmethod
    def whole(cls, moment: Moment) -> dict[str, Any]:
        choice = {"index": 0, "message": cls.parts(moment), "token_ids": moment.shown, "finish_reason": moment.last}
        return {"choices": [choice], **moment.usage_now()}

    @staticmethod
    def trailing(moment: Moment) -> dict[str, Any]:
        return {"choices": [], "usage": moment.usage()}


class GenerateFormat:
    """/generate of SGLang."""

    @staticmethod
    def normal(body: dict[str, Any]) -> dict[str, Any]:
        params = body["sampling_params"]
        prompt = body.get("input_ids") or list(body["text"].encode())
        names = {"prompt": prompt, "max_tokens": params["max_new_tokens"], "ignore_eos": params["ignore_eos"]}
        return {**body, **names}

    @staticmethod
    def chunk(moment: Moment) -> dict[str, Any]:
        shown = moment.shown if moment.behaviour.increments else moment.ids[: moment.new]
        reason = {"type": moment.last, "message": "out of memory"} if moment.last else None
        meta: dict[str, Any] = {"id": "r", "finish_reason": reason, "cached_tokens": 1}
        if moment.fault != "no_usage":
            meta |= {"prompt_tokens": moment.usage()["prompt_tokens"], "completion_tokens": moment.usage()["completion_tokens"]}
        if moment.last and moment.behaviour.accepted:
            rounds, histogram = moment.behaviour.spec_names
            meta |= {rounds: sum(moment.histogram)} if rounds else {}
            deepest = max((i for i, n in enumerate(moment.histogram) if n), default=0)
            meta |= {histogram: moment.histogram[: deepest + 1]} if histogram else {}
        return {"text": text_of(shown), "output_ids": shown, "meta_info": meta}

    @classmethod
    def whole(cls, moment: Moment) -> dict[str, Any]:
        return cls.chunk(moment)

    @staticmethod
    def trailing(moment: Moment) -> dict[str, Any] | None:
        return None


FORMATS: dict[str, Any] = {
    "/v1/completions": CompletionsFormat,
    "/v1/chat/completions": ChatFormat,
    "/generate": GenerateFormat,
}
