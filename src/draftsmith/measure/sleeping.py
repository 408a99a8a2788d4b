"""One server per arm that sleeps while the other is measured: arms alternate in seconds, graphs and compiled kernels stay.

Run with SGLang 0.5.17 on an H200; vLLM's paths and flags were read in its source and tested against a mock server. What it does not sample is
the noise between starts, so its intervals are over blocks, and every summary says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from draftsmith.engines.protocol import Launch
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.measure.pages import ask
from draftsmith.measure.protocol import Starter
from draftsmith.measure.recorder import Planned, Serving
from draftsmith.settings import FlagValue

TIMEOUT_S = 300.0  # weights travel between GPU and host
SETTLE_S = 0.5  # SGLang's scheduler ends itself when it is put to sleep before it has closed its last batch


@dataclass(frozen=True)
class Switch:
    """How an engine is put to sleep and woken: paths to POST to, and what its start needs for them to be there."""

    sleep: str
    wake: str
    flags: Mapping[str, FlagValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    drafter_flags: Mapping[str, FlagValue] = field(default_factory=dict)  # of the speculative arm only

    def prepared(self, launch: Launch) -> Launch:
        """The launch of a server that can sleep."""
        return launch.with_(flags={**self.flags, **(self.drafter_flags if launch.drafting else {})}, env=self.env)


SWITCHES = {  # distribution of the engine -> its switch
    "vllm": Switch("/sleep?level=1", "/wake_up", {"enable-sleep-mode": True}, {"VLLM_SERVER_DEV_MODE": "1"}),
    "sglang": Switch(
        "/release_memory_occupation",
        "/resume_memory_occupation",
        {"enable-memory-saver": True, "enable-weights-cpu-backup": True},  # without the backup the weights are gone after the sleep
        drafter_flags={"enable-draft-weights-cpu-backup": True},
    ),
}


def switch_for(package: str) -> Switch:
    """Raises UsageError for an engine that cannot sleep."""
    if package not in SWITCHES:
        raise UsageError(f"{package} has no sleep mode", hint="bench.mode=launch, which also samples the noise between starts")
    return SWITCHES[package]


def post(server: Serving, path: str) -> None:
    """POST without a body worth reading. Raises EnvironmentFailed."""
    try:
        status, _ = ask(f"{server.url}{path}", {}, timeout_s=TIMEOUT_S)
    except ConnectionError as error:
        server.check_alive()
        raise EnvironmentFailed(f"{server.url}{path} did not answer: {error}", hint="the engine's log in the bench folder") from error
    if status >= 400:
        raise EnvironmentFailed(f"{server.url}{path} answered {status}: this server cannot sleep", hint="bench.mode=launch")


@contextmanager
def taking_turns(start: Starter, switch: Switch) -> Iterator[Starter]:
    """A starter that starts each arm once and from then on wakes it for its block; the arm that is not measured sleeps."""
    servers: dict[str, Serving] = {}
    with ExitStack() as stack:

        @contextmanager
        def turn(group: Sequence[Planned]) -> Iterator[Sequence[Serving]]:
            [planned] = group
            arm = planned.launch.arm
            if arm in servers:
                post(servers[arm], switch.wake)
            else:
                [servers[arm]] = stack.enter_context(start(group))
            yield [servers[arm]]
            time.sleep(SETTLE_S)
            post(servers[arm], switch.sleep)

        yield turn
