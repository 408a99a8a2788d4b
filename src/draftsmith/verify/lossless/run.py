"""What an audit is about: two running servers, one and the local target, or both launches of a recipe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.registry import engine_for
from draftsmith.engines.server import Server, start_many
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.job import Job, Talk
from draftsmith.measure.attached import Attached
from draftsmith.measure.credentials import server_url
from draftsmith.measure.prompts import BUILTIN, HELDOUT, Prompt, Renderer, heldout_prompts, named_prompts, read_prompts
from draftsmith.models.target import Target, load_target
from draftsmith.samples import spread
from draftsmith.verify.lossless.audit import run
from draftsmith.verify.lossless.judges import LocalJudge, ServerJudge
from draftsmith.verify.lossless.local import LocalSide
from draftsmith.verify.lossless.settings import Audit
from draftsmith.verify.lossless.sides import Remote, Side


def prompts_named(source: str, target: Path | None, endpoint: str, trust_remote_code: bool = False) -> list[Prompt]:
    """builtin, five, or a file; with token ids when there is a local target and the endpoint takes them. Raises UsageError."""
    prompts = named_prompts(source)
    if target is None or endpoint == "chat" or all(prompt.token_ids for prompt in prompts):
        return prompts
    renderer = Renderer(target, trust_remote_code)
    return [renderer.render(prompt) for prompt in prompts]


def endpoint_for(asked: str | None, target: Path | None, source: str, engine: str) -> str:
    """Token ids go to completions (SGLang: generate, which tells token ids), messages to chat."""
    if asked is not None:
        return asked
    with_ids = target is not None or (source not in BUILTIN and all(prompt.token_ids for prompt in read_prompts(Path(source))))
    return ("generate" if engine == "sglang" else "completions") if with_ids else "chat"


def of_urls(
    urls: Sequence[str], target: Path | None, source: str, asked: str | None, audit: Audit, folder: Path, talk: Talk
) -> dict[str, Any]:
    """Two servers, first the one without speculation; or one, held against the local target. Raises UsageError, EnvironmentFailed."""
    if len(urls) == 2 and server_url(urls[0]) == server_url(urls[1]):
        raise UsageError(f"both --url are {urls[0]}", hint="two servers: first the one without speculation, then the one with it")
    speculative = Attached(urls[-1], "speculative")
    baseline = Attached(urls[0], "baseline") if len(urls) == 2 else None
    if baseline is not None and baseline.depth:
        raise UsageError(
            f"{baseline.url}, the first --url, speculates with {baseline.depth} drafts",
            hint="first the server without speculation, then the one with it",
        )
    endpoint = endpoint_for(asked, target, source, speculative.engine.name if speculative.engine else "")
    if baseline is None and endpoint == "chat":
        raise UsageError("the local target answers token ids", hint="--endpoint completions, or generate for SGLang's own")
    prompts = prompts_named(source, target, endpoint)
    loaded = local(target) if target is not None and all(prompt.token_ids for prompt in prompts) else None
    a: Side
    if baseline is not None:
        a = remote(baseline, endpoint, folder, talk)
        judge = LocalJudge(loaded) if loaded is not None else ServerJudge(a, prompts)
    else:
        assert loaded is not None, "prompts for a local target have token ids"
        a, judge = LocalSide(loaded, talk, audit.seed), LocalJudge(loaded)
    audit = replace(audit, context=audit.context or context_told(speculative))
    return run(a, remote(speculative, endpoint, folder, talk), prompts, audit, judge, speculative.depth, folder, talk)


def remote(server: Attached, endpoint: str, folder: Path, talk: Talk) -> Remote:
    """A running server as a side."""
    side = Remote(server.arm, server.url, server.model, endpoint, folder, talk, server.key)
    if server.depth:
        side.acceptance = partial(server.acceptance, server.depth)
    return side


def local(target: Path, trust_remote_code: bool = False) -> Target:
    """The target in float32; no tap is needed."""
    import torch

    return load_target(target, (0,), torch.float32, trust_remote_code)


def context_told(server: Attached) -> int | None:
    """Tokens that the server has room for, as /v1/models tells."""
    with suppress(ValueError, LookupError, TypeError):
        told = json.loads(server.page("/v1/models") or "")["data"][0]["max_model_len"]
        return int(told) if told else None
    return None


# --- a recipe --------------------------------------------------------------------------------------------------------


def of_recipe(job: Job, source: str, asked: str | None, audit: Audit, folder: Path) -> dict[str, Any]:
    """Both launches of a recipe side by side; the drafter that it exported. Raises EnvironmentFailed, UsageError."""
    engine, python = engine_for(job.engine)
    drafter = job.folder("export")
    if not (drafter / "config.json").is_file():
        raise EnvironmentFailed(f"no drafter at {drafter}: it has no config.json", hint="run the recipe as far as export first")
    endpoint = asked or ("generate" if engine.name == "sglang" else "completions")
    if source == HELDOUT:
        prompts = spread(heldout_prompts(job.folder("data")), audit.prompts)
    else:
        prompts = prompts_named(source, job.target, endpoint, job.trust_remote_code)
    flags, env = job.engine.flags, job.engine.env
    drafting = Drafting(job.drafter.algorithm, drafter.absolute(), job.drafter.depth)
    launches = [
        Launch("baseline", job.target, flags, env, trust_remote_code=job.trust_remote_code),
        Launch("speculative", job.target, flags, env, drafting, job.trust_remote_code),
    ]
    logs = [folder / f"{launch.arm}.log" for launch in launches]
    with start_many(engine, python, launches, logs, job.engine.ready_timeout_s, job.talk, "baseline and speculative") as servers:
        sides = [remote_of(server, endpoint, folder, job.talk) for server in servers]
        judge = LocalJudge(local(job.target, job.trust_remote_code))
        audit = replace(audit, context=audit.context or context_of(servers[1]))
        return run(sides[0], sides[1], prompts, audit, judge, job.drafter.depth, folder, job.talk)


def remote_of(server: Server, endpoint: str, folder: Path, talk: Talk) -> Remote:
    """A launch of ours as a side."""
    side = Remote(server.launch.arm, server.url, server.engine.served_model, endpoint, folder, talk)
    if server.launch.depth:
        side.acceptance = partial(server.acceptance, server.launch.depth)
    return side


def context_of(server: Server) -> int | None:
    """The same of a launch of ours."""
    told = server.get_json("/v1/models")["data"][0].get("max_model_len")
    return int(told) if told else None
