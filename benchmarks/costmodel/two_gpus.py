"""Two GPUs predicted from one: the fit of one GPU plus the all-reduce probe, against what `benchmarks/gpu/tensor_parallel.py` measured.

    python benchmarks/costmodel/two_gpus.py --measured DIR --out DIR [--beside OTHER/two_gpus.json]

DIR has part-*/waves.jsonl and collectives*/collectives.json. Writes two_gpus.json, two_gpus.md and two_gpus.svg; --beside draws another
result into the plot. Nothing of the two-GPU times is fitted: weights, rows and requests are halved, launches stay, collectives come from
the probe's arm for that link.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import two_gpus_page

from draftsmith.errors import InvalidMeasurement
from draftsmith.manifest import atomic_write_json, atomic_write_text, read_jsonl
from draftsmith.measure.collectives import AllReduce
from draftsmith.measure.costmodel import CostModel, fit_cost_model, folk_speedup
from draftsmith.measure.costmodel_terms import Cell, Shape, shape_of_config

SHAPES = Path(__file__).parents[1] / "gpu" / "shapes"
ARMS = {"own": ("sglang", "default"), "p2p-off": ("p2p-off",)}  # the probe's arm for a link, the first that was measured
GATHERS = {"own": "default", "p2p-off": "p2p-off"}  # SGLang gathers logits through NCCL
BYTES, HBM_BYTES_S = 2, 4.2e12  # bf16; what a copy moves on an H200, of 4.8e12 by its datasheet
PER_REQUEST = ("slot", "round_slot", "draft_slot")  # host or GPU? predicted both ways
ACCEPT_LEN, DEPTH = 2.5, 3  # where the common formula is shown beside
STEADY = 0.05  # waves of one launch in one cell that differ by more are not a measurement of it; chosen after the data were seen
MORE_GPUS = (4, 8)  # not measured


@dataclass(frozen=True)
class Bytes:
    """Bytes that a pass of the target reads whatever its rows choose, and a step of the drafter."""

    target: float
    drafter: float

    @classmethod
    def of(cls, target: Mapping[str, Any], drafter: Mapping[str, Any]) -> Bytes:
        hidden, layers, sparse = target["hidden_size"], target["num_hidden_layers"], 0
        if "n_routed_experts" in target:
            sparse = layers - target["first_k_dense_replace"]
        mlp = (layers - sparse) * 3 * hidden * target["intermediate_size"]
        shared = sparse * 3 * hidden * target.get("moe_intermediate_size", 0) * target.get("n_shared_experts", 0)
        whole = layers * attention(target, hidden) + mlp + shared + hidden * target["vocab_size"]
        step = attention(drafter, 2 * drafter["hidden_size"]) + 3 * drafter["hidden_size"] * drafter["intermediate_size"]
        return cls(BYTES * whole, BYTES * (step + drafter["hidden_size"] * drafter["draft_vocab_size"]))


def attention(config: Mapping[str, Any], width: int) -> int:
    """Weights of one attention block that reads `width` values and writes hidden_size."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if "kv_lora_rank" in config:
        nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
        query = width * config["q_lora_rank"] + config["q_lora_rank"] * heads * (nope + rope)
        latent = config["kv_lora_rank"]
        return query + width * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
    size = config["head_dim"]
    return width * size * (heads + 2 * config["num_key_value_heads"]) + heads * size * hidden


# --- measured --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A cell and the launches it was measured with: (part, median of its waves in seconds, their spread as a share)."""

    concurrency: int
    depth: int
    launches: tuple[tuple[str, float, float], ...]

    @property
    def steady(self) -> bool:
        return any(spread <= STEADY for _, _, spread in self.launches)

    @property
    def cell(self) -> Cell:
        """The geometric mean of its launches, of the steady ones where there are any."""
        used = [second for _, second, spread in self.launches if spread <= STEADY or not self.steady]
        return Cell(self.concurrency, self.depth, math.exp(sum(map(math.log, used)) / len(used)))


def measured(folder: Path) -> dict[str, list[Measured]]:
    """Cells by group (shape-tpN-link). Invalid waves are left out."""
    waves: dict[tuple[str, int, int], dict[tuple[str, int], list[float]]] = {}
    for path in sorted(folder.glob("part-*/waves.jsonl")):
        for row in read_jsonl(path):
            if row["phase"] == "cell" and "invalid" not in row:
                cell = waves.setdefault((row["name"].rsplit("-", 1)[0], row["concurrency"], row["depth"]), {})
                cell.setdefault((path.parent.name, row.get("launch", 0)), []).append(row["round_s"] or row["decode_step_s"])
    groups: dict[str, list[Measured]] = {}
    for (group, concurrency, depth), launches in sorted(waves.items()):
        told = tuple((part, median(values), max(values) / min(values) - 1) for (part, _), values in launches.items())
        groups.setdefault(group, []).append(Measured(concurrency, depth, told))
    return groups


def shape_of(name: str) -> tuple[Shape, Bytes]:
    target, drafter = (json.loads((SHAPES / name / file).read_text()) for file in ("config.json", "drafter.json"))
    return replace(shape_of_config(target), draft_vocab=drafter["draft_vocab_size"]), Bytes.of(target, drafter)


def arms_of(folder: Path) -> dict[str, Mapping[str, Any]]:
    """The probe's arms; of one that was probed twice, the first."""
    arms: dict[str, Mapping[str, Any]] = {}
    for path in sorted(folder.glob("collectives*/collectives.json")):
        for entry in json.loads(path.read_text())["arms"]:
            if entry["points"]:
                arms.setdefault(entry["name"], entry)
    return arms


def links_of(arms: Mapping[str, Mapping[str, Any]]) -> dict[str, AllReduce]:
    """The table for each link that was probed: what reduces there, and what gathers."""
    links = {}
    for link, names in ARMS.items():
        if found := [AllReduce.from_probe(arms[name]) for name in names if name in arms]:
            other = arms.get(GATHERS[link])
            links[link] = replace(found[0], gathers=AllReduce.from_probe(other) if other else None)
    return links


# --- predicted -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A shape as fitted on one GPU."""

    model: CostModel
    weights: Bytes

    def split(self, link: AllReduce, host: Sequence[str] = (), gathers: bool = True) -> CostModel:
        """On `link.ranks` GPUs. host: per-request terms that are not divided; gathers: whether the logits are gathered."""
        model = self.model
        if not gathers:
            model = replace(model, form=replace(model.form, shape=replace(model.form.shape, vocab=0, draft_vocab=0)))
        return model.on_gpus(link.ranks, link, self.weights.target / HBM_BYTES_S, self.weights.drafter / HBM_BYTES_S, host)


def predict_group(cells: Sequence[Measured], model: CostModel) -> list[dict[str, Any]]:
    """Every cell: measured, predicted, where the time goes."""
    found = []
    for one in cells:
        value, parts = model.time(one.concurrency, one.depth), model.parts(one.concurrency, one.depth)
        entry = {"concurrency": one.concurrency, "depth": one.depth, "measured_s": one.cell.second, "steady": one.steady}
        found.append(entry | value.as_dict() | {"error": value.value / one.cell.second - 1, "parts": parts})
    return found


def analyse(folder: Path) -> dict[str, Any]:
    """The whole document. Raises InvalidMeasurement when no shape was measured on one GPU."""
    groups, arms = measured(folder), arms_of(folder)
    links = links_of(arms)
    document: dict[str, Any] = {"hbm_bytes_s": HBM_BYTES_S, "accept_len": ACCEPT_LEN, "depth": DEPTH, "steady": STEADY, "one_gpu": {}}
    document |= {"two_gpus": {}, "again": {}, "extrapolated": {}}
    for group, cells in groups.items():
        name, tp, link = group.split("-tp")[0], group.split("-tp")[1][0], group.split("-tp")[1][2:]
        if twice := [one for one in cells if len(one.launches) > 1]:
            document["again"][group] = [{"concurrency": one.concurrency, "depth": one.depth, "launches": one.launches} for one in twice]
        alone = groups.get(f"{name}-tp1-own")
        if alone is None:
            continue
        shape, weights = shape_of(name)
        target = Target(fit_cost_model([one.cell for one in alone if one.steady], shape), weights)
        if tp == "1":
            document["one_gpu"][group] = target.model.as_dict() | {"cells": predict_in_sample(target.model)}
            document["one_gpu"][group]["speedups"] = speedups(cells, target.model)
        elif link in links:
            document["two_gpus"][group] = group_of(cells, target, links[link])
            document["extrapolated"][group] = [more_gpus(target, arms, link, ranks) for ranks in MORE_GPUS]
    if not document["one_gpu"]:
        raise InvalidMeasurement(f"no shape was measured on one GPU in {folder}", hint="tensor_parallel.py --part 1 2")
    return document


def group_of(cells: Sequence[Measured], target: Target, link: AllReduce) -> dict[str, Any]:
    """One group on two GPUs: cells, errors (all cells, steady ones, and steady ones of the model with less in it), speed-ups."""
    whole = target.split(link)
    entries = predict_group(cells, whole)
    less = {"host": target.split(link, host=PER_REQUEST), "no_gathers": target.split(link, gathers=False)}
    errors = {name: errors_of(predict_group(cells, model)) for name, model in {"whole": whole, **less}.items()}
    return {"cells": entries, "errors": errors, "errors_all": errors_of(entries, steady=False), "speedups": speedups(cells, whole)}


def more_gpus(target: Target, arms: Mapping[str, Mapping[str, Any]], link: str, ranks: int) -> dict[str, Any]:
    """Extrapolated: the same latency and bandwidth as between two GPUs, which nobody measured there."""

    def given(name: str) -> AllReduce:
        fit = arms[name]["fits"]["graph"]
        return AllReduce.given(ranks, fit["t0_s"]["value"], fit["bandwidth_bytes_s"]["value"])

    reduces = next(name for name in ARMS[link] if name in arms)
    model = target.split(replace(given(reduces), gathers=given(GATHERS[link]) if GATHERS[link] in arms else None))
    rows = []
    for concurrency in sorted({cell.concurrency for cell in target.model.cells}):
        step, turn = model.time(concurrency, 0).value, model.time(concurrency, DEPTH).value
        share = model.parts(concurrency, 0)["collectives"] / step
        rows.append({"concurrency": concurrency, "step_s": step, "round_s": turn, "comm_share": share, "speedup": ACCEPT_LEN * step / turn})
    return {"ranks": ranks, "label": "extrapolated", "rows": rows}


def predict_in_sample(model: CostModel) -> list[dict[str, Any]]:
    """The fitted value of every cell of the fit."""
    fitted = [sum(model.parts(cell.concurrency, cell.depth).values()) for cell in model.cells]
    return [
        {"concurrency": cell.concurrency, "depth": cell.depth, "measured_s": cell.second, "value": value, "error": value / cell.second - 1}
        for cell, value in zip(model.cells, fitted, strict=True)
    ]


def errors_of(entries: Sequence[Mapping[str, Any]], steady: bool = True) -> dict[str, float]:
    """Median and worst absolute relative error, of the steady cells or of all."""
    errors = [abs(entry["error"]) for entry in entries if entry["steady"] or not steady]
    return {"median": median(errors), "worst": max(errors), "cells": len(errors)} if errors else {}


def speedups(cells: Sequence[Measured], model: CostModel) -> list[dict[str, Any]]:
    """At ACCEPT_LEN and DEPTH: measured, predicted, and the common formula with the communication share of the decode step. Concurrencies
    that lack the baseline or that depth are left out."""
    at = {(one.concurrency, one.depth): one for one in cells}
    found = []
    for concurrency in sorted({one.concurrency for one in cells}):
        if (concurrency, 0) in at and (concurrency, DEPTH) in at:
            step, turn = at[concurrency, 0], at[concurrency, DEPTH]
            share = min(model.parts(concurrency, 0)["collectives"] / step.cell.second, 1.0)
            predicted = ACCEPT_LEN * model.time(concurrency, 0).value / model.time(concurrency, DEPTH).value
            row = {"concurrency": concurrency, "steady": step.steady and turn.steady, "comm_share": share}
            row |= {"measured": ACCEPT_LEN * step.cell.second / turn.cell.second, "predicted": predicted}
            found.append(row | {"folk": folk_speedup(1 - share, share, ACCEPT_LEN)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--beside", type=Path, nargs="*", default=[], help="two_gpus.json of other results, for the plot")
    arguments = parser.parse_args()
    document = analyse(arguments.measured)
    atomic_write_json(arguments.out / "two_gpus.json", document)
    text = two_gpus_page.markdown(document)
    atomic_write_text(arguments.out / "two_gpus.md", text)
    two_gpus_page.plot([document, *(json.loads(path.read_text()) for path in arguments.beside)], arguments.out / "two_gpus.svg")
    print(text)


if __name__ == "__main__":
    main()
