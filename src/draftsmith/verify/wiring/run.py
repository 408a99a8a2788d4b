"""verify wiring: ask a running engine for known tokens, take down what its drafter is given, and hold it against target and store.

One launch. Writes wiring/wiring.json and wiring/engine.log in the run folder; the features themselves are deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.registry import engine_for
from draftsmith.engines.served import Served, calls, read_calls
from draftsmith.engines.server import Server, start
from draftsmith.engines.sglang import features as sglang_features
from draftsmith.engines.vllm import features as vllm_features
from draftsmith.errors import CheckFailed, EnvironmentFailed, InvalidMeasurement, UsageError
from draftsmith.findings import Finding, errors, worst_first
from draftsmith.job import Job
from draftsmith.manifest import atomic_write_json
from draftsmith.measure.endpoints import Completions, Endpoint, Generate
from draftsmith.measure.messages import Request
from draftsmith.measure.prompts import Renderer, forty_prompts
from draftsmith.models.taps import engine_version
from draftsmith.models.target import Target, load_target
from draftsmith.models.text_config import read_config, read_text_config
from draftsmith.samples import spread
from draftsmith.store import Index, read_store
from draftsmith.verify.stage import TORCH_DTYPES, served_dtype
from draftsmith.verify.wiring.blocks import block_findings, look_at_blocks
from draftsmith.verify.wiring.features import TOLERANCES, Rows, Wiring, look
from draftsmith.verify.wiring.ids import as_dict, ids_of, method_of
from draftsmith.verify.wiring.words import SILENT, findings_of, store_findings

NAME = "wiring"
Asked = tuple[list[int], Served]
# how each engine is made to write down what its drafter is given, and the endpoint that answers with token ids
CAPTURES: dict[str, tuple[Callable[[Launch, Path], Launch], Endpoint]] = {
    "vllm": (vllm_features.with_features, Completions()),
    "sglang": (sglang_features.with_features, Generate()),
}
REQUESTS, PROMPT_TOKENS, ANSWER_TOKENS = 6, 192, 24


@dataclass(frozen=True)
class Subject:
    """What is looked at: a drafter folder, the boundaries it was trained on, and the token rows to ask with."""

    folder: Path
    config: Mapping[str, Any]
    trained: tuple[int, ...]
    rows: list[tuple[int, ...]]
    stored: list[Tensor]  # the training store's features of those rows; empty without a store
    store_dtype: str
    drafting: Drafting

    @property
    def mask_token(self) -> int | None:
        """What a DFlash drafter's block is filled with, when its config says so."""
        return (self.config.get("dflash_config") or {}).get("mask_token_id")


@dataclass(frozen=True)
class Limits:
    """Largest median relative error of what is the same: by the dtype that is served, or as asked for."""

    dtype: str
    asked: float | None = None

    @property
    def served(self) -> float:
        return TOLERANCES[self.dtype] if self.asked is None else self.asked

    def stored(self, dtype: str) -> float:
        """Of a store against our own pass in the served dtype: the noise of the coarser one."""
        return max(self.served, TOLERANCES[dtype])


def run(job: Job, drafter: Path | None = None, trained: Sequence[int] | None = None, tolerance: float | None = None) -> dict[str, Any]:
    """The whole look; the content of wiring.json. Raises CheckFailed, with the sentence, when something is wired wrongly."""
    config = read_text_config(job.target)
    dtype = served_dtype(job.engine.flags.get("dtype", "auto"), config)
    subject = find_subject(job, drafter, trained)
    asked = take_down(job, subject)
    target = load_target(job.target, range(int(config["num_hidden_layers"]) + 1), TORCH_DTYPES[dtype], job.trust_remote_code)
    return report(job, subject, asked, target, Limits(dtype, tolerance))


def take_down(job: Job, subject: Subject) -> list[Asked]:
    """One launch: (tokens of prompt and answer, what the drafter was given for them) of every row. The files are deleted."""
    engine, python = engine_for(job.engine)
    since = sglang_features.SINCE[subject.drafting.method]
    if engine.name == "sglang" and engine_version(job.engine.name) < since:
        raise UsageError(
            f"verify wiring looks at {subject.drafting.method} in SGLang {since} and newer, this is {job.engine.name}",
            hint="`draftsmith check` reads which layers this version taps",
        )
    with_features, endpoint = CAPTURES[engine.name]
    served = job.folder(NAME) / "served"
    shutil.rmtree(served, ignore_errors=True)
    launch = Launch("speculative", job.target, job.engine.flags, job.engine.env, subject.drafting, job.trust_remote_code)
    log = job.folder(NAME) / "engine.log"
    try:
        with start(engine, python, with_features(launch, served), log, job.engine.ready_timeout_s, job.talk, NAME) as server:
            return [ask(server, endpoint, row, served) for row in subject.rows]
    finally:
        shutil.rmtree(served, ignore_errors=True)


def find_subject(job: Job, drafter: Path | None, trained: Sequence[int] | None) -> Subject:
    """Where the drafter and the truth about its taps are. Raises EnvironmentFailed, UsageError when one of them is missing."""
    folder = drafter or job.folder("export")
    if not (folder / "config.json").is_file():
        raise EnvironmentFailed(f"no drafter at {folder}: it has no config.json", hint="draftsmith export RECIPE, or --drafter DIR")
    config = read_config(folder)
    drafting = drafting_of(job, folder, config)
    index = Index.read(job.folder("capture"))
    if index is not None and not index.complete:
        index = None
    own = (config.get("draftsmith") or {}).get("tap_boundaries")
    captured = index.taps if index is not None else None
    said = trained or (own or captured if drafter else captured or own)
    if not said:
        raise UsageError(
            "nothing says what this drafter was trained on", hint="--trained 2,15,27: the boundaries, in the order of training"
        )
    longest = longest_prompt(job, drafting.depth)
    samples = list(read_store(job.folder("capture"), "heldout")) if index is not None else []
    if index is None or not samples:
        renderer = Renderer(job.target, job.trust_remote_code)
        texts = [renderer.render(prompt) for prompt in forty_prompts()]
        rows = [prompt.token_ids[:longest] for prompt in sorted(texts, key=lambda prompt: -len(prompt.token_ids))[:REQUESTS]]
        return Subject(folder, config, tuple(said), rows, [], "", drafting)
    chosen = spread(samples, REQUESTS)
    rows = [tuple(sample.token_ids_T[:longest].tolist()) for sample in chosen]
    stored = [sample.features_TF[:longest] for sample in chosen] if list(said) == index.taps else []
    return Subject(folder, config, tuple(said), rows, stored, index.dtype, drafting)


def drafting_of(job: Job, folder: Path, config: Mapping[str, Any]) -> Drafting:
    """As deep as the recipe says; a DFlash drafter fills the block that it was made for."""
    method = method_of(config)
    depth = job.drafter.depth
    if method == "dflash":
        depth = int((config["dflash_config"] or {}).get("block_size") or config.get("block_size") or depth + 1) - 1
    return Drafting(method, folder.absolute(), depth)


def longest_prompt(job: Job, depth: int) -> int:
    """Prompt tokens that the server has room for, when the drafter drafts so deep."""
    flags = {name.replace("_", "-"): value for name, value in job.engine.flags.items()}
    room = flags.get("max-model-len", flags.get("context-length"))  # vLLM's and SGLang's name
    given = int(room) if isinstance(room, int | str) and str(room).isdigit() else PROMPT_TOKENS + ANSWER_TOKENS + 64
    return max(1, min(PROMPT_TOKENS, given - ANSWER_TOKENS - depth - 1))


def ask(server: Server, endpoint: Endpoint, row: Sequence[int], folder: Path) -> Asked:
    """Greedy tokens after the row, and what the drafter was given. Raises InvalidMeasurement when it was given nothing."""
    before = len(calls(folder))
    request = Request("wiring", tuple(row), ANSWER_TOKENS, ignore_eos=True, stream=False)
    answer = endpoint.read(server.post_json(endpoint.path, endpoint.payload(request, server.engine.served_model))).token_ids
    if not answer:
        raise InvalidMeasurement("the server's reply has no token ids", hint="use a newer version of the engine")
    made = calls(folder)[before:]
    if not made:
        raise InvalidMeasurement(
            "the drafter left no trace of its input",
            hint=f"its class may be none that the plug-in knows, or it never drafts; log: {server.log}",
        )
    tokens = [*row, *answer]
    return tokens, read_calls(made, len(row), len(tokens))


def report(job: Job, subject: Subject, asked: Sequence[tuple[list[int], Served]], target: Target, limits: Limits) -> dict[str, Any]:
    """Compare, write wiring.json, and raise CheckFailed when there are errors."""
    requests = [
        Rows(tokens, served.features_TF, candidates(target, tokens), served.input_ids_T, served.positions_T, len(row))
        for (tokens, served), row in zip(asked, subject.rows, strict=True)
    ]
    wiring = look(requests, subject.trained, limits.served)
    ids = ids_of(subject.config, job.engine.name, read_text_config(job.target), subject.trained)
    findings = findings_of(wiring, job.engine.name, ids)
    blocks = look_at_blocks([(tokens, served.blocks) for tokens, served in asked], subject.mask_token)
    if blocks is not None:
        findings += block_findings(blocks, job.engine.name, SILENT)
    store: Wiring | None = None
    if subject.stored:
        stored = [Rows(r.tokens, f, r.candidates_TJH) for r, f in zip(requests, subject.stored, strict=True)]
        store = look(stored, subject.trained, limits.stored(subject.store_dtype))
        findings += store_findings(store)
    result: dict[str, Any] = {
        "engine": job.engine.name,
        "drafter": str(subject.folder),
        "dtype": limits.dtype,
        "ids": as_dict(ids),
        "served": wiring.as_dict(),
        "blocks": None if blocks is None else blocks.as_dict(),
        "store": None if store is None else store.as_dict(),
        "findings": [finding.as_dict() for finding in findings],
    }
    path = job.folder(NAME) / "wiring.json"
    atomic_write_json(path, result)
    if wrong := errors(findings):
        raise CheckFailed(worst_first(findings), hint=f"{wrong[0].code}: {wrong[0].fix} (all numbers: {path})")
    return result


@torch.inference_mode()
def candidates(target: Target, tokens: Sequence[int]) -> Tensor:
    """[T, N + 2, H]: every boundary of the target, and boundary N after the final norm."""
    states = target.states(torch.tensor([list(tokens)]))
    boundaries_TJH = states.features_BTF[0].unflatten(-1, (len(target.taps), -1))
    return torch.cat([boundaries_TJH, target.final_norm(states.last_BTH)[0][:, None]], 1)


def sentence(result: Mapping[str, Any]) -> str:
    """The answer when nothing is wrong: what was seen, or the doubts."""
    if result["findings"]:
        return "\n".join(Finding(**finding).line() for finding in result["findings"])
    served, blocks = result["served"], result["blocks"]
    worst = max(tap["expected_error"] for tap in served["taps"])
    beside = "each beside the next token's embedding, " if blocks is None else ""
    filled = "" if blocks is None else f"; {blocks['number']} blocks begin with the last token behind them and go on with masks"
    kept = "" if result["store"] is None else "; the training store holds the same"
    return (
        f"wiring is right: {result['engine']} passes boundaries {list(served['trained'])}, {beside}"
        f"at its own position ({served['rows']} rows, largest median error {worst:.2g} in {result['dtype']}){filled}{kept}"
    )
