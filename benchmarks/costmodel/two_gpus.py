"""Two GPUs predicted from one: the fit of one GPU plus the all-reduce probe, against what `benchmarks/gpu/tensor_parallel.py` measured.

    python benchmarks/costmodel/two_gpus.py --measured DIR --out DIR

DIR has part-*/waves.jsonl and collectives/collectives.json. Writes two_gpus.json, two_gpus.md and two_gpus.svg. Nothing of the two-GPU
times is fitted: weights and rows are halved, launches and host stay, all-reduces come from the probe's arm for that link.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from draftsmith.errors import InvalidMeasurement
from draftsmith.manifest import atomic_write_json, atomic_write_text, read_jsonl
from draftsmith.measure.collectives import AllReduce
from draftsmith.measure.costmodel import CostModel, fit_cost_model, folk_speedup
from draftsmith.measure.costmodel_terms import Cell, Shape

SHAPES = Path(__file__).parents[1] / "gpu" / "shapes"
ARMS = {"own": ("sglang", "default"), "p2p-off": ("p2p-off",)}  # the probe's arm for a link, the first that was measured
BYTES, HBM_BYTES_S = 2, 4.2e12  # bf16; what a copy moves on an H200, of 4.8e12 by its datasheet
PER_REQUEST = ("slot", "round_slot")  # host or GPU? predicted both ways
ACCEPT_LEN, DEPTH = 2.5, 3  # where the common formula is shown beside


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


def measured(folder: Path) -> dict[str, list[Cell]]:
    """Cells by group (shape-tpN-link): medians over the waves of all launches. Invalid waves are left out."""
    rows: dict[tuple[str, int, int], list[float]] = {}
    for path in sorted(folder.glob("part-*/waves.jsonl")):
        for row in read_jsonl(path):
            if row["phase"] == "cell" and "invalid" not in row:
                group = row["name"].rsplit("-", 1)[0]
                rows.setdefault((group, row["concurrency"], row["depth"]), []).append(row["round_s"] or row["decode_step_s"])
    groups: dict[str, list[Cell]] = {}
    for (group, concurrency, depth), values in sorted(rows.items()):
        groups.setdefault(group, []).append(Cell(concurrency, depth, median(values)))
    return groups


def shape_of(name: str) -> tuple[Shape, Bytes]:
    target, drafter = (json.loads((SHAPES / name / file).read_text()) for file in ("config.json", "drafter.json"))
    experts, chosen = target.get("n_routed_experts", 0), target.get("num_experts_per_tok", 0)
    return Shape(experts, chosen, target["num_hidden_layers"], target["hidden_size"]), Bytes.of(target, drafter)


def links_of(collectives: Mapping[str, Any]) -> dict[str, AllReduce]:
    """The probe's table for each link that it measured."""
    arms = {entry["name"]: entry for entry in collectives["arms"] if entry["points"]}
    first = {link: next((arm for arm in names if arm in arms), None) for link, names in ARMS.items()}
    return {link: AllReduce.from_probe(arms[arm]) for link, arm in first.items() if arm}


def predict_group(cells: Sequence[Cell], model: CostModel) -> list[dict[str, Any]]:
    """Every cell: measured, predicted, where the time goes."""
    found = []
    for cell in cells:
        value = model.time(cell.concurrency, cell.depth)
        parts = model.parts(cell.concurrency, cell.depth)
        error = value.value / cell.second - 1
        found.append(
            {"concurrency": cell.concurrency, "depth": cell.depth, "measured_s": cell.second, **value.as_dict()}
            | {"error": error, "parts": parts}
        )
    return found


def analyse(folder: Path) -> dict[str, Any]:
    """The whole document. Raises InvalidMeasurement when no shape was measured on one GPU."""
    groups, links = measured(folder), links_of(json.loads((folder / "collectives" / "collectives.json").read_text()))
    document: dict[str, Any] = {"hbm_bytes_s": HBM_BYTES_S, "accept_len": ACCEPT_LEN, "one_gpu": {}, "two_gpus": {}}
    for group, cells in groups.items():
        name, tp, link = group.split("-tp")[0], group.split("-tp")[1][0], group.split("-tp")[1][2:]
        one = groups.get(f"{name}-tp1-own")
        if one is None:
            continue
        shape, weights = shape_of(name)
        model = fit_cost_model(one, shape)
        if tp == "1":
            document["one_gpu"][group] = model.as_dict() | {"cells": predict_in_sample(model)}
        elif link in links:
            read = (weights.target / HBM_BYTES_S, weights.drafter / HBM_BYTES_S)
            two, shared = model.on_gpus(2, links[link], *read), model.on_gpus(2, links[link], *read, PER_REQUEST)
            entries, other = predict_group(cells, two), predict_group(cells, shared)
            content = {"cells": entries, "errors": errors_of(entries), "speedups": speedups(cells, two)}
            document["two_gpus"][group] = content | {"divided": {"cells": other, "errors": errors_of(other)}}
    if not document["one_gpu"]:
        raise InvalidMeasurement(f"no shape was measured on one GPU in {folder}", hint="tensor_parallel.py --part 1 2")
    return document


def predict_in_sample(model: CostModel) -> list[dict[str, Any]]:
    """The fitted value of every cell of the fit."""
    fitted = [sum(model.parts(cell.concurrency, cell.depth).values()) for cell in model.cells]
    return [
        {"concurrency": cell.concurrency, "depth": cell.depth, "measured_s": cell.second, "value": value, "error": value / cell.second - 1}
        for cell, value in zip(model.cells, fitted, strict=True)
    ]


def errors_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Median and worst absolute relative error."""
    errors = [abs(entry["error"]) for entry in entries]
    return {"median": median(errors), "worst": max(errors)}


def speedups(cells: Sequence[Cell], model: CostModel) -> list[dict[str, Any]]:
    """At ACCEPT_LEN and DEPTH: measured, predicted, and the common formula with the communication share of the decode step."""
    times = {(cell.concurrency, cell.depth): cell.second for cell in cells}
    found = []
    for concurrency in sorted({cell.concurrency for cell in cells}):
        if (concurrency, 0) in times and (concurrency, DEPTH) in times:
            step, turn = times[concurrency, 0], times[concurrency, DEPTH]
            share = min(model.parts(concurrency, 0)["collectives"] / step, 1.0)
            predicted = ACCEPT_LEN * model.time(concurrency, 0).value / model.time(concurrency, DEPTH).value
            row = {"concurrency": concurrency, "comm_share": share, "measured": ACCEPT_LEN * step / turn, "predicted": predicted}
            found.append(row | {"folk": folk_speedup(1 - share, share, ACCEPT_LEN)})
    return found


# --- shown -----------------------------------------------------------------------------------------------------------


def markdown(document: Mapping[str, Any]) -> str:
    lines = [
        "| group | C | T_ar ms: measured, predicted | T_round ms at depth 3: measured, predicted | comm share |",
        "| --- | ---: | --- | --- | ---: |",
    ]
    for group, content in document["two_gpus"].items():
        at = {(cell["concurrency"], cell["depth"]): cell for cell in content["cells"]}
        for row in content["speedups"]:
            c = row["concurrency"]
            pairs = [f"{1000 * at[c, k]['measured_s']:.2f}, {1000 * at[c, k]['value']:.2f} ({at[c, k]['error']:+.0%})" for k in (0, DEPTH)]
            lines.append(f"| {group} | {c} | {pairs[0]} | {pairs[1]} | {row['comm_share']:.0%} |")
    lines += [
        "",
        f"| group | C | speed-up at accept_len {ACCEPT_LEN}, measured | predicted | common formula |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for group, content in document["two_gpus"].items():
        for row in content["speedups"]:
            lines.append(f"| {group} | {row['concurrency']} | {row['measured']:.2f} | {row['predicted']:.2f} | {row['folk']:.2f} |")
    lines += ["", "| group | per-request terms stay: median, worst error | divided: median, worst error |", "| --- | ---: | ---: |"]
    for group, content in document["two_gpus"].items():
        pairs = [f"{errors['median']:.1%}, {errors['worst']:.1%}" for errors in (content["errors"], content["divided"]["errors"])]
        lines.append(f"| {group} | {' | '.join(pairs)} |")
    return "\n".join(lines) + "\n"


def plot(document: Mapping[str, Any], path: Path) -> None:
    """Speed-up against the communication share of the decode step, beside the common formula."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "two-gpus", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    shares = [i / 100 for i in range(101)]
    ax.plot([100 * s for s in shares], [folk_speedup(1 - s, s, ACCEPT_LEN) for s in shares], "--", color="0.4", label="common formula")
    for number, (group, content) in enumerate(document["two_gpus"].items()):
        rows = content["speedups"]
        ax.plot([100 * row["comm_share"] for row in rows], [row["measured"] for row in rows], "o-", color=f"C{number}", lw=1, label=group)
        ax.plot([100 * row["comm_share"] for row in rows], [row["predicted"] for row in rows], "x", color=f"C{number}")
        for row in rows:
            ax.annotate(str(row["concurrency"]), (100 * row["comm_share"], row["measured"]), (4, 4), textcoords="offset points", fontsize=8)
    ax.axhline(1, color="0.7", lw=0.8)
    ax.set_xlabel("all-reduces, % of the decode step (dots measured, crosses predicted, number: concurrency)")
    ax.set_ylabel(f"speed-up at accept_len {ACCEPT_LEN}, depth {DEPTH}")
    ax.set_ylim(0)
    ax.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    document = analyse(arguments.measured)
    atomic_write_json(arguments.out / "two_gpus.json", document)
    atomic_write_text(arguments.out / "two_gpus.md", markdown(document))
    plot(document, arguments.out / "two_gpus.svg")
    print(markdown(document))


if __name__ == "__main__":
    main()
