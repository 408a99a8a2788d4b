"""Rounds of a vLLM server: its counters, the flags that make it profile, and the names in its traces (read and seen in 0.32.0)."""

from __future__ import annotations

import json
from pathlib import Path

from draftsmith.engines.counters import gauge, samples, total, total_by
from draftsmith.engines.protocol import Launch
from draftsmith.engines.rounds import LiveCounts, RoundCounts, Spans

# postprocess is where the target's logits are computed
SPANS = Spans(
    begin=r"^gpu_model_runner: forward$",
    verify=r"^gpu_model_runner: (forward|postprocess)$",
    draft=r"^gpu_model_runner: draft$",
    prefill=r"^execute_context_[1-9]",
    unnamed="model runner V2, which many models get on a GPU, names no parts of a step: VLLM_USE_V2_MODEL_RUNNER=0 in engine.env",
)


def with_profiler(launch: Launch, folder: Path) -> Launch:
    """The launch with /start_profile and /stop_profile, and with spans in the traces. Stacks are left out: they slow the host down."""
    config = {
        "profiler": "torch",
        "torch_profiler_dir": str(folder),
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
        "ignore_frontend": True,
    }
    return launch.with_(flags={"profiler-config": json.dumps(config)}, env={"VLLM_CUSTOM_SCOPES_FOR_PROFILING": "1"})


def start_body(folder: Path | None) -> dict[str, object]:
    """What /start_profile is told: nothing, the folder was given at the start."""
    return {}


def round_counts(metrics_text: str) -> RoundCounts | None:
    """Without speculation every token after a request's first is a round; None while a counter is missing."""
    tokens = total(metrics_text, "vllm:generation_tokens_total")
    requests = total(metrics_text, "vllm:request_decode_time_seconds_count")
    seconds = samples(metrics_text, "vllm:request_decode_time_seconds_sum")
    if tokens is None or requests is None or not seconds:
        return None
    drafts = total(metrics_text, "vllm:spec_decode_num_drafts_total")
    rounds = drafts if drafts is not None else tokens - requests
    return RoundCounts(
        rounds, tokens, requests, sum(value for _, value in seconds), total(metrics_text, "vllm:iteration_tokens_total_count")
    )


def live_counts(metrics_text: str) -> LiveCounts:
    """Of all requests, as rounds happen. Positions are those of the page, 0 first; there from the start when the server speculates."""
    by_position = total_by(metrics_text, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
    return LiveCounts(
        tokens=total(metrics_text, "vllm:generation_tokens_total"),
        requests=total(metrics_text, "vllm:request_decode_time_seconds_count"),
        rounds=total(metrics_text, "vllm:spec_decode_num_drafts_total"),
        drafted=total(metrics_text, "vllm:spec_decode_num_draft_tokens_total"),
        accepted=total(metrics_text, "vllm:spec_decode_num_accepted_tokens_total"),
        reached=tuple(by_position.get(str(position), 0) for position in range(len(by_position))),
        running=gauge(metrics_text, "vllm:num_requests_running"),
        born=gauge(metrics_text, "process_start_time_seconds"),
    )
