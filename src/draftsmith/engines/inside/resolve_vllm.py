"""Run by vLLM's own interpreter: `python resolve_vllm.py QUESTIONS.json ANSWERS.json`. What does it make of these arguments?

A case: {"target": folder, "drafter": folder or null, "argv": [...]}. The drafter's folder becomes "model" of the speculative config that
argv holds. vLLM's own parser, then its own engine config. Which platform it plans for is its build's: the CPU build answers for a CPU.
"""

# the engine's packages exist in its own environment only
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
from importlib import metadata
from typing import Any

import cases


def with_drafter(argv: list[str], drafter: str | None) -> list[str]:
    """argv with the drafter's folder where its user would have written it; unchanged when there is no place for it."""
    if drafter is None:
        return argv
    for place, word in enumerate(argv[:-1]):
        if word in ("--speculative-config", "--speculative_config", "-sc"):
            with contextlib.suppress(json.JSONDecodeError):
                return [*argv[: place + 1], json.dumps({"model": drafter, **json.loads(argv[place + 1])}), *argv[place + 2 :]]
        if word.startswith("--speculative-config."):
            return [*argv, "--speculative-config.model", drafter]
        if word.startswith("--spec-"):
            return [*argv, "--spec-model", drafter]
    return argv


def speculative(config: Any) -> dict[str, Any]:
    """Fields of the speculative config that are plain, and what its draft model became."""
    if config is None:
        return {}
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name, None)
        if value is None or isinstance(value, bool | int | float | str | list | tuple):
            found[field.name] = cases.plain(value)
    draft = getattr(config, "draft_model_config", None)
    if draft is not None:
        found |= {
            "draft_architectures": cases.plain(getattr(draft.hf_config, "architectures", None)),
            "draft_max_model_len": draft.max_model_len,
        }
        found |= {"draft_quantization": cases.plain(draft.quantization)}
    return found


@functools.cache
def parser() -> argparse.ArgumentParser:
    """The engine's; that of the server has more options and no other meaning."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="vllm"))


def solve(case: dict[str, Any]) -> dict[str, Any]:
    """One case, in a process of its own."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    args = parser().parse_args(["--model", case["target"], *with_drafter(case["argv"], case.get("drafter"))])
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
    scheduler = config.scheduler_config
    found: dict[str, Any] = {f"speculative.{name}": value for name, value in speculative(config.speculative_config).items()}
    for name in ("max_num_seqs", "max_num_batched_tokens", "async_scheduling", "num_lookahead_slots", "max_num_active_seqs"):
        if hasattr(scheduler, name):
            found[name] = cases.plain(getattr(scheduler, name))
    if hasattr(config, "use_v2_model_runner"):
        found["use_v2_model_runner"] = cases.plain(config.use_v2_model_runner)
    found["max_model_len"] = config.model_config.max_model_len
    found["quantization"] = cases.plain(config.model_config.quantization)
    return found


def tools() -> dict[str, Any]:
    """Who answers, and its options."""
    import vllm

    versions = {"vllm": vllm.__version__} | {name: metadata.version(name) for name in ("torch", "transformers")}
    return {"tools": versions, "options": cases.options(parser())}


def main() -> None:
    import vllm.engine.arg_utils
    import vllm.utils.argparse_utils  # noqa: F401

    parser()  # a second of work that no case has to repeat
    cases.answer_all(solve, "vllm", tools)


if __name__ == "__main__":
    main()
