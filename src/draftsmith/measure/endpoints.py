"""The endpoints that can be asked: how a request becomes a body, and what a chunk of the answer says.

Read in the engines' sources (vLLM 0.32, SGLang 0.5.9 and 0.5.23). Per-request acceptance, as a histogram whose index is the number
of accepted drafts: vLLM >= 0.30 `metrics.speculative_decoding` (server flag --per-request-spec-decode-metrics); SGLang meta_info
(native) or sglext.spec_tokens_details (OpenAI routes, >= 0.5.19), under a name that changed twice. Absent is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Protocol

from draftsmith.errors import UsageError
from draftsmith.measure.messages import BrokenReply, Piece, Request, error_text

HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram", "acceptance_histogram")
ROUNDS = ("spec_verify_ct", "num_spec_steps")
ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts")
NOTHING: Mapping[str, Any] = {}
STREAM_OPTIONS = {"include_usage": True, "continuous_usage_stats": True}


class Endpoint(Protocol):
    """One way of asking a server."""

    name: ClassVar[str]
    path: ClassVar[str]

    def payload(self, request: Request, model: str) -> dict[str, Any]:
        """The body. Raises UsageError for a prompt that this endpoint cannot take."""
        ...

    def read(self, chunk: Mapping[str, Any]) -> Piece:
        """What a chunk (or a whole reply) says. Raises BrokenReply for an error object."""
        ...


def rounds_from(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """{"rounds", "reached"} as far as they are known; {} without speculation. The histogram ends at the deepest round seen."""
    if not found:
        return {}
    for name in HISTOGRAMS:
        if histogram := found.get(name):
            tails = list(accumulate(reversed(histogram)))[::-1]  # tails[i] = rounds that accepted at least i drafts
            return {"rounds": tails[0], "reached": tuple(tails[1:])}
    rounds = next((found[name] for name in ROUNDS if found.get(name)), None)
    return {} if rounds is None else {"rounds": rounds}


def accept_len_of(found: Mapping[str, Any] | None, tokens: int) -> float | None:
    """Tokens per round of one request with `tokens` output tokens, bonus included; None without speculation. A server that tells rounds
    only leaves it to the tokens, of which the first came from the prefill."""
    told = rounds_from(found)
    if found is None or not told:
        return None
    by_tokens = sum(told["reached"]) if "reached" in told else tokens - 1 - told["rounds"]
    accepted = next((found[name] for name in ACCEPTED if found.get(name) is not None), by_tokens)
    return 1 + accepted / told["rounds"]


def sampling(request: Request) -> dict[str, Any]:
    """The fields that both OpenAI endpoints share."""
    body: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "ignore_eos": request.ignore_eos,
        "return_token_ids": True,
        "stream": request.stream,
    }
    if request.stream:
        body["stream_options"] = STREAM_OPTIONS
    if request.seed is not None:
        body["seed"] = request.seed
    if request.stop:
        body["stop"] = list(request.stop)
    return body | dict(request.extra)


def told_rounds(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """Acceptance of this request, where an OpenAI chunk tells it."""
    if metrics := chunk.get("metrics"):
        return rounds_from(metrics.get("speculative_decoding"))
    if extension := chunk.get("sglext"):
        found = extension.get("spec_tokens_details")
        return rounds_from(found[0] if isinstance(found, list) else found)  # a list when several choices were asked for
    return NOTHING


def refuse_messages_only(request: Request) -> None:
    """Raises UsageError where only a chat endpoint could render the prompt."""
    if not request.prompt_token_ids and not request.text:
        raise UsageError(f"request {request.id} has messages only", hint="use the chat endpoint, or render the prompts first")


class Completions:
    """POST /v1/completions: token ids or text in, text and token ids out."""

    name: ClassVar[str] = "completions"
    path: ClassVar[str] = "/v1/completions"

    def payload(self, request: Request, model: str) -> dict[str, Any]:
        refuse_messages_only(request)
        return {"model": model, "prompt": request.prompt_token_ids or request.text, **sampling(request)}

    def read(self, chunk: Mapping[str, Any]) -> Piece:
        if "error" in chunk:
            raise BrokenReply(f"server error: {error_text(chunk['error'])}")
        usage = chunk.get("usage") or NOTHING
        for choice in chunk.get("choices") or ():
            text, ids, reason = choice.get("text") or "", choice.get("token_ids") or (), choice.get("finish_reason") or ""
            return Piece(usage.get("completion_tokens"), text, True, ids, False, reason, told_rounds(chunk), usage)
        return Piece(usage.get("completion_tokens"), details=told_rounds(chunk), usage=usage)


class Chat:
    """POST /v1/chat/completions: messages in; reasoning and content apart where the server has a reasoning parser."""

    name: ClassVar[str] = "chat"
    path: ClassVar[str] = "/v1/chat/completions"

    def payload(self, request: Request, model: str) -> dict[str, Any]:
        if request.messages:
            messages: Sequence[Mapping[str, str]] = request.messages
        elif request.text:
            messages = [{"role": "user", "content": request.text}]
        else:
            raise UsageError(f"request {request.id} has token ids only", hint="use the completions endpoint, or prompts with messages")
        return {"model": model, "messages": list(messages), **sampling(request)}

    def read(self, chunk: Mapping[str, Any]) -> Piece:
        if "error" in chunk:
            raise BrokenReply(f"server error: {error_text(chunk['error'])}")
        usage = chunk.get("usage") or NOTHING
        for choice in chunk.get("choices") or ():
            said = choice.get("delta") or choice.get("message") or {}
            content = said.get("content") or ""
            thought = said.get("reasoning") or said.get("reasoning_content") or ""
            output = bool(content or said.get("tool_calls"))
            ids, reason = choice.get("token_ids") or (), choice.get("finish_reason") or ""
            tokens = usage.get("completion_tokens")
            return Piece(tokens, thought + content, output, ids, False, reason, told_rounds(chunk), usage, bool(thought))
        return Piece(usage.get("completion_tokens"), output=False, details=told_rounds(chunk), usage=usage)


class Generate:
    """SGLang's native POST /generate: token ids in, meta_info out. Chunks hold everything so far unless the server streams increments."""

    name: ClassVar[str] = "generate"
    path: ClassVar[str] = "/generate"

    def payload(self, request: Request, model: str) -> dict[str, Any]:
        refuse_messages_only(request)
        params: dict[str, Any] = {
            "max_new_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "ignore_eos": request.ignore_eos,
        }
        if request.seed is not None:
            params["sampling_seed"] = request.seed
        if request.stop:
            params["stop"] = list(request.stop)
        prompt = {"input_ids": request.prompt_token_ids} if request.prompt_token_ids else {"text": request.text}
        extra = dict(request.extra)
        params |= extra.pop("sampling_params", {})
        return {**prompt, "sampling_params": params, "stream": request.stream, **extra}

    def read(self, chunk: Mapping[str, Any]) -> Piece:
        if "error" in chunk:
            raise BrokenReply(f"server error: {error_text(chunk['error'])}")
        meta = chunk.get("meta_info") or {}
        details = {name: meta[name] for name in ("prompt_tokens", "cached_tokens", "reasoning_tokens") if meta.get(name) is not None}
        details.update(rounds_from(meta))
        reason = meta.get("finish_reason") or ""
        if isinstance(reason, dict):
            if reason.get("type") == "abort":
                raise BrokenReply(f"server error: aborted: {error_text(reason)}")
            reason = reason.get("type", "")
        tokens, ids = meta.get("completion_tokens"), chunk.get("output_ids") or ()
        whole = not ids or len(ids) == tokens  # SGLang's default; with --incremental-streaming-output only the first chunk is
        return Piece(tokens, chunk.get("text") or "", True, ids, whole, reason, details)


ENDPOINTS: dict[str, Endpoint] = {endpoint.name: endpoint for endpoint in (Completions(), Chat(), Generate())}


def endpoint_named(name: str) -> Endpoint:
    """Raises UsageError for an unknown name."""
    if name not in ENDPOINTS:
        raise UsageError(f"there is no endpoint {name!r}", hint=f"expected one of {', '.join(ENDPOINTS)}")
    return ENDPOINTS[name]
