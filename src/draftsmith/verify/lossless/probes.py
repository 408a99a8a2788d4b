"""Probes: what clients use besides plain text, asked of both servers. What a server does not offer is named, not passed.

A probe that the baseline fails in the same way says nothing about speculation: it is told, and is no fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from draftsmith.findings import Finding
from draftsmith.measure.messages import Reply
from draftsmith.measure.prompts import Prompt, user
from draftsmith.verify.lossless.greedy import Judge, compare, rows_of
from draftsmith.verify.lossless.settings import Audit
from draftsmith.verify.lossless.sides import Document, Remote, answer_of, request_for

Status = Literal["passed", "failed", "not offered", "inconclusive", "skipped"]
REPORT = "report it to the engine with the raw replies"


@dataclass(frozen=True)
class Result:
    """What a probe found."""

    name: str
    status: Status
    evidence: str
    findings: list[Finding] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "findings"}


@dataclass(frozen=True)
class Bench:
    """What probes need. a: the baseline server, None with a local reference."""

    a: Remote | None
    b: Remote
    prompts: Sequence[Prompt]
    audit: Audit
    judge: Judge
    replies: Sequence[Reply]  # greedy answers of b

    @property
    def sides(self) -> list[Remote]:
        return [self.a, self.b] if self.a is not None else [self.b]


def failed(name: str, code: str, evidence: str, consequence: str, **numbers: Any) -> Result:
    return Result(name, "failed", evidence, [Finding(code, "error", evidence, consequence, REPORT)], numbers)


def refusals(name: str, code: str, found: Mapping[str, Sequence[Document]]) -> Result | None:
    """A Result when a server refuses what was asked: not offered when the baseline (or the only server) does, else a warning, too."""
    refusing = {side: documents[0] for side, documents in found.items() if all(not document.ok for document in documents)}
    if not refusing:
        return None
    document = next(iter(refusing.values()))
    why = document.error or str(document.body.get("error", ""))
    evidence = f"{' and '.join(refusing)}: HTTP {document.status} {' '.join(why.split())[:160]}"
    if "speculative" in refusing and "baseline" in found and "baseline" not in refusing:
        finding = Finding(
            code, "warning", evidence, "the baseline offers this, the speculative server does not", "do without one of the two"
        )
        return Result(name, "not offered", evidence, [finding])
    return Result(name, "not offered", evidence)


# --- structured output -----------------------------------------------------------------------------------------------

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colour": {"type": "string", "enum": ["red", "green", "blue"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 2, "maxItems": 2},
    },
    "required": ["name", "age", "colour", "tags"],
    "additionalProperties": False,
}
PEOPLE = ("a teacher", "a sailor", "a child", "a king")
STRUCTURED_TOKENS = 200


def valid(value: Any) -> bool:
    """Does a value fit SCHEMA?"""
    return (
        isinstance(value, dict)
        and value.keys() == SCHEMA["properties"].keys()
        and isinstance(value["name"], str)
        and isinstance(value["age"], int)
        and 0 <= value["age"] <= 120
        and value["colour"] in SCHEMA["properties"]["colour"]["enum"]
        and isinstance(value["tags"], list)
        and len(value["tags"]) == 2
        and all(isinstance(tag, str) for tag in value["tags"])
    )


def parsed(text: str) -> Any:
    """The JSON in a text, None without any."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def structured(name: str, bench: Bench, extra: Mapping[str, Any], text_of: Callable[[Document], str], unless: str = "") -> Result:
    """Ask for SCHEMA about each of PEOPLE; the text must be valid at both servers, and the same as far as the baseline repeats itself.

    unless: what it means when the baseline (or the only server) answers each request without any such text; then it is not offered.
    """
    prompts = [
        Prompt(f"{name}-{i}", (), name, user(f"Describe {who}: name, age, favourite colour, two tags.")) for i, who in enumerate(PEOPLE)
    ]
    requests = [request_for(prompt, STRUCTURED_TOKENS, extra=extra) for prompt in prompts]
    found = {side.name: side.documents(requests, len(requests), name, "chat") for side in bench.sides}
    if refused := refusals(name, "DS704", found):
        return refused
    texts = {side: [text_of(document) for document in documents] for side, documents in found.items()}
    if unless and not any(texts.get("baseline", texts["speculative"])):
        return Result(name, "not offered", unless)
    fit = {side: [valid(parsed(text)) for text in said] for side, said in texts.items()}
    numbers = {"valid": {side: sum(good) for side, good in fit.items()}, "asked": len(requests)}
    reference = fit.get("baseline", [True] * len(requests))
    broken = [i for i, (good, ours) in enumerate(zip(reference, fit["speculative"], strict=True)) if good and not ours]
    consequence = "clients that parse the reply break"
    if broken:
        shown = texts["speculative"][broken[0]][:120]
        return failed(
            name, "DS704", f"{len(broken)} of {sum(reference)} replies do not fit the schema, first {shown!r}", consequence, **numbers
        )
    if not any(reference):
        return Result(name, "inconclusive", "no reply of the baseline fits the schema", numbers=numbers)
    if bench.a is None:
        return Result(name, "passed", f"{sum(fit['speculative'])} of {len(requests)} replies fit the schema", numbers=numbers)
    again = [text_of(document) for document in bench.a.documents(requests, 1, f"{name}-again", "chat")]
    steady = [i for i, text in enumerate(again) if text == texts["baseline"][i]]
    other = [i for i in steady if texts["speculative"][i] != texts["baseline"][i]]
    same = f"{len(steady) - len(other)} of {len(steady)} equal the baseline's"
    evidence = f"{sum(fit['speculative'])} of {len(requests)} replies fit the schema, {same}"
    if len(other) >= 2 and len(other) > len(steady) / 2:
        return failed(name, "DS704", evidence, "structured output is another with speculation", **numbers)
    note = Finding("DS704", "warning", evidence, "one reply went another way; a near-tie does that too", "look at the raw replies")
    return Result(name, "passed", evidence, [note] if other else [], numbers)


def probe_json(bench: Bench) -> Result:
    """JSON schema, as both engines take it at the chat endpoint."""
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    return structured(
        "json", bench, {"response_format": form}, lambda document: (document.choice.get("message") or {}).get("content") or ""
    )


def probe_tools(bench: Bench) -> Result:
    """A call of a named tool."""
    tool = {"type": "function", "function": {"name": "register", "description": "Registers a person.", "parameters": SCHEMA}}
    choice = {"type": "function", "function": {"name": "register"}}
    ignored = "answered without a call of the tool; SGLang ignores tools unless started with --tool-call-parser"
    return structured("tools", bench, {"tools": [tool], "tool_choice": choice}, arguments_of, unless=ignored)


def arguments_of(document: Document) -> str:
    """The arguments of the first call; "" when another tool, or none, is called."""
    for call in (document.choice.get("message") or {}).get("tool_calls") or ():
        function = call.get("function") or {}
        return function.get("arguments") or "" if function.get("name") == "register" else ""
    return ""


# --- stop strings ----------------------------------------------------------------------------------------------------


def stop_for(text: str) -> str:
    """Five characters from as near the middle of an answer as they do not stand in it before; "" when there are none."""
    for start in sorted(range(1, len(text) - 5), key=lambda place: abs(place - len(text) // 2)):
        piece = text[start : start + 5]
        if piece.strip() and text.find(piece) == start:
            return piece
    return ""


def probe_stop(bench: Bench) -> Result:
    """Stop strings that begin anywhere in a token: the answer must end before them, and be the server's own up to there."""
    name = "stop"
    said = {reply.id: reply.text for reply in bench.replies if reply.text}
    chosen = [(prompt, stop_for(said[prompt.id])) for prompt in bench.prompts if prompt.id in said]
    chosen = [(prompt, stop) for prompt, stop in chosen if stop][:8]
    if not chosen:
        return Result(name, "inconclusive", "no greedy answer is long enough to be cut")
    requests = [request_for(prompt, bench.audit.output_tokens, stop=(stop,)) for prompt, stop in chosen]
    found = {side.name: side.replies(requests, len(requests), name) for side in bench.sides}
    wrong = {side: [trouble(reply, stop, said[reply.id]) for reply, (_, stop) in zip(r, chosen, strict=True)] for side, r in found.items()}
    numbers = {side: {"cut": sum(not w for w in each), "asked": len(each), "wrong": [w for w in each if w]} for side, each in wrong.items()}
    ours = [i for i, w in enumerate(wrong["speculative"]) if w and w != "another text"]
    theirs = {i for i, w in enumerate(wrong.get("baseline", [])) if w and w != "another text"}
    if only := [i for i in ours if i not in theirs]:
        what, (prompt, stop) = wrong["speculative"][only[0]], chosen[only[0]]
        evidence = f"{len(only)} of {len(chosen)} answers with a stop string: {what}, first {prompt.id}, stop {stop!r}"
        return failed(name, "DS705", evidence, "text behind a stop string reaches the client, or text before it is lost", **numbers)
    if ours:
        return Result(name, "inconclusive", f"both servers fail: {wrong['speculative'][ours[0]]}", numbers=numbers)
    whole = sum(not w for w in wrong["speculative"])
    return Result(
        name, "passed" if whole else "inconclusive", f"{whole} of {len(chosen)} answers are cut before their stop string", numbers=numbers
    )


def trouble(reply: Reply, stop: str, full: str) -> str:
    """What is wrong with an answer that was to end before `stop`; full: the answer without it. "another text": it went another way."""
    expected = full[: full.find(stop)]
    if not reply.ok and not reply.text:
        return "" if not expected else f"no answer: {reply.error}"
    if stop in reply.text:
        return "the stop string is passed over"
    if reply.text == expected:
        return "" if reply.finish_reason == "stop" else f"finish_reason is {reply.finish_reason}"
    if expected.startswith(reply.text):
        return "the answer is cut too early"
    return "more than the answer came" if reply.text.startswith(expected) else "another text"


# --- long replies ----------------------------------------------------------------------------------------------------


def probe_long(bench: Bench) -> Result:
    """One long reply, and where the context is known one that fills it to the last token; all tokens must come, and be the baseline's."""
    name, audit = "long", bench.audit
    prompt = max(bench.prompts, key=lambda p: len(p.token_ids))
    read = next((reply.prompt_tokens for reply in bench.replies if reply.id == prompt.id), 0) or len(prompt.token_ids)
    room = None if audit.context is None or not read else audit.context - read
    wanted = audit.long_tokens if room is None else min(audit.long_tokens, room)
    if wanted < 2:
        return Result(name, "inconclusive", f"the context of {audit.context} tokens has no room after a prompt of {read}")
    requests = [request_for(prompt, wanted, ignore_eos=True)]
    replies = {side.name: side.replies(requests, 1, name)[0] for side in bench.sides}
    lengths = {side: reply.completion_tokens for side, reply in replies.items()}
    full = room is not None and wanted == room
    numbers = {"asked": wanted, "tokens": lengths, "fills_the_context": full}
    ours, theirs = replies["speculative"], replies.get("baseline")
    if theirs is not None and not theirs.ok:
        return Result(name, "inconclusive", f"the baseline does not give {wanted} tokens: {theirs.error}", numbers=numbers)
    if not ours.ok:
        place = ", which fill the context" if full else ""
        return failed(
            name, "DS707", f"{lengths['speculative']} of {wanted} tokens{place}: {ours.error}", "long replies end early", **numbers
        )
    evidence = f"{wanted} tokens{', the context to its end' if full else ''}"
    if theirs is None:
        return Result(name, "passed", evidence, numbers=numbers)
    longer = Audit(output_tokens=wanted, near_tie=audit.near_tie)
    found = compare([answer_of(theirs, prompt)], [answer_of(ours, prompt)], bench.judge, longer)
    numbers["divergences"] = rows_of(found.parted)
    if faults := found.of("fault"):
        gap = f"{faults[0].logit_gap:.3g}"
        return failed(
            name, "DS701", f"a reply of {wanted} tokens parts at {faults[0].position}, gap {gap}", "long replies are others", **numbers
        )
    same = found.count.tokens - len(found.parted)
    return Result(
        name, "passed", f"{evidence}; {same} equal the baseline's" + (" up to a near-tie" if found.parted else ""), numbers=numbers
    )
