"""Does an exported drafter work in a GPU engine as replay says? One speculative and one baseline launch, one request at a time.

    python benchmarks/gpu/exported_drafter.py --engine sglang==0.5.17 --target DIR --drafter DIR --prompts FILE --out FILE

`--prompts` is a JSON list of token-id lists. Acceptance comes from SGLang's per-request histogram (native /generate). The
prediction is the acceptance walk of the drafter, in float32 on the CPU, over the very tokens that the server emitted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from draftsmith.decode.chain import walk
from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.registry import engine_for
from draftsmith.engines.server import Server, start
from draftsmith.job import Talk
from draftsmith.manifest import hardware, tool_versions
from draftsmith.metrics import Acceptance, relative_gap
from draftsmith.models.checkpoint import load_exported
from draftsmith.models.target import load_target
from draftsmith.settings import EngineSettings

FLAGS = {
    "attention-backend": "triton",
    "sampling-backend": "pytorch",
    "disable-prefill-cuda-graph": True,
    "mem-fraction-static": 0.5,
    "cuda-graph-max-bs": 8,
    "max-running-requests": 8,
    "dtype": "bfloat16",
}


def generate(server: Server, prompt: list[int], num_tokens: int) -> dict[str, Any]:
    """One greedy answer of exactly num_tokens tokens through the native API."""
    sampling = {"temperature": 0.0, "max_new_tokens": num_tokens, "ignore_eos": True}
    return server.post_json("/generate", {"input_ids": prompt, "sampling_params": sampling})


def measure(server: Server, prompts: list[list[int]], num_tokens: int) -> dict[str, Any]:
    """Answers one after the other; the first two are asked twice and count only the second time."""
    for prompt in prompts[:2]:
        generate(server, prompt, num_tokens)
    started = time.perf_counter()
    replies = [generate(server, prompt, num_tokens) for prompt in prompts]
    seconds = time.perf_counter() - started
    tokens = sum(reply["meta_info"]["completion_tokens"] for reply in replies)
    return {
        "tok_s": tokens / seconds,
        "tokens": tokens,
        "seconds": seconds,
        "ready_s": server.ready_s,
        "argv": server.argv,
        "replies": replies,
    }


def served_acceptance(replies: list[dict[str, Any]], depth: int) -> Acceptance:
    """Sum of the per-request histograms: entry i = rounds that accepted i drafts."""
    histogram = [0] * (depth + 1)
    for reply in replies:
        for accepted, rounds in enumerate(reply["meta_info"]["spec_correct_drafts_histogram"]):
            histogram[accepted] += rounds
    return Acceptance.from_rounds((i for i, rounds in enumerate(histogram) for _ in range(rounds)), depth)


def predicted_acceptance(arguments: argparse.Namespace, prompts: list[list[int]], replies: list[dict[str, Any]]) -> Acceptance:
    """The walk over each answer; the last round of each is left out, since the end of the text may cut it."""
    config = json.loads((arguments.drafter / "config.json").read_text())
    target = load_target(arguments.target, config["draftsmith"]["tap_boundaries"], torch.float32)
    drafter = load_exported(arguments.drafter, target)
    rounds: list[int] = []
    for prompt, reply in zip(prompts, replies, strict=True):
        text = torch.tensor([*prompt, *reply["output_ids"]])
        rounds += walk(drafter, target.states(text[None]).features_BTF[0], text, len(prompt), arguments.depth)[:-1]
    return Acceptance.from_rounds(rounds, arguments.depth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--pythonpath", help="PYTHONPATH of the engine, where it is not installed in this interpreter")
    arguments = parser.parse_args()
    prompts = json.loads(arguments.prompts.read_text())
    engine, python = engine_for(EngineSettings(name=arguments.engine, python=sys.executable))
    talk = Talk()
    env = {"PYTHONPATH": arguments.pythonpath} if arguments.pythonpath else {}
    result: dict[str, Any] = {"engine": arguments.engine, "depth": arguments.depth, "hardware": hardware(), "tools": tool_versions()}
    for drafting in (Drafting("eagle3", arguments.drafter, arguments.depth), None):
        launch = Launch("speculative" if drafting else "baseline", arguments.target, FLAGS, env, drafting)
        log = arguments.out.with_name(f"{launch.arm}.log")
        with start(engine, python, launch, log, 400.0, talk, launch.arm) as server:
            result[launch.arm] = measure(server, prompts, arguments.tokens)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    replies = result["speculative"]["replies"]
    served, predicted = served_acceptance(replies, arguments.depth), predicted_acceptance(arguments, prompts, replies)
    same = sum(a["output_ids"] == b["output_ids"] for a, b in zip(replies, result["baseline"]["replies"], strict=True))
    result |= {"served": served.as_dict(), "predicted": predicted.as_dict(), "gap": relative_gap(predicted.accept_len, served.accept_len)}
    result |= {"identical_answers": same, "speedup": result["speculative"]["tok_s"] / result["baseline"]["tok_s"]}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"accept_len served {served.accept_len:.3f}, predicted {predicted.accept_len:.3f}; {same} of {len(prompts)} answers identical")


if __name__ == "__main__":
    main()
