"""The two sides of an audit and how they are asked. Every raw reply is kept in the audit's folder, one JSONL file per part and side.

Answers are read by the load client (measure/client.py); where the whole reply matters (logprobs, tool calls) a plain post keeps it.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from draftsmith.job import Talk
from draftsmith.manifest import append_jsonl
from draftsmith.measure.asking import Options
from draftsmith.measure.client import run_load
from draftsmith.measure.credentials import headers_for, hidden
from draftsmith.measure.endpoints import endpoint_named
from draftsmith.measure.loads import ClosedLoad
from draftsmith.measure.messages import Reply, Request
from draftsmith.measure.pages import DIRECT
from draftsmith.measure.prompts import Prompt
from draftsmith.metrics import Acceptance
from draftsmith.verify.sequences import Answer

STALL_S = 600.0
Key = int | str  # a token: its id where the server tells it, else its text


@dataclass(frozen=True)
class Document:
    """A whole reply. status: of HTTP; 0 when there was none, then `error` says why."""

    id: str
    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 200 and "error" not in self.body

    @property
    def choice(self) -> Mapping[str, Any]:
        """The first choice of an OpenAI reply; {} without one."""
        return next(iter(self.body.get("choices") or ()), {})


@dataclass(frozen=True)
class Spoken:
    """One token of an answer with what the server says of it: log-probabilities in nats."""

    key: Key
    logprob: float
    top: Mapping[Key, float]


class Side(Protocol):
    """Something that answers: a server, or the local target."""

    name: str

    def replies(self, requests: Sequence[Request], concurrency: int, label: str) -> list[Reply]:
        """Answers in the order of the requests; a failed one has ok=False."""
        ...


class Remote:
    """A server. `endpoint` is where the answers of prompts come from; `acceptance` reads its counters, None where it has none."""

    def __init__(self, name: str, url: str, model: str, endpoint: str, folder: Path, talk: Talk, key: str = "") -> None:
        self.name, self.url, self.model, self.endpoint = name, url, model, endpoint
        self.folder, self.talk, self.key = folder, talk, key
        self.acceptance: Callable[[], Acceptance | None] = lambda: None

    def path(self, label: str) -> Path:
        """The file of raw replies of one part; an older one is gone."""
        path = self.folder / f"{label}-{self.name}.jsonl"
        path.unlink(missing_ok=True)
        return path

    def replies(self, requests: Sequence[Request], concurrency: int, label: str) -> list[Reply]:
        path, started, done = self.path(label), time.monotonic(), 0

        def keep(reply: Reply) -> None:
            nonlocal done
            done += 1
            append_jsonl(path, {**reply.row(), "error": hidden(reply.error, self.key)})
            self.talk.progress(f"{label}, {self.name}", done, len(requests), started, f"{done} of {len(requests)} answers")

        options = Options(stall_s=STALL_S, headers=headers_for(self.key))
        return run_load(self.url, self.endpoint, self.model, requests, ClosedLoad(concurrency), keep, options)

    def documents(self, requests: Sequence[Request], concurrency: int, label: str, endpoint: str = "") -> list[Document]:
        """Whole replies to the same requests, not streamed. endpoint: another than the one of the answers."""
        chosen = endpoint_named(endpoint or self.endpoint)
        path, started, found = self.path(label), time.monotonic(), []
        bodies = [chosen.payload(replace(request, stream=False), self.model) for request in requests]
        with ThreadPoolExecutor(concurrency) as pool:
            for request, document in zip(requests, pool.map(lambda body: self.post(chosen.path, body), bodies), strict=True):
                found.append(replace(document, id=request.id))
                append_jsonl(path, {"id": request.id, "status": document.status, "body": document.body, "error": document.error})
                self.talk.progress(f"{label}, {self.name}", len(found), len(requests), started)
        return found

    def post(self, path: str, body: Mapping[str, Any]) -> Document:
        """One post; every failure is a Document."""
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        for name, value in headers_for(self.key).items():
            request.add_unredirected_header(name, value)
        try:
            with DIRECT.open(request, timeout=STALL_S) as answer:
                return Document("", answer.status, json.loads(answer.read()))
        except urllib.error.HTTPError as error:
            return Document("", error.code, {}, hidden(error.read().decode(errors="replace")[:300], self.key))
        except (OSError, http.client.HTTPException, ValueError) as error:
            return Document("", 0, {}, hidden(f"{type(error).__name__}: {error}", self.key))


# --- requests and answers --------------------------------------------------------------------------------------------


def request_for(prompt: Prompt, max_tokens: int, **more: Any) -> Request:
    """A prompt with token ids is sent as these; another as its messages, and as plain text where an endpoint takes no messages."""
    text = "" if prompt.token_ids else "\n".join(turn["content"] for turn in prompt.messages)
    messages = () if prompt.token_ids else prompt.messages
    return Request(prompt.id, prompt.token_ids, max_tokens, text=text, messages=messages, category=prompt.category, **more)


def with_logprobs(request: Request, endpoint: str, count: int) -> Request:
    """The same request, asking for the log-probabilities of the `count` best tokens at each position, under their ids where possible."""
    extra: dict[str, Any] = {
        "completions": {"logprobs": count, "return_tokens_as_token_ids": True},
        "chat": {"logprobs": True, "top_logprobs": count, "return_tokens_as_token_ids": True},
        "generate": {"return_logprob": True, "top_logprobs_num": count},
    }[endpoint]
    return replace(request, stream=False, extra={**request.extra, **extra})


def answer_of(reply: Reply, prompt: Prompt) -> Answer:
    """The tokens of a reply; the code points of its text where the server tells no token ids."""
    return Answer(reply.id, prompt.token_ids, reply.token_ids or tuple(map(ord, reply.text)), reply.finish_reason)


def spoken_of(document: Document) -> list[Spoken] | None:
    """The log-probabilities in a reply of any endpoint; None without them."""
    if "meta_info" in document.body:
        meta = document.body["meta_info"]
        chosen, tops = meta.get("output_token_logprobs"), meta.get("output_top_logprobs")
        if not chosen:
            return None
        tops = tops or [()] * len(chosen)
        return [Spoken(c[1], c[0], {t[1]: t[0] for t in top or ()}) for c, top in zip(chosen, tops, strict=False)]
    told = document.choice.get("logprobs")
    if not told:
        return None
    if (entries := told.get("content")) is not None:
        return [Spoken(key_of(e["token"]), e["logprob"], {key_of(t["token"]): t["logprob"] for t in e["top_logprobs"]}) for e in entries]
    tops = told.get("top_logprobs") or [{}] * len(told["tokens"])
    return [
        Spoken(key_of(token), float("nan") if value is None else value, {key_of(t): v for t, v in (top or {}).items()})
        for token, value, top in zip(told["tokens"], told["token_logprobs"], tops, strict=False)
    ]


def key_of(token: str) -> Key:
    """vLLM writes token_id:17 when it is asked to."""
    number = token.removeprefix("token_id:")
    return int(number) if number != token and number.isdigit() else token
