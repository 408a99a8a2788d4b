"""A sweep over servers that stand in for SGLang with known times: what is written, who is left out, when it stops."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from draftsmith.breakeven.sweep import LAUNCHES, WAVES, Planned, Sweep, Waves, started
from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.sglang.engine import SGLang
from draftsmith.job import Talk
from draftsmith.manifest import read_jsonl
from fake_sglang.sglang.launch_server import DRAFT_MS, ROUND_MS, ROW_MS, STEP_MS

FAKE = Path(__file__).resolve().parents[1] / "fake_sglang"
LOAD = Waves(vocab_size=100, tokens=48, warmup_tokens=20, waves=1, passes=2, stream_step=4)


def planned(index: int, port: int, depth: int = 0, **env: str) -> Planned:
    drafting = Drafting("eagle3", Path("/drafter"), depth, forced_accept_len=2.0) if depth else None
    arm = "speculative" if drafting else "baseline"
    launch = Launch(arm, Path("/target"), {"port": port}, {"PYTHONPATH": str(FAKE), **env}, drafting, dummy_weights=frozenset({"target"}))
    return Planned(index, f"depth {depth}", launch, (1, 4))


def test_times_are_those_of_the_server_and_a_launch_that_dies_takes_no_other_with_it(tmp_path: Path, free_ports: list[int]) -> None:
    plan = [planned(0, free_ports[0]), planned(1, free_ports[1], FAKE_DIES=str(free_ports[1] % 10)), planned(2, free_ports[2], depth=3)]
    with started(SGLang(), Path(sys.executable), plan, tmp_path, 30.0, Talk(quiet=True)) as servers:
        assert [p.index for p, _ in servers] == [0, 2]
        assert Sweep(tmp_path, LOAD, time.monotonic() + 60, Talk(quiet=True)).run(servers)
    [dead] = [row for row in read_jsonl(tmp_path / LAUNCHES) if "died" in row]
    assert dead["launch"] == 1 and "as asked" in dead["died"]
    rows = read_jsonl(tmp_path / WAVES)
    order = [(row["launch"], row["concurrency"]) for row in rows if row["phase"] == "cell"]
    assert order == [(0, 1), (2, 1), (0, 4), (2, 4), (2, 4), (0, 4), (2, 1), (0, 1)]
    for launch, depth in ((0, 0), (2, 3)):
        for concurrency in (1, 4):
            cells = [r for r in rows if (r["launch"], r["concurrency"], r["phase"]) == (launch, concurrency, "cell")]
            work_ms = ROUND_MS + depth * DRAFT_MS if depth else STEP_MS
            expected_s = (work_ms + ROW_MS * concurrency * (depth + 1)) / 1000
            quickest_s = min(r["round_s"] or r["decode_step_s"] for r in cells)
            assert expected_s * 0.6 < quickest_s < expected_s * 2  # a busy machine delays, at the start of a window too
            assert {r["accept_len"] for r in cells} == {2.0 if depth else None}


def test_a_sweep_out_of_time_begins_no_cell(tmp_path: Path, free_ports: list[int]) -> None:
    with started(SGLang(), Path(sys.executable), [planned(0, free_ports[0])], tmp_path, 30.0, Talk(quiet=True)) as servers:
        assert not Sweep(tmp_path, LOAD, time.monotonic() - 1, Talk(quiet=True)).run(servers)
    assert read_jsonl(tmp_path / WAVES) == []


@pytest.fixture
def free_ports() -> list[int]:
    """Ports that were free a moment ago, with different last digits."""
    import socket

    sockets = [socket.socket() for _ in range(30)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    by_digit = {one.getsockname()[1] % 10: one.getsockname()[1] for one in sockets}
    for one in sockets:
        one.close()
    return list(by_digit.values())[:3]
