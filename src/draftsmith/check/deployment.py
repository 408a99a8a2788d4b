"""The planned load against slots, CUDA graphs and context; switches that cost speed. Pure. For both engines."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from draftsmith.check.args import Args, switched
from draftsmith.check.raises import raised
from draftsmith.check.since import table
from draftsmith.check.subject import Subject
from draftsmith.findings import Finding
from draftsmith.models.text_config import text_part

GIB = 2**30
CONTEXT_FLAG = {"vllm": "max-model-len", "sglang": "context-length"}
SLOTS_FLAG = {"vllm": "max-num-seqs", "sglang": "max-running-requests"}
LONGER = {"vllm": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "sglang": "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"}
OTHER_CONFIG = ("hf-overrides", "rope-scaling", "rope-theta", "json-model-override-args", "rope-parameters")
GRAPHS_OFF = ("disable-cuda-graph", "disable-decode-cuda-graph", "enforce-eager")
VLLM_CAPTURE = 512  # most tokens of a step with a CUDA graph, when nothing is said (vLLM 0.14 to 0.33)


def deployment_findings(subject: Subject, effective: Mapping[str, Any]) -> list[Finding]:
    """Everything about the load that configs and flags can tell."""
    load = [*gpu_findings(subject), *slot_findings(subject, effective), *graph_findings(subject, effective), *context_findings(subject)]
    return load + (issue_findings(subject, effective) if subject.family == "sglang" else [])


def speculating(effective: Mapping[str, Any]) -> bool:
    return bool(effective.get("speculative_algorithm") or effective.get("method"))


def gpu_findings(subject: Subject) -> list[Finding]:
    """Ranks of the launch against the GPUs that it gets, on all of its nodes."""
    args, there = Args(subject.flags), subject.num_gpus
    sizes = {name: args.number(name) or 1 for name in ("tensor-parallel-size", "pipeline-parallel-size")}
    if subject.family == "sglang" and not args.switch("enable-dp-attention"):
        sizes["data-parallel-size"] = args.number("data-parallel-size") or 1
    ranks = math.prod(sizes.values())
    elsewhere = args.text("distributed-executor-backend") == "ray" or args.switch("use-ray")
    if subject.cpu_build or there is None or elsewhere or ranks <= there * (args.number("nnodes") or 1):
        return []
    shown = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    evidence = f"{shown} needs {ranks} GPUs, the launch gets {there}" + (" on each node" if args.number("nnodes") else "")
    why = {
        "sglang": "a worker without a GPU stops with a CUDA error (invalid device ordinal) while the engine starts",
        "vllm": "vLLM stops: the world size is larger than the number of available GPUs",
    }[subject.family]
    return [Finding("DS469", "error", evidence, why, f"as many ranks as GPUs (--gpus or CUDA_VISIBLE_DEVICES says {there})")]


def issue_findings(subject: Subject, effective: Mapping[str, Any]) -> list[Finding]:
    """SGLang: known issues of table `issues`, and a memory fraction that leaves no room."""
    rules, args, findings = table("sglang"), Args(subject.flags), []
    algorithm = effective.get("speculative_algorithm")
    for row in rules["issues"]:
        there = args.text(row["flag"]) == row["value"] if "value" in row else args.switch(row["flag"])
        now = Version(row.get("since", "0")) <= subject.version < Version(row.get("until", "999"))
        if there and now and algorithm in row["algorithms"]:
            said = f"--{row['flag']}{' ' + row['value'] if 'value' in row else ''} with {algorithm}"
            findings.append(Finding("DS467", "warning", said, row["what"], row["fix"]))
    fraction = args.text("mem-fraction-static")
    if algorithm and fraction and re.fullmatch(r"0?\.\d+", fraction) and float(fraction) > rules["full_memory"]:
        why = (
            "target, drafter and both KV caches take that share; CUDA graphs of both must fit in the rest: out of memory at start is likely"
        )
        findings.append(
            Finding("DS449", "warning", f"--mem-fraction-static {fraction} with speculation", why, "--mem-fraction-static 0.85 or less")
        )
    return findings


# --- slots -----------------------------------------------------------------------------------------------------------


def slot_findings(subject: Subject, effective: Mapping[str, Any]) -> list[Finding]:
    """Requests at a time against the slots. SGLang sets 48 for all ranks together as soon as speculation is on."""
    flag, planned, args = SLOTS_FLAG[subject.family], subject.concurrency, Args(subject.flags)
    asked = args.number(flag)
    slots = asked if asked is not None else effective.get("max_running_requests")
    if slots is None:
        return []
    own = " (SGLang's own value once speculation is on; without speculation it is in the thousands)" if asked is None else ""
    ranks = data_ranks(args)
    shared = f", over {ranks} data-parallel ranks that is {slots // ranks} each" if ranks > 1 and subject.family == "sglang" else ""
    evidence = f"{flag} is {slots}{own}{shared}"
    consequence = "requests queue, and a benchmark would measure the queue"
    if planned is not None and planned > slots:
        fix = f"set --{flag} to at least {planned}, in the run without speculation too"
        return [Finding("DS403", "warning", f"{evidence}, planned are {planned} requests at a time", consequence, fix)]
    if planned is None and asked is None:
        fix = f"set --{flag} when more than {slots} requests are to run at a time, in the run without speculation too"
        return [Finding("DS403", "info", evidence, f"with more requests than that, {consequence}", fix)]
    return []


def data_ranks(args: Args) -> int:
    """Ranks that share SGLang's slots under attention data parallelism."""
    number = args.number("attn-dp-size") or (args.number("data-parallel-size") if args.switch("enable-dp-attention") else 1)
    return number or 1


# --- CUDA graphs -----------------------------------------------------------------------------------------------------


def graph_range(subject: Subject) -> int | None:
    """SGLang: largest batch with a CUDA graph, as written or by GPU memory; None when it cannot be told."""
    args = Args(subject.flags)
    listed = [int(word) for word in re.findall(r"\d{1,30}", args.text("cuda-graph-bs-decode", "cuda-graph-bs") or "")]
    most = max(listed, default=args.number("cuda-graph-max-bs-decode", "cuda-graph-max-bs"))
    if most is not None or subject.gpu_bytes is None:
        return most
    wide = (args.number("tensor-parallel-size") or 1) >= 4
    return next(large if wide else small for below, small, large in table("sglang")["graphs"] if subject.gpu_bytes < below * GIB)


def graph_findings(subject: Subject, effective: Mapping[str, Any]) -> list[Finding]:
    """CUDA graphs switched off, or a load that outgrows them."""
    if subject.cpu_build or not speculating(effective):
        return []
    args = Args(subject.flags)
    off = next((name for name in GRAPHS_OFF if args.switch(name)), None)
    if off:
        evidence = f"{off} is set and the engine runs on a GPU"
        consequence = "without CUDA graphs the cost of a round is mostly launch overhead, and the speed-up means little"
        return [Finding("DS404", "warning", evidence, consequence, f"remove --{off}")]
    planned = subject.concurrency
    if planned is None:
        return []
    if subject.family == "sglang":
        most = graph_range(subject)
        flag = "cuda-graph-max-bs-decode" if subject.version.release >= (0, 5, 20) else "cuda-graph-max-bs"
        unit, needed = "requests", planned
    else:
        most = args.number("max-cudagraph-capture-size") or VLLM_CAPTURE
        width = effective.get("num_speculative_tokens")
        flag, unit, needed = "max-cudagraph-capture-size", "tokens", planned * ((width or 0) + 1)
    if most is None or needed <= most:
        return []
    evidence = f"CUDA graphs reach to {most} {unit} a step, {planned} requests at a time need {needed}"
    fix = f"set --{flag} to at least {needed}, or plan for fewer requests at a time"
    return [Finding("DS429", "warning", evidence, "larger steps run without a graph and take much longer", fix)]


# --- context ---------------------------------------------------------------------------------------------------------


def longest(config: Mapping[str, Any]) -> int | None:
    """Positions that the target was made for; None when it does not say, or when rope scaling stretches them."""
    config = text_part(config)
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = rope.get("rope_type") or rope.get("type") if isinstance(rope, Mapping) else None
    limit = config.get("max_position_embeddings")
    return limit if isinstance(limit, int) and kind in (None, "default", "llama3", "mrope") else None


def context_findings(subject: Subject) -> list[Finding]:
    """Served and planned context against the target's positions and against each other."""
    findings, args, flag = [], Args(subject.flags), CONTEXT_FLAG[subject.family]
    limit = None if args.has(*OTHER_CONFIG) else longest(subject.target)
    served, planned = args.number(flag), subject.context_length
    allowed = switched(subject.env, LONGER[subject.family])
    if limit is not None and planned is not None and planned > limit:
        evidence = f"contexts of {planned} tokens are planned, the target's max_position_embeddings is {limit}"
        findings.append(Finding("DS405", "error", evidence, "positions past the limit were never trained", f"plan for at most {limit}"))
    if limit is not None and served is not None and served > limit and not allowed:
        evidence = f"{flag} is {served}, the target's max_position_embeddings {limit}"
        raises = raised(subject.family, None, "context", whose="User-specified", asked=served, limit=limit)
        findings.append(Finding("DS406", "error", evidence, "the engine refuses to start", f"set --{flag} to at most {limit}", raises))
    if served is not None and planned is not None and 0 < served < planned:
        evidence = f"{flag} is {served}, planned are contexts of {planned}"
        fix = f"raise --{flag}, or plan for shorter contexts"
        findings.append(Finding("DS402", "error", evidence, "longer requests are refused or cut, and such runs are invalid", fix))
    return findings
