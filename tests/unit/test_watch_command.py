"""draftsmith watch as typed, against a server with scripted counters: lines, exit codes, Prometheus text, signals, keys, lost servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_bench_running import Running
from watch_server import GOOD, SPECULATING, Scripted, moves

from draftsmith import cli
from draftsmith.job import Talk
from draftsmith.measure.credentials import VARIABLE
from draftsmith.watch.command import Asked, Watch
from draftsmith.watch.monitor import Settings
from draftsmith.watch.view import View, status_line
from mock_server import Behaviour, MockServer


def run(capfd: pytest.CaptureFixture[str], server: MockServer, *words: str, code: int = 0) -> tuple[list[Any], str]:
    """(JSON documents on stdout, what was said on stderr)."""
    assert cli.main(["watch", server.url, *words]) == code
    out, err = capfd.readouterr()
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")], err


BRIEFLY = ("--interval-s", "0.05", "--window-s", "0.1", "--baseline-s", "0.3", "--for-s", "1")


# --- lines and exit codes --------------------------------------------------------------------------------------------


def test_good_traffic_line_by_line(capfd: pytest.CaptureFixture[str]) -> None:
    with Scripted(GOOD) as server:
        lines, err = run(capfd, server, *BRIEFLY, "--json", "--expect-accept-len", "2.05")
    *intervals, summary = lines
    assert len(intervals) >= 10 and {line["kind"] for line in intervals} == {"interval"} and summary["kind"] == "summary"
    assert intervals[0]["interval"] is None  # the first reading has nothing before it
    for line in intervals[1:]:
        assert line["interval"]["rounds"] == 400 and line["interval"]["accept_len"] == pytest.approx(2.05)
        assert line["interval"]["survival"] == pytest.approx([0.6, 0.3, 0.15]) and line["interval"]["drafted"] == 1200
        assert line["alarms"] == [] and line["events"] == [] and line["requests_running"] == 3
        assert line["window"]["low"] < 2.05 < line["window"]["high"] and line["interval"]["tok_s"] > 0
    assert summary["exit_code"] == 0 and summary["looks"] >= 3 and summary["alarms"] == {} and summary["ended"] == "time is over"
    assert "watching some-model" in err and "vllm 0.32.0, 3 drafts a round" in err and "expected accept_len 2.05" in err


def test_an_alarm_is_said_and_is_the_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    with Scripted(moves(400, 0.0, 0.0, 0.0)) as server:
        [], err = run(capfd, server, *BRIEFLY, code=4)
    assert "ALARM accept_len_one: accept_len exactly 1.00 over" in err and "do: switch speculation off" in err


def test_a_server_without_a_drafter(capfd: pytest.CaptureFixture[str]) -> None:
    """As after a restart that lost its flags: nothing is on the page, and tokens flow."""

    def step(server: Scripted) -> None:
        server.tokens += 300

    with Scripted(step) as server:
        server.behaviour = Behaviour()
        _, err = run(capfd, server, *BRIEFLY, code=4)
    assert "no drafts (as far as it tells)" in err and "ALARM not_speculating" in err and "accept_len_one" not in err


def test_what_hides_behind_one_page_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """A router or a federation adds models up, a data-parallel engine its ranks; an empty page of one server says nothing of the kind."""

    class Several(Scripted):
        def metrics_text(self) -> str:
            more = "".join(f'vllm:num_requests_waiting{{engine="{i}",model_name="{name}"}} 0.0\n' for i, name in enumerate(("a", "b")))
            return super().metrics_text() + more

    for server, told in ((Several(GOOD), True), (Scripted(GOOD), False)):
        with server:
            _, err = run(capfd, server, *BRIEFLY, code=0)
        assert ("counts 2 models (a, b), which are added up: watch each server by its own address" in err) == told, err
        assert ("counts 2 engine ranks (0, 1), which are added up" in err) == told


def test_once_judges_what_was_counted_since_the_start(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "draftsmith.prom"
    with Scripted(moves(5000, 0.1, 0.05, 0.02)) as server:
        assert cli.main(["watch", server.url, "--once", "--json", "--expect-accept-len", "2.05", "--textfile", str(file)]) == 4
        document = json.loads(capfd.readouterr().out)
        assert list(document["alarms"]) == ["drift_from_report"] and document["total"]["rounds"] >= 5000
        assert 'draftsmith_alarm{server="' in file.read_text() and list(tmp_path.iterdir()) == [file]
        assert cli.main(["watch", server.url, "--once"]) == 0
        assert "since the server's start: accept_len 1.17" in capfd.readouterr().out
    with Scripted(lambda server: None) as server:
        assert cli.main(["watch", server.url, "--once"]) == 3
        assert "fewer than 200 rounds: nothing was judged" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--expect-accept-len", "1"], "are above 1"),
        (["--expect-accept-len", "2", "--expect", "x"], "--expect and --expect-accept-len at once"),
        (["--expect", "/no/such/place"], "no accept_len that was served or predicted"),
        (["--interval-s", "0"], "expected seconds above 0"),
        (["--window-s", "5"], "each at least as long as the one before it"),
        (["--margin", "1"], "expected a share"),
        (["--once", "--for-s", "3"], "--once ends at once"),
        (["--textfile", "x.txt"], "only files that end in .prom"),
        (["--textfile", "/no/such/folder/x.prom"], "there is no folder"),
        (["--prometheus", "http"], "is no port"),
    ],
)
def test_options_that_cannot_be_meant(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Scripted(GOOD) as server:
        assert cli.main(["watch", server.url, *words]) == 2
    assert told in capsys.readouterr().err


def test_servers_that_cannot_be_watched(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", "http://127.0.0.1:9"]) == 4
    assert "no server answers at http://127.0.0.1:9" in capsys.readouterr().err

    class Silent(Running):
        def metrics_text(self) -> str:
            return "up 1\n"

    with Silent(SPECULATING) as server:
        assert cli.main(["watch", server.url]) == 4
    assert "has no counters of vLLM or SGLang" in capsys.readouterr().err


def test_a_server_with_a_key(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with Scripted(GOOD, key="sk-right") as server:
        monkeypatch.setenv(VARIABLE, "sk-wrong")
        _, err = run(capfd, server, "--once", code=4)
        assert "refuses the key" in err and VARIABLE in err and "sk-" not in err
        monkeypatch.setenv(VARIABLE, "sk-right")
        _, err = run(capfd, server, "--once")
        assert "sk-right" not in err


def test_a_server_that_goes_and_comes_back(capfd: pytest.CaptureFixture[str]) -> None:
    """Told once each, and the watch goes on; the counts of the gap are not lost."""

    def step(server: Scripted) -> None:
        GOOD(server)

    with Scripted(step) as server:
        watch = Watch(Asked(server.url, settings=Settings(0.05, 0.1, 0.3)), Talk())
        for gone in (False, False, True, True, False, False):
            server.gone = gone
            watch.step()
        thread, url = server.thread, server.url
    err = capfd.readouterr().err
    assert err.count("no reading: ") == 1 and err.count("answers again after") == 1
    assert (watch.readings, watch.missed) == (4, 2) and watch.monitor.meter.total.rounds == 1200
    assert not thread.is_alive()
    watch.step()  # nobody is there any more
    assert f"no reading: no server answers at {url}" in capfd.readouterr().err and not watch.monitor.up
    assert status_line(watch.monitor) == "no reading"


def test_a_restart_in_the_middle(capfd: pytest.CaptureFixture[str]) -> None:
    def step(server: Scripted) -> None:
        if server.looked == 6:
            server.rounds = server.tokens = server.requests = 0
            server.reached = [0, 0, 0]
        GOOD(server)

    with Scripted(step) as server:
        lines, err = run(capfd, server, *BRIEFLY, "--json")
    assert lines[-1]["restarts"] == 1 and "the server restarted" in err
    assert all(line["interval"] is None or line["interval"]["rounds"] == 400 for line in lines[:-1])


# --- the end ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_running() -> Iterator[Scripted]:
    with Scripted(GOOD) as server:
        yield server


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_the_normal_end(number: signal.Signals, long_running: Scripted, child_env: dict[str, str], tmp_path: Path) -> None:
    words = [sys.executable, "-m", "draftsmith", "watch", long_running.url, "--interval-s", "0.1", "--json", "--prometheus", ":0"]
    child = subprocess.Popen(words, env=child_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert child.stdout is not None
    first = [json.loads(child.stdout.readline()) for _ in range(3)]
    assert [line["kind"] for line in first] == ["interval"] * 3
    os.kill(child.pid, number)
    began = time.monotonic()
    out, err = child.communicate(timeout=20)
    assert child.returncode == 0 and time.monotonic() - began < 5
    summary = json.loads(out.splitlines()[-1])
    assert summary["kind"] == "summary" and summary["ended"] == "interrupted" and summary["alarms"] == {}
    assert "Traceback" not in err and "Prometheus: http://127.0.0.1:" in err


def test_a_reader_that_goes_away_ends_it(long_running: Scripted, child_env: dict[str, str], tmp_path: Path) -> None:
    words = [sys.executable, "-m", "draftsmith", "watch", long_running.url, "--interval-s", "0.05", "--json"]
    child = subprocess.Popen(words, env=child_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(timeout=20) == 0
    said = child.stderr.read()
    assert "Traceback" not in said and "Broken" not in said


# --- for people ------------------------------------------------------------------------------------------------------


class Terminal:
    """A stream that says that it is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return True


def test_one_line_in_place_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    terminal = Terminal()
    with Scripted(GOOD) as server:
        watch = Watch(Asked(server.url, settings=Settings(0.05, 0.1, 0.3)), Talk())
        watch.view = View(watch.talk, terminal)  # type: ignore[arg-type]
        for _ in range(3):
            watch.step()
    assert "\n" not in terminal.text and terminal.text.count("\r\x1b[2K") == 2
    last = terminal.text.rpartition("\r\x1b[2K")[2]
    assert last.startswith("accept_len 2.05 (") and len(last) <= 59
    assert status_line(watch.monitor).endswith("no alarm") and "by draft 60 30 15 %" in status_line(watch.monitor)
