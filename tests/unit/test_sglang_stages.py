"""data, verify, serve and bench on servers that answer as SGLang does: native endpoint, acceptance with each reply, none by position on
/metrics. The answers of verify's server are real speculation of a tiny target; replies are read by the real client over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import web
from bench_world import ACCEPTED, PROMPTS, SETTINGS, job
from test_verify_stage import DEPTH, world, written
from test_verify_stage import SETTINGS as VERIFY
from test_verify_stage import job as verify_job  # noqa: F401 (a fixture)
from verify_world import EOS, make_target, serve

from draftsmith.bench.prompting import Prompting
from draftsmith.bench.stage import measure
from draftsmith.data.answers import Asker, Journal
from draftsmith.engines.protocol import Launch
from draftsmith.engines.sglang.engine import SGLang
from draftsmith.errors import InvalidMeasurement
from draftsmith.job import Job, Talk
from draftsmith.measure.client import Reply, Request
from draftsmith.measure.endpoints import accept_len_of
from draftsmith.measure.latency import acceptance_of
from draftsmith.measure.protocol import Planned, Watch
from draftsmith.metrics import Acceptance
from draftsmith.models.checkpoint import load_exported
from draftsmith.recipe import load_recipe
from draftsmith.samples import Sample, samples_file, write_samples
from draftsmith.serve.stage import judge, longest_answered, told_acceptance
from draftsmith.verify import servers, stage
from mock_formats import FORMATS, Moment
from mock_server import Behaviour, MockLaunch, MockServer

__all__ = ["world"]  # a fixture of the other module


def answered(name: str, prompt: int, answer: int) -> Sample:
    """A held-out sample of so many tokens."""
    tokens, mask = np.arange(prompt + answer, dtype=np.int32), np.repeat(np.array([0, 1], np.uint8), [prompt, answer])
    turns = [{"role": "user", "content": f"What is {name}?"}, {"role": "assistant", "content": "It is."}]
    return Sample(name, "code", turns, tokens, mask, prompt, "length")


QUESTION = answered("a loop", 12, 40)


class SGLangServer(MockServer):
    """Counters as SGLang has them: tokens and verify calls, nothing by position."""

    def metrics_text(self) -> str:
        lines = [f'sglang:generation_tokens_total{{model_name="m"}} {float(self.tokens)}', f"sglang:num_requests_total {len(self.seen)}.0"]
        return "\n".join([*lines, f"sglang:spec_verify_calls_total {float(self.rounds)}"] if self.behaviour.accepted else lines) + "\n"


class SGLangLaunch(MockLaunch):
    """One of them as a running server."""

    def __init__(self, server: MockServer) -> None:
        super().__init__(server)
        self.engine = SGLang()  # pyright: ignore[reportAttributeAccessIssue]


class TinyServer(SGLangServer):
    """Answers /generate with the greedy speculation of a tiny target; a baseline tells no rounds. `lie` changes those that are told."""

    def __init__(self, launch: Launch, drafter: Path, lie: Any) -> None:
        super().__init__(Behaviour(accepted=(1,), depth=DEPTH) if launch.drafting else Behaviour())
        dtype = getattr(torch, str(launch.flags["dtype"]))
        self.target = make_target(launch.target, dtype)
        self.drafter = load_exported(drafter, self.target, dtype)
        self.lie = lie

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        tokens, rounds = serve(self.target, self.drafter, list(body["prompt"]), body["max_tokens"], DEPTH)
        moment = Moment(self.behaviour, body, tokens, "stop" if tokens[-1] == EOS else "length", "")
        for accepted in self.lie(rounds) if self.behaviour.accepted else []:
            moment.histogram[accepted] += 1
        self.tokens += len(tokens)
        return web.json_response(FORMATS[request.path].whole(moment.at(0, len(tokens))))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, world: Path) -> Any:
    """verify starts these servers; gives a namespace whose `lie` may be set."""
    told = SimpleNamespace(lie=lambda rounds: rounds, seen=[])
    drafter = world / "run" / "export"

    @contextmanager
    def start_many(_engine: Any, _python: Any, launches: Sequence[Launch], logs: Sequence[Path], *_: Any) -> Iterator[list[Any]]:
        with ExitStack() as stack:
            found = []
            for launch, log in zip(launches, logs, strict=True):
                server: Any = SGLangLaunch(stack.enter_context(TinyServer(launch, drafter, told.lie)))
                server.launch, server.log = launch, log
                told.seen.append(server.server.seen)
                found.append(server)
            yield found

    monkeypatch.setattr(servers, "start_many", start_many)
    monkeypatch.setattr(servers, "engine_for", lambda _settings: (None, None))
    return told


def test_verify_takes_acceptance_from_the_replies(verify_job: Job, started: Any) -> None:  # noqa: F811
    summary = stage.run(VERIFY.model_copy(update={"float32": True}), verify_job)
    assert summary["gap"] == 0.0 and summary["served_accept_len"] > 1
    assert summary["lossless"]["float32"]["identical"] == summary["lossless"]["bfloat16"]["identical"] == VERIFY.prompts
    assert all(body["sampling_params"]["temperature"] == 0 and not body["stream"] for seen in started.seen for body in seen)


def test_verify_of_a_server_whose_replies_tell_other_rounds_fails(verify_job: Job, started: Any) -> None:  # noqa: F811
    started.lie = lambda rounds: [*rounds, *([0] * len(rounds))]  # as of features that reach the drafter wrong: half the acceptance
    with pytest.raises(stage.CheckFailed, match="accept_len predicted"):
        stage.run(VERIFY.model_copy(update={"float32": False}), verify_job)
    assert {finding["code"] for finding in written(verify_job)["findings"] if finding["severity"] == "error"} == {"DS801"}


def test_verify_without_float32_kernels_compares_the_recipes_dtype_only(verify_job: Job, started: Any) -> None:  # noqa: F811
    sglang = replace(verify_job, engine=verify_job.engine.model_copy(update={"name": "sglang==0.5.17"}))
    summary = stage.run(VERIFY, sglang)
    assert list(summary["lossless"]) == ["bfloat16"] and len(started.seen) == 1
    assert stage.plan(VERIFY, sglang).launches == 1 and stage.plan(VERIFY, verify_job).launches == 3
    assert stage.plan(VERIFY.model_copy(update={"float32": True}), sglang).launches == 3


def start(group: Sequence[Planned]) -> Any:
    """A bench's launches on SGLang-like servers."""

    @contextmanager
    def servers_of() -> Iterator[list[SGLangLaunch]]:
        with ExitStack() as stack:
            shapes = [Behaviour(accepted=ACCEPTED, depth=3) if planned.depth else Behaviour() for planned in group]
            yield [SGLangLaunch(stack.enter_context(SGLangServer(shape))) for shape in shapes]

    return servers_of()


def test_bench_has_acceptance_by_position_from_the_replies(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"endpoint": "generate"})
    summary = measure(settings, job(tmp_path, "sglang==0.5.17"), start, "target", Prompting(PROMPTS), Watch("generate"))
    assert summary["invalid"] == []
    for cell in summary["cells"]:
        assert cell["acceptance"]["accept_len"] == pytest.approx(2.0, abs=0.1)
        assert cell["acceptance"]["survival"][:2] == pytest.approx([2 / 3, 1 / 3], abs=0.05) and cell["acceptance"]["survival"][2] == 0
        assert set(cell["acceptance_by_category"]) == {"code", "chat"}
    launches = [json.loads(line) for line in (tmp_path / "bench" / "launches.jsonl").read_text().splitlines()]
    assert {cell["acceptance_source"] for row in launches for cell in row["cells"]} == {None, "requests"}
    assert all(cell["counter_tokens"] == cell["usage_tokens"] for row in launches for cell in row["cells"])


def test_serve_asks_the_engines_own_endpoint_for_acceptance() -> None:
    with SGLangServer(Behaviour(accepted=(1, 0, 3), depth=3)) as server:
        told = told_acceptance(SGLangLaunch(server), QUESTION, 40, 3)  # pyright: ignore[reportArgumentType]
        assert [body["input_ids"] for body in server.seen] == [list(range(12))]  # in the chat template: bare text may end at once
    assert told is not None
    acceptance, tokens = told
    judge(acceptance, tokens, min_rounds=8)
    assert tokens == 40 and acceptance.survival[2] == pytest.approx(1 / 3, abs=0.05)
    with SGLangServer(Behaviour(accepted=(1,), depth=3, spec_names=("", ""))) as silent:  # an older version, or speculation is off
        assert told_acceptance(SGLangLaunch(silent), QUESTION, 40, 3) is None  # pyright: ignore[reportArgumentType]


def test_serve_asks_what_the_drafter_was_made_for(tmp_path: Path) -> None:
    write_samples(samples_file(tmp_path, "heldout"), [answered("short", 30, 3), QUESTION, answered("middling", 12, 20)])
    assert longest_answered(tmp_path).id == "a loop"


def test_serve_asks_nobody_twice_whose_counters_tell() -> None:
    with MockServer(Behaviour(accepted=(1,), depth=3)) as server:
        assert told_acceptance(MockLaunch(server), QUESTION, 40, 3) is None and server.seen == []  # pyright: ignore[reportArgumentType]


def test_serve_names_what_an_endpoint_that_is_not_there_said() -> None:
    class Faulty(SGLangServer):
        async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            return web.json_response({"error": {"message": "no such route"}}, status=404)

    with Faulty(Behaviour(accepted=(1,), depth=3)) as server:
        launch: Any = SGLangLaunch(server)
        launch.log = "engine.log"
        with pytest.raises(InvalidMeasurement, match="no such route"):
            told_acceptance(launch, QUESTION, 40, 3)


def test_data_asks_there_too(tmp_path: Path) -> None:
    with SGLangServer() as server:
        journal = Journal(tmp_path / "answers.jsonl")
        asker = Asker([SGLangLaunch(server)], "target", 4, Talk(quiet=True), "generate")  # type: ignore[list-item]
        asker.ask("answers", [Request("a", (7,), 4), Request("b", (8,), 4)], journal)
        assert sorted(journal.rows) == ["a", "b"] and len(journal.rows["a"]["token_ids"]) == 4
        assert [body["input_ids"] for body in server.seen] == [[7], [8]]


def test_a_recipe_for_sglang_benches_where_acceptance_is_told(tmp_path: Path) -> None:
    recipe = Path(__file__).resolve().parents[2] / "recipes" / "smollm2-h200-sglang.yaml"
    assert load_recipe(recipe).bench.endpoint == "generate"
    assert load_recipe(recipe, ["bench.endpoint=chat"]).bench.endpoint == "chat"
    assert load_recipe(recipe.with_name("smollm2-cpu.yaml")).bench.endpoint == "completions"
    assert set(load_recipe(recipe).bench.concurrency) <= set(load_recipe(recipe).breakeven.concurrency)  # each has its break-even


@pytest.mark.parametrize(
    ("told", "accept_len"),
    [
        ({"spec_verify_ct": 4, "spec_num_correct_drafts": 2, "spec_correct_drafts_histogram": [2, 2]}, 1.5),
        ({"spec_verify_ct": 4, "spec_accepted_drafts": 2}, 1.5),  # 0.5.11
        ({"spec_verify_ct": 4, "spec_accept_histogram": [1, 2, 1]}, 2.0),  # 0.5.9
        ({"spec_verify_ct": 4}, 2.0),  # 0.5.3: 9 tokens, one of them from the prefill
        ({"completion_tokens": 9}, None),
    ],
)
def test_one_reading_of_what_every_version_tells(told: dict[str, Any], accept_len: float | None) -> None:
    assert accept_len_of(told, 9) == accept_len


def test_an_answer_of_one_token_has_no_round_and_takes_none_from_the_others() -> None:
    short, long = Reply("a", True, completion_tokens=1), Reply("b", True, completion_tokens=5, rounds=2, reached=(2,))
    assert acceptance_of([short, long], 3) == Acceptance(2, (2, 0, 0))
    assert acceptance_of([replace(short, completion_tokens=2), long], 3) is None
