"""What a running vLLM server says about the settings that took effect: in its log, on /v1/models, on /metrics and, in development mode,
on /server_info. And what a launch asked for, under the same names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from draftsmith.engines.counters import samples
from draftsmith.engines.flags import spelled
from draftsmith.engines.pages import first_model, json_object
from draftsmith.engines.protocol import Launch

PAGES = ("/v1/models", "/metrics", "/server_info?config_format=json")

STARTED = r"Initializing a V1 LLM engine .*?\b"
PATTERNS = {
    "engine_version": r"Initializing a V1 LLM engine \(v([^)]+)\)",
    "target": STARTED + r"config: model='([^']+)'",
    "drafting_method": r"speculative_config=SpeculativeConfig\(method='([^']+)'",
    "drafter": r"speculative_config=SpeculativeConfig\([^)]*?model='([^']+)'",
    "depth": r"speculative_config=SpeculativeConfig\([^)]*?num_spec_tokens=(\d+)",
    "dtype": STARTED + r"dtype=([\w.]+)",
    "max_model_len": STARTED + r"max_seq_len=(\d+)",
    "load_format": STARTED + r"load_format=(\w+)",
    "tensor_parallel_size": STARTED + r"tensor_parallel_size=(\d+)",
    "pipeline_parallel_size": STARTED + r"pipeline_parallel_size=(\d+)",
    "data_parallel_size": STARTED + r"data_parallel_size=(\d+)",
    "quantization": STARTED + r"quantization=(\w+)",
    "kv_cache_dtype": STARTED + r"kv_cache_dtype=(\w+)",
    "seed": STARTED + r"seed=(\d+)",
    "enforce_eager": STARTED + r"enforce_eager=(\w+)",
    "enable_prefix_caching": STARTED + r"enable_prefix_caching=(\w+)",
    "enable_chunked_prefill": STARTED + r"enable_chunked_prefill=(\w+)",
    "trust_remote_code": STARTED + r"trust_remote_code=(\w+)",
    "kv_cache_tokens": r"KV cache size: ([\d,]+) tokens",
    "omp_threads_bind": r"VLLM_CPU_OMP_THREADS_BIND='([^']*)'",
    "cores": r"local_rank=0, core ids=\[([^\]]*)\]",
    "model_runner": r"using the (V\d) model runner",
}
# labels of vllm:cache_config_info -> setting
CACHE_LABELS = {"block_size": "block_size", "gpu_memory_utilization": "gpu_memory_utilization"}
# the same in /server_info: part of the config -> its settings
SERVER_INFO = {
    "scheduler_config": ("max_num_seqs", "max_num_batched_tokens"),
    "cache_config": ("block_size", "gpu_memory_utilization"),
    "model_config": ("max_model_len", "enforce_eager", "seed"),
}
# flags that are compared, by the name of the setting that they ask for
ASKED = {
    "dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "gpu_memory_utilization",
    "load_format",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "quantization",
    "kv_cache_dtype",
    "seed",
    "enforce_eager",
    "enable_prefix_caching",
    "enable_chunked_prefill",
}


def requested(launch: Launch) -> dict[str, str]:
    """Setting -> value that the launch asks for, under the names of `effective`."""
    asked = {"target": str(launch.target), "trust_remote_code": str(launch.trust_remote_code)}
    for flag, value in launch.flags.items():
        name = spelled(flag).replace("-", "_")
        if name in ASKED and value is not None and not re.fullmatch(r"\d+(\.\d+)?[kKmMgG]", str(value)):  # 32k: not for us to multiply
            asked[name] = str(value)
    if launch.drafting is not None:
        asked |= {"drafting_method": launch.drafting.method, "depth": str(launch.drafting.depth), "drafter": str(launch.drafting.folder)}
    return asked


def effective(log_text: str, pages: Mapping[str, str]) -> dict[str, str]:
    """Setting -> value as the server tells it; a setting that it does not mention is left out."""
    found: dict[str, str] = {}
    for name, pattern in PATTERNS.items():
        match = re.search(pattern, log_text)
        if match:
            found[name] = match[1]
    for labels, _ in samples(pages.get("/metrics", ""), "vllm:cache_config_info"):
        found |= {name: labels[label] for label, name in CACHE_LABELS.items() if label in labels}
    if served := first_model(pages.get("/v1/models")):
        found |= {"served_model": served["id"], "max_model_len": str(served.get("max_model_len", found.get("max_model_len", "")))}
    return found | from_server_info(json_object(pages.get("/server_info?config_format=json")))


def from_server_info(info: Mapping[str, Any]) -> dict[str, str]:
    """The settings on the page of the development mode; a page without the parts that are looked for tells nothing."""
    config = info.get("vllm_config")
    if not isinstance(config, dict):
        return {}
    found = {
        name: str(part[name])
        for key, names in SERVER_INFO.items()
        if isinstance(part := config.get(key), dict)
        for name in names
        if part.get(name) is not None
    }
    drafting = config.get("speculative_config")
    if isinstance(drafting, dict) and drafting.get("num_speculative_tokens") is not None:
        found["depth"] = str(drafting["num_speculative_tokens"])
    return found
