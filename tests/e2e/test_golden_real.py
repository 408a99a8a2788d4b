"""The real engines give the committed answers again, for every version whose environment is in DRAFTSMITH_HOME."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from draftsmith.engines import environments, resolution

pytestmark = pytest.mark.engine
GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FILES = sorted(GOLDEN.glob("*.json"))
TABLES = Path(environments.__file__).parents[1] / "check" / "flag_tables"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_engine_answers_as_committed(path: Path) -> None:
    committed: dict[str, Any] = json.loads(path.read_text())
    name = f"{committed['package']}=={committed['version']}"
    if name not in environments.checkable():
        pytest.skip(f"draftsmith engine add {name} --check-only")
    made = runpy.run_path(str(GOLDEN / "make.py"))["make"](name)
    assert made["tools"] == committed["tools"]
    for was, now in zip(committed["cases"], made["cases"], strict=True):
        assert settled(now) == settled(was), was["name"]


def settled(case: dict[str, Any]) -> dict[str, Any]:
    """Less what the processor decides: vLLM's CPU build splits the prefill of a target with MLA only where there is AMX."""
    if "kv_lora_rank" not in (GOLDEN / "configs" / case["target"] / "config.json").read_text():
        return case
    outcome = dict(case["outcome"])
    if "effective" in outcome:
        outcome["effective"] = {name: value for name, value in outcome["effective"].items() if name != "max_num_batched_tokens"}
    return case | {"outcome": outcome}


def test_the_flag_table_is_what_the_parsers_take() -> None:
    """Every option of a real parser is in the table read from the wheel's source, and takes a value there if it does here."""
    asked = [name for name in environments.checkable() if name.startswith("sglang==")]
    if not asked:
        pytest.skip("draftsmith engine add sglang==0.5.17 --check-only")
    spans = json.loads((TABLES / "sglang.json").read_text())
    for name in asked:
        version = name.split("==")[1]
        table = {
            option: span
            for option, found in spans["options"].items()
            for span in found
            if spans["versions"].index(span["since"]) <= spans["versions"].index(version) <= spans["versions"].index(span["until"])
        }
        real = resolution.about(environments.check_python(name), "sglang")["options"]
        assert set(real) - set(table) == {"-h", "--help"}, name
        assert set(table) - set(real) == set(), name
        wrong = [option for option, takes in real.items() if option in table and table[option].get("value", True) != takes]
        assert wrong == [], name
