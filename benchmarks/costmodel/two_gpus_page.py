"""The document of `two_gpus.py` as tables and as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftsmith.measure.costmodel import folk_speedup

CORNERS = ((6, 5), (6, -10), (-15, 5), (-17, -10))  # where a dot's concurrency is written, in points; four to a group
UNSTEADY = "~"  # marks a cell whose waves did not agree


def markdown(document: Mapping[str, Any]) -> str:
    blocks = [times(document), gains(document), slower(document), errors(document), again(document), more(document)]
    return "\n".join(block for block in blocks if block)


def table(head: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """Markdown; the first `left` columns to the left. Empty without rows."""
    ruler = ["---" if number < left else "---:" for number in range(len(head))]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in (head, ruler, *rows)) if rows else ""


def times(document: Mapping[str, Any]) -> str:
    """Every cell on two GPUs."""
    rows = []
    for group, content in document["two_gpus"].items():
        for cell in content["cells"]:
            shown = f"{1000 * cell['measured_s']:.2f}{'' if cell['steady'] else UNSTEADY}"
            share = f"{cell['parts']['collectives'] / cell['measured_s']:.0%}"
            rows.append([group, cell["concurrency"], cell["depth"], shown, f"{1000 * cell['value']:.2f}", f"{cell['error']:+.0%}", share])
    return table(["group", "C", "depth", "measured, ms", "predicted, ms", "error", "collectives"], rows)


def gains(document: Mapping[str, Any]) -> str:
    """Speed-ups, those of one GPU beside."""
    rows = []
    for group, content in document["two_gpus"].items():
        alone = document["one_gpu"][f"{group.split('-tp')[0]}-tp1-own"]["speedups"]
        one = {row["concurrency"]: row["measured"] for row in alone}
        for row in content["speedups"]:
            c, mark = row["concurrency"], "" if row["steady"] else UNSTEADY
            beside = f"{one[c]:.2f}" if c in one else ""
            values = [f"{row['measured']:.2f}{mark}", f"{row['predicted']:.2f}", f"{row['folk']:.2f}"]
            rows.append([group, c, f"{row['comm_share']:.0%}", beside, *values])
    said = f"speed-up at accept_len {document['accept_len']}"
    return table(["group", "C", "share of the step", f"{said}: one GPU", "measured", "predicted", "common formula"], rows)


def slower(document: Mapping[str, Any]) -> str:
    """What the slow link takes of a speed-up: measured, predicted, and by the common formula."""
    rows = []
    for group, content in document["two_gpus"].items():
        slow = document["two_gpus"].get(group.replace("-own", "-p2p-off"))
        if group.endswith("-own") and slow:
            by = {row["concurrency"]: row for row in slow["speedups"]}
            for row in (one for one in content["speedups"] if one["concurrency"] in by):
                other = by[row["concurrency"]]
                values = [f"{other[name] / row[name] - 1:+.0%}" for name in ("measured", "predicted", "folk")]
                mark = "" if row["steady"] and other["steady"] else UNSTEADY
                rows.append([group.split("-tp")[0], row["concurrency"], values[0] + mark, *values[1:]])
    return table(["speed-up, peer-to-peer off against own", "C", "measured", "predicted", "common formula"], rows)


def errors(document: Mapping[str, Any]) -> str:
    """Median and worst, by what the model has in it."""
    rows = []
    for group, content in document["two_gpus"].items():
        kinds = [content["errors"][name] for name in ("whole", "host", "no_gathers")] + [content["errors_all"]]
        rows.append([group, *(f"{kind['median']:.1%}, {kind['worst']:.1%} ({kind['cells']})" if kind else "none" for kind in kinds)])
    head = ["group", "median, worst error (steady cells)", "per-request terms not divided", "without gathers", "as the first, all cells"]
    return table(head, rows)


def again(document: Mapping[str, Any]) -> str:
    """What was measured with more than one launch: ms and spread of the waves of each, and how far the launches are apart."""
    rows = []
    for group, cells in document["again"].items():
        for cell in cells:
            each = ", ".join(f"{part} {1000 * second:.2f} ({spread:.1%})" for part, second, spread in cell["launches"])
            seconds = [second for _, second, _ in cell["launches"]]
            rows.append([group, cell["concurrency"], cell["depth"], each, f"{max(seconds) / min(seconds) - 1:.1%}"])
    return table(["measured again", "C", "depth", "ms (spread of the waves)", "apart"], rows)


def more(document: Mapping[str, Any]) -> str:
    rows = []
    for group, entries in document["extrapolated"].items():
        for entry in entries:
            for row in (one for one in entry["rows"] if one["concurrency"] in (1, 4, 16, 64)):
                name = f"{group.split('-tp')[0]}, {group.split('-tp')[1][2:]}"
                took = [f"{1000 * row[key]:.2f}" for key in ("step_s", "round_s")]
                rows.append([name, entry["ranks"], row["concurrency"], *took, f"{row['comm_share']:.0%}", f"{row['speedup']:.2f}"])
    return table(["not measured, extrapolated", "GPUs", "C", "step, ms", "round, ms", "share of the step", "speed-up"], rows)


def plot(documents: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Speed-up against the communication share of the decode step, beside the common formula; one panel for each target."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    groups = {group: (content, document) for document in documents for group, content in document["two_gpus"].items()}
    names = sorted({group.split("-tp")[0] for group in groups})
    plt.rcParams.update({"svg.hashsalt": "two-gpus", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, len(names), figsize=(1 + 4.2 * len(names), 4.2), layout="constrained", sharey=True, squeeze=False)
    for name, ax in zip(names, axes[0], strict=True):
        accepted, depth = next((d["accept_len"], d["depth"]) for group, (_, d) in groups.items() if group.startswith(f"{name}-tp"))
        mine = {group.split("-tp")[1]: content for group, (content, _) in groups.items() if group.startswith(f"{name}-tp")}
        panel(ax, mine, accepted)
        ax.set_title(name, fontsize=10)
        ax.set_xlabel("collectives, % of the decode step")
        if ax is axes[0][0]:
            ax.set_ylabel(f"speed-up at accept_len {accepted}, depth {depth}")
            ax.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def panel(ax: Any, groups: Mapping[str, Mapping[str, Any]], accepted: float) -> None:
    """Measured dots (hollow where waves did not agree), predicted crosses, the concurrency beside the dot."""
    most = max(row["comm_share"] for content in groups.values() for row in content["speedups"])
    shares = [most * 1.15 * i / 100 for i in range(101)]
    ax.plot([100 * s for s in shares], [folk_speedup(1 - s, s, accepted) for s in shares], "--", color="0.4", label="common formula")
    for number, (link, content) in enumerate(groups.items()):
        rows, color = content["speedups"], f"C{number}"
        x, fills = [100 * row["comm_share"] for row in rows], [color if row["steady"] else "white" for row in rows]
        ax.plot(x, [row["measured"] for row in rows], "-", color=color, lw=0.6, alpha=0.5)
        ax.scatter(x, [row["measured"] for row in rows], c=fills, edgecolors=color, s=34, zorder=3)
        ax.scatter(x, [row["predicted"] for row in rows], marker="x", color=color, s=34, zorder=2)
        ax.plot([], [], "o", color=color, label=f"{link[0]} GPUs, {link[2:]}: measured")
        for index, row in enumerate(rows):
            corner = CORNERS[index % len(CORNERS)]
            ax.annotate(str(row["concurrency"]), (100 * row["comm_share"], row["measured"]), corner, textcoords="offset points", fontsize=8)
    ax.plot([], [], "o", color="white", markeredgecolor="0.3", label="hollow: its waves did not agree")
    ax.plot([], [], "x", color="0.3", label="predicted from one GPU and the probe")
    ax.axhline(1, color="0.7", lw=0.8)
    ax.set_xlim(0)
    ax.set_ylim(0, 1.04 * accepted)
