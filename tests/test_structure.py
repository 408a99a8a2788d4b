"""The house rules that a machine can hold: who imports whom, how large things are, that every command has an example."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftsmith import cli
from draftsmith.keys import DEPENDS, GATES
from draftsmith.recipe import load_recipe
from draftsmith.stages import STAGES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "draftsmith"
MODULES = sorted(PACKAGE.rglob("*.py"))
LIBRARIES = {"models", "engines", "decode", "measure"}
NOUNS = {"errors", "manifest", "metrics", "settings", "job", "samples", "findings", "store", "stages", "written", "yaml_text"}
# what drives the stages; nothing else imports these. `serving` has the commands of servers that outlive a command, `measuring` those
# around measurements, `costs` those that need no recipe: no stage is run by them.
FLOW = {
    *("recipe", "keys", "runfolder", "flow", "commands", "cli", "__main__"),
    *("serving", "measuring", "costs", "tuning", "converting", "verifying", "replaying", "auditing", "watching"),
}
TOOLS = {"convert", "tune", "watch"}  # commands outside the road; they import what a stage may import
MAX_FILE, MAX_FUNCTION, MAX_PARAMETERS = 330, 66, 8


def top_of(path: Path) -> str:
    """`train` for src/draftsmith/train/stage.py, `errors` for src/draftsmith/errors.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Every draftsmith module that a file imports, with its dots, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "draftsmith":
                found |= {f"draftsmith.{alias.name}" for alias in node.names}
            else:
                found.add(node.module or "")
    return {name.removeprefix("draftsmith.") for name in found if name.startswith("draftsmith.")}


def test_every_folder_is_a_stage_or_a_library_and_every_file_a_noun_or_the_flow() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert folders == set(STAGES) | LIBRARIES | TOOLS
    assert files == NOUNS | FLOW


def wrong_imports(path: Path) -> list[str]:
    """Stages import nouns and libraries; libraries import nouns and libraries; nouns import nouns; the flow imports all of them."""
    top = top_of(path)
    if top in FLOW | {"__init__"}:
        return []
    allowed = NOUNS | {"__version__"} | ({top} | LIBRARIES if top in set(STAGES) | LIBRARIES | TOOLS else set())
    return [f"{path.relative_to(ROOT)} imports draftsmith.{name}" for name in imports_of(path) if name.split(".")[0] not in allowed]


def test_import_graph() -> None:
    assert [wrong for path in MODULES for wrong in wrong_imports(path)] == []


def test_only_settings_of_a_stage_are_imported_by_the_recipe() -> None:
    for name in imports_of(PACKAGE / "recipe.py"):
        top, *rest = name.split(".")
        assert top not in STAGES or rest == ["settings"], name


def test_the_graph_test_sees_what_it_looks_for(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(
        "import draftsmith.train.stage\ndef f():\n    from draftsmith import flow\n    from draftsmith.bench.settings import B\n"
    )
    assert imports_of(path) == {"train.stage", "flow", "bench.settings"}


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_its_names(stage: str) -> None:
    tree = ast.parse((PACKAGE / stage / "stage.py").read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {"plan", "run"} <= functions
    values: dict[str, object] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id in ("NAME", "INPUTS"):
            assert isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            values[target.id] = ast.literal_eval(node.value)
    order = list(STAGES)
    assert values["NAME"] == stage
    inputs = values["INPUTS"]
    assert isinstance(inputs, tuple) and all(order.index(name) < order.index(stage) for name in inputs)


def source_of(stage: str) -> str:
    return "\n".join(path.read_text() for path in sorted((PACKAGE / stage).rglob("*.py")))


def test_the_tables_of_keys_are_true() -> None:
    """A stage that uses a part of the job depends on it; a stage does not read what it only waits for."""
    uses = {
        r"\bjob\.engine\b": {"engine", "engine name"},
        r"\bjob\.drafter\b": {"drafter", "taps", "depth"},
        r"\bjob\.target\b": {"target"},
    }
    for stage in STAGES:
        for pattern, parts in uses.items():
            if re.search(pattern, source_of(stage)) and stage != "report":  # report has them through all its inputs
                assert parts & set(DEPENDS[stage]), f"{stage}: {pattern}"
        if re.search(r"\bjob\.drafter\.depth\b", source_of(stage)) and stage != "report":
            assert "depth" in DEPENDS[stage], stage
    for stage, gates in GATES.items():
        for gate in gates:
            assert not re.search(rf"\.(folder|read|summary)\(\s*\"{gate}\"", source_of(stage)), f"{stage} reads {gate}"


# --- sizes -----------------------------------------------------------------------------------------------------------


def python_files() -> list[Path]:
    return [
        *MODULES,
        *sorted((ROOT / "tests").rglob("*.py")),
        *sorted((ROOT / "scripts").glob("*.py")),
        *sorted((ROOT / "benchmarks").rglob("*.py")),
    ]


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def too_large(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT)
    lines = len(path.read_text().splitlines())
    if lines > MAX_FILE:
        yield f"{name}: {lines} lines"
    for function in functions_of(path):
        length = (function.end_lineno or 0) - function.lineno + 1
        if length > MAX_FUNCTION:
            yield f"{name}: {function.name} has {length} lines"
        given = [arg.arg for arg in parameters_of(function) if arg.arg not in ("self", "cls")]
        if len(given) > MAX_PARAMETERS:
            yield f"{name}: {function.name} has {len(given)} parameters"


def test_sizes() -> None:
    assert [found for path in python_files() for found in too_large(path)] == []


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def badly_written(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT)
    text = path.read_text()
    if text.strip() and not ast.get_docstring(ast.parse(text)):
        yield f"{name}: no docstring"
    for function in functions_of(path):
        untyped = [arg.arg for arg in parameters_of(function) if arg.annotation is None and arg.arg not in ("self", "cls")]
        if untyped or function.returns is None:
            yield f"{name}: {function.name}: no type for {untyped or 'the result'}"
        for handler in (node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler)):
            kinds = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else {"bare"}
            if kinds & {"bare", "Exception", "BaseException"} and (path.name, function.name) != ("cli.py", "main"):
                yield f"{name}: {function.name}: broad except"


def test_modules_are_documented_typed_and_catch_what_they_mean() -> None:
    assert [found for path in MODULES for found in badly_written(path)] == []


# --- documents -------------------------------------------------------------------------------------------------------


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples() -> list[str]:
    """Every `draftsmith ...` line in a fenced block of the documents."""
    lines = []
    for path in documents():
        for block in re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", path.read_text(), re.S | re.M):
            lines += [line.strip().removeprefix("$ ").removeprefix(".venv/bin/") for line in block.splitlines()]
    return sorted({line.split("#")[0].strip() for line in lines if line.startswith("draftsmith ")})


def test_every_command_has_an_example_and_every_example_is_a_command() -> None:
    """What the documents say to type parses, names recipes that exist and settings that they have."""
    seen = set()
    for line in examples():
        args = cli.parse(line.split()[1:])
        seen.add(args.command)
        if getattr(args, "recipe", None) is not None and not (ROOT / args.recipe).is_dir():  # `report` takes results, too
            load_recipe(ROOT / args.recipe, args.overrides)
    assert seen == {"run", *STAGES, "data show", *cli.OTHER, *cli.AROUND}


def test_links_between_documents_lead_somewhere() -> None:
    for path in documents():
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
            assert link.startswith("http") or (path.parent / link).exists(), f"{path.relative_to(ROOT)}: {link}"


def test_the_readme_has_its_two_commands() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    assert [block.strip() for block in blocks[:2]] == ["bash scripts/quickstart.sh", "bash scripts/test.sh"]
