"""Every number of docs/concepts/cost-model.md outside the script's own tables, held against the committed measurements."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_costmodel_published import reproduce

from draftsmith import cli
from draftsmith.measure.collectives import AllReduce
from draftsmith.measure.costmodel import fit_cost_model
from draftsmith.measure.costmodel_terms import expert_union

__all__ = ["reproduce"]  # a fixture of the other module

ROOT = Path(__file__).resolve().parents[2]
PAIR = ROOT / "results" / "qwen3-8b_eagle3_2xh200-sglang-0.5.17_2026-11-30"
PAGE = " ".join((ROOT / "docs" / "concepts" / "cost-model.md").read_text().split())


def h200(reproduce: ModuleType, name: str) -> dict[str, Any]:
    [table] = [t for t in json.loads((reproduce.HERE / "h200_cells.json").read_text())["tables"] if t["name"].startswith(name)]
    return table


def test_the_measured_times_of_the_8b_shape(reproduce: ModuleType) -> None:
    seconds = h200(reproduce, "Qwen3-8B")["seconds"]
    [table] = re.findall(r"\| C \| depth 0 \| 1 \| 3 \| 5 \| 7 \| [|: -]+ ((?:\| [\d. |]+ )+)", PAGE)
    numbers = [float(word) for word in table.replace("|", " ").split()]
    rows = [numbers[at : at + 6] for at in range(0, len(numbers), 6)]
    assert [int(row[0]) for row in rows] == [1, 4, 16, 64]
    for c, *times in rows:
        kept = [1000 * seconds[depth][str(int(c))][0] for depth in ("0", "1", "3", "5", "7")]  # four digits of the median
        assert times == pytest.approx(kept, abs=0.0051)


def test_the_terms_that_the_data_asked_for(reproduce: ModuleType) -> None:
    table = h200(reproduce, "Qwen3-8B")
    model = fit_cost_model(reproduce.h200_cells(table))
    ms = {name: 1000 * float(value) for name, value in zip(model.form.terms, model.fit.values, strict=True)}
    said = f"{ms['floor']:.1f} ms floor, {ms['row']:.3f} ms a row, {ms['draft']:.2f} ms a draft, {ms['round']:.1f} ms once a round, and "
    assert f"{said}{ms['round_slot']:.3f} ms for every request in it" in PAGE
    whole = 1000 * table["seconds"]["1"]["64"][0]
    assert f"At concurrency 64 that last term is {64 * ms['round_slot']:.0f} of the {whole:.0f} ms of a round at depth 1" in PAGE


def test_what_few_cells_predict(reproduce: ModuleType) -> None:
    cells = reproduce.h200_cells(h200(reproduce, "Qwen3-8B"))
    worst = []
    for name in ("C 1, 4, 16, 64 at depths 0, 1, 7", "C 1, 8, 64 at depths 0, 1, 7"):
        entries = reproduce.held_out(cells, reproduce.DESIGNS[name])
        worst.append(f"{100 * max(abs(entry['error']) for entry in entries):.0f} %")
    assert f"Twelve cells of the 8B shape give the other 23 within {worst[0]}, nine within {worst[1]}." in PAGE


def test_the_disturbed_run_is_said_to_be_one(reproduce: ModuleType) -> None:
    one, other = h200(reproduce, "SmolLM2")["seconds"]["3"]["1"]
    assert f"{1000 * one:.1f} against {1000 * other:.1f} ms a round at depth 3 and concurrency 1" in PAGE


def test_experts_that_rows_touch() -> None:
    touched = [round(384 * float(expert_union(384, 8, rows))) for rows in (1, 4, 16)]
    assert f"Kimi (8 of 384): {touched[0]} experts for one row, {touched[1]} for four, {touched[2]} for sixteen" in PAGE


def test_the_knee_and_the_reading_of_a_row(reproduce: ModuleType) -> None:
    t0, bandwidth, gpus, hidden = 30e-6, 50e9, 8, 7168
    knee = t0 * bandwidth * gpus / (2 * (gpus - 1) * 2 * hidden)
    assert f"The knee for hidden size 7168 on 8 GPUs: about {round(knee, -1):.0f} rows at t0 = 30 us and 50 GB/s" in PAGE
    kimi = reproduce.Published.of(json.loads((reproduce.HERE / "published.json").read_text())[0])
    row = kimi.fit().values[kimi.names.index("row")]
    assert f"why a row costs {row:.2f} ms there" in PAGE and "122 all-reduces at 4.9 GB/s" in PAGE
    slow = AllReduce.given(gpus, 0.0, 4.9e9)  # two a layer, 61 layers
    assert 1000 * 122 * slow.at(1, hidden) == pytest.approx(row, rel=0.02)


def test_what_the_choice_of_p_and_of_the_length_does_to_kimis_last_number(reproduce: ModuleType) -> None:
    kimi = reproduce.Published.of(json.loads((reproduce.HERE / "published.json").read_text())[0])
    [last] = [one for one in kimi.observations if one[:2] == ("speedup", 32)]

    def left_out(**changes: float) -> float:
        table = replace(kimi, **changes)
        [value] = table.values(table.fit(last).values, [last[:2]])
        return float(value)

    high, low = (round(100 * (left_out(sharpness=p) / last[2] - 1)) for p in (2.0, 4.0))
    assert f"with p = 2 Kimi's speed-up at concurrency 32, left out, comes out {high} % too high, with p = 4 {-low} % too low" in PAGE
    few, many = left_out(accepted=2.6), left_out(accepted=3.3)
    assert f"Between 2.6 and 3.3 the assumed accept_len moves that prediction from {few:.2f} to {many:.2f}" in PAGE


def test_what_the_first_measurements_contradict_themselves_by(reproduce: ModuleType) -> None:
    tables = {t["name"]: reproduce.cells_of(t) for t in json.loads((reproduce.HERE / "device_tables.json").read_text())["tables"]}
    two = sorted(c.second for c in tables["SmolLM2-135M, SGLang 0.5.17"] if (c.concurrency, c.depth) == (64, 3))
    assert f"two measurements of the same round at concurrency 64 differ by {two[1] / two[0] - 1:.0%}".replace("%", " %") in PAGE
    rounds = {c.concurrency: c.second for c in tables["Qwen3-30B-A3B, dummy weights, SGLang 0.5.17"] if c.depth}
    assert rounds[4] < rounds[1] and "round takes less time at concurrency 4 than at 1" in PAGE


def test_the_odd_row_of_the_first_measurements(reproduce: ModuleType) -> None:
    [table] = [
        t for t in json.loads((reproduce.HERE / "device_tables.json").read_text())["tables"] if t["name"].startswith("SmolLM2-135M, SG")
    ]
    steps = [1000 * int(c) / table["tok_s"][c] for c in ("16", "64")]
    assert f"a decode step of {steps[1]:.2f} ms at concurrency 64 beside {steps[0]:.2f} at 16" in PAGE
    decision = " ".join((ROOT / "docs" / "decisions" / "0007-servers-of-a-host-bound-target.md").read_text().split())
    assert f"{steps[0]:.2f} and {steps[1]:.2f} ms a step" in decision


def test_the_collectives_and_what_two_gpus_were_predicted_by() -> None:
    probed = json.loads((PAIR / "collectives" / "collectives.json").read_text())["arms"]
    arms = {arm["name"]: arm["fits"]["graph"] for arm in probed if "graph" in arm.get("fits", {})}

    def words(arm: str) -> tuple[float, float, float, float]:
        fit = arms[arm]
        knees = [fit["knee_rows"][hidden]["value"] for hidden in ("4096", "7168")]
        return 1e6 * fit["t0_s"]["value"], fit["bandwidth_bytes_s"]["value"] / 1e9, knees[0], knees[1]

    t0, rate, knee, wide = words("default")
    assert f"NCCL as it comes has t0 {t0:.1f} us, {rate:.0f} GB/s and a knee at {knee:.0f} rows of 4096 ({wide:.0f} of 7168)" in PAGE
    t0, rate, knee, wide = words("p2p-off")
    assert f"without peer-to-peer {t0:.1f} us, {rate:.0f} GB/s, and {knee:.0f} rows ({wide:.0f})" in PAGE
    found = json.loads((PAIR / "two_gpus.json").read_text())["two_gpus"]
    slow, own = found["qwen3-8b-tp2-p2p-off"], found["qwen3-8b-tp2-own"]
    worst = [100 * part["worst"] for part in (slow["errors"], own["errors"], own["divided"]["errors"])]
    assert f"right within {worst[0]:.0f} % through host memory, and up to {worst[1]:.0f} % too high" in PAGE
    assert f"({worst[2]:.0f} % with that term divided)" in PAGE
    assert max(own["cells"], key=lambda cell: abs(cell["error"]))["error"] > 0  # too high, not too low


def test_the_payback_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    [line] = re.findall(r"draftsmith (payback [^`]+?) ```", PAGE)
    [said] = re.findall(r"prints `([^`]+)`", PAGE)
    assert cli.main(line.split()) == 0
    assert said in capsys.readouterr().out
