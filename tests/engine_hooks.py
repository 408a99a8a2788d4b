"""What verify wiring listens to in the engines' packages, read from their source without importing it.

    python tests/engine_hooks.py SITE_PACKAGES_OF_VLLM SITE_PACKAGES_OF_SGLANG   (or folders of unpacked wheels)

writes tests/data/engine_hooks.json: {engine: {"version", "parameters": {method: [names]}}}.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

FILE = Path(__file__).with_name("data") / "engine_hooks.json"
EAGLE3 = "vllm.model_executor.models.llama_eagle3.Eagle3LlamaForCausalLM"
DFLASH = "vllm.model_executor.models.qwen3_dflash.DFlashQwen3ForCausalLM"
METHODS = {
    "vllm": [
        f"{EAGLE3}.combine_hidden_states",
        f"{EAGLE3}.forward",
        f"{DFLASH}.combine_hidden_states",
        f"{DFLASH}.precompute_and_store_context_kv",
        f"{DFLASH}.forward",
    ],
    "sglang": [
        "sglang.srt.models.llama_eagle3.LlamaForCausalLMEagle3.forward",
        "sglang.srt.models.kimi_k25_eagle3.Eagle3DeepseekV2ForCausalLM.forward",
        "sglang.srt.models.dflash.DFlashDraftModel.forward",
        "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc",
    ],
}


def version_in(site: Path, package: str) -> str:
    """From the package's metadata folder."""
    [info] = [path for path in site.glob("*.dist-info") if path.name.split("-")[0] in (package, f"{package}_cpu")]
    return info.name.removesuffix(".dist-info").split("-")[1]


def parameters(site: Path, method: str) -> list[str]:
    """Names of the parameters of a method, which the class may inherit from one that its module imports. Raises KeyError."""
    module, name, function = method.rsplit(".", 2)
    tree = ast.parse((site / Path(*module.split("."))).with_suffix(".py").read_text())
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    for node in found.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    for base in found.bases:
        for node in ast.walk(tree):
            if isinstance(base, ast.Name) and isinstance(node, ast.ImportFrom) and base.id in [alias.name for alias in node.names]:
                return parameters(site, f"{node.module}.{base.id}.{function}")
    raise KeyError(method)


def read(site: Path, engine: str) -> dict[str, object]:
    return {"version": version_in(site, engine), "parameters": {method: parameters(site, method) for method in METHODS[engine]}}


if __name__ == "__main__":
    made = {engine: read(Path(folder), engine) for engine, folder in zip(METHODS, sys.argv[1:], strict=True)}
    FILE.write_text(json.dumps(made, indent=1) + "\n")
