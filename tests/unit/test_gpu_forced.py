"""The measuring function of the GPU drivers: window, rounds and refusals on traces whose times are known, and over HTTP."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from draftsmith.engines.protocol import Launch
from draftsmith.engines.sglang.engine import SGLang
from draftsmith.errors import InvalidMeasurement

GPU = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"


def load(name: str) -> ModuleType:
    """A driver beside `forced.py`, imported as it imports its neighbours."""
    sys.path.insert(0, str(GPU))
    try:
        spec = importlib.util.spec_from_file_location(name, GPU / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(GPU))


forced = load("forced")


def trace(points: list[tuple[float, int]], rounds: int | None = None) -> object:
    return forced.Trace(points, rounds)


def test_only_the_window_counts_in_which_all_requests_decode() -> None:
    early = trace([(0.0, 1), (1.0, 17), (1.5, 33), (2.0, 49)])  # slow at first, alone and beside the other's prefill
    late = trace([(1.0, 1), (1.5, 17), (2.0, 33), (2.5, 49)])
    assert forced.seconds_per_token([early, late]) == pytest.approx(0.5 / 16)


def test_requests_that_do_not_overlap_prove_nothing() -> None:
    with pytest.raises(InvalidMeasurement, match="overlap"):
        forced.seconds_per_token([trace([(0.0, 1), (1.0, 17)]), trace([(1.0, 1), (2.0, 17)])])


def test_the_first_token_belongs_to_no_round() -> None:
    assert forced.tokens_per_round([trace([(0.0, 1), (1.0, 9)], rounds=4)]) == 2.0
    assert forced.tokens_per_round([trace([(0.0, 1), (1.0, 9)])]) is None


def test_acceptance_that_was_not_forced_makes_a_cell_invalid() -> None:
    def sample(length: float | None) -> object:
        return forced.Sample(0.02, 0.01, length, 0.1, 100, 1.0, 0.0)

    assert forced.summary([sample(2.0), sample(2.02)], 2)["invalid"] == []
    assert forced.summary([sample(2.0), sample(1.4)], 2)["invalid"]
    assert forced.summary([sample(None)], 2)["invalid"]
    assert forced.summary([sample(None)], None)["invalid"] == []


def test_a_forced_launch_is_the_baseline_and_what_forces(tmp_path: Path) -> None:
    base = Launch("baseline", tmp_path, {**forced.FLAGS, **forced.DUMMY})
    launch = forced.forced_launch(base, tmp_path / "drafter", 3, dummy=True)
    plain, words = (SGLang().argv(Path("python"), one, 30000) for one in (base, launch))
    assert words[: len(plain)] == plain
    assert {"EAGLE3", "4", "--speculative-draft-load-format"} < set(words[len(plain) :])
    assert launch.env["SGLANG_SIMULATE_ACC_LEN"] == "2"


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    """A server that streams 2 tokens a round, 4 ms a round, chunks of a batch one after the other."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            wanted = body["sampling_params"]["max_new_tokens"]
            for done in range(1, wanted + 1, 2):
                for index in range(len(body["input_ids"])):
                    meta = {"completion_tokens": done} | ({"spec_verify_ct": (wanted - 1) // 2} if done == wanted else {})
                    self.wfile.write(f"data: {json.dumps({'index': index, 'output_ids': [7] * done, 'meta_info': meta})}\n\n".encode())
                self.wfile.flush()
                time.sleep(0.004)
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield "127.0.0.1", server.server_address[1]
    server.shutdown()


def test_a_batch_over_http(address: tuple[str, int]) -> None:
    sample = forced.measure(address, forced.Cell(concurrency=3, vocab_size=1000, output_tokens=65), seed=1)
    assert sample.tokens_per_round == 2.0 and sample.tokens == 195
    assert sample.second == pytest.approx(2 * sample.seconds_per_token)
    assert 0.004 <= sample.second < 0.02  # sleeps are never shorter, and a busy machine makes them longer
    assert sample.distinct == pytest.approx(1 / 195)


def test_a_model_folder_for_dummy_weights(tmp_path: Path) -> None:
    tokenizer = tmp_path / "other"
    tokenizer.mkdir()
    for name in ("tokenizer.json", "config.json", "generation_config.json"):
        (tokenizer / name).write_text(json.dumps({"of": "other"}))
    folder = forced.write_folder({"hidden_size": 8}, tmp_path / "made", tokenizer)
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "tokenizer.json"]
    assert json.loads((folder / "config.json").read_text()) == {"hidden_size": 8}
