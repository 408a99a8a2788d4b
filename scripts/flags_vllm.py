"""The command line options of vLLM, read from a wheel's source: what EngineArgs.add_cli_args and the server's FrontendArgs register.

vLLM derives an option's kind from a config class's field; so does this. --speculative-config and the other JSON options also exist with
keys behind a dot (--speculative-config.method), which no table lists.
"""

from __future__ import annotations

import ast
from pathlib import Path

from flags_by_ast import MANY, Option, Source, declared, name_of, spelled

ENTRY = "vllm/entrypoints"
FILES = ("vllm/config/", "vllm/engine/arg_utils.py", *(f"{ENTRY}/{where}/cli_args.py" for where in ("openai", "launchers", "common")))
SERVED = ("FrontendArgs", "BaseFrontendArgs")


def vllm_options(wheel: Path) -> dict[str, Option]:
    """Every option of `vllm serve`."""
    source = Source(wheel, FILES)
    fields = {owner.name: fields_of(owner) for owner in source.classes()}
    found: dict[str, Option] = {}
    for function in [*source.functions("add_cli_args"), *source.functions("make_arg_parser")]:
        owners = {  # model_kwargs = get_kwargs(ModelConfig)
            name_of(node.targets[0]): name_of(node.value.args[0])
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and name_of(node.value.func) == "get_kwargs"
        }
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call) and name_of(node.func) == "add_argument"):
            names = [name for name in (source.static(argument) for argument in call.args) if isinstance(name, str)]
            if names:
                found |= spelled(names, option_of(source, call, owners, fields))
    for name in SERVED:
        assert name == "BaseFrontendArgs" or name in fields, f"{wheel.name}: {name} is elsewhere"
        for key, annotation in fields.get(name, {}).items():
            found |= spelled([f"--{key.replace('_', '-')}"], by_type(source, annotation))
    return found


def fields_of(owner: ast.ClassDef) -> dict[str, ast.expr]:
    """Annotated names of a class body."""
    return {node.target.id: node.annotation for node in owner.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}


def option_of(source: Source, call: ast.Call, owners: dict[str, str], fields: dict[str, dict[str, ast.expr]]) -> Option:
    """From `**model_kwargs["dtype"]`, or from the keywords as they are written."""
    words = {word.arg: word.value for word in call.keywords if word.arg}
    for word in call.keywords:
        if word.arg is None and isinstance(word.value, ast.Subscript):
            owner, key = owners.get(name_of(word.value.value), ""), source.static(word.value.slice)
            annotation = fields.get(owner, {}).get(str(key))
            if annotation is not None and "action" not in words:
                return by_type(source, annotation)
    return declared(source, words, None)


def by_type(source: Source, annotation: ast.expr) -> Option:
    """A switch with a --no- form for bool, choices of a Literal, several words for a list, else one value."""
    names = {name_of(node) for node in ast.walk(annotation) if isinstance(node, ast.expr)}
    choices = chosen(source, annotation)
    if "bool" in names and not names & {"dict", "str"} and not choices:
        return {"value": False, "type": "bool", "choices": None, "negatable": True}
    if names >= {"bool", "str"}:
        return {"value": "optional", "type": "str", "choices": None}
    if outer(annotation) & {"list", "List", "tuple", "set"}:
        return {"value": MANY["+"], "type": "list", "choices": None}
    kind = next((kind for kind in ("int", "float") if kind in outer(annotation)), "str")
    return {"value": True, "type": kind, "choices": choices}


def outer(annotation: ast.expr) -> set[str]:
    """Names at the top of a union: {int, None} of int | None."""
    if isinstance(annotation, ast.BinOp):
        return outer(annotation.left) | outer(annotation.right)
    if isinstance(annotation, ast.Subscript):
        inside = outer(annotation.slice) if name_of(annotation.value) == "Optional" else set[str]()
        return {name_of(annotation.value)} | inside
    return {name_of(annotation)}


def chosen(source: Source, annotation: ast.expr) -> list[str] | None:
    """The strings of the annotation's Literals, through names of ours; None when anything else than None may be given too."""
    if isinstance(annotation, ast.BinOp):
        sides = [chosen(source, side) for side in (annotation.left, annotation.right) if not is_none(side)]
        return sorted({value for side in sides for value in side or ()}) if all(side is not None for side in sides) else None
    if isinstance(annotation, ast.Subscript) and name_of(annotation.value) == "Literal":
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        found = [chosen(source, source.constants[name_of(part)]) if name_of(part) in source.constants else [part] for part in parts]
        return sorted(str(part.value if isinstance(part, ast.Constant) else part) for side in found for part in side or ())
    if name_of(annotation) in source.constants:
        return chosen(source, source.constants[name_of(annotation)])
    return None


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
