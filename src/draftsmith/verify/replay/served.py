"""What a server reached: read from a run's verify or bench folder or a file of replies, or asked from a server that runs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftsmith.errors import InvalidMeasurement, UsageError
from draftsmith.job import Talk
from draftsmith.manifest import atomic_write_text, read_jsonl
from draftsmith.measure.asking import Options
from draftsmith.measure.attached import Attached
from draftsmith.measure.client import run_load
from draftsmith.measure.credentials import headers_for
from draftsmith.measure.latency import acceptance_of
from draftsmith.measure.loads import ClosedLoad
from draftsmith.measure.messages import Reply, Request
from draftsmith.measure.prompts import Prompt, rows_of
from draftsmith.metrics import Acceptance
from draftsmith.verify.sequences import Answer

COUNTER_LAG_S = 5.0
CONCURRENCY = 4


@dataclass(frozen=True)
class Told:
    """Answers of one server, and what it counted over exactly these. own: per answer, where the server says it with each reply."""

    source: str
    answers: tuple[Answer, ...]
    categories: Mapping[str, str]
    acceptance: Acceptance | None
    temperature: float = 0.0
    own: Mapping[str, Acceptance] = field(default_factory=dict)
    left_out: int = 0  # replies whose prompt is not known

    @property
    def depth(self) -> int | None:
        """Drafts per round as counted; None without counts."""
        return self.acceptance.depth if self.acceptance is not None else None


def told_from(source: str, rows: Sequence[Mapping[str, Any]], prompts: Mapping[str, Prompt], counts: Any, heat: float = 0.0) -> Told:
    """From reply rows (id, token_ids, finish_reason; prompt_token_ids where the id is not one of `prompts`; rounds and reached if told).

    counts: the server's counters over all rows, as `Acceptance.as_dict`, or None: then the replies' own, if all have them.
    Raises UsageError for a row without id or tokens.
    """
    answers, categories, own = [], {}, {}
    depth = max([len(row.get("reached") or ()) for row in rows], default=0)
    for number, row in enumerate(rows, start=1):
        name, tokens = str(row.get("id") or number), row.get("token_ids")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise UsageError(f"{source}, reply {number}: no token_ids", hint="each reply needs id, token_ids, prompt_token_ids")
        known = prompts.get(name)
        prompt = tuple(row.get("prompt_token_ids") or (known.token_ids if known else ()))
        if not prompt or not tokens or row.get("prompt_tokens") not in (None, 0, len(prompt)):
            continue  # another prompt than the one of that name (a salted one), or none
        answers.append(Answer(name, prompt, tuple(tokens), str(row.get("finish_reason") or "")))
        categories[name] = str(row.get("category") or (known.category if known else ""))
        if row.get("rounds") is not None and row.get("reached") is not None:
            own[name] = Acceptance(int(row["rounds"]), tuple(row["reached"])).padded(depth)
    left_out = len(rows) - len(answers)
    total = Acceptance.from_dict(counts) if counts else None
    if left_out:
        total = None  # the counters are of more answers than these
    if total is None and answers and len(own) == len(answers):
        total = sum(list(own.values())[1:], next(iter(own.values())))
    return Told(source, tuple(answers), categories, total, heat, own if len(own) == len(answers) else {}, left_out)


def from_file(path: Path, prompts: Mapping[str, Prompt], temperature: float, source: str = "") -> Told:
    """A JSONL file of replies. A first line with "acceptance" and no tokens holds the counters (as verify writes it). Raises UsageError."""
    rows = rows_of(path)
    head = rows.pop(0) if rows and "token_ids" not in rows[0] else {}
    told = told_from(source or path.name, rows, prompts, head.get("acceptance"), float(head.get("temperature") or temperature))
    if not told.answers:
        raise UsageError(f"{path}: no reply whose prompt is known", hint="give each row prompt_token_ids, or the id of a sample of the run")
    return told


def from_verify(folder: Path, dtype: str, prompts: Mapping[str, Prompt]) -> Told | None:
    """What the verify stage got from the speculative server in this dtype; None when it is not there."""
    path = folder / f"{dtype}-speculative.jsonl"
    return from_file(path, prompts, 0.0, "verify") if path.is_file() else None


def from_bench(folder: Path, prompts: Mapping[str, Prompt]) -> Told | None:
    """All cells of the valid speculative launches of a bench whose prompts are known and whose server counted; None without any."""
    conditions = folder / "conditions.json"
    heat = json.loads(conditions.read_text())["settings"].get("temperature", 0.0) if conditions.is_file() else 0.0
    replies: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in read_jsonl(folder / "requests.jsonl"):
        if row["phase"] == "cell":
            replies.setdefault((row["launch"], row["cell"]), []).append(row)
    found: list[Told] = []
    for launch in read_jsonl(folder / "launches.jsonl"):
        if launch["arm"] != "speculative" or launch["invalid"]:
            continue
        for cell in launch["cells"]:
            name = f"bench, launch {launch['launch']}, {cell['label']}"
            part = told_from(name, replies.get((launch["launch"], cell["label"]), []), prompts, cell["acceptance"], heat)
            if part.acceptance is not None and not part.left_out:
                found.append(part)
    if not found:
        return None
    total = sum((part.acceptance for part in found[1:] if part.acceptance), found[0].acceptance or Acceptance(0, ()))
    answers = tuple(answer for part in found for answer in part.answers)
    categories = {name: category for part in found for name, category in part.categories.items()}
    return Told(f"bench ({len(found)} cells)", answers, categories, total, heat)


# --- a server that runs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asking:
    """How a running server is asked. depth: drafts per round, where the server does not tell."""

    url: str
    output_tokens: int
    temperature: float
    depth: int


def ask(asking: Asking, prompts: Sequence[Prompt], folder: Path, talk: Talk) -> Told:
    """Ask every prompt; acceptance is the difference of the server's counters, or what it says with each reply. Writes served.jsonl.

    Raises EnvironmentFailed when nobody answers, InvalidMeasurement for failed replies, no counters, or counters that count others too.
    """
    server = Attached(asking.url, "speculative")
    depth = server.depth if server.depth > 1 or not asking.depth else asking.depth
    sglang = server.engine is not None and server.engine.name == "sglang"
    requests = [Request(prompt.id, prompt.token_ids, asking.output_tokens, asking.temperature, stream=False) for prompt in prompts]
    started, done = time.monotonic(), 0

    def progress(_: Reply) -> None:
        nonlocal done
        done += 1
        talk.progress("replay: ask the server", done, len(requests), started)

    before, tokens_before = server.acceptance(depth), server.generation_tokens()
    options, endpoint = Options(headers=headers_for(server.key)), "generate" if sglang else "completions"
    replies = run_load(server.url, endpoint, server.model, requests, ClosedLoad(CONCURRENCY), progress, options)
    bad = [reply for reply in replies if not reply.ok or not reply.token_ids]
    if bad:
        why = bad[0].error or "no token ids in the reply"
        raise InvalidMeasurement(f"{len(bad)} of {len(replies)} replies failed, first {bad[0].id}: {why}", hint="read the server's log")
    total = acceptance_of(replies, depth) if all(reply.reached is not None for reply in replies) else None
    if total is None and before is not None:
        total = since(server, before, tokens_before, sum(reply.completion_tokens for reply in replies), depth)
    if total is None:
        hint = "vLLM counts on /metrics; SGLang needs --enable-metrics, or a version that tells the rounds of each request"
        raise InvalidMeasurement(f"{server.url} publishes no acceptance: is speculation on?", hint=hint)
    rows = [reply_row(reply, prompt) for reply, prompt in zip(replies, prompts, strict=True)]
    head = {"launch": server.url, "temperature": asking.temperature, "acceptance": total.as_dict()}
    atomic_write_text(folder / "served.jsonl", "".join(json.dumps(row) + "\n" for row in [head, *rows]))
    return told_from(server.url, rows, {prompt.id: prompt for prompt in prompts}, total.as_dict(), asking.temperature)


def since(server: Attached, before: Acceptance, tokens_before: int | None, expected: int, depth: int) -> Acceptance | None:
    """Counters over our requests, once they hold all their tokens. Raises InvalidMeasurement when they hold more."""
    stop = time.monotonic() + COUNTER_LAG_S
    while (tokens := server.generation_tokens()) is not None and tokens - (tokens_before or 0) < expected and time.monotonic() < stop:
        time.sleep(0.1)
    after = server.acceptance(depth)
    counted = None if tokens is None else tokens - (tokens_before or 0)
    if counted is not None and counted != expected:
        found = f"the server counted {counted} output tokens, our replies have {expected}"
        raise InvalidMeasurement(f"{found}: others use it too", hint="ask a server that nobody else asks meanwhile")
    return None if after is None else after - before


def reply_row(reply: Reply, prompt: Prompt) -> dict[str, Any]:
    """What a later replay of the same replies needs."""
    row = {"id": reply.id, "category": prompt.category, "prompt_token_ids": list(prompt.token_ids), "token_ids": list(reply.token_ids)}
    row |= {"finish_reason": reply.finish_reason, "prompt_tokens": reply.prompt_tokens}
    return row | ({"rounds": reply.rounds, "reached": list(reply.reached)} if reply.reached is not None else {})
