"""Run by SGLang's own interpreter: `python resolve_sglang.py QUESTIONS.json ANSWERS.json`. What does it make of these arguments?

A case: {"target": folder, "drafter": folder or null, "argv": [...], "device": "cuda" or "cpu", "gpu": {...} or null}. Environment variables
are the caller's: SGLang reads some on import. First its own parser, then its own resolution (in the constructor up to 0.5.18, resolve_once
since), then the model configs that its target and draft workers build first.
"""

# the engine's packages exist in its own environment only
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import argparse
import inspect
import json
import sys
from importlib import metadata
from typing import Any

import cases
import stand_ins

# not those that transformers looks for itself: it would take a stand-in for the real thing
NOT_NEEDED = ("triton", "sgl_kernel", "flashinfer", "deep_gemm", "xgrammar", "outlines", "llguidance", "setproctitle", "uvloop", "cuda")


def resolved(args: Any) -> dict[str, Any]:
    """The arguments as the engine will use them."""
    if hasattr(args, "resolve_once"):
        args.resolve_once()
        return {name: cases.plain(value) for name, value in args.resolved_dict().items()}
    return {name: cases.plain(value) for name, value in vars(args).items() if not name.startswith("_")}


def model_configs(args: Any, effective: dict[str, Any]) -> dict[str, Any]:
    """What the workers do first: the target's model config, and the draft's with the target's context length."""
    from sglang.srt.configs.model_config import ModelConfig

    target = ModelConfig.from_server_args(args)
    found = {"target_context_len": target.context_len}
    path = effective.get("speculative_draft_model_path")
    if path and effective.get("speculative_algorithm") not in (None, "NGRAM", "NONE"):
        more = {"model_path": path, "model_revision": effective.get("speculative_draft_model_revision"), "is_draft_model": True}
        if "context_length" in inspect.signature(ModelConfig.from_server_args).parameters:
            more["context_length"] = target.context_len
        else:
            args.context_length = target.context_len
        draft = ModelConfig.from_server_args(args, **more)
        found |= {"draft_context_len": draft.context_len, "draft_quantization": cases.plain(draft.quantization)}
        found |= {"draft_architecture": draft.hf_config.architectures[0]}
    return found


def parser() -> argparse.ArgumentParser:
    """The server's."""
    from sglang.srt.server_args import ServerArgs

    made = argparse.ArgumentParser(prog="launch_server.py")
    ServerArgs.add_cli_args(made)
    return made


def solve(case: dict[str, Any]) -> dict[str, Any]:
    """One case, in a process of its own."""
    from sglang.srt.server_args import prepare_server_args

    drafter = ["--speculative-draft-model-path", case["drafter"]] if case.get("drafter") else []
    words = ["--model-path", case["target"], *drafter, "--device", case.get("device") or "cuda", *case["argv"]]
    args = prepare_server_args(words)
    effective = resolved(args)
    return effective | model_configs(args, effective)


def tools() -> dict[str, Any]:
    """Who answers, and its options."""
    return {"tools": {name: metadata.version(name) for name in ("sglang", "torch", "transformers")}, "options": cases.options(parser())}


def main() -> None:
    stand_ins.torchvision_operators()
    stand_ins.kernels_not_there(stand_ins.stand_in(NOT_NEEDED))
    import transformers  # noqa: F401  (before the GPU is there: it must not look for one)

    with open(sys.argv[1]) as file:
        gpu = json.load(file).get("gpu")
    if gpu is not None:
        stand_ins.pretend_gpu(gpu)
    import sglang.srt.configs.model_config
    import sglang.srt.server_args  # noqa: F401

    cases.answer_all(solve, "sglang", tools)


if __name__ == "__main__":
    main()
