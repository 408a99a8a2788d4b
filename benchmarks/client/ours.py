"""Our client as a command, for the comparisons: one closed loop, and its numbers as JSON, by our definitions and by those of the others."""

from __future__ import annotations

import argparse
import json
from statistics import fmean

from draftsmith.measure.client import run_load
from draftsmith.measure.latency import tpot_s
from draftsmith.measure.loads import ClosedLoad
from draftsmith.measure.messages import Reply, Request
from draftsmith.measure.window import steady_window


def numbers(replies: list[Reply], concurrency: int) -> dict:
    """Milliseconds are means over requests, as the other two print them."""
    good = [reply for reply in replies if reply.ok]
    tokens = sum(reply.completion_tokens for reply in good)
    span_s = max(reply.last_s for reply in good) - min(reply.sent_s for reply in good)
    several = [reply for reply in good if reply.completion_tokens > 1]
    gaps = [b - a for r in good for (a, _), (b, _) in zip(r.arrivals or (), (r.arrivals or ())[1:], strict=False)]
    return {
        "requests": len(good),
        "failed": [f"{reply.id}: {reply.error}" for reply in replies if not reply.ok],
        "prompt_tokens": sum(reply.prompt_tokens for reply in good),
        "output_tokens": tokens,
        "duration_s": span_s,
        "tok_s": tokens / span_s,
        "steady_tok_s": steady_window(good, concurrency).tok_s if len(good) == len(replies) else None,
        "ttft_ms": 1e3 * fmean(reply.first_s - reply.sent_s for reply in good),
        "tpot_ms": 1e3 * fmean(tpot_s(reply) for reply in several),
        "inter_chunk_ms": 1e3 * fmean(gaps) if gaps else None,
        "tpot_ms_as_vllm": 1e3 * fmean((r.last_s - r.first_s) / (r.completion_tokens - 1) for r in several),
        "tpot_ms_as_guidellm": 1e3 * fmean((reply.last_s - reply.sent_s) / reply.completion_tokens for reply in good),
        "client_lag_ms": 1e3 * max(reply.client_lag_s for reply in good),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--prompts", required=True, help="JSONL with prompt and output_tokens")
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--forced", action="store_true", help="ignore the end-of-text token")
    parser.add_argument("--out", required=True)
    a = parser.parse_args()
    with open(a.prompts) as lines:
        rows = [json.loads(line) for line in lines][: a.requests]
    requests = [Request(f"r{i}", (), row["output_tokens"], ignore_eos=a.forced, text=row["prompt"]) for i, row in enumerate(rows)]
    replies = run_load(a.url, "completions", "target", requests, ClosedLoad(a.concurrency))
    with open(a.out, "w") as file:
        json.dump(numbers(replies, a.concurrency), file)


if __name__ == "__main__":
    main()
