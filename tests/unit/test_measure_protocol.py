"""Order of launches, raw lines, resume, and what makes a launch invalid."""

import json
from pathlib import Path

import pytest

from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Talk
from draftsmith.manifest import append_jsonl, read_jsonl
from draftsmith.measure.protocol import LAUNCHES, PLAN, REQUESTS, Planned, Workload, launch_arms, replies_of, run_launches
from draftsmith.measure.workload import CellShape, Deck, Prompt, make_workload
from mock_server import Behaviour, mock_starter

PROMPTS = [Prompt(f"p{i}", (100 + i, 7)) for i in range(40)]
FAST = Behaviour(accepted=(1, 0, 2), depth=3)
QUIET = Talk(quiet=True)


def planned(pairs: int = 2, must_accept: bool = True) -> list[Planned]:
    launches = []
    for index, arm in enumerate(launch_arms(pairs)):
        drafting = Drafting("eagle3", Path("d"), 3) if arm == "speculative" else None
        launches.append(Planned(index, index // 2, arm, Launch(arm, Path("t"), drafting=drafting), must_accept))
    return launches


def workload() -> Workload:
    return make_workload(Deck(PROMPTS, 0), [CellShape(1, 2, 1, 8, 2), CellShape(3, 6, 3, 8, 2)], canary_tokens=6)


def arm_behaviour(launch: Planned) -> Behaviour:
    return FAST if launch.depth else Behaviour()


def run(folder: Path, behaviour=arm_behaviour, launches=None, **options) -> list[dict]:
    started: list[list[int]] = []
    run_launches(folder, launches or planned(), workload(), mock_starter(behaviour, started), "target", QUIET, **options)
    return [{"started": started}, *read_jsonl(folder / LAUNCHES)]


def test_arms_take_turns() -> None:
    assert "".join(arm[0] for arm in launch_arms(3)) == "bssbbs"


def test_prompts_are_not_repeated_within_a_launch_while_they_last() -> None:
    load = workload()
    ids = [load.canary.id, *(r.id for cell in load.cells for r in (*cell.warmup, *cell.requests))]
    assert len(ids) == len(set(ids)) == 13
    deck = Deck(PROMPTS[:5], 0)
    deck.deal(7, 8)
    assert deck.reused == 2
    assert workload() == load


def test_raw_lines_and_counters(tmp_path: Path) -> None:
    head, *rows = run(tmp_path)
    assert head["started"] == [[0], [1], [2], [3]]
    assert [row["arm"] for row in rows] == ["baseline", "speculative", "speculative", "baseline"]
    assert [entry["arm"] for entry in json.loads((tmp_path / PLAN).read_text())["launches"]] == [row["arm"] for row in rows]
    for row in rows:
        assert row["invalid"] == [] and row["canary_tok_s"] > 0
        for cell in row["cells"]:
            assert cell["usage_tokens"] == cell["counter_tokens"] == cell["requests"] * 8
            # 7 tokens after the first: rounds of 2, 1, 3, 2 (cut to 1)
            expected = {"rounds": 4 * cell["requests"], "reached": [3 * cell["requests"], cell["requests"], 0]}
            assert row["arm"] == "baseline" or {key: cell["acceptance"][key] for key in expected} == expected
    texts = {row["launch"]: {r.id: r.token_ids for r in replies_of(tmp_path, row["launch"], "cell", 3)} for row in rows}
    assert len(texts[0]) == 6 and texts[0] == texts[1] == texts[2] == texts[3]


def test_pairs_can_start_together(tmp_path: Path) -> None:
    head, *rows = run(tmp_path, together=True)
    assert head["started"] == [[0, 1], [2, 3]]
    assert len(rows) == 4 and not any(row["invalid"] for row in rows)


def test_resume_keeps_finished_launches_and_repeats_the_unfinished_one(tmp_path: Path) -> None:
    run(tmp_path)
    lines = (tmp_path / LAUNCHES).read_text().splitlines(keepends=True)
    (tmp_path / LAUNCHES).write_text("".join(lines[:2]))  # killed inside launch 2
    requests = read_jsonl(tmp_path / REQUESTS)
    kept = [row for row in requests if row["launch"] < 2]
    (tmp_path / REQUESTS).unlink()
    for row in [*kept, *[row for row in requests if row["launch"] == 2][:4]]:
        append_jsonl(tmp_path / REQUESTS, row)
    with (tmp_path / REQUESTS).open("a") as file:
        file.write('{"launch": 2, "pha')
    head, *rows = run(tmp_path)
    assert head["started"] == [[2], [3]]
    assert [row["launch"] for row in rows] == [0, 1, 2, 3]
    after = read_jsonl(tmp_path / REQUESTS)
    assert after[: len(kept)] == kept
    assert len(after) == len(requests)
    assert run(tmp_path)[0]["started"] == []


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour(accepted=(0,), depth=3), "accept_len is exactly 1.00"),
        (Behaviour(), "no acceptance counters"),
        (Behaviour(accepted=(1, 0, 2), depth=3, faults={100 + i: "http_500" for i in range(40)}), "requests failed"),
    ],
)
def test_invalid_launches_say_why(tmp_path: Path, behaviour: Behaviour, reason: str) -> None:
    _, *rows = run(tmp_path, lambda launch: behaviour if launch.depth else Behaviour())
    for row in rows:
        assert bool(row["invalid"]) == (row["arm"] == "speculative")
        assert all(any(reason in found for found in row["invalid"]) for _ in [0] if row["invalid"])


def test_a_random_drafter_may_accept_nothing(tmp_path: Path) -> None:
    _, *rows = run(tmp_path, lambda p: Behaviour(accepted=(0,), depth=3) if p.depth else Behaviour(), planned(must_accept=False))
    assert not any(row["invalid"] for row in rows)


def test_a_dead_engine_ends_the_run_and_the_launch_is_not_kept(tmp_path: Path) -> None:
    dies = Behaviour(accepted=(1,), depth=3, faults={100 + i: "die" for i in range(40)})
    with pytest.raises(EnvironmentFailed, match="mock engine died"):
        run(tmp_path, lambda launch: dies if launch.depth else Behaviour())
    assert [row["launch"] for row in read_jsonl(tmp_path / LAUNCHES)] == [0]
    head, *rows = run(tmp_path)
    assert head["started"] == [[1], [2], [3]] and len(rows) == 4
    assert {row["launch"] for row in read_jsonl(tmp_path / REQUESTS)} == {0, 1, 2, 3}
