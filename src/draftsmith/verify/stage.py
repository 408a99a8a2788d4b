"""verify: is what is served what was trained, is greedy speculation lossless, and is acceptance as predicted?

1. export: ledger of the folder; logits of the exported drafter equal those of the trained one, rounded to the same dtype.
2. greedy equality: baseline and speculative servers in float32 side by side must agree token by token (where the engine has kernels of
   that type); the speculative server in the recipe's dtype must agree with the baseline's held-out answers, except at near-ties.
3. replay: the acceptance walk of the exported drafter over the served tokens against what the server counted, or told with each reply.

Writes verify.json and one JSONL file of raw replies per launch. Raises CheckFailed, after writing verify.json, on any error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftsmith.engines.registry import engine_class
from draftsmith.errors import CheckFailed, EnvironmentFailed, UsageError
from draftsmith.findings import Finding, errors, worst_first
from draftsmith.job import Job, Plan
from draftsmith.manifest import atomic_write_json
from draftsmith.models.checkpoint import load_exported, load_trained
from draftsmith.models.target import Target, load_target
from draftsmith.models.text_config import read_text_config
from draftsmith.samples import Sample, read_samples, samples_file, spread
from draftsmith.store import Index
from draftsmith.verify.exported import compare, folder_findings, vocabulary_findings
from draftsmith.verify.judge import equality_findings, lossless_report, replay_findings
from draftsmith.verify.reference import features, last_logits, logit_gap
from draftsmith.verify.replay.rounds import Replay, predict
from draftsmith.verify.sequences import Answer, Divergence, divergences, known_continuation
from draftsmith.verify.servers import Ask, Served, Verifier
from draftsmith.verify.settings import VerifySettings

NAME = "verify"
INPUTS: tuple[str, ...] = ("data", "capture", "train", "export")
EXPORT_ROWS = 4  # held-out samples on which exported and trained logits are compared
TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def plan(settings: VerifySettings, job: Job) -> Plan:
    """Three launches: two in float32 side by side, one in the recipe's dtype. Or that one alone."""
    pair = in_float32(settings, job)
    tokens, launches = settings.prompts * settings.output_tokens, 3 if pair else 1
    note = "float32 pair side by side, then the recipe's dtype" if pair else "the recipe's dtype only"
    return Plan(launches=launches, bytes=tokens * launches * 16, seconds=30 * launches + tokens / 40, note=note)


def in_float32(settings: VerifySettings, job: Job) -> bool:
    """Is a pair of servers in float32 asked as well? Unless the settings say, where the engine has the kernels."""
    return engine_class(job.engine.name).float32 if settings.float32 is None else settings.float32


@dataclass(frozen=True)
class Setup:
    """What every part of verify needs."""

    settings: VerifySettings
    job: Job
    dtype: str  # of the recipe's launches
    taps: tuple[int, ...]
    samples: list[Sample]

    def target(self, dtype: str) -> Target:
        """The local target in that dtype."""
        return load_target(self.job.target, self.taps, TORCH_DTYPES[dtype], self.job.trust_remote_code)


def run(settings: VerifySettings, job: Job) -> dict[str, Any]:
    """All three parts. Raises CheckFailed naming the first errors."""
    setup = prepare(settings, job)
    result: dict[str, Any] = {"export": {}, "lossless": {}, "replay": {}, "findings": []}
    reference = setup.target("float32")
    result["export"], findings = verify_export(setup, reference)
    if errors(findings):
        finish(job, result, findings)  # serving a wrong drafter would prove nothing
    job.talk.say(f"verify: exported = trained on {result['export']['tokens']} tokens, difference {result['export']['max_abs_logit_diff']}")
    for dtype in dict.fromkeys(["float32", setup.dtype] if in_float32(settings, job) else [setup.dtype]):
        expected, served = serve_pair(setup, dtype)
        parted = judge(divergences(expected, served.answers, settings.output_tokens), expected, reference, limit(settings, dtype))
        result["lossless"][dtype] = lossless_report(expected, served, parted, settings.output_tokens)
        findings += equality_findings(dtype, parted, len(expected), limit(settings, dtype))
        target = reference if dtype == "float32" else setup.target(dtype)
        replay = replay_served(setup, target, dtype, expected, served)
        findings += replay_findings(dtype, replay, settings.max_accept_len_gap)
        result["replay"] = {**replay.as_dict(), "dtype": dtype, **({"float32": result["replay"]} if result["replay"] else {})}
        tell(job, dtype, parted, replay)
    return finish(job, result, findings)


def prepare(settings: VerifySettings, job: Job) -> Setup:
    """Held-out samples and dtype. Raises UsageError for a dtype that verify cannot reproduce."""
    config = read_text_config(job.target)
    dtype = served_dtype(job.engine.flags.get("dtype", "auto"), config)
    heldout = read_samples(samples_file(job.folder("data"), "heldout"))
    if not heldout:
        raise EnvironmentFailed("the held-out file has no samples", hint="run the data stage with data.heldout of at least 20")
    samples = spread(heldout, settings.prompts)
    index = Index.read(job.folder("capture"))
    assert index is not None, "capture has not finished"
    return Setup(settings, job, dtype, tuple(index.taps), samples)


def served_dtype(flag: object, config: dict[str, Any]) -> str:
    """The dtype that the engine runs the target in. Raises UsageError when it cannot be known."""
    written = str(flag)
    stored = str(config.get("dtype") or config.get("torch_dtype") or "")
    name = {"half": "float16", "float": "float32", "auto": stored}.get(written, written)
    if name in TORCH_DTYPES and not (written == "auto" and name == "float32"):  # engines lower float32 in ways of their own
        return name
    raise UsageError(
        f"engine.flags.dtype is {written!r} and the target is stored as {stored or 'unknown'}: verify cannot tell what is served",
        hint="set engine.flags.dtype to bfloat16, float16 or float32",
    )


def limit(settings: VerifySettings, dtype: str) -> float:
    """Largest logit gap of a near-tie."""
    return settings.near_tie_logits_float32 if dtype == "float32" else settings.near_tie_logits


def verify_export(setup: Setup, target: Target) -> tuple[dict[str, Any], list[Finding]]:
    """Ledger, vocabulary and logits of the exported folder against the trained drafter."""
    folder = setup.job.folder("export")
    tensors, findings = folder_findings(folder, setup.taps)
    if tensors is None or errors(findings):
        return {"equal": False}, findings
    assert tensors.d2t_W is not None and tensors.t2d_V is not None, "the ledger lets no folder without d2t and t2d through"
    trained = load_trained(setup.job.folder("train"), target)
    findings += vocabulary_findings(tensors.d2t_W, tensors.t2d_V, trained.target_ids_W)
    if errors(findings):
        return {"equal": False}, findings
    rows = [sample.token_ids.tolist() for sample in setup.samples[:EXPORT_ROWS]]
    equality = compare(load_exported(folder, target), trained, tensors.dtypes["fc.weight"], rows, features(target, rows))
    if not equality.equal:
        evidence = f"draft logits of export and training differ by up to {equality.max_abs_logit_diff:.3g} on {equality.tokens} tokens"
        consequence = "the engine serves another drafter than the one that was trained"
        findings.append(Finding("DS607", "error", evidence, consequence, "run the export stage again"))
    return {**equality.as_dict(), "tensors": len(tensors.shapes)}, findings


def serve_pair(setup: Setup, dtype: str) -> tuple[list[Answer], Served]:
    """(reference answers, speculative server's answers). The reference is a float32 baseline server, or the held-out file."""
    settings, job = setup.settings, setup.job
    prompts = {sample.id: tuple(sample.prompt_ids.tolist()) for sample in setup.samples}
    verifier = Verifier(settings, job, prompts)
    if dtype == "float32":
        longer = settings.output_tokens + job.drafter.depth  # what follows the cut is known then, see replay
        first, second = settings.replica_env[:2]
        asks = [Ask("baseline", dtype, longer, first), Ask("speculative", dtype, settings.output_tokens, second)]
        baseline, speculative = verifier.serve(asks)
        return baseline.answers, speculative
    expected = [Answer(sample.id, prompts[sample.id], tuple(sample.answer_ids.tolist()), sample.finish_reason) for sample in setup.samples]
    return expected, verifier.serve([Ask("speculative", dtype, settings.output_tokens, {})])[0]


def judge(parted: Sequence[Divergence], expected: Sequence[Answer], target: Target, largest: float) -> list[Divergence]:
    """Each divergence with its float32 logit gap on the common prefix."""
    if not parted:
        return []
    by_id = {answer.id: answer for answer in expected}
    prefixes = [[*by_id[d.id].prompt, *by_id[d.id].tokens[: d.position]] for d in parted]
    logits = last_logits(target, prefixes)
    return [d.judged(logit_gap(logits_V, d.reference, d.served), largest) for d, logits_V in zip(parted, logits, strict=True)]


def replay_served(setup: Setup, target: Target, dtype: str, expected: Sequence[Answer], served: Served) -> Replay:
    """Predicted acceptance on the served tokens beside the server's."""
    assert served.acceptance is not None, "a speculative launch always has its acceptance"
    drafter = load_exported(setup.job.folder("export"), target, TORCH_DTYPES[dtype])
    known = [known_continuation(longer, answer) for longer, answer in zip(expected, served.answers, strict=True)]
    predicted = predict(drafter, target, served.answers, known, setup.job.drafter.depth)
    return Replay(predicted, served.acceptance, len(served.answers))


def tell(job: Job, dtype: str, parted: Sequence[Divergence], replay: Replay) -> None:
    """One line per dtype on the terminal."""
    same = f"{replay.prompts - len(parted)} of {replay.prompts} answers identical"
    predicted, served = replay.predicted.accept_len, replay.served.accept_len
    job.talk.say(f"verify: {dtype}: {same}; accept_len predicted {predicted:.3f}, served {served:.3f} ({100 * replay.gap:+.1f} %)")


def finish(job: Job, result: dict[str, Any], findings: Sequence[Finding]) -> dict[str, Any]:
    """Write verify.json and return the summary. Raises CheckFailed when there are errors."""
    path: Path = job.folder(NAME) / "verify.json"
    result["findings"] = [finding.as_dict() for finding in findings]
    atomic_write_json(path, result)
    for finding in findings:
        if finding.severity == "warning":
            job.talk.say(finding.line())
    if wrong := errors(findings):
        raise CheckFailed(worst_first(findings), hint=f"{wrong[0].code}: {wrong[0].fix} (all findings: {path})")
    replay = result["replay"]
    return {
        "export_equal": result["export"]["equal"],
        "lossless": {dtype: {k: part[k] for k in ("prompts", "identical", "lossless")} for dtype, part in result["lossless"].items()},
        "predicted_accept_len": replay["predicted"]["accept_len"],
        "served_accept_len": replay["served"]["accept_len"],
        "gap": replay["gap"],
    }
