"""Run by vLLM's own interpreter: `python probe_vllm.py ANSWER.json`. Asks the installed vLLM's classes and parser, not a table of ours."""

# the engine's packages exist in its own environment only
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import re
import sys
from typing import get_args


def literals(annotation: object) -> list[str]:
    """The strings of a (nested) Literal."""
    found: list[str] = []
    for argument in get_args(annotation):
        found += [argument] if isinstance(argument, str) else literals(argument)
    return found


def jsonable(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def type_name(annotation: object) -> str:
    """int, str | None, Literal['a', 'b'], ... without module names."""
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+", "", name)


def config_keys(config: type) -> dict[str, dict[str, object]]:
    """Keys of --speculative-config: type and default, as vLLM's config class declares them."""
    keys: dict[str, dict[str, object]] = {}
    for field in dataclasses.fields(config):
        if not field.init or field.name.startswith("_"):
            continue
        default = field.default
        if hasattr(default, "default"):  # a pydantic FieldInfo
            default = default.default
        given = default is not dataclasses.MISSING and "Undefined" not in type(default).__name__
        keys[field.name] = {"type": type_name(field.type), "default": jsonable(default) if given else None}
    return keys


def flags(parser: argparse.ArgumentParser) -> dict[str, dict[str, object]]:
    """The speculative flags of the server's parser."""
    found: dict[str, dict[str, object]] = {}
    for action in parser._actions:
        names = [name for name in action.option_strings if "spec" in name]
        if names:
            kind = getattr(action.type, "__name__", str(action.type)) if action.type is not None else "str"
            found[names[0]] = {"aliases": names[1:], "type": kind, "default": jsonable(action.default)}
            if action.choices is not None:
                found[names[0]]["choices"] = [str(choice) for choice in action.choices]
    return found


def main() -> None:
    import torch
    import vllm
    from vllm.config import speculative
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    answer = {
        "engine": "vllm",
        "version": vllm.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": current_platform.device_type,
        "methods": literals(speculative.SpeculativeMethod),
        "flags": flags(parser),
        "speculative_config": config_keys(speculative.SpeculativeConfig),
    }
    with open(sys.argv[1], "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
