"""Servers that already run, servers that sleep in turn, open loads, and a bench that is killed at any moment."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web
from bench_world import ACCEPTED, PROMPTS, SETTINGS, job, run
from test_measure_protocol import planned

from draftsmith import cli
from draftsmith.bench.prompting import Prompting
from draftsmith.bench.settings import BenchSettings
from draftsmith.bench.stage import measure
from draftsmith.errors import EnvironmentFailed, InvalidMeasurement
from draftsmith.manifest import append_jsonl, read_jsonl
from draftsmith.measure.sleeping import SWITCHES, taking_turns
from mock_server import Behaviour, MockLaunch, MockServer, mock_starter

KILLED = Path(__file__).with_name("killed_bench.py")


class Silent(MockServer):
    """Has no /metrics."""

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(status=404)


class Running(MockServer):
    """Also tells its model and version, and can sleep; while it sleeps, nobody may ask it anything."""

    def __init__(self, behaviour: Behaviour | None = None, version: str = "0.32.0") -> None:
        super().__init__(behaviour)
        self.version, self.asleep, self.naps = version, False, 0

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/version", self.tell_version)
        app.router.add_post("/sleep", self.sleep)
        app.router.add_post("/wake_up", self.wake)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "some-model", "max_model_len": 4096}]})

    async def tell_version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    async def sleep(self, request: web.Request) -> web.Response:
        assert request.query["level"] == "1" and self.in_flight == 0
        self.asleep, self.naps = True, self.naps + 1
        return web.Response()

    async def wake(self, _: web.Request) -> web.Response:
        self.asleep = False
        return web.Response()

    async def completions(self, request: web.Request) -> web.StreamResponse:
        if self.asleep:
            return web.json_response({"error": {"message": "asleep"}}, status=503)
        return await super().completions(request)


@pytest.fixture
def servers() -> Iterator[tuple[Running, Running]]:
    baseline, speculative = Running(Behaviour(step_s=0.004)), Running(Behaviour(accepted=ACCEPTED, depth=3, step_s=0.004))
    with baseline, speculative:
        yield baseline, speculative


def command(out: Path, *servers: MockServer, more: tuple[str, ...] = ()) -> list[str]:
    urls = [word for server in servers for word in ("--url", server.url)]
    return ["bench", *urls, "--out", str(out), "--concurrency", "1,2", "--requests", "4", "--output-tokens", "16", "-q", *more]


# --- servers that already run ----------------------------------------------------------------------------------------


def test_two_running_servers(tmp_path: Path, servers: tuple[Running, Running], capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(command(tmp_path, *servers, more=("--json", "--min-speedup", "1.1@2", "--pairs", "3")))
    summary = json.loads(capsys.readouterr().out)
    assert code == {"passed": 0, "inconclusive": 3}[summary["gate"]]  # others may use the cores meanwhile
    assert summary["order"] == "ABBAAB" and summary["unit"] == "block"
    assert summary["depth"] == 3 and summary["cells"][1]["acceptance"]["accept_len"] == pytest.approx(2.0, abs=0.15)
    assert all(cell["verdict"] != "does not pay" and 1.3 < cell["speedup"]["ratio"] < 3 for cell in summary["cells"])
    assert "blocks at one server each" in summary["cells"][0]["speedup"]["method"]
    assert any(text.startswith("one server per arm") for text in summary["findings"])
    assert summary["verdict_sentence"].startswith(f"{servers[1].url} with 3 drafts ")
    for server in servers:
        asked = [json.dumps(body["messages"]) for body in server.seen if body["max_tokens"] == 16]
        assert len(asked) == len(set(asked)) == 3 * 8, "no prompt is sent twice to a server"
    for row in read_jsonl(tmp_path / "launches.jsonl"):
        assert row["ready_s"] is None and row["cells"][0]["counter_tokens"] == row["cells"][0]["usage_tokens"]


def test_the_same_command_goes_on_and_says_the_same(tmp_path: Path, servers: tuple[Running, Running]) -> None:
    cli.main(command(tmp_path, *servers, more=("--pairs", "2")))
    before = json.loads((tmp_path / "summary.json").read_text())
    asked = len(servers[0].seen)
    cli.main(command(tmp_path, *servers, more=("--pairs", "2")))
    assert json.loads((tmp_path / "summary.json").read_text()) == before and len(servers[0].seen) == asked
    (tmp_path / "summary.json").unlink()
    cli.main(["bench", "--summarise", str(tmp_path)])
    assert json.loads((tmp_path / "summary.json").read_text()) == before


def test_other_conditions_are_not_mixed_in(tmp_path: Path, servers: tuple[Running, Running], capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(command(tmp_path, *servers, more=("--pairs", "2")))
    servers[0].version = "0.33.0"
    assert cli.main(command(tmp_path, *servers, more=("--pairs", "2"))) == 3
    assert "server engine_version (0.32.0, 0.33.0)" in capsys.readouterr().err


def test_arms_that_differ_in_more_than_speculation(tmp_path: Path, servers: tuple[Running, Running]) -> None:
    servers[1].version = "0.33.0"
    cli.main(command(tmp_path, *servers, more=("--pairs", "2")))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {"key": "engine_version", "baseline": "0.32.0", "speculative": "0.33.0", "matters": True} in summary["differences"]
    assert any("differ in more than speculation: engine_version (0.32.0, 0.33.0)" in text for text in summary["findings"])


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["bench"], 2, "say what to measure"),
        (["bench", "--url", "http://127.0.0.1:9"], 2, "1 --url given"),
        (["bench", "recipes/smollm2-cpu.yaml", "--requests", "9"], 2, "--requests is for running servers"),
        (["bench", "--url", "a", "--url", "b", "--load", "burst:3"], 2, "--load 'burst:3' is not known"),
        (["bench", "--url", "a", "--url", "b", "--concurrency", "two"], 2, "is not a list of whole numbers"),
        (["bench", "--url", "a", "--url", "b", "--requests", "9,9,9"], 2, "--requests has 3 numbers"),
        (["bench", "--url", "a", "--url", "b", "--pairs", "0"], 2, "pairs: Input should be greater"),
        (["bench", "--url", "a", "--url", "b", "--slo", "fast"], 2, "--slo 'fast' is not LIMIT=SECONDS"),
        (["bench", "recipes/smollm2-cpu.yaml", "--noise-blocks", "2"], 2, "in a recipe: bench.noise_launches"),
        (["bench", "--url", "a", "--url", "b", "--min-speedup", "1.1@9"], 2, "gate at concurrency 9"),
        (["bench", "--url", "a", "--url", "b", "--load", "trace:nosuch.jsonl"], 2, "there is no file nosuch.jsonl"),
        (["bench", "--url", "http://h:9", "--url", "h:9/v1/"], 2, "both --url are http://h:9"),
        (["bench", "--url", "http://h:x", "--url", "http://h:1"], 2, "is not the address of a server"),
        (["bench", "--url", "ftp://h", "--url", "http://h:1"], 2, "is not the address of a server"),
        (["bench", "--url", "http://me:secret@h:1", "--url", "http://h:1"], 2, "an address here has no user"),
        (["bench", "--url", "http://127.0.0.1:9", "--url", "http://127.0.0.1:10"], 4, "no server answers at http://127.0.0.1:9"),
    ],
)
def test_what_cannot_be_meant(words: list[str], code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--out", str(tmp_path)] if "--url" in words else []
    assert cli.main([*words, *more]) == code
    assert told in capsys.readouterr().err


def test_an_open_load(tmp_path: Path, servers: tuple[Running, Running]) -> None:
    words = ["bench", "--url", servers[0].url, "--url", servers[1].url, "--out", str(tmp_path), "--load", "poisson:400", "-q"]
    assert cli.main([*words, "--pairs", "2", "--output-tokens", "16", "--slo", "e2e_s=30"]) in (0, 3)
    [cell] = json.loads((tmp_path / "summary.json").read_text())["cells"]
    assert cell["goodput"]["baseline"]["share"] == 1 and cell["goodput"]["baseline"]["slo"] == {"e2e_s": 30}
    assert cell["load"]["kind"] == "poisson" and cell["label"] == "400 req/s"
    assert cell["speedup"]["ratio"] > 1.2 and cell["latency"]["baseline"]["ttft_s"]["p50"] > 0
    assert cell["finish"] == {"baseline": {"length": 200}, "speculative": {"length": 200}}


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"at_s": i / 50, "max_tokens": 8, "token_ids": [100 + i, 7]}) + "\n" for i in range(6)))
    values = {"pairs": 2, "concurrency": (), "loads": [{"kind": "trace", "file": str(trace), "speed": 2.0}], "canary_tokens": 8}
    settings = BenchSettings.model_validate(values)
    summary = run(tmp_path, settings=settings)
    assert summary["cells"][0]["label"] == "trace trace.jsonl x2" and summary["gate"] == "passed" and summary["gates"] == []
    sent = [row for row in read_jsonl(tmp_path / "bench" / "requests.jsonl") if row["phase"] == "cell" and row["launch"] == 0]
    assert max(row["due_s"] for row in sent) - min(row["due_s"] for row in sent) == pytest.approx(0.05)


def test_requests_are_shared_out_over_closed_and_open_loads(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "--url", "a", "--url", "b", "--concurrency", "1,2", "--load", "poisson:5", "--dry-run", "--json", "--requests"]
    for asked, total in (("8", 24), ("8,9,10", 27), ("8,9", 117)):  # an open load has 100 unless asked
        assert cli.main([*words, asked]) == 0
        assert json.loads(capsys.readouterr().out) == {"blocks": 8, "requests": total}


def test_blocks_of_the_noise_floor_come_first_with_prompts_of_their_own(tmp_path: Path, servers: tuple[Running, Running]) -> None:
    cli.main(command(tmp_path, *servers, more=("--pairs", "2", "--noise-blocks", "2")))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["order"] == "AAABBA" and summary["noise_floor"]["source"] == "A/A launches"
    assert len(summary["cells"][0]["baseline_tok_s"]["launches"]) == 2
    asked = [json.dumps(body["messages"]) for body in servers[0].seen if body["max_tokens"] == 16]
    assert len(asked) == len(set(asked)) == 4 * 8


@pytest.mark.parametrize(("fault", "told"), [("no_usage", "no completion tokens in the server's usage"), ("http_500", "HTTP 500: boom")])
def test_a_server_that_answers_nothing_ends_it_at_once(
    tmp_path: Path, servers: tuple[Running, Running], capsys: pytest.CaptureFixture[str], fault: str, told: str
) -> None:
    everything = dict.fromkeys(range(100_000), fault)
    with Running(Behaviour(accepted=ACCEPTED, depth=3, faults=everything)) as broken:
        assert cli.main(command(tmp_path, servers[0], broken, more=("--pairs", "2"))) == 3
        assert told in capsys.readouterr().err and len(broken.seen) == 2
    assert [row["arm"] for row in read_jsonl(tmp_path / "launches.jsonl")] == ["baseline"]  # what was measured stays


def test_a_server_that_cannot_show_that_it_speculates_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Proxy(Silent, Running):
        pass

    with Running() as baseline, Proxy(Behaviour(accepted=ACCEPTED, depth=3)) as proxy:
        assert cli.main(command(tmp_path, baseline, proxy)) == 2
    assert "nothing would show that it speculates" in capsys.readouterr().err and not proxy.seen


def test_a_full_disk_is_one_error_and_the_same_command_goes_on(
    tmp_path: Path, servers: tuple[Running, Running], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def until_full(path: Path, row: dict) -> None:
        if len(written) == 20:  # in the second block
            with path.open("a") as file:
                file.write('{"launch": 1, "pha')
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(json.loads(json.dumps(row)))
        append_jsonl(path, row)

    with monkeypatch.context() as patch:
        patch.setattr("draftsmith.measure.recorder.append_jsonl", until_full)
        assert cli.main(command(tmp_path, *servers, more=("--pairs", "2"))) == 4
    told = capsys.readouterr().err
    assert "the disk is full" in told and "run the same command to go on" in told and "Traceback" not in told
    assert cli.main(command(tmp_path, *servers, more=("--pairs", "2"))) in (0, 3)
    rows = read_jsonl(tmp_path / "requests.jsonl")
    assert rows[:16] == written[:16] and [row["launch"] for row in read_jsonl(tmp_path / "launches.jsonl")] == [0, 1, 2, 3]


# --- sleeping in turns -----------------------------------------------------------------------------------------------


def test_one_server_per_arm_sleeps_while_the_other_runs(tmp_path: Path, servers: tuple[Running, Running]) -> None:
    started = []

    @contextmanager
    def start(group):
        started.append([planned.index for planned in group])
        assert all(server.asleep or not server.seen for server in servers), "memory for one arm only"
        yield [MockLaunch(servers[bool(planned.depth)]) for planned in group]

    settings = SETTINGS.model_copy(update={"mode": "sleep", "pairs": 3})
    summary = measure(settings, job(tmp_path, "vllm==0.32.0"), start, "target", Prompting(PROMPTS))
    assert started == [[0], [1]] and summary["order"] == "ABBAAB" and summary["invalid"] == []
    assert [server.naps for server in servers] == [3, 3] and all(server.asleep for server in servers)
    assert summary["unit"] == "block" and any("one server per arm" in text for text in summary["findings"])


def test_a_server_without_sleep_mode_says_so() -> None:
    sleepless = taking_turns(mock_starter(lambda _: Behaviour()), SWITCHES["vllm"])
    with pytest.raises(EnvironmentFailed, match="this server cannot sleep"), sleepless as turn, turn(planned()[:1]):
        pass


# --- kill -9 ---------------------------------------------------------------------------------------------------------


def test_killed_at_random_points_it_goes_on(tmp_path: Path, child_env: dict[str, str]) -> None:
    """kill -9 six times, or until it gets through; then every launch is there once, whole, and the summary is an undisturbed run's."""
    draw = random.Random(11)
    env = {**child_env, "PYTHONPATH": os.pathsep.join([child_env["PYTHONPATH"], str(KILLED.parent)])}
    kills = 0
    for attempt in range(7):
        child = subprocess.Popen([sys.executable, str(KILLED), str(tmp_path)], env=env, stderr=subprocess.DEVNULL)
        requests = tmp_path / "bench" / "requests.jsonl"
        deadline = time.monotonic() + 30
        size = requests.stat().st_size if requests.exists() else 0
        while child.poll() is None and time.monotonic() < deadline and (requests.stat().st_size if requests.exists() else 0) == size:
            time.sleep(0.005)
        time.sleep(draw.uniform(0.0, 0.9))  # a launch takes about as long; the first two kills fall before the last one
        if attempt == 6:
            child.wait(60)
        if child.poll() is not None:
            break
        child.send_signal(signal.SIGKILL)
        child.wait()
        kills += 1
    assert child.returncode == 0 and kills >= 2, (child.returncode, kills)
    rows = read_jsonl(tmp_path / "bench" / "launches.jsonl")
    assert [row["launch"] for row in rows] == [0, 1, 2, 3] and not any(row["invalid"] for row in rows)
    replies = read_jsonl(tmp_path / "bench" / "requests.jsonl")
    per_launch = {launch: [row["id"] for row in replies if row["launch"] == launch] for launch in range(4)}
    assert len({tuple(sorted(ids)) for ids in per_launch.values()}) == 1 and len(per_launch[0]) == 2 + 1 + 3 + 4 + 8
    summary = json.loads((tmp_path / "bench" / "summary.json").read_text())
    assert summary["launches_used"] == 4
    assert [cell["output_tokens"]["speculative"] for cell in summary["cells"]] == [2 * 3 * 31, 2 * 8 * 31]


def test_conditions_of_a_half_done_bench_must_hold(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(InvalidMeasurement, match="other conditions: prompts"):
        run(tmp_path, settings=SETTINGS.model_copy(update={"output_tokens": 30}))
