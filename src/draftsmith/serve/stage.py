"""serve: does the launch that bench repeats work? One speculative server, one chat completion, acceptance that is told and adds up."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.registry import engine_for
from draftsmith.engines.secrets import masked, masked_argv
from draftsmith.engines.server import Server, start
from draftsmith.errors import CheckFailed, InvalidMeasurement
from draftsmith.job import Job, Plan
from draftsmith.manifest import atomic_write_json
from draftsmith.measure.client import Request, run_closed_loop
from draftsmith.measure.recorder import told_with_replies
from draftsmith.metrics import Acceptance
from draftsmith.samples import Sample, read_samples, samples_file
from draftsmith.serve.settings import ServeSettings

NAME = "serve"
INPUTS = ("data", "export")
SETTLE_S = 5.0  # the last step's counters may come a moment after the answer


def plan(settings: ServeSettings, job: Job) -> Plan:
    """One launch."""
    return Plan(launches=1, bytes=200_000, seconds=35.0, note="one launch, one chat completion")


def run(settings: ServeSettings, job: Job) -> dict[str, Any]:
    """Write serve.json. Raises EnvironmentFailed (engine), CheckFailed (the drafter is not at work), InvalidMeasurement (counters)."""
    engine, python = engine_for(job.engine)
    drafting = Drafting(job.drafter.algorithm, job.folder("export"), job.drafter.depth)
    launch = Launch("speculative", job.target, job.engine.flags, job.engine.env, drafting, job.trust_remote_code)
    folder = job.folder(NAME)
    folder.mkdir(parents=True, exist_ok=True)
    question = longest_answered(job.folder("data"))
    with start(engine, python, launch, folder / "engine.log", job.engine.ready_timeout_s, job.talk, "serve") as server:
        record = examine(server, question, settings, drafting.depth)
        stop_started = time.monotonic()
        server.stop()
        record["stop_s"] = round(time.monotonic() - stop_started, 2)
    atomic_write_json(folder / "serve.json", record)
    acceptance = record["acceptance"]
    job.talk.say(f"serve: ready in {record['ready_s']:.1f} s, accept_len {acceptance['accept_len']:.2f} over {acceptance['rounds']} rounds")
    return {key: record[key] for key in ("ready_s", "stop_s", "rss_bytes", "acceptance")}


def longest_answered(data: Path) -> Sample:
    """The held-out sample with the longest answer: traffic that the drafter was made for, and rounds enough to judge it."""
    return max(read_samples(samples_file(data, "heldout")), key=lambda sample: len(sample.answer_ids))


def examine(server: Server, question: Sample, settings: ServeSettings, depth: int) -> dict[str, Any]:
    """Ask for one completion and hold the counters against it; the record for serve.json."""
    server.check_as_planned()
    effective = server.effective()
    models = server.get_json("/v1/models")["data"]
    body = {
        "model": server.engine.served_model,
        "messages": question.turns[:-1],
        "max_tokens": settings.output_tokens,
        "temperature": 0,
    }
    reply = server.post_json("/v1/chat/completions", body)
    tokens = int(reply["usage"]["completion_tokens"])
    told = told_acceptance(server, question, settings.output_tokens, depth)
    acceptance, counted = told or (settled_acceptance(server, depth, tokens), tokens)
    judge(acceptance, counted, settings.min_rounds)
    return {
        "argv": masked_argv(server.argv),
        "env": masked(server.env),
        "url": server.url,
        "ready_s": round(server.ready_s, 2),
        "rss_bytes": server.rss_bytes(),
        "requested": server.engine.requested(server.launch),
        "effective": {**effective, "served_model": models[0]["id"], "max_model_len": models[0].get("max_model_len")},
        "acceptance": acceptance.as_dict(),
        "completion_tokens": tokens,
        "question": question.turns[-2]["content"],
        "reply": reply["choices"][0]["message"]["content"],
    }


def told_acceptance(server: Server, question: Sample, max_tokens: int, depth: int) -> tuple[Acceptance, int] | None:
    """(acceptance, tokens) of the same question, as the engine's own endpoint tells them with a reply; None where counters tell.

    SGLang's counters hold its warm-up requests, too, so that they would not add up even where they suffice (depth 1).
    """
    engine = server.engine
    if engine.endpoint == "completions":
        return None
    request = Request(question.id, tuple(map(int, question.prompt_ids)), max_tokens, stream=False)
    [reply] = run_closed_loop(server.url, engine.served_model, [request], 1, endpoint=engine.endpoint)
    if not reply.ok:
        server.check_alive()
        raise InvalidMeasurement(f"{engine.name} did not answer at /{engine.endpoint}: {reply.error}", hint=f"log: {server.log}")
    acceptance = told_with_replies([reply], depth)
    return None if acceptance is None else (acceptance, reply.completion_tokens)


def settled_acceptance(server: Server, depth: int, tokens: int) -> Acceptance:
    """The counters, once they cover all `tokens` of the only request. Raises InvalidMeasurement when they do not exist or lag."""
    deadline = time.monotonic() + SETTLE_S
    while (server.generation_tokens() or 0) < tokens:
        if time.monotonic() > deadline:
            raise InvalidMeasurement(
                f"the server counts {server.generation_tokens()} output tokens after {tokens} were sent",
                hint="see the engine's log",
            )
        time.sleep(0.05)
    acceptance = server.acceptance(depth)
    if acceptance is None:
        raise InvalidMeasurement(
            f"the server tells acceptance neither on /metrics nor with a reply of /{server.engine.endpoint}",
            hint="is speculation on? see the engine's log",
        )
    return acceptance


def judge(acceptance: Acceptance, tokens: int, min_rounds: int) -> None:
    """Raise unless rounds happened, account for the tokens (one of them comes from the prefill) and accepted something."""
    emitted = 1 + acceptance.rounds + acceptance.accepted
    if not tokens <= emitted <= tokens + acceptance.depth:
        raise InvalidMeasurement(
            f"{acceptance.rounds} rounds with {acceptance.accepted} accepted drafts make {emitted} tokens, the reply has {tokens}",
            hint="the counters do not describe this request: is another client using the server?",
        )
    if acceptance.rounds < min_rounds:
        raise InvalidMeasurement(
            f"only {acceptance.rounds} rounds, too few to judge (serve.min_rounds is {min_rounds})", hint="raise serve.output_tokens"
        )
    if acceptance.accepted == 0:
        raise CheckFailed(
            f"accept_len is exactly 1.00 over {acceptance.rounds} rounds: the server drafts but accepts nothing",
            hint="the drafter's weights or layer ids did not reach the engine as trained; see verify",
        )
