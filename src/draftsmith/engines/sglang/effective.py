"""What a running SGLang server says in its log about the settings that took effect (it prints them as server_args=...)."""

from __future__ import annotations

import re

NAMES = {
    "speculative_algorithm": "drafting_method",
    "speculative_num_steps": "depth",
    "speculative_num_draft_tokens": "draft_tokens",
    "attention_backend": "attention_backend",
    "max_running_requests": "max_running_requests",
    "dtype": "dtype",
}


def effective(log_text: str) -> dict[str, str]:
    """Setting -> last value logged (rules may overwrite the first); a setting that the log does not mention is left out."""
    found: dict[str, str] = {}
    for theirs, ours in NAMES.items():
        values = re.findall(rf"\b{theirs}=('[^']*'|[\w.]+)", log_text)
        if values:
            found[ours] = values[-1].strip("'")
    return found
