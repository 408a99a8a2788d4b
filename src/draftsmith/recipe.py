"""recipe.yaml -> frozen settings. Unknown keys are refused with a suggestion; `key.sub=value` overrides come from the command line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError, model_validator

from draftsmith.bench.settings import BenchSettings
from draftsmith.breakeven.settings import BreakevenSettings
from draftsmith.capture.settings import CaptureSettings
from draftsmith.check.settings import CheckSettings
from draftsmith.data.settings import DataSettings
from draftsmith.errors import UsageError
from draftsmith.export.settings import ExportSettings
from draftsmith.report.settings import ReportSettings
from draftsmith.serve.settings import ServeSettings
from draftsmith.settings import DrafterSettings, EngineSettings, Settings, TargetSettings
from draftsmith.train.settings import TrainSettings
from draftsmith.tune.settings import TuneSettings
from draftsmith.verify.settings import VerifySettings
from draftsmith.yaml_text import read_yaml

COMPLETE = "see recipes/smollm2-cpu.yaml for a complete recipe"


class Recipe(Settings):
    """One experiment from target to verdict. A stage that is not mentioned runs with its defaults."""

    name: str
    target: TargetSettings
    engine: EngineSettings
    drafter: DrafterSettings = DrafterSettings()
    check: CheckSettings = CheckSettings()
    breakeven: BreakevenSettings = BreakevenSettings()
    data: DataSettings = DataSettings()
    capture: CaptureSettings = CaptureSettings()
    train: TrainSettings = TrainSettings()
    export: ExportSettings = ExportSettings()
    verify: VerifySettings = VerifySettings()
    serve: ServeSettings = ServeSettings()
    bench: BenchSettings = BenchSettings()
    report: ReportSettings = ReportSettings()
    tune: TuneSettings = TuneSettings()  # of the command `tune`, which is beside the road

    @model_validator(mode="before")
    @classmethod
    def endpoint_of_the_engine(cls, content: Any) -> Any:
        """Where bench is not told which endpoint to ask: on SGLang the native one, because only it tells acceptance."""
        engine, bench = (content.get(name, {}) for name in ("engine", "bench"))
        if isinstance(engine, dict) and str(engine.get("name")).startswith("sglang") and isinstance(bench, dict):
            return {**content, "bench": {"endpoint": "generate", **bench}}
        return content

    @model_validator(mode="before")
    @classmethod
    def gates_of_the_bench(cls, content: Any) -> Any:
        """Where breakeven is not told what must be reachable: the gates that bench will hold the drafter against."""
        own, bench = (content.get(name, {}) for name in ("breakeven", "bench"))
        if isinstance(own, dict) and not {"gates", "min_speedup"} & set(own):
            try:
                gates = BenchSettings.model_validate(bench).all_gates
            except ValidationError:  # it is said when the whole recipe is read
                return content
            return {**content, "breakeven": {**own, "gates": [str(gate) for gate in gates]}}
        return content


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read and validate a recipe file.

    overrides: "train.budget_s=60" and the like; the value is read as YAML. Raises UsageError naming the key and the line's problem.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"no recipe at {path}", hint="recipes that come with Draftsmith are in recipes/") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise UsageError(f"cannot read the recipe {path}: {why}", hint=COMPLETE) from None
    try:
        content = read_yaml(text)
    except ValueError as error:
        raise UsageError(f"{path} is not YAML that can be meant: {error}", hint=COMPLETE) from None
    if not isinstance(content, dict):
        found = "nothing" if content is None else type(content).__name__
        raise UsageError(f"{path} holds {found}, expected a mapping with name, target, engine, ...", hint=COMPLETE)
    for override in overrides:
        apply_override(content, override)
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{path}: {explain(error)}", hint=suggest(error)) from None


def apply_override(content: dict[str, Any], override: str) -> None:
    """Set a dotted key in place: `bench.pairs=4`. Raises UsageError when it has no = or crosses a value that is not a mapping."""
    key, separator, value = override.partition("=")
    if not separator or not key:
        raise UsageError(f"override {override!r} is not KEY=VALUE", hint="for example: train.budget_s=60")
    *path, last = key.strip().split(".")
    place: Any = content
    for part in path:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise UsageError(f"override {override!r}: {part} is not a mapping in the recipe", hint=f"{part}=... sets it as a whole")
    try:
        read = read_yaml(value)
        # variables are text: 007, 1e3, on and null stay what was typed, while quotes come off
        place[last] = value if path == ["engine", "env"] and not isinstance(read, str) else read
    except ValueError as error:
        hint = "quote it for the shell: 'bench.concurrency=[1, 4]'"
        raise UsageError(f"override {override!r}: the value is not YAML: {error}", hint=hint) from None


def explain(error: ValidationError) -> str:
    """One line per problem: where, what was found, what is wrong."""
    lines = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown key {where!r}")
        elif problem["type"] == "missing":
            lines.append(f"{where} is missing")
        elif problem["type"] == "value_error":  # our own sentence, which names what was found
            said = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{where}: {said}" if where else said)
        else:
            said = problem["msg"].replace("tuple", "list").replace("Tuple", "List").replace("dictionary", "mapping")
            lines.append(f"{where}: {said} (found {shortened(problem['input'])})")
    return "; ".join(lines)


def shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def suggest(error: ValidationError) -> str:
    """ "did you mean" for the first unknown key, else where to look."""
    for problem in error.errors():
        if problem["type"] == "extra_forbidden":
            *path, wrong = problem["loc"]
            names = known_keys(path)
            close = difflib.get_close_matches(str(wrong), names, n=1)
            return f"did you mean {close[0]!r}?" if close else f"known keys here: {', '.join(names)}"
    return COMPLETE


def known_keys(path: Sequence[Any]) -> list[str]:
    """Field names of the settings class that sits at a path of the recipe."""
    model: Any = Recipe
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        model = field.annotation
    return sorted(model.model_fields)
