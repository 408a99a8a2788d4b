"""Servers that somebody else started: what can be read of them, and a starter that never starts anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from draftsmith.engines.counters import total_by
from draftsmith.engines.pages import first_model, json_object
from draftsmith.engines.protocol import Arm, Engine
from draftsmith.engines.registry import ENGINES
from draftsmith.errors import EnvironmentFailed
from draftsmith.measure.credentials import api_key, server_url, variables
from draftsmith.measure.pages import ask
from draftsmith.measure.protocol import Starter
from draftsmith.measure.recorder import Planned, Serving
from draftsmith.metrics import Acceptance

TIMEOUT_S = 20.0
POSITIONS = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
NEEDED = ("/v1/models", "/metrics")  # other pages may be for administrators only; without them less is known


class Attached:
    """A running server at `url`, as `Serving`. The engine is told from its metrics; without any, tokens and acceptance are unknown.

    The key that it wants, if any, comes from the environment (measure/credentials.py). Raises EnvironmentFailed when nobody answers
    there or the key is refused, UsageError for a URL that is none.
    """

    ready_s = None

    def __init__(self, url: str, arm: Arm) -> None:
        self.url = server_url(url)
        self.arm: Arm = arm
        self.key = api_key(arm)
        self.argv = ["already running at", self.url]
        self.model = self.first_model()
        page = self.page("/metrics") or ""
        names = [name for name in ("vllm", "sglang") if f"{name}:" in page]
        if not names and '"speculative_algorithm"' in (self.page("/server_info") or ""):
            names = ["sglang"]  # its counters are not on the page before the first request
        self.engine: Engine | None = ENGINES[names[0]]() if names else None
        self.depth = len(total_by(page, POSITIONS, "position"))  # vLLM: there from the start
        if names == ["sglang"]:
            self.depth = depth_told(self.settings(), page)

    def page(self, path: str) -> str | None:
        """The text of a page; None when the server does not have it. Raises EnvironmentFailed when it does not answer, or lets nobody
        look at a page without which nothing can be measured."""
        try:
            status, text = ask(f"{self.url}{path}", key=self.key, timeout_s=TIMEOUT_S)
        except ConnectionError as error:
            hint = "trust its certificate with SSL_CERT_FILE, or use http" if "CERTIFICATE" in str(error) else "start it first"
            raise EnvironmentFailed(f"no server answers at {self.url}: {error}", hint=hint) from None
        if status in (401, 403) and path in NEEDED:
            raise self.refused(path, status)
        return text if status == 200 else None

    def refused(self, path: str, status: int) -> EnvironmentFailed:
        """What to say when the server wants another key, or one at all."""
        found = f"refuses the key (HTTP {status})" if self.key else f"wants a key (HTTP {status})"
        hint = f"a key is read from the environment, never from an option; the first counts: {', '.join(variables(self.arm))}"
        return EnvironmentFailed(f"{self.url}{path} {found}", hint=hint)

    def first_model(self) -> str:
        """The name under which the server answers. Raises EnvironmentFailed."""
        text = self.page("/v1/models")
        if served := first_model(text):
            return str(served["id"])
        raise EnvironmentFailed(f"{self.url}/v1/models names no model", hint="expected an OpenAI-compatible server such as vLLM or SGLang")

    def settings(self) -> dict[str, str]:
        """Settings that the server tells on its pages, with its version."""
        found = {"model": self.model, "engine": self.engine.name if self.engine else "unknown"}
        if version := json_object(self.page("/version")).get("version"):
            found["engine_version"] = str(version)
        if self.engine:
            pages = {path: text for path in self.engine.info_pages if (text := self.page(path)) is not None}
            found |= self.engine.effective("", pages)
        return found

    def acceptance(self, depth: int) -> Acceptance | None:
        return self.engine.acceptance(self.page("/metrics") or "", depth) if self.engine else None

    def generation_tokens(self) -> int | None:
        return self.engine.generation_tokens(self.page("/metrics") or "") if self.engine else None

    def check_alive(self) -> None:
        """Raise EnvironmentFailed when nobody answers any more."""
        self.page("/v1/models")

    def rss_bytes(self) -> int | None:
        return None


def depth_told(settings: Mapping[str, str], metrics_text: str) -> int:
    """Drafts per round as SGLang tells them; 0 without speculation; 1 when only a counter shows that it speculates."""
    if "drafting_method" in settings:
        depth, tokens = settings.get("depth", ""), settings.get("draft_tokens", "")
        return int(depth) if depth.isdecimal() else max(1, int(tokens) - 1) if tokens.isdecimal() else 1
    return 1 if "sglang:spec_verify_calls_total" in metrics_text else 0


def attached_starter(servers: Mapping[Arm, Attached]) -> Starter:
    """Hands out the server of each launch's arm."""

    @contextmanager
    def start(group: Sequence[Planned]) -> Iterator[Sequence[Serving]]:
        yield [servers[planned.launch.arm] for planned in group]

    return start
