"""Where everything that Draftsmith installs lives."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """$DRAFTSMITH_HOME, or ~/.draftsmith: `engines/` and `models/`."""
    chosen = os.environ.get("DRAFTSMITH_HOME")
    return Path(chosen).absolute() if chosen else Path.home() / ".draftsmith"
