"""What `watch` tells Prometheus, held against the text format by a strict parser of our own."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest
from watch_server import GOOD, Scripted, moves

from draftsmith import cli
from draftsmith.engines.rounds import LiveCounts
from draftsmith.job import Talk
from draftsmith.watch.alarms import KINDS
from draftsmith.watch.command import Asked, Watch
from draftsmith.watch.exposition import text_of
from draftsmith.watch.monitor import Monitor, Settings

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf'^({NAME})(?:\{{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)*)\}})? (\S+)$')


def parsed(text: str) -> dict[str, dict[str, float]]:
    """Strictly by the text format: HELP and TYPE once and before the samples of a family, no sample twice, one newline at the end."""
    assert text.endswith("\n") and "\n\n" not in text
    families: dict[str, dict[str, float]] = {}
    kinds: dict[str, str] = {}
    helped: set[str] = set()
    current = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, current, said = line.split(" ", 3)
            assert current not in helped and said and re.fullmatch(NAME, current)
            helped.add(current)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current and name not in kinds and kind in ("counter", "gauge")
            kinds[name], families[name] = kind, {}
        else:
            match = SAMPLE.match(line)
            assert match, line
            name, labels, value = match.groups()
            assert name == current and name in kinds and (kinds[name] == "counter") == name.endswith("_total"), line
            assert labels not in families[name], line
            families[name][labels] = float(value)
    assert all(families.values())
    return families


def get(url: str) -> tuple[str, str]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def test_the_prometheus_page(tmp_path: Path) -> None:
    file = tmp_path / "a.prom"
    with Scripted(moves(600, 0.5, 0.0, 0.0)) as server:
        asked = Asked(server.url, expect_accept_len=1.6, prometheus=":0", textfile=file, settings=Settings(0.05, 0.1, 0.3))
        watch = Watch(asked, Talk(quiet=True))
        assert watch.page is not None and watch.page.url.startswith("http://127.0.0.1:") and not watch.page.open_to_others
        for _ in range(3):
            watch.step()
        text, kind = get(watch.page.url)
        assert kind.startswith("text/plain; version=0.0.4")
        assert text == file.read_text()
        found = parsed(text)
        label = f'server="{server.url}"'
        assert found["draftsmith_accept_len"] == {label: 1.5} and found["draftsmith_expected_accept_len"] == {label: 1.6}
        assert found["draftsmith_survival"] == {f'{label},position="{i + 1}"': share for i, share in enumerate((0.5, 0.0, 0.0))}
        assert found["draftsmith_alarm"] == {f'{label},name="{name}"': 0.0 for name in KINDS}
        assert found["draftsmith_rounds_total"] == {label: 1200.0} and found["draftsmith_up"] == {label: 1.0}
        assert found["draftsmith_accepted_tokens_total"] == {label: 600.0} and found["draftsmith_requests_running"] == {label: 3.0}
        server.step = moves(600, 0.0, 0.0, 0.0)
        watch.step()
        assert parsed(get(watch.page.url)[0])["draftsmith_alarm"][f'{label},name="accept_len_one"'] == 1.0
        server.gone = True
        watch.step()
        assert parsed(get(watch.page.url)[0])["draftsmith_up"] == {label: 0.0}
        watch.page.close()


def test_what_is_not_known_is_not_on_the_page() -> None:
    with Scripted(lambda server: None) as server:
        watch = Watch(Asked(server.url), Talk(quiet=True))
        watch.step()
        found = parsed(watch.text)
    assert not {"draftsmith_accept_len", "draftsmith_survival", "draftsmith_expected_accept_len"} & found.keys()
    assert found["draftsmith_rounds_total"] == {f'server="{server.url}"': 0.0}


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with Scripted(GOOD) as server:
        port = server.url.rpartition(":")[2]
        assert cli.main(["watch", server.url, "--prometheus", f":{port}"]) == 4
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_what_is_not_known_is_left_out() -> None:
    """Before the first round there is no accept_len, and no end of its interval either."""
    monitor = Monitor(Settings(), 3)
    monitor.read(LiveCounts(tokens=0, requests=0, rounds=0, accepted=0, reached=(0, 0, 0)), 0.0)
    families = parsed(text_of(monitor, 'http://a"b\\c\nd', 1.0))
    assert not [name for name in families if name.startswith(("draftsmith_accept_len", "draftsmith_survival"))]
    assert families["draftsmith_rounds_total"] == {'server="http://a\\"b\\\\c\\nd"': 0.0}
