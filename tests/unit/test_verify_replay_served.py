"""Served figures of every source: verify's file, a bench, a file of replies, a server that runs and its counters."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from draftsmith.errors import EnvironmentFailed, InvalidMeasurement, UsageError
from draftsmith.job import Talk
from draftsmith.measure.prompts import Prompt
from draftsmith.metrics import Acceptance
from draftsmith.verify.replay.served import Asking, ask, from_bench, from_file, from_verify, told_from

PROMPTS = {name: Prompt(name, tokens, category) for name, tokens, category in (("a", (1, 2), "code"), ("b", (3, 4, 5), "prose"))}
QUIET = Talk(quiet=True)
LOCK = threading.Lock()  # requests come at once, and each is a thread


def reply(name: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {"id": name, "token_ids": list(range(7, 7 + tokens)), "finish_reason": "length", **more}


def test_replies_that_tell_their_rounds_need_no_counters() -> None:
    rows = [reply("a", 5, rounds=2, reached=[1, 1]), reply("b", 3, rounds=2, reached=[0])]
    told = told_from("x", rows, PROMPTS, None)
    assert told.acceptance == Acceptance(4, (1, 1)) and told.own["b"] == Acceptance(2, (0, 0))
    assert [answer.prompt for answer in told.answers] == [(1, 2), (3, 4, 5)] and told.categories == {"a": "code", "b": "prose"}
    assert told_from("x", [reply("a", 5)], PROMPTS, None).acceptance is None


def test_counters_of_more_answers_than_are_known_are_not_used() -> None:
    """A prompt of another length than the one of that name was changed on the way (a bench salts prompts that it repeats)."""
    counts = Acceptance(9, (4,)).as_dict()
    told = told_from("x", [reply("a", 5, prompt_tokens=2), reply("b", 3, prompt_tokens=14)], PROMPTS, counts)
    assert told.left_out == 1 and told.acceptance is None and [answer.id for answer in told.answers] == ["a"]
    assert told_from("x", [reply("a", 5, prompt_tokens=2)], PROMPTS, counts).acceptance == Acceptance(9, (4,))


def test_a_file_without_tokens_or_known_prompts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    path.write_text(json.dumps({"acceptance": None}) + "\n" + json.dumps({"id": "a", "token_ids": "x"}) + "\n")
    with pytest.raises(UsageError, match="reply 1: no token_ids"):
        from_file(path, PROMPTS, 0.0)
    path.write_text(json.dumps(reply("nobody", 4)) + "\n")
    with pytest.raises(UsageError, match="no reply whose prompt is known"):
        from_file(path, PROMPTS, 0.0)
    assert from_verify(tmp_path, "bfloat16", PROMPTS) is None


def bench(folder: Path, launches: list[dict[str, Any]]) -> Path:
    """Two cells a launch; the second asks prompt b in other words."""
    folder.mkdir()
    (folder / "conditions.json").write_text(json.dumps({"settings": {"temperature": 0.7}}))
    rows = []
    for launch in launches:
        for cell, name, length in (("1", "a", 2), ("8", "b", 11)):
            rows.append({"launch": launch["launch"], "phase": "warmup", "cell": cell, **reply("a", 3)})
            rows.append({"launch": launch["launch"], "phase": "cell", "cell": cell, **reply(name, 5, prompt_tokens=length)})
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "launches.jsonl").write_text("".join(json.dumps(row) + "\n" for row in launches))
    return folder


def test_a_bench_gives_the_cells_of_its_sound_speculative_launches_whose_prompts_are_known(tmp_path: Path) -> None:
    cells = [{"label": label, "acceptance": Acceptance(3, (2, 1)).as_dict()} for label in ("1", "8")]
    launches = [
        {"launch": 0, "arm": "baseline", "invalid": [], "cells": cells},
        {"launch": 1, "arm": "speculative", "invalid": [], "cells": cells},
        {"launch": 2, "arm": "speculative", "invalid": ["died"], "cells": cells},
        {"launch": 3, "arm": "speculative", "invalid": [], "cells": cells},
    ]
    told = from_bench(bench(tmp_path / "bench", launches), PROMPTS)
    assert told is not None and told.acceptance == Acceptance(6, (4, 2)) and told.temperature == 0.7
    assert [answer.id for answer in told.answers] == ["a", "a"] and told.source == "bench (2 cells)"
    assert from_bench(tmp_path / "none", PROMPTS) is None


# --- a server that runs ----------------------------------------------------------------------------------------------


def two_rounds(_body: dict[str, Any]) -> tuple[list[int], list[int]]:
    """(tokens, accepted drafts of each round) of a request."""
    return [7, 8, 9, 10], [1, 0]


class Fake(BaseHTTPRequestHandler):
    """vLLM's pages; it has counted before. state: `serve` makes the answer; `others`: tokens of other clients at each request;
    `speculates`: it has counters of that; `reached`: rounds that accepted at least so many drafts."""

    state: ClassVar[dict[str, Any]] = {}

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, content: str, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def do_GET(self) -> None:
        state = self.state
        if self.path == "/v1/models":
            self.answer(json.dumps({"data": [{"id": "target"}]}))
        elif self.path == "/metrics":
            lines = [f"vllm:generation_tokens_total {100 + state['tokens']}"]
            if state["speculates"]:
                lines += [f"vllm:spec_decode_num_drafts_total {50 + state['rounds']}"]
                lines += [f"vllm:spec_decode_num_accepted_tokens_total {20 + sum(state['reached'])}"]
                for position, count in enumerate(state["reached"]):
                    count += 20 if position == 0 else 0
                    lines.append(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}} {count}')
            self.answer("\n".join(lines) + "\n", "text/plain")
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        state = self.state
        state["bodies"].append(body)
        with LOCK:
            tokens, rounds = state["serve"](body)
            state["tokens"] += len(tokens) + state["others"]
            state["rounds"] += len(rounds)
            state["reached"] = [count + sum(n > i for n in rounds) for i, count in enumerate(state["reached"])]
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(tokens)}
        choice = {"text": "", "token_ids": tokens, "finish_reason": "length"}
        self.answer(json.dumps({"choices": [choice], "usage": usage}))


@contextmanager
def fake_server(serve: Callable[[dict[str, Any]], tuple[list[int], list[int]]], depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """(url, state)."""
    Fake.state = {"serve": serve, "tokens": 0, "rounds": 0, "reached": [0] * depth, "others": 0, "speculates": True, "bodies": []}
    running = ThreadingHTTPServer(("127.0.0.1", 0), Fake)
    thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}", Fake.state
    finally:
        running.shutdown()
        running.server_close()


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, Any]]]:
    with fake_server(two_rounds, depth=2) as found:
        yield found


def test_a_running_server_is_asked_and_its_counters_are_a_difference(server: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    url, state = server
    told = ask(Asking(url, 4, 0.5, depth=3), list(PROMPTS.values()), tmp_path, QUIET)
    assert told.acceptance == Acceptance(4, (2, 0)), "depth as the server says; what it counted before is not ours"
    assert {tuple(body["prompt"]) for body in state["bodies"]} == {(1, 2), (3, 4, 5)} and told.temperature == 0.5
    assert all(body["temperature"] == 0.5 and body["max_tokens"] == 4 for body in state["bodies"])
    again = from_file(tmp_path / "served.jsonl", {}, 0.0)  # what was asked can be replayed without the server
    assert (again.acceptance, again.answers, again.temperature) == (told.acceptance, told.answers, 0.5)


def test_a_server_that_others_use_or_that_does_not_speculate_proves_nothing(server: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    url, state = server
    state["others"] = 5
    with pytest.raises(InvalidMeasurement, match="others use it too"):
        ask(Asking(url, 4, 0.0, 3), list(PROMPTS.values()), tmp_path, QUIET)
    state |= {"others": 0, "speculates": False}
    with pytest.raises(InvalidMeasurement, match="is speculation on"):
        ask(Asking(url, 4, 0.0, 3), list(PROMPTS.values()), tmp_path, QUIET)
    with pytest.raises(EnvironmentFailed, match="no server answers"):
        ask(Asking("http://127.0.0.1:9", 4, 0.0, 3), list(PROMPTS.values()), tmp_path, QUIET)
