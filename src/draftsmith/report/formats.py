"""Numbers and words as the report prints them. Every format has sensible digits; None is the word for what is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from markupsafe import escape

from draftsmith.job import clock

ABSENT = "absent"
TONE = {"pays": "pays", "does not pay": "fails", "inconclusive": "unsure", "passed": "pays", "failed": "fails"}


def or_absent(form: Callable[..., str], absent: str, value: Any, *args: Any) -> str:
    """`form(value)`, or the word for what is not there."""
    return absent if value is None else form(value, *args)


def number(value: float, digits: int = 2) -> str:
    return f"{value:,.{digits}f}"


def whole(value: float) -> str:
    return f"{value:,.0f}"


def percent(value: float, digits: int = 1) -> str:
    """With its sign."""
    return f"{100 * value:+.{digits}f} %"


def ms(value_s: float) -> str:
    """Seconds as milliseconds: three digits."""
    return significant(1000 * value_s)


def rate(value: float) -> str:
    """Tokens per second: 1,234 or 123 or 12.3 or 1.23."""
    return significant(value)


def significant(value: float) -> str:
    """Three digits, more where they are before the point."""
    size_of = abs(value)
    return f"{value:,.0f}" if size_of >= 100 else f"{value:.1f}" if size_of >= 10 else f"{value:.2f}"


def share(value: float) -> str:
    """A share of 1 as a percentage without a sign."""
    return f"{100 * value:.1f} %"


def moment(unix_s: float) -> str:
    """19:54:03 UTC."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%H:%M:%S")


def duration(value_s: float) -> str:
    """12.3 s, from a minute on 02:03."""
    return f"{value_s:.1f} s" if value_s < 60 else clock(value_s)


def sentence(text: str) -> str:
    """With a capital."""
    return text[:1].upper() + text[1:]


def quoted(text: str) -> str:
    """Text with its spaces and line ends visible."""
    return json.dumps(text, ensure_ascii=False)


def size(num_bytes: float) -> str:
    """In the largest binary unit that leaves at least 1."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def plain(value: Any) -> str:
    """A scalar or a short structure on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(inner(one) for one in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner(one)}" for key, one in value.items()) or "none"
    return str(value)


def inner(value: Any) -> str:
    """Inside a list or mapping: whole numbers as they were written, deeper structures in brackets."""
    if isinstance(value, list | dict):
        return f"({plain(value)})" if value else "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return ABSENT if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def interval(band: dict[str, Any] | None, form: Callable[[float], str] = number) -> str:
    """1.42–1.57, or the word for what is not there."""
    if band is None or band["low"] is None or band["high"] is None:
        return ABSENT
    return f"{form(band['low'])}–{form(band['high'])}"


def markdown_cell(value: Any) -> Any:
    """Text from outside cannot break a table, start a tag or open a code span."""
    if not isinstance(value, str):
        return value
    return str(escape(value)).replace("&#39;", "'").replace("&#34;", '"').replace("|", "\\|").replace("`", "'").replace("\n", " ")


FORMATS: tuple[Callable[..., str], ...] = (
    number,
    whole,
    percent,
    share,
    duration,
    ms,
    rate,
    moment,
    size,
    plain,
    quoted,
    sentence,
)
