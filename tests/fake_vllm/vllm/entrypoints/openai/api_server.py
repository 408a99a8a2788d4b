"""The part of vLLM's server that breakeven uses on a GPU, with known times: a step takes STEP_S, a round ROUND_S, synthetic acceptance.

POST /v1/completions with several prompts, streamed every --stream-interval tokens, usage of each answer in its chunks; counters on
/metrics. A request without ignore_eos, token ids or usage in every chunk is refused, so that a test sees what was asked.
"""

from __future__ import annotations

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

STEP_S, ROUND_S = 0.004, 0.006
NAMES = ("drafts", "accepted_tokens", "accepted_tokens_per_pos")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--stream-interval", type=int, default=1)
    parser.add_argument("--speculative-config", type=json.loads, default={})
    return parser.parse_known_args()[0]


class Handler(BaseHTTPRequestHandler):
    args: ClassVar[argparse.Namespace]
    tokens: ClassVar[int] = 0
    rounds: ClassVar[int] = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write((self.metrics() if self.path == "/metrics" else '{"data": [{"id": "target"}]}').encode())

    def metrics(self) -> str:
        """Two tokens a round: the first draft of each is accepted."""
        lines = [f"vllm:generation_tokens_total {self.tokens}"]
        if self.args.speculative_config:
            lines += [f"vllm:spec_decode_num_{name}_total {self.rounds}" for name in NAMES[:2]]
            depth = self.args.speculative_config["num_speculative_tokens"]
            per_position = [self.rounds, *[0] * (depth - 1)]
            lines += [f'vllm:spec_decode_num_{NAMES[2]}_total{{position="{i}"}} {n}' for i, n in enumerate(per_position)]
        return "\n".join(lines) + "\n"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        told = body["ignore_eos"] and body["return_token_ids"] and body["stream_options"]["continuous_usage_stats"]
        self.send_response(200 if told and body["model"] == "target" else 400)
        self.end_headers()
        config = self.args.speculative_config
        length = int(config["synthetic_acceptance_length"]) if config.get("rejection_sample_method") == "synthetic" else 1
        done, said, prompts = 1, 0, len(body["prompt"])
        while True:
            if done - said >= self.args.stream_interval or done == body["max_tokens"] or not said:
                for index in range(prompts):
                    self.say({"choices": [{"index": index, "token_ids": [7] * (done - said)}], "usage": {"completion_tokens": done}})
                said = done
            if done == body["max_tokens"]:
                break
            time.sleep(ROUND_S if config else STEP_S)
            done = min(done + length, body["max_tokens"])
            Handler.rounds += prompts if config else 0
        Handler.tokens += prompts * done
        self.say({"choices": [], "usage": {"completion_tokens": prompts * done}})
        self.wfile.write(b"data: [DONE]\n\n")

    def say(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, *words: Any) -> None:
        """Quiet."""


if __name__ == "__main__":
    Handler.args = arguments()
    ThreadingHTTPServer(("127.0.0.1", Handler.args.port), Handler).serve_forever()
