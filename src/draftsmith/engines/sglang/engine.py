"""SGLang as an `Engine`. Facts were read in the packages of SGLang 0.5.12 to 0.5.23; 0.5.17 was served from here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from draftsmith.engines.counters import total
from draftsmith.engines.flags import fixed_port, render_flags, without
from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.rootcause import find_cause
from draftsmith.engines.sglang.effective import PAGES, effective, requested
from draftsmith.engines.sglang.rounds import with_profiler
from draftsmith.errors import UsageError
from draftsmith.metrics import Acceptance

# set here from target and drafter
OWNED = frozenset(
    {
        "model-path",
        "model",
        "served-model-name",
        "trust-remote-code",
        "enable-metrics",
        "speculative-algorithm",
        "speculative-algo",
        "speculative-draft-model-path",
        "speculative-draft-model",
        "speculative-num-steps",
        "speculative-eagle-topk",
        "speculative-num-draft-tokens",
        "speculative-draft-load-format",
    }
)

ALGORITHMS = {"eagle3": "EAGLE3", "dflash": "DFLASH"}

BASE_ENV = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "NO_COLOR": "1", "PYTHONSAFEPATH": "1", "SPT_NOENV": "1"}


class SGLang:
    """SGLang's HTTP server, with metrics on."""

    name: ClassVar[str] = "sglang"
    served_model: ClassVar[str] = "target"
    endpoint: ClassVar[str] = "generate"
    float32: ClassVar[bool] = False  # sgl_kernel's rmsnorm has none (0.5.17 on an H200)
    info_pages: ClassVar[tuple[str, ...]] = PAGES
    workers: ClassVar[str] = r"^sglang::"

    def argv(self, python: Path, launch: Launch, port: int) -> list[str]:
        assert fixed_port(launch.flags) in (None, port), (launch.flags, port)
        host = launch.flags.get("host", "127.0.0.1")
        argv = [str(python), "-m", "sglang.launch_server", "--model-path", str(launch.target), "--served-model-name", self.served_model]
        argv += ["--host", str(host), "--port", str(port), "--enable-metrics"]
        if launch.trust_remote_code:
            argv.append("--trust-remote-code")
        argv += render_flags(without(launch.flags, "host", "port"), owned=OWNED, negatable=False)
        if launch.drafting is not None:
            argv += speculative_flags(launch.drafting)
        return argv + dummy_flags(launch)

    def env(self, launch: Launch) -> dict[str, str]:
        return {**BASE_ENV, **forced_acceptance(launch.drafting), **launch.env}

    def acceptance(self, metrics_text: str, depth: int) -> Acceptance | None:
        """Only at depth 1: SGLang's page has verify calls and output tokens, not counts per position.

        Finished requests only; each request's first token comes from the prefill, not from a round. Deeper chains have their counts
        in each reply of the native API (measure/endpoints.py), so the answer is None there.
        """
        rounds = total(metrics_text, "sglang:spec_verify_calls_total")
        tokens = total(metrics_text, "sglang:generation_tokens_total")
        requests = total(metrics_text, "sglang:num_requests_total")
        if depth != 1 or rounds is None or tokens is None or requests is None:
            return None
        return Acceptance(rounds, (tokens - requests - rounds,))

    def generation_tokens(self, metrics_text: str) -> int | None:
        """Of finished requests."""
        return total(metrics_text, "sglang:generation_tokens_total")

    def effective(self, log_text: str, pages: Mapping[str, str]) -> dict[str, str]:
        return effective(log_text, pages)

    def requested(self, launch: Launch) -> dict[str, str]:
        return requested(launch)

    def with_profiler(self, launch: Launch, folder: Path) -> Launch:
        return with_profiler(launch, folder)

    def explain_death(self, log_text: str) -> tuple[str, str]:
        return find_cause(log_text, self.name)


def speculative_flags(drafting: Drafting) -> list[str]:
    """All three numbers, always: SGLang dies in a bare assert or a None comparison on a partial set. Chain: topk 1, depth + 1 tokens."""
    if drafting.method not in ALGORITHMS:
        raise UsageError(f"SGLang: unknown drafting method {drafting.method!r}", hint=f"known: {', '.join(ALGORITHMS)}")
    if drafting.schedule:
        raise UsageError("SGLang takes no schedule here", hint="its flags --speculative-adaptive and --speculative-adaptive-config do that")
    words = ["--speculative-algorithm", ALGORITHMS[drafting.method], "--speculative-draft-model-path", str(drafting.folder)]
    if drafting.method == "eagle3":  # a DFlash block has one number: its width
        words += ["--speculative-num-steps", str(drafting.depth)]
        words += ["--speculative-eagle-topk", str(drafting.tree[0] if drafting.tree else 1)]
    return [*words, "--speculative-num-draft-tokens", str(drafting.rows)]


def dummy_flags(launch: Launch) -> list[str]:
    """Random weights. Without --load-format of its own the drafter would follow the target's."""
    words = ["--load-format", "dummy"] if "target" in launch.dummy_weights else []
    if launch.drafting is None or not launch.dummy_weights:
        return words
    return [*words, "--speculative-draft-load-format", "dummy" if "drafter" in launch.dummy_weights else "auto"]


def forced_acceptance(drafting: Drafting | None) -> dict[str, str]:
    """Variables that fix accept_len (read in 0.5.6, 0.5.12, 0.5.17, 0.5.23).

    The method is named because 0.5.6 defaults to one that scatters and misses the mean. Tokens: the chain's own drafts, which 0.5.17 has
    and 0.5.12 does not (it ignores the variable and emits one fixed token); trees have only the fixed one.
    """
    if drafting is None or drafting.forced_accept_len is None:
        return {}
    mode = "fixed" if drafting.tree else "real-draft-token"
    return {
        "SGLANG_SIMULATE_ACC_LEN": str(drafting.forced_accept_len),
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": mode,
    }
