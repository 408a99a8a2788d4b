"""The order of the stages, and how one is run, skipped or continued."""

from __future__ import annotations

import fcntl
import importlib
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from draftsmith.errors import DraftsmithError, EnvironmentFailed, UsageError
from draftsmith.job import Job, Plan, Stage, clock
from draftsmith.manifest import Manifest, append_jsonl, atomic_write_json, hash_outputs, read_jsonl, stage_key
from draftsmith.recipe import Recipe

STAGES = ("check", "breakeven", "data", "capture", "train", "export", "verify", "serve", "bench", "report")
TIMES = ".times.jsonl"  # seconds of work per start of a stage, so that a killed stage's time still counts


def load_stage(name: str) -> Stage:
    """Import a stage's module (some import torch, so only when it is needed)."""
    return cast(Stage, importlib.import_module(f"draftsmith.{name}.stage"))
