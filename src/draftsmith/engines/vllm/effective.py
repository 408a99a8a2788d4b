"""What a running vLLM server says in its log about the settings that took effect."""

from __future__ import annotations

import re

PATTERNS = {
    "engine_version": r"Initializing a V1 LLM engine \(v([^)]+)\)",
    "drafting_method": r"speculative_config=SpeculativeConfig\(method='([^']+)'",
    "depth": r"speculative_config=SpeculativeConfig\([^)]*?num_spec_tokens=(\d+)",
    "dtype": r"Initializing a V1 LLM engine .*?\bdtype=([\w.]+)",
    "enforce_eager": r"Initializing a V1 LLM engine .*?\benforce_eager=(\w+)",
    "kv_cache_tokens": r"KV cache size: ([\d,]+) tokens",
    "omp_threads_bind": r"VLLM_CPU_OMP_THREADS_BIND='([^']*)'",
    "cores": r"local_rank=0, core ids=\[([^\]]*)\]",
    "model_runner": r"using the (V\d) model runner",
}


def effective(log_text: str) -> dict[str, str]:
    """Setting -> value as logged; a setting that the log does not mention is left out."""
    found: dict[str, str] = {}
    for name, pattern in PATTERNS.items():
        match = re.search(pattern, log_text)
        if match:
            found[name] = match[1]
    return found
