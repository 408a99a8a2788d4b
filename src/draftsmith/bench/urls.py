"""bench of two servers that already run: blocks of requests take turns at them, A B B A.

One server is one launch, so what another start would change is not in the interval; the summary says so. Every pair of blocks has prompts
of its own, the same for both servers, so that a prefix cache has nothing to give as long as the prompts last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from draftsmith.bench.context import Context
from draftsmith.bench.planning import plan_workload, workload_digest
from draftsmith.bench.prompting import Prompting
from draftsmith.bench.settings import BenchSettings
from draftsmith.bench.stage import after_pair
from draftsmith.bench.summary import write_summary
from draftsmith.engines.protocol import Arm, Drafting, Launch
from draftsmith.errors import UsageError
from draftsmith.job import Talk
from draftsmith.manifest import canonical_hash, tool_versions
from draftsmith.measure.attached import Attached, attached_starter
from draftsmith.measure.credentials import server_url
from draftsmith.measure.gpus import gpu_reader
from draftsmith.measure.live import Live
from draftsmith.measure.protocol import NOISE_PAIR, How, launch_arms, run_launches
from draftsmith.measure.recorder import Planned, Watch, Workload
from draftsmith.measure.sensors import Limits, Sensors
from draftsmith.measure.workload import Deck

SPECULATIVE = ("depth", "draft", "spec", "topk", "model_runner")  # settings that begin so may differ between the arms
NOT_COMPARED = ("model", "served_model", "served_model_name", "host", "port", "nccl_port", "random_seed")  # names, addresses, dice


@dataclass(frozen=True)
class Pair:
    """The two servers; `baseline` is the one without speculation."""

    baseline: Attached
    speculative: Attached

    def of(self, arm: Arm) -> Attached:
        return self.baseline if arm == "baseline" else self.speculative

    def check_roles(self) -> None:
        """Raise UsageError when the servers speculate the other way round, neither does, or the second one cannot show it."""
        if self.baseline.depth:
            raise UsageError(
                f"{self.baseline.url}, the first --url, speculates with {self.baseline.depth} drafts",
                hint="first the server without speculation, then the one with it",
            )
        if self.speculative.engine is None:
            raise UsageError(
                f"{self.speculative.url}, the second --url, has no /metrics of vLLM or SGLang: nothing would show that it speculates",
                hint="give the address of the engine itself rather than of a proxy; SGLang needs --enable-metrics",
            )
        if not self.speculative.depth:
            raise UsageError(
                f"{self.speculative.url}, the second --url, does not speculate: it has no counters of accepted drafts",
                hint="start it with its speculative flags, for example --speculative-config of vLLM",
            )

    def differences(self) -> list[dict[str, Any]]:
        """What the servers tell differently about themselves, and whether that should not be so."""
        a, b = self.baseline.settings(), self.speculative.settings()
        return [
            {"key": key, "baseline": a.get(key), "speculative": b.get(key), "matters": not key.startswith(SPECULATIVE)}
            for key in sorted(a.keys() | b.keys())
            if a.get(key) != b.get(key) and key not in NOT_COMPARED
        ]


def plan_blocks(settings: BenchSettings, pair: Pair) -> list[Planned]:
    """A B B A A B ...; a block takes the place of a launch."""
    launches: dict[Arm, Launch] = {
        "baseline": Launch("baseline", Path(pair.baseline.url)),
        "speculative": Launch(
            "speculative", Path(pair.speculative.url), drafting=Drafting("as served", Path(pair.speculative.url), pair.speculative.depth)
        ),
    }
    first = settings.noise_launches
    noise = [Planned(index, NOISE_PAIR, "baseline (noise floor)", launches["baseline"]) for index in range(first)]
    return noise + [Planned(first + place, place // 2, arm, launches[arm]) for place, arm in enumerate(launch_arms(settings.last_pair))]


def plan_workloads(settings: BenchSettings, deck: Deck) -> list[Workload]:
    """One for each pair, then one for each block of the noise floor, with the same canary in all."""
    workloads = [plan_workload(settings, deck) for _ in range(settings.last_pair + settings.noise_launches)]
    return [Workload(workloads[0].canary, workload.cells) for workload in workloads]


def workload_for(planned: Planned, workloads: Sequence[Workload], pairs: int) -> Workload:
    """The workload of a block, of those of `plan_workloads`."""
    return workloads[pairs + planned.index if planned.pair == NOISE_PAIR else planned.pair]


def make_context(settings: BenchSettings, pair: Pair, digest: str, reused: int, command: str) -> Context:
    """What is known about servers that somebody else started."""
    told: Mapping[str, str] = pair.baseline.settings()
    conditions = {f"server {key}": value for key, value in told.items() if key not in NOT_COMPARED}
    conditions |= {"prompts": digest, "endpoint": settings.endpoint, "draftsmith": tool_versions()["draftsmith"]}
    return Context(
        settings=settings,
        depth=pair.speculative.depth,
        subject=pair.speculative.url,
        unit="block",
        reused=reused,
        conditions=conditions | {"sampling": f"temperature {settings.temperature:g}"},
        drafter={"baseline": pair.baseline.url, "speculative": pair.speculative.url, "depth": pair.speculative.depth},
        differences=pair.differences(),
        command=command,
    )


def bench_urls(
    urls: tuple[str, str], settings: BenchSettings, prompting: Prompting, folder: Path, talk: Talk, command: str
) -> dict[str, Any]:
    """All blocks that are still missing, then the summary. Raises EnvironmentFailed when a server does not answer."""
    if settings.start_together or settings.gpu_sets or settings.mode != "launch":
        raise UsageError("servers that already run cannot be started anew", hint="without start_together, gpu_sets, mode")
    if server_url(urls[0]) == server_url(urls[1]):
        raise UsageError(f"both --url are {urls[0]}", hint="two servers: first the one without speculation, then the one with it")
    pair = Pair(Attached(urls[0], "baseline"), Attached(urls[1], "speculative"))
    pair.check_roles()
    deck = prompting.deck(settings)
    workloads = plan_workloads(settings, deck)
    digest = canonical_hash([workload_digest(workload) for workload in workloads])
    context = make_context(settings, pair, digest, deck.reused, command)
    context.write(folder)
    blocks = plan_blocks(settings, pair)
    live = Live(talk, len(blocks), unit="block")
    here = all(urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1") for url in urls)
    sensors = Sensors(gpu_reader() if here else None, only_ours=False)
    keys: dict[Arm, str] = {"baseline": pair.baseline.key, "speculative": pair.speculative.key}
    watch = Watch(
        settings.endpoint, sensors, Limits(strangers=False), keys, must_answer=True
    )  # the servers themselves were there before us
    how = How(watch, live, after_pair(folder, context, live, talk), lambda planned: workload_for(planned, workloads, settings.last_pair))
    starter = attached_starter({"baseline": pair.baseline, "speculative": pair.speculative})
    models: dict[Arm, str] = {"baseline": pair.baseline.model, "speculative": pair.speculative.model}
    run_launches(folder, blocks, workloads[0], starter, models, talk, how=how)
    return write_summary(folder, context)
