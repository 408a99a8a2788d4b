"""The section for a drafter's model card: YAML front matter for the Hugging Face hub, measured figures with their conditions."""

from __future__ import annotations

from typing import Any

import yaml

from draftsmith.report.render import text
from draftsmith.report.views import machine

Data = dict[str, Any]
ENGINES = ("vllm", "sglang")


def model_card(content: Data) -> str:
    """Markdown that can be the README.md of a drafter repository, or be pasted into it. What was not measured is not claimed."""
    matter = yaml.safe_dump(front_matter(content), sort_keys=False, allow_unicode=True, width=120)
    return f"---\n{matter}---\n\n{text('card.md.jinja', report=content, conditions=conditions(content))}"


def front_matter(content: Data) -> Data:
    """Keys that the hub knows. base_model is the target's name here: set it to the target's hub id where they differ."""
    subject, configs = content["subject"], content["provenance"].get("configs", {})
    engine = (subject["engine"] or "").split("==")[0].removesuffix("-cpu")
    matter: Data = {
        "base_model": subject["target"],
        "license": configs.get("export", {}).get("settings", {}).get("license"),
        "pipeline_tag": "text-generation",
        "tags": ["speculative-decoding", "draft-model", subject["drafter"], engine if engine in ENGINES else None, "draftsmith"],
    }
    matter = {key: value for key, value in matter.items() if value is not None}
    matter["tags"] = [tag for tag in matter["tags"] if tag]
    if results := model_index(content):
        matter["model-index"] = [{"name": content["title"], "results": results}]
    return matter


def model_index(content: Data) -> list[Data]:
    """One result per load: speed-up and accept_len, with the engine and the machine as the place where they hold."""
    origin = content["provenance"]
    where = ", ".join(filter(None, [content["subject"]["engine"], machine(origin["hardware"]) if origin.get("hardware") else None]))
    results = []
    for cell in content["verdict"]["cells"] if content["verdict"] else []:
        metrics = []
        if cell["speedup"]:
            found = cell["speedup"]
            band = f"{100 * found['confidence']:.0f} % interval {found['low']:.2f}-{found['high']:.2f}, {found['pairs']} pairs of launches"
            metrics.append(
                {"type": "speed-up", "value": round(found["ratio"], 3), "name": f"output tok/s, speculative / baseline ({band})"}
            )
        if cell["acceptance"]:
            name = "tokens per round with the bonus token"
            metrics.append({"type": "accept_len", "value": round(cell["acceptance"]["accept_len"], 3), "name": name})
        if metrics:
            dataset = {"type": "held-out", "name": f"held-out prompts at {cell['label']} on {where}"}
            results.append({"task": {"type": "text-generation"}, "dataset": dataset, "metrics": metrics})
    return results


def conditions(content: Data) -> list[tuple[str, Any]]:
    """Under what the figures were measured; what is not known is left out."""
    origin = content["provenance"]
    bench = origin.get("configs", {}).get("bench", {}).get("settings", {})
    data = origin.get("configs", {}).get("data", {}).get("settings", {})
    named = [
        ("engine", content["subject"]["engine"]),
        ("engine flags", (origin.get("engine") or {}).get("flags")),
        ("machine", machine(origin["hardware"]) if origin.get("hardware") else None),
        ("drafts per round", content["subject"]["depth"]),
        ("prompts", {"categories": data["categories"]} if data.get("categories") else None),
        ("output tokens", bench.get("output_tokens")),
        ("temperature", bench.get("temperature")),
        ("measured", origin.get("finished")),
        ("draftsmith", (origin.get("tools") or {}).get("draftsmith")),
    ]
    return [(name, value) for name, value in named if value is not None]
