"""How a wave is asked of each engine, and what a chunk of its stream says: one POST with all prompts, streamed side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from draftsmith.engines.registry import ENGINES
from draftsmith.measure.endpoints import STREAM_OPTIONS

Prompts = Sequence[Sequence[int]]


class Seen(NamedTuple):
    """One chunk. tokens: of this answer so far; ids: new ones, or all of them; meta: what the engine tells of the request."""

    index: int
    tokens: int
    ids: Sequence[int] = ()
    meta: Mapping[str, Any] = {}


class Form(Protocol):
    """One engine's way. by_counters: rounds are in the server's counters, not in the replies."""

    path: ClassVar[str]
    by_counters: ClassVar[bool]

    def body(self, prompts: Prompts, tokens: int, stream_step: int) -> dict[str, Any]:
        """Every answer has exactly `tokens` tokens; a chunk for every `stream_step` of them, where a request can ask for that."""
        ...

    def read(self, chunk: Mapping[str, Any]) -> Seen | None:
        """None for a chunk that belongs to no answer."""
        ...


class SGLangForm:
    """The native API; each answer's meta_info tells its own rounds."""

    path: ClassVar[str] = "/generate"
    by_counters: ClassVar[bool] = False

    def body(self, prompts: Prompts, tokens: int, stream_step: int) -> dict[str, Any]:
        sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True, "stream_interval": stream_step}
        return {"input_ids": [list(prompt) for prompt in prompts], "sampling_params": sampling, "stream": True}

    def read(self, chunk: Mapping[str, Any]) -> Seen | None:
        meta = chunk["meta_info"]
        return Seen(chunk.get("index", 0), meta["completion_tokens"], chunk.get("output_ids", ()), meta)


class VLLMForm:
    """/v1/completions; usage in every chunk is that of its own answer. How many tokens a chunk waits for is a flag of the server
    (--stream-interval)."""

    path: ClassVar[str] = "/v1/completions"
    by_counters: ClassVar[bool] = True

    def __init__(self, model: str) -> None:
        self.model = model

    def body(self, prompts: Prompts, tokens: int, stream_step: int) -> dict[str, Any]:
        asked = {"model": self.model, "prompt": [list(prompt) for prompt in prompts], "max_tokens": tokens, "temperature": 0.0}
        return {**asked, "ignore_eos": True, "return_token_ids": True, "stream": True, "stream_options": STREAM_OPTIONS}

    def read(self, chunk: Mapping[str, Any]) -> Seen | None:
        choice = next(iter(chunk.get("choices") or ()), None)
        if choice is None or not chunk.get("usage"):
            return None
        return Seen(choice["index"], chunk["usage"]["completion_tokens"], choice.get("token_ids") or ())


FORMS: dict[str, Form] = {"sglang": SGLangForm(), "vllm": VLLMForm(ENGINES["vllm"].served_model)}
