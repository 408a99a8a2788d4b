"""Run by SGLang's own interpreter: `python probe_sglang.py ANSWER.json`. Asks the installed SGLang, not a table of ours."""

# the engine's packages exist in its own environment only
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib import metadata


def jsonable(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def flags(parser: argparse.ArgumentParser) -> dict[str, dict[str, object]]:
    """The speculative flags of the server's parser."""
    found: dict[str, dict[str, object]] = {}
    for action in parser._actions:
        names = [name for name in action.option_strings if "spec" in name or "eagle" in name]
        if names:
            kind = getattr(action.type, "__name__", str(action.type)) if action.type is not None else "str"
            found[names[0]] = {"aliases": names[1:], "type": kind, "default": jsonable(action.default)}
            if action.choices is not None:
                found[names[0]]["choices"] = [str(choice) for choice in action.choices]
    return found


def methods(parser: argparse.ArgumentParser) -> list[str]:
    """Names that --speculative-algorithm takes: the parser's choices up to 0.5.11, the enumeration's members since."""
    action = next(action for action in parser._actions if "--speculative-algorithm" in action.option_strings)
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    return [member.name for member in SpeculativeAlgorithm if member.name != "NONE"]


def main() -> None:
    import torch
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    answer = {
        "engine": "sglang",
        "version": metadata.version("sglang"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "methods": methods(parser),
        "flags": flags(parser),
    }
    with open(sys.argv[1], "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
