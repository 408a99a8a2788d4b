"""Every number of docs/concepts/cost-model.md outside the script's own tables, held against the committed measurements."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest
from test_costmodel_published import reproduce

from draftsmith import cli
from draftsmith.breakeven.surface import Timed, timed
from draftsmith.measure.collectives import AllReduce
from draftsmith.measure.costmodel import fit_cost_model
from draftsmith.measure.costmodel_terms import Shape, expert_union

__all__ = ["reproduce"]  # a fixture of the other module

ROOT = Path(__file__).resolve().parents[2]
PAIR = ROOT / "results" / "qwen3-8b_eagle3_2xh200-sglang-0.5.17_2026-11-30"
CUT = ROOT / "results" / "kimi-cut-6_eagle3_2xh200-sglang-0.5.17_2026-11-30"
SMALL = ROOT / "results" / "smollm2-135m_breakeven_h200-sglang-0.5.17_2026-11-30"
DECISION = ROOT / "docs" / "decisions" / "0007-servers-of-a-host-bound-target.md"
WITH_OTHER_WEIGHTS = (("dummy baseline", "baseline"), ("dummy depth 3", "depth 3"), ("depth 3, all accepted", "depth 3"))
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
    one, other = h200(reproduce, "SmolLM2-135M, disturbed")["seconds"]["3"]["1"]
    assert f"{1000 * one:.1f} against {1000 * other:.1f} ms a round at depth 3 and concurrency 1" in PAGE


def summary_of(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / f"{name}_breakeven_h200-sglang-0.5.17_2026-11-30" / "summary.json").read_text())


def rows_below(head: str) -> list[list[float]]:
    """The numbers of a table of the page, by row."""
    [table] = re.findall(re.escape(head) + r" [|: -]+ ((?:\| [\d. |]+ )+)", PAGE)
    width = head.count("|") - 1
    numbers = [float(word) for word in table.replace("|", " ").split()]
    return [numbers[at : at + width] for at in range(0, len(numbers), width)]


def test_what_a_mixture_asks_for_and_what_its_prediction_owes_to_experts(reproduce: ModuleType) -> None:
    asked = [("qwen3-8b-shape", "depth 3"), ("qwen3-30b-a3b-shape", "depth 1"), ("qwen3-30b-a3b-shape", "depth 3")]
    found = {(name, e["name"], e["concurrency"]): e["accept_len"] for name, _ in asked for e in summary_of(name)["break_even"]}
    for c, *lengths in rows_below("| C | Qwen3-8B, depth 3 | Qwen3-30B-A3B, depth 1 | Qwen3-30B-A3B, depth 3 |"):
        assert lengths == pytest.approx([found[name, kind, int(c)] for name, kind in asked], abs=0.0051)
    keep, said = reproduce.DESIGNS["C 1, 4, 16, 64, all depths"], []
    for name in ("Qwen3-30B-A3B", "Kimi"):
        table = h200(reproduce, name)
        for shape in (Shape(), reproduce.h200_shape(table)):
            errors = [100 * abs(entry["error"]) for entry in reproduce.held_out(reproduce.h200_cells(table), keep, shape)]
            said.append((median(errors), max(errors)))
    (a, b), (c, d), (e, f), (g, h) = said
    assert f"by {a:.1f} % (median) and {b:.1f} % (worst) instead of {c:.1f} and {d:.1f}" in PAGE
    assert f"of the Kimi cut by {e:.1f} and {f:.1f} % instead of {g:.1f} and {h:.1f}." in PAGE


def test_what_blocks_cost_and_how_far_two_machines_lie_apart() -> None:
    summary = summary_of("qwen3-8b-shape")
    found = {(e["name"], e["concurrency"]): e for e in summary["break_even"]}
    kinds = ("depth 7", "dflash block 8", "dflash block 16")
    rows = rows_below("| C | depth 7, ms | block 8, ms | block 16, ms | depth 7 needs | block 8 needs | block 16 needs |")
    assert [int(row[0]) for row in rows] == [1, 4, 16, 64]
    for c, *numbers in rows:
        entries = [found[kind, int(c)] for kind in kinds]
        assert numbers == pytest.approx([1000 * e["round_s"] for e in entries] + [e["accept_len"] for e in entries], abs=0.0051)
    steps = [launches["launches"] for launches in summary["decode_step_s"].values()]
    worst = max(abs(other / first - 1) for first, other in steps)
    assert f"baseline by at most {100 * worst:.1f} %" in PAGE


def test_what_is_said_of_a_target_that_the_host_bounds() -> None:
    summary = summary_of("smollm2-135m")
    assert f"Launches of one kind still scatter by {100 * summary['launch_scatter']['sd']:.1f} %" in PAGE
    told = summary["prediction"]
    inside = f"{100 * told['inside_interval']:.0f} % of them inside their intervals"
    errors = f"within {100 * told['median_error']:.1f} % (median) and {100 * told['worst_error']:.1f} % (worst), {inside}"
    assert f"it predicts {len(told['held_out'])} from concurrency 1, 4, 16, 64 and depths 0, 1, 3, 7 {errors}" in PAGE
    fitted = summary["cost_model"]["parameters"]
    assert f"A round is a step and {1000 * fitted['round']['value']:.2f} ms more" in PAGE and fitted["draft"]["value"] < 1e-6
    step, round_, accepted = (mean_and_least(kind, than) for kind, than in WITH_OTHER_WEIGHTS)
    mean, least = step
    assert f"change a step by {mean[0]:.0f} to {mean[1]:+.0f} %" in PAGE
    both = [f"{pair[0]:.0f} to {pair[1]:+.0f}" for pair in (round_[0], least, round_[1])]
    text = "a round of depth 3 by {} %, with a slow episode in it; by the least wave of each cell by {} and {} %"
    assert text.format(*both) in PAGE
    times = [f"{1 + percent / 100:.2f}" for pair in accepted for percent in pair]
    assert "took {} to {} times the round with two of four (by the least wave {} to {})".format(*times) in PAGE


def test_what_the_stream_does_to_a_step() -> None:
    probes = {(p["name"], p["phase"]): p["ms"] for p in summary_of("smollm2-135m")["compared"]["Around C = 64"] if p["concurrency"] == 64}
    fine, coarse = ([probes[name, phase] for name in ("baseline", "depth 3")] for phase in ("chunk per token", "cell"))
    text = "a step at concurrency 64 takes {:.2f} ms instead of {:.2f} and a round of two tokens {:.2f} instead of {:.2f}"
    assert text.format(fine[0], coarse[0], fine[1], coarse[1]) in PAGE
    assert f"seems to win by {2 * fine[0] / fine[1]:.2f} there and loses with coarse chunks, {2 * coarse[0] / coarse[1]:.2f}" in PAGE
    assert f"makes such a step {fine[0] / coarse[0]:.1f} times as long" in PAGE


def test_the_share_of_slow_waves() -> None:
    """Of the machine that ran nothing else, beside a part that the GPU bounds, beside busy ones: by the least of all three."""
    files = [SMALL / name for name in ("waves.jsonl.gz", "earlier/waves.jsonl.gz", "set-aside/waves.jsonl.gz")]
    measured = [cells_in(path) for path in files]
    least = {place: min(min(cells[place].waves) for cells in measured if place in cells) for cells in measured for place in cells}
    waves = [[wave / least[place] for place, cell in cells.items() for wave in cell.waves] for cells in measured]
    alone, quiet, busy = (f"{100 * sum(ratio > 1.25 for ratio in ratios) / len(ratios):.0f} %" for ratios in waves)
    told = " ".join(DECISION.read_text().split())
    assert f"{alone} of the waves were slow, against {quiet} beside the quiet part and {busy} beside the busy one" in told
    assert f"still {alone} of the waves took more than 1.25 times the least" in " ".join((SMALL / "README.md").read_text().split())


def test_the_examples_of_the_guide() -> None:
    guide = (ROOT / "docs" / "guides" / "breakeven.md").read_text()
    kinds = ("depth 1", "depth 3", "depth 7", "dflash block 8", "dflash block 16")
    for name in ("qwen3-8b-shape", "qwen3-30b-a3b-shape"):
        found = {(e["name"], e["concurrency"]): f"{e['accept_len']:.2f}" for e in summary_of(name)["break_even"]}
        fields = [", ".join(found.get((kind, c), "") for c in (1, 16, 64)).strip(", ") for kind in kinds]
        assert re.sub(r"  +", " ", f"| {' | '.join(fields)} |") in re.sub(r"  +", " ", guide), name


def cells_in(path: Path) -> dict[tuple[str, int], Timed]:
    """Of packed waves."""
    return timed([json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()])


def mean_and_least(kind: str, than: str) -> list[tuple[float, float]]:
    """Least and largest of how much longer one kind takes than another, %, over concurrencies: by the means, and by the least waves."""
    cells = cells_in(SMALL / "waves.jsonl.gz")
    places = [c for name, c in cells if name == kind]
    ratios = (
        [cells[kind, c].seconds / cells[than, c].seconds for c in places],
        [min(cells[kind, c].waves) / min(cells[than, c].waves) for c in places],
    )
    return [(100 * (min(found) - 1), 100 * (max(found) - 1)) for found in ratios]


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
    decision = " ".join(DECISION.read_text().split())
    assert f"{steps[0]:.2f} and {steps[1]:.2f} ms a step" in decision


def two_gpus(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "two_gpus.json").read_text())


def probed(folder: Path, place: str = "collectives") -> dict[str, dict[str, Any]]:
    """Arms of the probe that measured something."""
    arms = json.loads((folder / place / "collectives.json").read_text())["arms"]
    return {arm["name"]: arm for arm in arms if arm["points"]}


def arm_row(arm: dict[str, Any]) -> str:
    fit = arm["fits"]["graph"]
    knees = " | ".join(f"{fit['knee_rows'][hidden]['value']:.0f}" for hidden in ("4096", "7168"))
    rate = fit["bandwidth_bytes_s"]["value"] / 1e9
    return f"| {arm['name']} | {1e6 * fit['t0_s']['value']:.1f} | {rate:.0f} | {knees} | {fit['errors']['worst']:.0%} |"


def test_the_table_of_arms_and_what_is_read_from_it() -> None:
    first, again = probed(PAIR), probed(CUT)
    for arm in (*first.values(), *again.values()):
        assert arm_row(arm) in PAGE
    assert 2 * again["sglang"]["fits"]["graph"]["t0_s"]["value"] < again["default"]["fits"]["graph"]["t0_s"]["value"]
    choices = (first, "default", ("proto-LL", "proto-LL128", "proto-Simple")), (again, "p2p-off", ("p2p-off-LL", "p2p-off-Simple"))
    for arms, own, forced in choices:
        times = {name: [median(point["graph"]) for point in arms[name]["points"]] for name in (own, *forced)}
        assert max(mine / min(others) for mine, *others in zip(*times.values(), strict=True)) < 1.25
    one, all_of = ([median(point["graph"]) for point in first[arm]["points"]] for arm in ("channels-1", "default"))
    assert 9.5 < max(a / b for a, b in zip(one, all_of, strict=True)) < 10
    assert "never more than a quarter slower" in PAGE and "one costs up to ten times as much" in PAGE


def test_what_two_gpus_did_and_what_was_predicted() -> None:
    for folder, name, label in ((PAIR, "qwen3-8b", "Qwen3-8B"), (CUT, "kimi-cut-6", "Kimi cut")):
        document = two_gpus(folder)
        own, slow = (document["two_gpus"][f"{name}-tp2-{link}"] for link in ("own", "p2p-off"))
        one = {row["concurrency"]: row["measured"] for row in document["one_gpu"][f"{name}-tp1-own"]["speedups"]}
        for a, b in zip(own["speedups"], slow["speedups"], strict=True):
            shown = " | ".join(f"{row['measured']:.2f}{'' if row['steady'] else '~'}" for row in (a, b))
            loss = " | ".join(f"{b[key] / a[key] - 1:+.0%}" for key in ("measured", "folk"))
            c = a["concurrency"]
            assert f"| {label} | {c} | {a['comm_share']:.0%}, {b['comm_share']:.0%} | {one[c]:.2f} | {shown} | {loss} |" in PAGE
        for content, link in ((own, "NVLink"), (slow, "through the host")):
            kinds = (content["errors"]["whole"], content["errors_all"])
            told = " | ".join(f"{kind['median']:.1%}, {kind['worst']:.1%} ({kind['cells']})" for kind in kinds)
            assert f"| {label}, {link} | {told} |" in PAGE


def test_the_errors_without_what_was_put_in_later_and_the_formulas_level() -> None:
    groups = [content for folder in (PAIR, CUT) for content in two_gpus(folder)["two_gpus"].values()]
    spans = []
    for kind in ("whole", "host", "no_gathers"):
        worst = [100 * content["errors"][kind]["worst"] for content in groups]
        spans.append(f"{min(worst):.0f} to {max(worst):.0f} %")
    assert f"{spans[0]} with both, {spans[1]} without the first and {spans[2]} without the second" in PAGE
    level = [row["folk"] / row["measured"] for content in groups for row in content["speedups"]]
    assert f"too high at every point, {min(level):.1f} to {max(level):.1f} times" in PAGE
    dense = [content["speedups"] for content in two_gpus(PAIR)["two_gpus"].values()]
    first, last = (sorted(rows[at]["folk"] / rows[at]["measured"] for rows in dense) for at in (0, -1))
    told = f"{first[0]:.1f} to {first[1]:.1f} times at concurrency 1 and {last[0]:.1f} to {last[1]:.1f} times at 64"
    assert told in PAGE


def test_more_gpus_are_extrapolated_and_say_so() -> None:
    said = []
    for link in ("own", "p2p-off"):
        [eight] = [entry for entry in two_gpus(PAIR)["extrapolated"][f"qwen3-8b-tp2-{link}"] if entry["ranks"] == 8]
        assert eight["label"] == "extrapolated"
        at = {row["concurrency"]: f"{row['speedup']:.2f}" for row in eight["rows"]}
        said.append(f"{at[1]}, {at[16]} and {at[64]}")
    assert f"{said[0]} at concurrency 1, 16 and 64 over NVLink and {said[1]} through the host" in PAGE


@pytest.mark.parametrize("folder", [PAIR, CUT], ids=["dense", "cut"])
def test_the_pages_of_two_gpus_have_the_tables_of_their_script(folder: Path) -> None:
    page = (folder / "README.md").read_text()
    blocks = [block.strip() for block in (folder / "two_gpus.md").read_text().split("\n\n")]
    kept = [block for block in blocks if not block.startswith("| measured again")]
    assert len(kept) == 5 and all(block in page for block in kept)


def test_the_payback_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    [line] = re.findall(r"draftsmith (payback [^`]+?) ```", PAGE)
    [said] = re.findall(r"prints `([^`]+)`", PAGE)
    assert cli.main(line.split()) == 0
    assert said in capsys.readouterr().out
