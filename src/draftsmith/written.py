"""What people type: numbers on the command line, names of files. What is wrong with it is one error in one sentence."""

from __future__ import annotations

import argparse
import math
from typing import Any


def finite(text: str) -> float:
    """The type of an option that takes a number, as argparse calls it: NaN and infinity are none."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return number


def is_file_name(value: Any) -> bool:
    """Can this be the name of a file at all? Longer ones, and those with a NUL, make the system fail before it looks."""
    return isinstance(value, str) and 0 < len(value.encode(errors="replace")) < 256 and "\0" not in value
