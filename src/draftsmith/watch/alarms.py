"""The alarms by name: what each means for the server, and what to do. An alarm goes on, stays on, and goes off; both are told once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kind:
    """means: the consequence. todo: where to look next."""

    means: str
    todo: str


WIRING = "`draftsmith verify wiring RECIPE`"
KINDS: dict[str, Kind] = {
    "accept_len_one": Kind(
        "no draft is accepted at all: every round costs a verify and a draft and emits what plain decoding would, so the server is slower"
        " than without a drafter; acceptance of exactly 1.00 is a fault of weights, wiring or vocabulary map, not a weak drafter",
        f"switch speculation off, then {WIRING} and `draftsmith check` on the launch command (head without lm_head, wrong algorithm)",
    ),
    "first_position_collapse": Kind(
        "the first draft holds less than half as often as it should: what the drafter is given is wrong, or the traffic is nothing like"
        " what it was trained on",
        f"{WIRING}; then `draftsmith verify replay RECIPE` on prompts of this traffic, which tells the two apart",
    ),
    "position_collapse": Kind(
        "drafts break at one position although the drafts before it hold: the drafter's own steps go wrong (its positions, its KV cache, a"
        " context that it was not trained for)",
        "`draftsmith verify replay RECIPE` compares by position; a smaller depth loses nothing until it is found",
    ),
    "decay": Kind(
        "acceptance has fallen since the watch began: a cache or prefix fault that grows with uptime, or other traffic",
        "restart one server and compare: if acceptance comes back it is the server (`draftsmith verify lossless`), if not, the traffic",
    ),
    "drift_from_report": Kind(
        "less is accepted than the report says, so the speed-up of the report is not what users get; holds only if this traffic is like the"
        " report's prompts",
        f"`draftsmith verify replay RECIPE` on prompts of this traffic; if replay is right, {WIRING}; if not, train on such prompts",
    ),
    "not_speculating": Kind(
        "tokens are decoded without drafts: speculation is off (a schedule by batch size, a restart without its flags), or the drafter"
        " proposes nothing; users get the speed of plain decoding",
        "compare the running requests with the engine's schedule, and the launch flags by `draftsmith serve status`",
    ),
}


@dataclass
class Alarm:
    """on: now. since_s: when it went on. fired: how often it did."""

    on: bool = False
    since_s: float = 0.0
    said: str = ""
    fired: int = 0


@dataclass
class Alarms:
    """All of them, by name."""

    state: dict[str, Alarm] = field(default_factory=lambda: {name: Alarm() for name in KINDS})

    def judge(self, name: str, bad: bool, good: bool, said: str, at_s: float) -> Iterator[str]:
        """Switch an alarm when the evidence is there; yield what there is to tell."""
        alarm = self.state[name]
        if bad and not alarm.on:
            self.state[name] = Alarm(True, at_s, said, alarm.fired + 1)
            yield f"ALARM {name}: {said}\n  means: {KINDS[name].means}\n  do: {KINDS[name].todo}"
        elif good and alarm.on and not bad:
            alarm.on = False
            yield f"alarm {name} is over: {said}"

    @property
    def on(self) -> list[str]:
        return [name for name, alarm in self.state.items() if alarm.on]

    @property
    def fired(self) -> list[str]:
        """Those that went on at least once."""
        return [name for name, alarm in self.state.items() if alarm.fired]
