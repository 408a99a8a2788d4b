"""A server's pages of JSON: read as far as they are what they should be. A proxy may answer with a page of its own, and status 200."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def json_object(page: str | None) -> Mapping[str, Any]:
    """The JSON object on a page; {} for anything else: no page, HTML, a list."""
    try:
        found = json.loads(page or "")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def first_model(page: str | None) -> Mapping[str, Any]:
    """The first entry of /v1/models; {} when it is none."""
    served = json_object(page).get("data")
    first = served[0] if isinstance(served, list) and served else None
    return first if isinstance(first, dict) and isinstance(first.get("id"), str) else {}
