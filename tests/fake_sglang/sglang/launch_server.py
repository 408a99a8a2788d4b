"""The part of SGLang's server that breakeven uses, with known times: a decode step takes STEP_MS, a round ROUND_MS + DRAFT_MS * depth.

POST /generate with a list of prompts, streamed in steps of sampling_params.stream_interval; acceptance follows SGLANG_SIMULATE_ACC_LEN as
SGLang does it (one length for all requests of a round). FAKE_DIES names a port number modulo 10 at which the start fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys

from aiohttp import web

STEP_MS, ROUND_MS, DRAFT_MS, ROW_MS = 2.0, 2.5, 0.4, 0.02


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("model-path", "served-model-name", "host", "speculative-algorithm", "speculative-draft-model-path", "load-format"):
        parser.add_argument(f"--{name}")
    for name in ("port", "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"):
        parser.add_argument(f"--{name}", type=int)
    return parser.parse_known_args()[0]


class Engine:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rows = args.speculative_num_draft_tokens or 1
        self.depth = self.rows - 1
        self.accept_len = float(os.environ.get("SGLANG_SIMULATE_ACC_LEN", "1")) if args.speculative_algorithm else None

    def round_s(self, concurrency: int) -> float:
        ms = ROUND_MS + DRAFT_MS * self.depth if self.accept_len else STEP_MS
        return (ms + ROW_MS * concurrency * self.rows) / 1000

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        concurrency, params = len(body["input_ids"]), body["sampling_params"]
        step, total = params["stream_interval"], params["max_new_tokens"]
        clock = asyncio.get_running_loop()
        due, count, rounds, accepted = clock.time() + 0.01, 1, 0, 0
        while True:
            await asyncio.sleep(max(0.0, due - clock.time()))
            if count % step == (1 if step > 1 else 0) or count >= total:
                for index in range(concurrency):
                    meta = {"completion_tokens": min(count, total), "finish_reason": {"type": "length"} if count >= total else None}
                    if self.accept_len and count >= total:
                        meta |= {"spec_verify_ct": rounds, "spec_num_correct_drafts": accepted}
                    line = json.dumps({"index": index, "output_ids": [7] * min(count, total), "meta_info": meta})
                    await response.write(f"data: {line}\n\n".encode())
            if count >= total:
                await response.write(b"data: [DONE]\n\n")
                return response
            due += self.round_s(concurrency)
            length = 1
            if self.accept_len:
                length = int(self.accept_len) + (random.random() < self.accept_len % 1)
                rounds, accepted = rounds + 1, accepted + length - 1
            count += length

    async def server_info(self, _: web.Request) -> web.Response:
        return web.json_response({key: value for key, value in vars(self.args).items() if value is not None})


async def healthy(_: web.Request) -> web.Response:
    return web.Response()


def main() -> None:
    args = arguments()
    if os.environ.get("FAKE_DIES") == str(args.port % 10):
        sys.exit("RuntimeError: as asked")
    engine = Engine(args)
    app = web.Application()
    app.router.add_get("/health", healthy)
    app.router.add_get("/server_info", engine.server_info)
    app.router.add_post("/generate", engine.generate)
    web.run_app(app, host=args.host, port=args.port, print=None)


if __name__ == "__main__":
    main()
