"""What an engine is to the rest of Draftsmith: a command line, an environment, counters on /metrics, and a way to read its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from draftsmith.metrics import Acceptance
from draftsmith.settings import FlagValue

Arm = Literal["baseline", "speculative"]


@dataclass(frozen=True)
class Drafting:
    """How a server drafts: `depth` drafts per round from the drafter in `folder`. method: "eagle3" or "dflash" (block = depth + 1).

    tree: (top_k, draft tokens verified per round) of an EAGLE-3 tree; None is a chain of `depth` drafts and its root.
    forced_accept_len: the engine emits so many tokens per round whatever was drafted (for cost measurements; the text is worthless).
    schedule: (batch size from, to, drafts) in order, instead of `depth` drafts at every batch size; `depth` is then the most (vLLM).
    """

    method: str
    folder: Path
    depth: int
    tree: tuple[int, int] | None = None
    forced_accept_len: float | None = None
    schedule: tuple[tuple[int, int, int], ...] = ()

    def __post_init__(self) -> None:
        forced = self.forced_accept_len
        assert forced is None or 1 <= forced <= self.depth + 1, (forced, self.depth)

    @property
    def rows(self) -> int:
        """Tokens that one request puts into a verify pass."""
        return self.tree[1] if self.tree else self.depth + 1


@dataclass(frozen=True)
class Launch:
    """One start of an engine process, engine-neutral. `flags` carry no leading dashes; True is a bare flag, None is left out.

    dummy_weights: names of the models that get random weights from their config.json alone: "target", "drafter", or both.
    """

    arm: Arm
    target: Path
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    drafting: Drafting | None = None
    trust_remote_code: bool = False
    dummy_weights: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        assert self.dummy_weights <= {"target", "drafter"}, self.dummy_weights
        assert (self.arm == "speculative") == (self.drafting is not None), (self.arm, self.drafting)

    @property
    def depth(self) -> int:
        """Drafts per round; 0 for a baseline."""
        return self.drafting.depth if self.drafting else 0

    def with_(self, **changes: Any) -> Launch:
        """A copy in which `flags` and `env` are added to the old ones and every other field is replaced."""
        for name in ("flags", "env"):
            if name in changes:
                changes[name] = {**getattr(self, name), **changes[name]}
        return replace(self, **changes)


class Engine(Protocol):
    """One inference engine. Stateless: everything about a start is in the `Launch`."""

    name: ClassVar[str]
    served_model: ClassVar[str]
    info_pages: ClassVar[tuple[str, ...]]
    endpoint: ClassVar[str]  # of measure/endpoints.py: where replies have token ids, and acceptance where no counter has it by position
    float32: ClassVar[bool]  # does it serve models in float32?
    workers: ClassVar[str]  # pattern of the titles of its processes without which it cannot serve

    def argv(self, python: Path, launch: Launch, port: int) -> list[str]:
        """The command that serves `launch` on `port`. Raises UsageError for a flag that Draftsmith sets itself."""
        ...

    def env(self, launch: Launch) -> dict[str, str]:
        """Variables set for the engine on top of the caller's environment."""
        ...

    def acceptance(self, metrics_text: str, depth: int) -> Acceptance | None:
        """Cumulative counts since the server started; None when the server does not count per position."""
        ...

    def generation_tokens(self, metrics_text: str) -> int | None:
        """Cumulative output tokens since the server started; None when the counter is absent."""
        ...

    def effective(self, log_text: str, pages: Mapping[str, str]) -> dict[str, str]:
        """Settings that took effect, as the log and the server's `info_pages` tell: "depth", "drafting_method", "dtype" and what else."""
        ...

    def requested(self, launch: Launch) -> dict[str, str]:
        """Settings that the launch asks for, under the names of `effective`; only those that can be compared."""
        ...

    def with_profiler(self, launch: Launch, folder: Path) -> Launch:
        """The launch of a server that can be profiled, its traces in `folder`."""
        ...

    def explain_death(self, log_text: str) -> tuple[str, str]:
        """(root-cause line, hint) from the log of a process that died."""
        ...
