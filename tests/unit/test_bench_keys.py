"""Running servers that want a key, and pairs of servers that are no pair."""

import json
from pathlib import Path

import pytest
from aiohttp import web
from bench_world import ACCEPTED
from test_bench_running import Running, command

from draftsmith import cli
from draftsmith.engines.secrets import KEY_VARIABLE
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.measure.attached import Attached
from draftsmith.measure.credentials import VARIABLE, api_key, server_url
from draftsmith.serve.http import fetch
from mock_server import Behaviour

FAST = Behaviour(step_s=0.001)
SPECULATING = Behaviour(accepted=ACCEPTED, depth=3, step_s=0.001)
KEYS = {"baseline": "sk-of-the-baseline-1", "speculative": "sk-of-the-other-2"}


class Guarded(Running):
    """Answers nobody without the key, and repeats a wrong one in its error, as some servers do."""

    def __init__(self, behaviour: Behaviour, key: str) -> None:
        super().__init__(behaviour)
        self.key, self.withdrawn = key, False

    def refusal(self, request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization", "")
        if given == f"Bearer {self.key}" and not self.withdrawn:
            return None
        return web.json_response({"error": {"message": f"Incorrect API key provided: {given}"}}, status=401)

    async def models(self, request: web.Request) -> web.Response:
        return self.refusal(request) or await super().models(request)

    async def metrics(self, request: web.Request) -> web.Response:
        return self.refusal(request) or await super().metrics(request)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        if len(self.seen) > 4 and self.key.endswith("withdrawn"):
            self.withdrawn = True
        return self.refusal(request) or await super().completions(request)


def written(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.rglob("*") if path.is_file())


def test_each_server_gets_its_key_and_nobody_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, KEYS["baseline"])  # the common one
    monkeypatch.setenv(f"{VARIABLE}_SPECULATIVE", KEYS["speculative"])
    with Guarded(FAST, KEYS["baseline"]) as baseline, Guarded(SPECULATING, KEYS["speculative"]) as speculative:
        assert cli.main(command(tmp_path / "out", baseline, speculative, more=("--pairs", "2", "--json"))) in (0, 1, 3)
    summary = json.loads(capsys.readouterr().out)
    assert summary["invalid"] == [] and summary["launches_used"] == 4
    assert cli.main(["report", str(tmp_path / "out"), "--output", str(tmp_path / "report")]) == 0
    told = capsys.readouterr()
    everything = written(tmp_path) + json.dumps(summary) + told.out + told.err
    assert not any(key in everything for key in KEYS.values())


@pytest.mark.parametrize(("key", "told"), [("", "wants a key (HTTP 401)"), ("sk-wrong", "refuses the key (HTTP 401)")])
def test_a_refused_key_is_one_clear_error(
    key: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, key)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with Running(FAST) as baseline, Guarded(SPECULATING, "sk-right") as speculative:
        assert cli.main(command(tmp_path, baseline, speculative)) == 4
    error = capsys.readouterr().err
    assert told in error and f"{VARIABLE}_SPECULATIVE" in error and "sk-wrong" not in error


def test_a_key_that_is_withdrawn_is_hidden_in_what_the_server_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "sk-soon-withdrawn"
    monkeypatch.setenv(VARIABLE, key)
    with Guarded(FAST, key) as baseline, Running(SPECULATING) as speculative:
        code = cli.main(command(tmp_path, baseline, speculative, more=("--pairs", "2")))
    told = capsys.readouterr()
    everything = written(tmp_path) + told.out + told.err
    assert code in (3, 4) and "Incorrect API key provided: Bearer (hidden)" in everything and key not in everything


def test_the_key_that_a_server_was_started_with_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """What bench, watch, lossless and replay attach to, and what `serve profile` asks, with vLLM's own variable alone."""
    for name in (VARIABLE, f"{VARIABLE}_BASELINE", f"{VARIABLE}_SPECULATIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(KEY_VARIABLE, "sk-of-vllm")
    with Guarded(SPECULATING, "sk-of-vllm") as server:
        assert Attached(server.url, "speculative").depth == 3 and fetch(f"{server.url}/v1/models")[0] == 200
        monkeypatch.setenv(VARIABLE, "sk-of-ours")  # counts first
        with pytest.raises(EnvironmentFailed, match="refuses the key") as error:
            Attached(server.url, "speculative")
    assert error.value.hint.endswith(f"{VARIABLE}_SPECULATIVE, {VARIABLE}, {KEY_VARIABLE}")


def test_the_first_variable_that_is_set_counts() -> None:
    env = {KEY_VARIABLE: "c", VARIABLE: "b", f"{VARIABLE}_BASELINE": "a"}
    assert api_key("baseline", env) == "a" and api_key("speculative", env) == api_key(None, env) == "b"
    assert api_key("baseline", {KEY_VARIABLE: "c", VARIABLE: ""}) == "c"


def test_keys_and_addresses_that_cannot_be_meant() -> None:
    assert api_key("baseline", {}) == "" and api_key("baseline", {VARIABLE: " k \n"}) == "k"
    with pytest.raises(UsageError, match="no key has") as error:
        api_key("baseline", {VARIABLE: "two\r\nX-Other: lines"})
    assert "X-Other" not in str(error.value)
    assert server_url("10.0.0.5:8000/v1/") == "http://10.0.0.5:8000"
    with pytest.raises(UsageError) as error:
        server_url("http://me:hush@h:1?key=hush")
    assert "hush" not in str(error.value)


def test_servers_in_the_wrong_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Running(FAST) as plain, Running(FAST) as other, Running(SPECULATING) as speculative:
        assert cli.main(command(tmp_path, speculative, plain)) == 2
        assert "the first --url, speculates with 3 drafts" in capsys.readouterr().err
        assert cli.main(command(tmp_path, plain, other)) == 2
        assert "the second --url, does not speculate" in capsys.readouterr().err
        assert not plain.seen and not other.seen
