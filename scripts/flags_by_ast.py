"""The command line options that an engine's wheel declares, read from its source without importing it.

An option is a dict: `value` False (a switch), True (takes one value), "optional" or "many"; `type`; `choices`, None when they are not
written down as constants; `of`, the main spelling, for an alias or the --no- form of a switch; `deprecated` where the action says so.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Option = dict[str, Any]
SWITCHES = {"store_true", "store_false", "store_const", "count", "help", "version"}
MANY = {"?": "optional", "*": "many", "+": "many"}
UNKNOWN = object()


class Source:
    """Python files of a wheel below some folders, with their module-level constants by name."""

    def __init__(self, wheel: Path, folders: tuple[str, ...]) -> None:
        with zipfile.ZipFile(wheel) as archive:
            names = sorted(name for name in archive.namelist() if name.endswith(".py") and name.startswith(folders))
            self.trees = {name: ast.parse(archive.read(name)) for name in names}
        self.constants: dict[str, ast.expr] = {}
        for tree in self.trees.values():
            for node in tree.body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.constants.setdefault(node.targets[0].id, node.value)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                    self.constants.setdefault(node.target.id, node.value)

    def classes(self) -> Iterator[ast.ClassDef]:
        for tree in self.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    yield node

    def functions(self, name: str) -> Iterator[ast.FunctionDef]:
        for tree in self.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    yield node

    def static(self, node: ast.expr | None) -> Any:
        """The value of an expression made of constants, lists and sums of them; UNKNOWN otherwise."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            parts = [self.static(item) for item in node.elts]
            return UNKNOWN if any(part is UNKNOWN for part in parts) else parts
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.static(node.left), self.static(node.right)
            return left + right if isinstance(left, list) and isinstance(right, list) else UNKNOWN
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("list", "set", "sorted") and node.args:
            return self.static(node.args[0])
        if isinstance(node, ast.Name) and node.id in self.constants:
            return self.static(self.constants[node.id])
        return UNKNOWN


def name_of(node: ast.AST | None) -> str:
    """`BooleanOptionalAction` for argparse.BooleanOptionalAction, "" for anything without a name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def spelled(names: list[str], option: Option) -> dict[str, Option]:
    """An entry for every spelling; all but the first point to the main one."""
    dashed = [name for name in names if name.startswith("-")]
    entries = {name: dict(option) if name == dashed[0] else {**option, "of": dashed[0]} for name in dashed}
    if option.get("negatable"):
        entries |= {
            f"--no-{name[2:]}": {"value": False, "type": "bool", "choices": None, "of": dashed[0]}
            for name in dashed
            if name.startswith("--")
        }
    for entry in entries.values():
        entry.pop("negatable", None)
    return entries


def declared(source: Source, words: Mapping[str, ast.expr], inner: ast.expr | None) -> Option:
    """One option from the keywords of add_argument or Arg, and the field's type where there is one."""
    action, more = words.get("action"), words.get("action_kwargs")
    if isinstance(more, ast.Dict):  # SGLang hands these to add_argument beside the action
        words = {**words, **{str(source.static(key)): value for key, value in zip(more.keys, more.values, strict=True)}}
    named = source.static(action) if isinstance(action, ast.Constant) else name_of(action)
    nargs = source.static(words["nargs"]) if "nargs" in words else None
    choices = source.static(words["choices"]) if "choices" in words else None
    kind = name_of(words.get("type") or words.get("type_parser")) or type_of(inner)
    value: bool | str = True
    if named in SWITCHES or (kind == "bool" and "type" not in words and not named and inner is not None):
        value, kind = False, "bool"
    elif named == "BooleanOptionalAction":
        return {"value": False, "type": "bool", "choices": None, "negatable": True}
    elif str(named).startswith("Deprecated") and "Alias" not in str(named):
        value = nargs is None and "nargs" in words  # these take no value unless nargs=None is written
    elif nargs in MANY or (kind == "list" and "type_parser" not in words):
        value = MANY.get(nargs or "+", "many")
    kind = "bool" if value is False else kind
    option: Option = {"value": value, "type": kind, "choices": sorted(map(str, choices)) if isinstance(choices, list) else None}
    if choices is None and inner is not None:
        option["choices"] = literals(inner)
    return option | ({"deprecated": True} if str(named).startswith("Deprecated") else {})


def bare(inner: ast.expr | None) -> ast.expr | None:
    """X of Optional[X] and X | None."""
    if isinstance(inner, ast.Subscript) and name_of(inner.value) == "Optional":
        return inner.slice
    if isinstance(inner, ast.BinOp):
        sides = [side for side in (inner.left, inner.right) if not (isinstance(side, ast.Constant) and side.value is None)]
        return bare(sides[0]) if len(sides) == 1 else inner
    return inner


def type_of(inner: ast.expr | None) -> str:
    """int, float, bool, str, list or "str" for what argparse would take as text."""
    inner = bare(inner)
    if isinstance(inner, ast.Subscript):
        return "list" if name_of(inner.value) in ("List", "list") else "str"
    return name_of(inner) if name_of(inner) in ("int", "float", "bool", "str") else "str"


def literals(inner: ast.expr | None) -> list[str] | None:
    """The strings of a Literal."""
    inner = bare(inner)
    if isinstance(inner, ast.Subscript) and name_of(inner.value) == "Literal":
        parts = inner.slice.elts if isinstance(inner.slice, ast.Tuple) else [inner.slice]
        return sorted(str(part.value) for part in parts if isinstance(part, ast.Constant))
    return None


# --- SGLang ----------------------------------------------------------------------------------------------------------


def sglang_options(wheel: Path) -> dict[str, Option]:
    """Calls of add_argument in ServerArgs.add_cli_args, and since 0.5.14 the annotated fields that it registers."""
    source = Source(wheel, ("sglang/srt/server_args.py", "sglang/srt/arg_groups/"))
    found: dict[str, Option] = {}
    for function in source.functions("add_cli_args"):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call) and name_of(node.func) == "add_argument"):
            names = [name for name in (source.static(argument) for argument in call.args) if isinstance(name, str)]
            found |= spelled(names, declared(source, {word.arg: word.value for word in call.keywords if word.arg}, None))
    for owner in source.classes():
        for field in owner.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                found |= sglang_field(source, field.target.id, field.annotation)
    return found


def sglang_field(source: Source, name: str, annotation: ast.expr) -> dict[str, Option]:
    """`name: A[type, "help"]` or `A[type, Arg(...)]`; nothing for other fields."""
    if not (isinstance(annotation, ast.Subscript) and name_of(annotation.value) in ("A", "Annotated")):
        return {}
    inner, *rest = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    call = next((part for part in rest if isinstance(part, ast.Call) and name_of(part.func) == "Arg"), None)
    words = {word.arg: word.value for word in call.keywords if word.arg} if call is not None else {}
    text = any(isinstance(part, ast.Constant | ast.JoinedStr | ast.BinOp) or name_of(part).isupper() for part in rest)
    if (call is None and not text) or source.static(words.get("no_cli")) is True:
        return {}
    main = source.static(words["cli_name"]) if "cli_name" in words else f"--{name.replace('_', '-')}"
    aliases = source.static(words["aliases"]) if "aliases" in words else []
    return spelled([main, *aliases], declared(source, words, inner))
