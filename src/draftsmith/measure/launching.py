"""From a job to the engine launches of an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from draftsmith.engines.protocol import Drafting, Engine, Launch
from draftsmith.engines.server import Server, start_many
from draftsmith.job import Job
from draftsmith.measure.protocol import Planned, Starter


def launch_for(job: Job, drafter: Path | None = None, depth: int = 0) -> Launch:
    """The recipe's launch without a drafter, or with the one in `drafter` at a depth. Everything else is equal in both arms."""
    drafting = None if drafter is None else Drafting(job.drafter.algorithm, drafter, depth)
    return Launch(
        arm="baseline" if drafting is None else "speculative",
        target=job.target,
        flags=job.engine.flags,
        env=job.engine.env,
        drafting=drafting,
        trust_remote_code=job.trust_remote_code,
    )


def engine_starter(engine: Engine, python: Path, folder: Path, job: Job) -> Starter:
    """Starts planned launches on the real engine, with one log per launch in `folder`/logs."""

    @contextmanager
    def start(group: Sequence[Planned]) -> Iterator[list[Server]]:
        logs = [folder / "logs" / f"launch-{planned.index}-{planned.launch.arm}.log" for planned in group]
        label = " and ".join(planned.name for planned in group)
        launches = [planned.launch for planned in group]
        with start_many(engine, python, launches, logs, job.engine.ready_timeout_s, job.talk, label) as servers:
            yield servers

    return start
