"""Asking the real engine what it makes of a set of arguments: its own parser and resolution, in its own interpreter, without weights."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftsmith.engines.process import inherited
from draftsmith.errors import EnvironmentFailed, UsageError

SCRIPTS = Path(__file__).with_name("inside")
TOUCHED = re.compile(
    r"^speculative[._](?!ngram|suffix)|^draft_|_context_len$|^max_(num_|running|model)|(^|_)attention_backend$|^page_size|overlap|mixed_chunk"
    r"|^cuda_graph_max|^quantization$|^context_length|runner$|scheduling$"
)
IMPORT_S, CASE_S = 600, 130  # an engine's import takes seconds, minutes on an overloaded machine
GPUS: dict[str, dict[str, Any] | None] = {  # what stands in for a GPU; None: the engine's own CPU device
    "a100": {"name": "NVIDIA A100-SXM4-80GB", "capability": [8, 0], "memory_mib": 81920, "count": 8, "cuda": "12.9"},
    "h100": {"name": "NVIDIA H100 80GB HBM3", "capability": [9, 0], "memory_mib": 81559, "count": 8, "cuda": "12.9"},
    "h200": {"name": "NVIDIA H200", "capability": [9, 0], "memory_mib": 143771, "count": 8, "cuda": "12.9"},
    "b200": {"name": "NVIDIA B200", "capability": [10, 0], "memory_mib": 183359, "count": 8, "cuda": "12.9"},
    "cpu": None,
}


@dataclass(frozen=True)
class Case:
    """One launch as a user types it; argv without the model's path, the drafter's path and the device, which the other fields give."""

    target: Path
    drafter: Path | None = None
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    gpu: str = "h100"


@dataclass(frozen=True)
class Answers:
    """One per case, in order: {"effective": {...}} or {"error": {"type", "message"}}, and "said": what the engine logged of its changes."""

    answers: list[dict[str, Any]]
    tools: dict[str, str]  # versions of the engine, torch and transformers


def resolve(python: Path, family: str, case: Case) -> dict[str, Any]:
    """What the engine of `python` makes of one case. Raises EnvironmentFailed when it does not run, UsageError on an unknown GPU."""
    return resolve_all(python, family, [case]).answers[0]


def resolve_all(python: Path, family: str, cases: Sequence[Case]) -> Answers:
    """All cases with one start of the interpreter for each environment and GPU: an engine reads some variables on import."""
    groups: dict[str, list[int]] = {}
    for number, case in enumerate(cases):
        groups.setdefault(json.dumps([dict(case.env), case.gpu], sort_keys=True), []).append(number)
    answers: dict[int, dict[str, Any]] = {}
    tools: dict[str, str] = {}
    for numbers in groups.values():
        group = [cases[number] for number in numbers]
        document = ask(python, family, questions(group), group[0].env)
        answers |= dict(zip(numbers, document["answers"], strict=True))
        tools = document["tools"]
    return Answers([answers[number] for number in range(len(cases))], tools)


def about(python: Path, family: str) -> dict[str, Any]:
    """{"tools": versions of engine, torch and transformers, "options": {"--name": what follows it}}. Raises EnvironmentFailed."""
    return ask(python, family, {"cases": [], "gpu": GPUS["h100"]}, {})


def questions(group: Sequence[Case]) -> dict[str, Any]:
    """What the script inside reads, for cases on one GPU."""
    gpu = group[0].gpu
    if gpu not in GPUS:
        raise UsageError(f"no GPU {gpu!r}", hint=f"one of: {', '.join(GPUS)}")
    return {
        "gpu": GPUS[gpu],
        "cases": [
            {
                "target": str(case.target.absolute()),
                "drafter": str(case.drafter.absolute()) if case.drafter else None,
                "argv": list(case.argv),
                "device": "cpu" if GPUS[gpu] is None else "cuda",
            }
            for case in group
        ],
    }


def ask(python: Path, family: str, document: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Run the script of the family. The engine sees the variables of the case and none of ours that begin with its name."""
    clean = {name: value for name, value in inherited().items() if not name.startswith(("PYTHONSAFEPATH", "SGLANG_", "VLLM_"))}
    clean |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "NO_COLOR": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **env,
    }
    with tempfile.TemporaryDirectory(prefix="draftsmith-ask-") as folder:
        asked, answered = Path(folder) / "questions.json", Path(folder) / "answers.json"
        asked.write_text(json.dumps(document))
        command = [str(python), str(SCRIPTS / f"resolve_{family}.py"), str(asked), str(answered)]
        limit_s = IMPORT_S + CASE_S * len(document["cases"])
        try:
            ran = subprocess.run(command, capture_output=True, text=True, env=clean, cwd=folder, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            raise EnvironmentFailed(f"{family}'s argument resolution took more than {limit_s} s", hint="is the machine busy?") from None
        if ran.returncode != 0 or not answered.exists():
            last = (ran.stderr or ran.stdout).strip().splitlines()[-1:] or ["no output"]
            raise EnvironmentFailed(f"{family}'s argument resolution does not run: {last[0]}", hint=f"{shlex.join(command[:2])} says more")
        return json.loads(answered.read_text())


def told(answer: Mapping[str, Any]) -> str:
    """An answer for people: what it said, then the error, or the fields that speculation touches and that are set. JSON has them all."""
    lines = [f"said: {line}" for line in answer["said"]]
    if "error" in answer:
        return "\n".join([*lines, f"refused: {answer['error']['type']}: {answer['error']['message']}"])
    shown = {name: value for name, value in sorted(answer["effective"].items()) if value is not None and TOUCHED.search(name)}
    return "\n".join([*lines, *(f"{name}: {value}" for name, value in shown.items())])
