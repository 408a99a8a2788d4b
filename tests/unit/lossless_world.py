"""A tiny real world for verify lossless: a torch target that reads three tokens, a drafter that reads two, and a speculative server.

Every distribution is a table that torch fills once, so an answer costs microseconds and many seeds can be looked at. The server is
right, or has one planted fault:

wrong accept      a draft is accepted, too, when the drafter itself is sure of it
stale cache       the token behind accepted drafts is predicted from the context without the last of them
lossy thresholds  sampled drafts are accepted at p >= 0.2 or u < p / 0.4 q, as SGLang with such accept thresholds (greedy is exact)
dropped           the last token of a block in which every draft was accepted is not sent
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from aiohttp import web

from draftsmith.job import Talk
from draftsmith.measure.messages import Reply, Request
from draftsmith.measure.prompts import Prompt
from draftsmith.metrics import Acceptance
from draftsmith.models.target import Target
from draftsmith.verify.lossless.probes import SCHEMA
from draftsmith.verify.lossless.sides import Document, Remote
from mock_server import MockServer, send

torch.set_num_threads(1)
V, READ, EOS, SHAPES = 24, 3, 0, 4
FAULTS = ("wrong accept", "stale cache", "lossy thresholds", "dropped")
SURE, SINGLE, ACCEPT = 0.35, 0.2, 0.4
SYLLABLES = ["ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe"]
PIECES = ["", *SYLLABLES, *(syllable.upper() for syllable in SYLLABLES)][:V]


@torch.inference_mode()
def tables(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(target logits [V, V, V, V], drafter logits [V, V, V]): a random network over three tokens, and its mean over the oldest."""
    torch.manual_seed(seed)
    embedding, hidden, out = torch.randn(V, 12), torch.randn(READ * 12, 48) / 6, torch.randn(48, V) / 1.3
    contexts = torch.cartesian_prod(*[torch.arange(V)] * READ)
    newest = torch.tensor([0.35, 0.6, 1.6]).repeat_interleave(12)  # the newest token matters most, or no drafter could be right
    logits = torch.tanh((embedding[contexts].flatten(1) * newest) @ hidden) @ out
    logits[:, EOS] -= 4.0
    logits_VVVV = logits.reshape(V, V, V, V)
    return logits_VVVV.numpy(), logits_VVVV.mean(0).numpy()


@dataclass
class Engine:
    """Answers completions as a server would. depth 0: without speculation. noise: standard deviation of the logits by batch shape."""

    seed: int = 0
    depth: int = 0
    fault: str = ""
    noise: float = 0.0
    eos: int = EOS
    rounds: list[int] = field(default_factory=list)
    times: Counter[tuple[Any, ...]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.target, self.drafter = tables(self.seed)
        rng = np.random.default_rng([self.seed, self.depth, 17])
        noisy = [self.target + rng.normal(0, self.noise, self.target.shape).astype(np.float32) for _ in range(SHAPES if self.noise else 1)]
        self.logits = [torch.from_numpy(each).bfloat16().float().numpy() if self.noise else each for each in noisy]
        self.tables: dict[float, tuple[list[np.ndarray], np.ndarray]] = {}

    def row(self, tokens: Sequence[int], shape: int) -> np.ndarray:
        return self.logits[shape % len(self.logits)][tokens[-3], tokens[-2], tokens[-1]]

    def p(self, tokens: Sequence[int], shape: int, temperature: float) -> np.ndarray:
        """The target's distribution after `tokens`."""
        table = self.probabilities(temperature)[0]
        return table[shape % len(table)][tokens[-3], tokens[-2], tokens[-1]]

    def q(self, tokens: Sequence[int], temperature: float) -> np.ndarray:
        """The drafter's."""
        return self.probabilities(temperature)[1][tokens[-2], tokens[-1]]

    def probabilities(self, temperature: float) -> tuple[list[np.ndarray], np.ndarray]:
        if temperature not in self.tables:
            self.tables[temperature] = ([distribution(each, temperature) for each in self.logits], distribution(self.drafter, temperature))
        return self.tables[temperature]

    def answer(self, prompt: Sequence[int], max_tokens: int, temperature: float, ignore_eos: bool = False) -> tuple[list[int], list[int]]:
        """(tokens, size of each chunk). What is asked again falls into another batch, and draws anew."""
        key = (tuple(prompt), max_tokens, temperature)
        self.times[key] += 1
        rng = np.random.default_rng([self.seed, self.depth, self.times[key], *prompt])
        shape = int(rng.integers(SHAPES))
        tokens = [1, 1, *prompt]
        given, out, chunks = len(tokens), [], []
        while len(out) < max_tokens and (ignore_eos or self.eos not in out):
            tokens, new = self.round(tokens, temperature, rng, shape, first=len(tokens) == given)
            if not ignore_eos and self.eos in new:
                new = new[: new.index(self.eos) + 1]
            new = new[: max_tokens - len(out)]
            out += new
            chunks += [len(new)] if new else []
        return out, chunks

    def round(
        self, tokens: list[int], temperature: float, rng: np.random.Generator, shape: int, first: bool
    ) -> tuple[list[int], list[int]]:
        """(all tokens, those that are sent) after one round."""
        new: list[int] = []
        for _ in range(0 if first else self.depth):
            seen = [*tokens, *new]
            p, q = self.p(seen, shape, temperature), self.q(seen, temperature)
            draft = draw(q, rng)
            sure = self.q(seen, 1.0)[draft] > SURE
            if not self.accepts(p, q, draft, rng, temperature) and not (self.fault == "wrong accept" and sure):
                self.rounds.append(len(new))
                rest = np.maximum(p - q, 0)
                token = draw(rest / rest.sum() if temperature and rest.sum() > 0 else p, rng)
                token = self.stale(tokens, new, temperature, rng, shape, token)
                return [*tokens, *new, token], [*new, token]
            new.append(draft)
        token = draw(self.p([*tokens, *new], shape, temperature), rng)
        if self.depth and not first:
            self.rounds.append(self.depth)
            token = self.stale(tokens, new, temperature, rng, shape, token)
        kept = new if self.fault == "dropped" and len(new) == self.depth > 0 and not first else [*new, token]
        return [*tokens, *new, token], kept

    def accepts(self, p: np.ndarray, q: np.ndarray, draft: int, rng: np.random.Generator, temperature: float) -> bool:
        u = rng.random()
        if self.fault == "lossy thresholds" and temperature:
            return bool(p[draft] >= SINGLE or u * q[draft] < p[draft] / ACCEPT)
        return bool(u * q[draft] < p[draft])

    def stale(self, tokens: list[int], new: list[int], temperature: float, rng: np.random.Generator, shape: int, token: int) -> int:
        if self.fault != "stale cache" or not new:
            return token
        return draw(self.p([*tokens, *new][:-1], shape, temperature), rng)

    def logprobs(self, prompt: Sequence[int], out: Sequence[int], top: int) -> dict[str, Any]:
        """OpenAI's form, tokens by their ids."""
        tokens, found = [1, 1, *prompt], []
        for token in out:
            told = np.log(softmax(self.row(tokens, 0)))
            best = np.argsort(told)[::-1][:top]
            found.append((f"token_id:{token}", float(told[token]), {f"token_id:{i}": float(told[i]) for i in (*best, token)}))
            tokens.append(token)
        names, values, tops = zip(*found, strict=True)
        return {"tokens": list(names), "token_logprobs": list(values), "top_logprobs": list(tops)}

    def acceptance(self) -> Acceptance | None:
        return Acceptance.from_rounds(self.rounds, self.depth) if self.depth else None


class LlamaEngine(Engine):
    """The same server around a real transformer; its drafter is the transformer that sees two tokens."""

    def __init__(self, target: Target, depth: int, eos: int) -> None:
        super().__init__(0, depth, eos=eos)
        self.model, self.known = target.model, {}

    def row(self, tokens: Sequence[int], shape: int) -> np.ndarray:
        key = tuple(tokens[2:])  # without the two tokens that fill the context of the other target
        if key not in self.known:
            with torch.inference_mode():
                self.known[key] = self.model(torch.tensor([key])).logits[0, -1].numpy()
        return self.known[key]

    def p(self, tokens: Sequence[int], shape: int, temperature: float) -> np.ndarray:
        return distribution(self.row(tokens, shape), temperature)

    def q(self, tokens: Sequence[int], temperature: float) -> np.ndarray:
        return distribution(self.row([1, 1, *tokens[-2:]], 0), temperature)


def softmax(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def distribution(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities over the last axis; all on the best token at temperature 0."""
    return softmax(logits / temperature) if temperature else np.eye(V, dtype=np.float32)[logits.argmax(-1)]


def draw(p_V: np.ndarray, rng: np.random.Generator) -> int:
    heap = p_V.cumsum()
    return min(int(heap.searchsorted(rng.random() * heap[-1], side="right")), V - 1)


def prompts(count: int, seed: int = 0) -> list[Prompt]:
    rng = np.random.default_rng([seed, 5])
    return [Prompt(f"p{i}", tuple(int(t) for t in rng.integers(1, V, 4))) for i in range(count)]


def text_of(tokens: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in tokens)


class InProcess(Remote):
    """A side without a network: for many seeds."""

    def __init__(self, name: str, engine: Engine, folder: Path) -> None:
        super().__init__(name, "http://in.process", "tiny", "completions", folder, Talk(quiet=True))
        self.engine = engine
        self.acceptance = engine.acceptance

    def replies(self, requests: Sequence[Request], concurrency: int, label: str) -> list[Reply]:
        return [self.reply(request) for request in requests]

    def reply(self, request: Request) -> Reply:
        out, chunks = self.engine.answer(request.prompt_token_ids, request.max_tokens, request.temperature, request.ignore_eos)
        arrivals = tuple((0.0, count) for count in itertools.accumulate(chunks)) if request.stream else None
        reason = "stop" if self.engine.eos in out and not request.ignore_eos else "length"
        whole = {"prompt_tokens": len(request.prompt_token_ids), "completion_tokens": len(out), "arrivals": arrivals}
        return Reply(request.id, True, token_ids=tuple(out), text=text_of(out), finish_reason=reason, **whole)

    def documents(self, requests: Sequence[Request], concurrency: int, label: str, endpoint: str = "") -> list[Document]:
        found = []
        for request in requests:
            out, _ = self.engine.answer(request.prompt_token_ids, request.max_tokens, 0.0, request.ignore_eos)
            told = self.engine.logprobs(request.prompt_token_ids, out, request.extra["logprobs"])
            found.append(Document(request.id, 200, {"choices": [{"logprobs": told}], "usage": {"completion_tokens": len(out)}}))
        return found


# --- over HTTP -------------------------------------------------------------------------------------------------------


class TinyServer(MockServer):
    """The engine behind OpenAI's completions API, and chat for JSON and tools. trouble: one of the faults of an API server below.

    "stop": a stop string inside a round is passed over. "shifted": log-probabilities are those of the token before. "short": replies
    end two tokens before the context is full. "json": structured output ends at the first rejected draft. "usage": one token too few is
    counted. "no chat": there is no chat endpoint.
    """

    def __init__(self, engine: Engine, trouble: str = "", context: int = 160) -> None:
        super().__init__()
        self.engine, self.trouble, self.context = engine, trouble, context

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/v1/models", self.models)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "max_model_len": self.context}]})

    def metrics_text(self) -> str:
        lines = [f"vllm:generation_tokens_total {self.tokens}"]
        counted = self.engine.acceptance()
        if counted is not None:
            lines += [
                f"vllm:spec_decode_num_drafts_total {counted.rounds}",
                f"vllm:spec_decode_num_accepted_tokens_total {counted.accepted}",
            ]
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines += [f'{name}{{position="{i}"}} {n}' for i, n in enumerate(counted.reached)]
        return "\n".join(lines) + "\n"

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        if request.path == "/v1/chat/completions" and self.trouble != "no chat":
            return web.json_response(self.chat(body))
        if request.path != "/v1/completions":
            return web.json_response({"error": {"message": "no such route"}}, status=404)
        prompt, most = body["prompt"], min(body["max_tokens"], self.context - len(body["prompt"]))
        if self.trouble == "short" and len(prompt) + body["max_tokens"] >= self.context:
            most -= 2
        out, chunks = self.engine.answer(prompt, most, body["temperature"], body["ignore_eos"])
        self.tokens += len(out)
        reason = "stop" if self.engine.eos in out and not body["ignore_eos"] else "length"
        text, stop = text_of(out), (body.get("stop") or [""])[0]
        if stop and stop in text and not (self.trouble == "stop" and text.find(stop) % 4):
            text, reason = text[: text.find(stop)], "stop"
        choice: dict[str, Any] = {"index": 0, "text": text, "token_ids": out, "finish_reason": reason}
        if body.get("logprobs"):
            choice["logprobs"] = self.engine.logprobs(prompt, out, body["logprobs"])
            if self.trouble == "shifted" and len(out) > 1:
                values = choice["logprobs"]["token_logprobs"]
                choice["logprobs"] |= {"token_logprobs": [values[0], *values[:-1]], "top_logprobs": [{}] * len(out)}
        count = len(out) - (self.trouble == "usage")
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count}
        if not body["stream"]:
            return web.json_response({"choices": [choice], "usage": usage})
        return await self.stream(request, choice, chunks, usage)

    async def stream(
        self, request: web.Request, choice: dict[str, Any], chunks: Sequence[int], usage: dict[str, int]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent, cut = 0, choice["text"]
        for size in chunks:
            ids = choice["token_ids"][sent : sent + size]
            sent += size
            last = sent == len(choice["token_ids"])
            said = cut[: len(text_of(ids))] if not last else cut
            cut = cut[len(said) :]
            part = {"index": 0, "text": said, "token_ids": ids, "finish_reason": choice["finish_reason"] if last else None}
            counted = usage | {"completion_tokens": min(sent, usage["completion_tokens"])}
            await send(response, {"choices": [part], "usage": counted})
        await response.write(b"data: [DONE]\n\n")
        return response

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """A person made of the question, as JSON; a call of the named tool when one is asked for."""
        number = sum(map(ord, body["messages"][-1]["content"]))
        person = {"name": PIECES[1 + number % 20], "age": number % 100, "colour": SCHEMA["properties"]["colour"]["enum"][number % 3]}
        text = json.dumps(person | {"tags": [PIECES[1 + number % 7], PIECES[1 + number % 5]]})
        if self.trouble == "json":
            text = text[: 8 + number % 9]
        message: dict[str, Any] = {"content": text}
        if "tools" in body and self.trouble != "no tools":
            message = {"tool_calls": [{"type": "function", "function": {"name": "register", "arguments": text}}]}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 9, "completion_tokens": 9}}
