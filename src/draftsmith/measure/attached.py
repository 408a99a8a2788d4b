"""Servers that somebody else started: what can be read of them, and a starter that never starts anything."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from draftsmith.engines.counters import total_by
from draftsmith.engines.protocol import Arm, Engine
from draftsmith.engines.registry import ENGINES
from draftsmith.errors import EnvironmentFailed
from draftsmith.measure.protocol import Starter
from draftsmith.measure.recorder import Planned, Serving
from draftsmith.metrics import Acceptance

TIMEOUT_S = 20.0
POSITIONS = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


class Attached:
    """A running server at `url`, as `Serving`. The engine is told from its metrics; without any, tokens and acceptance are unknown.

    Raises EnvironmentFailed when nobody answers there.
    """

    ready_s = None

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.argv = ["already running at", self.url]
        self.model = self.first_model()
        page = self.page("/metrics") or ""
        names = [name for name in ("vllm", "sglang") if f"{name}:" in page]
        self.engine: Engine | None = ENGINES[names[0]]() if names else None
        self.depth = len(total_by(page, POSITIONS, "position"))  # SGLang's page does not say how deep it drafts
        if not self.depth and "sglang:spec_verify_calls_total" in page:
            self.depth = int(self.settings().get("depth", 1))

    def page(self, path: str) -> str | None:
        """The text of a page; None when the server does not have it. Raises EnvironmentFailed when it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=TIMEOUT_S) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError:
            return None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EnvironmentFailed(
                f"no server answers at {self.url}: {error}", hint="start it first, and give its URL without /v1"
            ) from error

    def first_model(self) -> str:
        """The name under which the server answers. Raises EnvironmentFailed."""
        text = self.page("/v1/models")
        with suppress(ValueError, LookupError, TypeError):
            return str(json.loads(text or "")["data"][0]["id"])
        raise EnvironmentFailed(f"{self.url}/v1/models names no model", hint="expected an OpenAI-compatible server such as vLLM or SGLang")

    def settings(self) -> dict[str, str]:
        """Settings that the server tells on its pages, with its version."""
        found = {"model": self.model, "engine": self.engine.name if self.engine else "unknown"}
        with suppress(ValueError, LookupError, TypeError):
            found["engine_version"] = str(json.loads(self.page("/version") or "")["version"])
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


def attached_starter(servers: Mapping[Arm, Attached]) -> Starter:
    """Hands out the server of each launch's arm."""

    @contextmanager
    def start(group: Sequence[Planned]) -> Iterator[Sequence[Serving]]:
        yield [servers[planned.launch.arm] for planned in group]

    return start
