"""A whole tune in a world with known times, and on mock servers: what is launched, what comes out, and going on after a kill."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from tune_world import SETTINGS, World, drafter, fresh_in, job, optimum, true_speedup, tuned

from draftsmith.errors import EnvironmentFailed, InvalidMeasurement, UsageError
from draftsmith.manifest import append_jsonl, read_jsonl
from draftsmith.measure.protocol import LAUNCHES
from draftsmith.measure.recorder import Planned
from draftsmith.metrics import Acceptance
from draftsmith.tune.candidates import candidates_for, read_drafter
from draftsmith.tune.command import Subject, plan
from draftsmith.tune.page import render
from draftsmith.tune.result import told
from draftsmith.tune.settings import TuneSettings

ROUGHLY = 0.05  # a reply's last round is cut, and requests have a prefill


def by_concurrency(content: Any) -> dict[int, Any]:
    return {row["concurrency"]: row for row in content["concurrency"]}


def phases(world: World) -> list[str]:
    return [name.rpartition("(")[2].rstrip(")") for name in world.measured]


# --- the whole way ---------------------------------------------------------------------------------------------------


def test_the_known_best_is_found_confirmed_and_handed_to_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    content = tuned(monkeypatch, job(tmp_path), world, SETTINGS.model_copy(update={"margin": 0.0}))
    for concurrency, row in by_concurrency(content).items():
        best = optimum(concurrency, SETTINGS.depths)
        assert row["chosen"] == f"chain {best}"
        assert row["speedup"]["ratio"] == pytest.approx(true_speedup(concurrency, best), rel=ROUGHLY)
    assert content["exit_code"] == 0 and content["switch_off_above"] is None
    pruned = [c for c in content["candidates"] if c["state"] == "pruned"]
    assert len(content["candidates"]) == 12 and len(pruned) >= 6
    assert all(c["predicted"]["low"] < c["predicted"]["high"] and c["predicted"]["label"] and c["reason"] for c in pruned)
    config = json.loads(content["engine_takes"]["flags"][1])
    assert config["num_speculative_tokens_per_batch_size"][0][0] == 1
    assert {entry[2] for entry in config["num_speculative_tokens_per_batch_size"]} == {optimum(c, SETTINGS.depths) for c in (1, 8, 32)}
    for row in content["schedule_check"]:
        assert row["ratio"] == pytest.approx(by_concurrency(content)[row["concurrency"]]["speedup"]["ratio"], rel=0.01)
    text, page = told(content), render(content)
    assert text.splitlines()[-1] == content["verdict"] and "cannot be the best: at most" in text
    assert "serve with: --speculative-config '{" in text and "--speculative-config &#39;{" in page  # as a shell takes it
    for row in content["concurrency"]:
        assert row["foretold"]["value"] == pytest.approx(row["speedup"]["ratio"], rel=ROUGHLY)
    assert "predicted: " in page
    assert all(candidate["name"] in page for candidate in content["candidates"]) and "http" not in page


@pytest.mark.parametrize("seed", range(5))
def test_in_a_noisy_world_the_choice_is_near_the_best_and_no_false_gain_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Launches scatter by 2 %, costs and acceptance are drawn. (60 such worlds: at worst 9 % below the best, 3 % in 95 of 100 places.)"""
    draw = random.Random(seed)
    monkeypatch.setattr("tune_world.ROW_S", draw.choice([0.0001, 0.0004, 0.0008]))
    monkeypatch.setattr("tune_world.DRAFT_S", draw.choice([0.0003, 0.0012, 0.003]))
    share, luck = draw.uniform(0.35, 0.9), dict[int, float]()

    def slower(planned: Planned, _: int) -> float:
        return luck.setdefault(planned.index, math.exp(draw.gauss(0, 0.02)))

    settings = SETTINGS.model_copy(update={"requests": (2, 16, 64), "output_tokens": 129, "pairs": 3, "check_schedule": "never"})
    content = tuned(monkeypatch, job(tmp_path), World(slower=slower, share=share), settings)
    for concurrency, row in by_concurrency(content).items():
        truth = {depth: true_speedup(concurrency, depth, share) for depth in settings.depths}
        chosen = int(row["chosen"].removeprefix("chain "))
        assert truth[chosen] > 0.9 * max(truth.values()) and chosen <= max(truth, key=lambda depth: truth[depth])
        verdict = row["speedup"]["verdict"]
        assert (verdict != "pays" or truth[chosen] > 1) and (verdict != "does not pay" or truth[chosen] < 1)
        assert verdict != "inconclusive" or abs(math.log(max(truth.values()))) < 0.1


def test_launches_take_turns_and_a_cell_is_measured_only_where_its_arm_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    content = tuned(monkeypatch, job(tmp_path), world)
    assert [name for name, _ in groups(phases(world))] == ["probe", "screen", "confirm", "schedule"]
    assert world.measured[0] == "chain 5 (probe)"  # costs are known from breakeven; acceptance is not
    screen = [name for name in world.measured if name.endswith("(screen)")]
    assert screen == screen[: len(screen) // 2] + screen[: len(screen) // 2][::-1]
    assert screen[0] == "baseline (screen)"
    kept = {(c["name"], c["concurrency"]) for c in content["candidates"] if c["state"] == "measured"}
    rows = read_jsonl(tmp_path / "tune" / LAUNCHES)
    seen = {(r["name"].partition(" (")[0], cell["concurrency"]) for r in rows if r["name"].endswith("(screen)") for cell in r["cells"]}
    assert {place for place in seen if place[0] != "baseline"} == kept


def groups(names: list[str]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for name in names:
        if found and found[-1][0] == name:
            found[-1] = (name, found[-1][1] + 1)
        else:
            found.append((name, 1))
    return found


def test_without_breakeven_the_costs_are_measured_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    content = tuned(monkeypatch, job(tmp_path, known=False), world)
    assert world.measured[:3] == ["baseline (probe)", "chain 1 (probe)", "chain 5 (probe)"]
    assert content["sources"] == {"acceptance": "measured by tune: chain 5", "costs": "measured by tune"}
    for entry in content["candidates"]:
        assert entry["predicted"]["value"] == pytest.approx(true_speedup(entry["concurrency"], entry["depth"]), rel=ROUGHLY)


def test_what_the_bench_counted_needs_no_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for launch, invalid in enumerate(([], [], ["lost"])):
        cell = {"acceptance": Acceptance(500, (400, 320, 256, 205, 164)).as_dict()}
        append_jsonl(tmp_path / "bench" / LAUNCHES, {"launch": launch, "cells": [cell], "invalid": invalid})
    world = World()
    content = tuned(monkeypatch, job(tmp_path), world)
    assert content["acceptance"]["rounds"] == 1000 and content["sources"]["acceptance"] == "the recipe's bench"
    assert not any(name.endswith("(probe)") for name in world.measured)


def test_one_candidate_goes_straight_to_the_confirmation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    tuned(monkeypatch, job(tmp_path), world, SETTINGS.model_copy(update={"depths": (3,)}))
    assert world.measured == [f"{name} (confirm)" for name in ("baseline", "chain 3", "chain 3", "baseline")]


# --- verdicts --------------------------------------------------------------------------------------------------------


def costly(at: int) -> Any:
    """Rounds take three times as long from `at` requests on."""
    return lambda planned, concurrency: 3.0 if planned.depth and concurrency >= at and "schedule" not in planned.name else 1.0


def test_where_it_does_not_pay_it_is_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(slower=costly(8))
    content = tuned(monkeypatch, job(tmp_path), world)
    assert [row["speedup"]["verdict"] for row in content["concurrency"]] == ["pays", "does not pay", "does not pay"]
    assert content["exit_code"] == 0 and content["switch_off_above"] == 1 and "Switch it off above 1" in content["verdict"]
    assert json.loads(content["engine_takes"]["flags"][1])["num_speculative_tokens_per_batch_size"][1:] == [[2, 32, 0]]
    assert [planned.quiet for planned in world.launches if planned.name == "schedule (schedule)"] == [(8, 32), (8, 32)]
    lengths = {row["concurrency"]: row["accept_len"] for row in content["schedule_check"]}
    assert lengths[1] > 1 and lengths[8] is None and lengths[32] is None  # nothing is drafted there


def test_a_schedule_that_loses_what_was_confirmed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lossy(planned: Planned, concurrency: int) -> float:
        """Rounds cost more from 8 on; a server with a schedule is slow there, and at 1 as well."""
        return 4.0 if planned.name.startswith("schedule") else costly(8)(planned, concurrency)

    content = tuned(monkeypatch, job(tmp_path), World(slower=lossy))
    assert len(content["findings"]) == 3
    assert "at 1 at a time the engine loses with the schedule what it wins" in content["findings"][0]
    assert "at 8 at a time the engine is slowed down by a schedule that drafts nothing" in content["findings"][1]
    assert content["findings"][0] in told(content) and content["findings"][0] in render(content)


def test_when_nothing_pays_the_exit_code_is_1_and_no_flags_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = tuned(monkeypatch, job(tmp_path), World(slower=costly(1)))
    assert content["exit_code"] == 1 and content["engine_takes"]["flags"] == [] and content["switch_off_above"] == 0


def test_what_the_pairs_cannot_tell_is_inconclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(planned: Planned, concurrency: int) -> float:
        return (true_speedup(concurrency, 3) if planned.depth else 1.0) * (1.1 if planned.index % 2 else 1.0)

    content = tuned(monkeypatch, job(tmp_path), World(slower=noisy), SETTINGS.model_copy(update={"depths": (3,)}))
    assert {row["speedup"]["verdict"] for row in content["concurrency"]} == {"inconclusive"} and content["exit_code"] == 3


def test_invalid_launches_are_listed_left_out_and_seen_in_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = tuned(monkeypatch, job(tmp_path), World(invalid=("chain 3",)), SETTINGS.model_copy(update={"depths": (3,)}))
    assert content["exit_code"] == 3 and len(content["invalid"]) == 2
    assert content["concurrency"][0]["speedup"]["reason"] == "fewer than two valid launches of each"


def test_a_drafter_that_is_never_right_ends_it_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidMeasurement, match="chain 5 was not counted: accept_len is exactly"):
        tuned(monkeypatch, job(tmp_path), World(invalid=("chain 5",)))


def test_pairs_end_early_when_everything_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, again = World(slower=costly(8)), World(slower=costly(8))
    settings = SETTINGS.model_copy(update={"depths": (3,), "pairs_max": 6})
    content = tuned(monkeypatch, job(tmp_path), world, settings)
    assert [name for name, _ in groups(phases(world))] == ["confirm", "schedule"] and phases(world).count("confirm") == 4
    assert tuned(monkeypatch, job(tmp_path), again, settings) == content and again.measured == []


# --- engines, trees, blocks, environments ----------------------------------------------------------------------------


def test_sglang_gets_its_file_and_trees_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    settings = SETTINGS.model_copy(update={"trees": ("3-4-16",), "keep": 5, "margin": 0.0})
    content = tuned(monkeypatch, job(tmp_path, "sglang==0.5.17"), world, settings)
    assert any(planned.launch.drafting and planned.launch.drafting.tree == (4, 16) for planned in world.launches)
    # in this world a tree costs and accepts what its chain does, so that it is never better than it: the chain is taken
    assert not any(row["chosen"].startswith("tree") for row in content["concurrency"])
    config = json.loads((tmp_path / "tune" / "sglang-adaptive.json").read_text())
    assert config == content["engine_takes"]["config"] and config["1"]["candidate_steps"] == [optimum(1, SETTINGS.depths)]
    schedule = next(planned for planned in world.launches if planned.name == "schedule (schedule)")
    assert schedule.launch.flags["speculative-adaptive"] is True


def test_dflash_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    content = tuned(monkeypatch, job(tmp_path), world, method="dflash")
    assert {entry["name"] for entry in content["candidates"]} == {"block 4", "block 8", "block 16"}
    assert world.measured[0] == "block 16 (probe)"


def test_sets_of_variables_are_arms_and_the_faster_one_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def world_speed(planned: Planned, concurrency: int) -> float:
        return {"LL": 0.8, "Simple": 1.2}.get(planned.launch.env.get("NCCL_PROTO", ""), 1.0)

    world = World(slower=world_speed)
    sets = {"low-latency": {"NCCL_PROTO": "LL"}, "simple": {"NCCL_PROTO": "Simple"}}
    content = tuned(monkeypatch, job(tmp_path), world, SETTINGS.model_copy(update={"depths": (3,), "env_sets": sets}))
    assert "chain 3 @low-latency (screen)" in world.measured and "baseline @simple (screen)" in world.measured
    effects = {(row["name"], row["kind"]): row["effect"]["value"] for row in content["environments"]}
    assert (
        effects["low-latency", "drafter"] == pytest.approx(1.25, rel=ROUGHLY) == pytest.approx(effects["low-latency", "baseline"], rel=0.1)
    )
    assert content["environment"]["drafter"] == {"name": "low-latency", "variables": {"NCCL_PROTO": "LL"}}
    confirmed = [name for name in world.measured if name.endswith("(confirm)")]
    assert set(confirmed) == {"baseline @low-latency (confirm)", "chain 3 @low-latency (confirm)"}
    assert content["concurrency"][0]["speedup"]["ratio"] == pytest.approx(true_speedup(1, 3), rel=ROUGHLY)
    assert "serve with: NCCL_PROTO=LL --speculative-config" in told(content)


# --- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_after", [1, 4, 9, 13])
def test_a_killed_tune_goes_on_and_comes_to_the_same_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int) -> None:
    straight = World()
    expected = tuned(monkeypatch, job(tmp_path / "straight"), straight)
    killed, after = World(stop_after=stop_after), World()
    with pytest.raises(KeyboardInterrupt):
        tuned(monkeypatch, job(tmp_path / "run"), killed)
    content = tuned(monkeypatch, job(tmp_path / "run"), after)
    assert killed.measured + after.measured == straight.measured
    assert without(content) == without(expected)


def without(content: Any) -> Any:
    """The result but for the folder."""
    return json.loads(json.dumps({**content, "drafter": None}).replace("/run/", "/x/").replace("/straight/", "/x/"))


def test_what_was_known_at_the_start_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        tuned(monkeypatch, job(tmp_path), World(stop_after=2))
    (tmp_path / "breakeven" / "summary.json").write_text('{"break_even": []}')
    assert tuned(monkeypatch, job(tmp_path, known=False), World())["sources"]["costs"] == "breakeven"


def test_an_arm_that_does_not_come_up_twice_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(dead=("chain 3",))
    content = tuned(monkeypatch, job(tmp_path), world)
    assert content["left_out"] == {"chain 3": "chain 3 (screen) ran out of memory"}
    assert "chain 3 (screen)" not in world.measured and content["exit_code"] == 0
    assert not any(row["chosen"] == "chain 3" for row in content["concurrency"])


def test_a_baseline_that_does_not_come_up_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentFailed, match="ran out of memory"):
        tuned(monkeypatch, job(tmp_path), World(dead=("baseline",)))


# --- before anything is launched -------------------------------------------------------------------------------------


def test_the_plan_counts_the_most_launches_there_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, world = job(tmp_path), World()
    subject = Subject(made, drafter(tmp_path), candidates_for(SETTINGS, drafter(tmp_path), "vllm"), fresh_in(made))
    before = plan(subject, SETTINGS)
    tuned(monkeypatch, made, world)
    assert len(world.measured) <= before.launches <= len(world.measured) + 8
    assert plan(subject, SETTINGS).seconds == 2.0 * before.launches  # by the launches that are there now


def test_drafters_are_read_from_their_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["DFlashDraftModel"], "block_size": 8}))
    made = read_drafter(tmp_path)
    assert (made.method, made.block) == ("dflash", 8)
    assert [c.name for c in candidates_for(TuneSettings(), made, "vllm")] == ["block 2", "block 4", "block 8"]
    with pytest.raises(UsageError, match="trained for blocks of 8"):
        candidates_for(TuneSettings(blocks=(16,)), made, "vllm")


def test_trees_are_tried_where_the_engine_has_them(tmp_path: Path) -> None:
    made = drafter(tmp_path)
    assert [c.name for c in candidates_for(TuneSettings(depths=(1,)), made, "sglang")] == ["chain 1", "tree 3-4-16", "tree 5-4-32"]
    assert [c.name for c in candidates_for(TuneSettings(depths=(1,)), made, "vllm")] == ["chain 1"]
    assert [c.name for c in candidates_for(TuneSettings(depths=(1,), trees=()), made, "sglang")] == ["chain 1"]


def test_what_an_engine_cannot_draft_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="vllm drafts no trees"):
        candidates_for(TuneSettings(trees=("3-4-16",)), drafter(tmp_path), "vllm")
    with pytest.raises(UsageError, match=r"no config\.json"):
        read_drafter(tmp_path)
