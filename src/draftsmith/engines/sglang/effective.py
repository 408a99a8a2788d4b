"""What a running SGLang server says about the settings that took effect: in its log (server_args=...) and on /server_info, where every
resolved argument has its flag's name. And what a launch asked for, under the same names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from draftsmith.engines.flags import spelled
from draftsmith.engines.pages import json_object
from draftsmith.engines.protocol import Launch
from draftsmith.engines.secrets import is_secret

PAGES = ("/server_info",)

NAMES = {
    "speculative_algorithm": "drafting_method",
    "speculative_num_steps": "depth",
    "speculative_num_draft_tokens": "draft_tokens",
    "speculative_eagle_topk": "topk",
    "speculative_draft_model_path": "drafter",
    "model_path": "target",
    "attention_backend": "attention_backend",
    "max_running_requests": "max_running_requests",
    "dtype": "dtype",
    "context_length": "context_length",
}
# a flag's other spellings -> the argument's name
SHORT = {"tp": "tp_size", "tensor_parallel_size": "tp_size", "dp": "dp_size", "pp": "pp_size", "data_parallel_size": "dp_size"}
# arguments that are compared as they are; others may be adjusted with good reason (sizes of graphs and prefill chunks, for example)
ASKED = {
    "page_size",
    "tp_size",
    "dp_size",
    "pp_size",
    "quantization",
    "kv_cache_dtype",
    "mem_fraction_static",
    "load_format",
    "random_seed",
    "disable_radix_cache",
    "disable_cuda_graph",
    "disable_overlap_schedule",
}


def requested(launch: Launch) -> dict[str, str]:
    """Setting -> value that the launch asks for, under the names of `effective`."""
    asked = {"target": str(launch.target), "trust_remote_code": str(launch.trust_remote_code)}
    for flag, value in launch.flags.items():
        name = spelled(flag).replace("-", "_")
        name = SHORT.get(name, name)
        if value is not None and (name in NAMES or name in ASKED):
            asked[NAMES.get(name, name)] = str(value)
    if launch.drafting is not None:
        drafting = launch.drafting
        asked |= {"drafting_method": drafting.method, "drafter": str(drafting.folder), "draft_tokens": str(drafting.rows)}
        if drafting.method == "eagle3":
            asked |= {"depth": str(drafting.depth), "topk": str(drafting.tree[0] if drafting.tree else 1)}
    return asked


def effective(log_text: str, pages: Mapping[str, str]) -> dict[str, str]:
    """Setting -> last value told (rules may overwrite the first); a setting that the server does not mention is left out."""
    found: dict[str, str] = {}
    for theirs, ours in NAMES.items():
        values: list[str] = re.findall(rf"\b{theirs}=('[^']*'|[\w.]+)", log_text)
        if values:
            found[ours] = values[-1].strip("'")
    told = json_object(pages.get("/server_info"))
    for name, value in told.items():
        if isinstance(value, bool | int | float | str) and not is_secret(name):  # api_key is among them
            found[NAMES.get(name, name)] = str(value)
    # the argument says how many requests were allowed, the scheduler of each data-parallel rank how many its pools can hold
    states, ranks = told.get("internal_states"), told.get("dp_size", 1)
    limits = [state.get("effective_max_running_requests_per_dp") for state in states or () if isinstance(state, dict)]
    held = [limit for limit in limits if isinstance(limit, int)]
    if held and isinstance(ranks, int):
        found["max_running_requests"] = str(min(held) * ranks)
    return found
