"""Will it fit? Bytes on one GPU for weights and KV cache of both models, against what a GPU has. An estimate that shows its rows. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftsmith.check.args import above_zero
from draftsmith.check.context import served_length, tensor_parallel
from draftsmith.check.drafter_files import read_tensors
from draftsmith.check.head import Head, flag, head_of
from draftsmith.check.parameters import Cache, cache_of, describable, weight_bytes_of
from draftsmith.check.subject import Subject
from draftsmith.check.weights import weight_bytes
from draftsmith.findings import Finding
from draftsmith.models.text_config import text_part

GIB = 2**30
ALLOWANCE_BYTES, ALLOWANCE_SHARE = 2 * GIB, 0.03  # CUDA context, activations of a prefill chunk, graphs
VLLM_UTILIZATION = 0.92  # vLLM 0.32's own value of gpu-memory-utilization
FILES, SHAPES = "weight files", "shapes in config.json"
QUANTISED_NAMES = ("FP8", "FP4", "INT4", "INT8", "W4A", "W8A", "AWQ", "GPTQ", "GGUF", "BNB", "QUANT")
NEAR = 1.03  # an estimate within 3 % of the limit is a warning, not an error


@dataclass(frozen=True)
class Row:
    """One line of the table: what, how many bytes on one GPU, and how the number was made."""

    name: str
    bytes: int
    how: str


@dataclass(frozen=True)
class Estimate:
    """The whole table. `cache` is what the planned load needs, None when no load is planned."""

    rows: tuple[Row, ...]
    gpu_bytes: int
    shards: int
    weights: int  # both models, one GPU
    allowance: int
    cache: int | None
    sure: bool  # False when the weights may be quantised by a file that was not there
    tokens_left: int  # tokens of KV cache that fit beside weights and allowance

    def lines(self) -> list[str]:
        """The table as text."""
        total = sum(row.bytes for row in self.rows)
        body = [(row.name, row.bytes, row.how) for row in self.rows]
        body += [("together", total, ""), ("one GPU has", self.gpu_bytes, f"one of {self.shards}")]
        return [f"{name:<24} {size / GIB:>8.1f} GiB  {how}".rstrip() for name, size, how in body]


def element_bytes(value: Any) -> float:
    """Bytes of one cache element for a kv-cache-dtype flag."""
    text = str(value or "auto").lower()
    return 0.5 if "fp4" in text else 1 if "fp8" in text or "int8" in text else 2


def target_bytes(subject: Subject) -> tuple[int, str] | None:
    """Weights of the target on all GPUs together: the files when they are there, else the config's shapes."""
    if subject.target_folder is not None and subject.target_folder.is_dir() and (size := weight_bytes(subject.target_folder)):
        return size, FILES
    if describable(subject.target):
        return weight_bytes_of(subject.target), SHAPES if sure_of_type(subject) else f"{SHAPES}, if no other file quantises them"
    return None


def sure_of_type(subject: Subject) -> bool:
    """Whether a bare config says how many bytes a weight takes: some checkpoints keep their quantisation in another file."""
    settings = text_part(subject.target).get("quantization_config") or subject.target.get("quantization_config")
    if settings:
        return len(settings.get("config_groups") or {}) < 2
    name = str(flag(subject, "model", "model-path") or "").upper()
    return bool(name) and flag(subject, "quantization") is None and not any(mark in name for mark in QUANTISED_NAMES)


def drafter_bytes(subject: Subject, head: Head | None) -> tuple[int, str]:
    """Weights of the drafter, not split: files, else one layer's shapes from its config, else nothing."""
    _, tensors = read_tensors(subject.drafter_folder)
    if tensors:
        return sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in tensors.values()), "weight files"
    if head is None or not describable(config := one_layer(head)):
        return 0, "no drafter"
    hidden, vocabulary = config["hidden_size"], head.config.get("draft_vocab_size") or 0
    layers = weight_bytes_of({**config, "vocab_size": 0, "tie_word_embeddings": True, "quantization_config": None})
    return layers + 2 * hidden * (vocabulary + 4 * hidden), "shapes in its config.json"


def one_layer(head: Head) -> dict[str, Any]:
    """The drafter's config; where it does not say, of one layer, and of a vocabulary that costs nothing here."""
    return {"num_hidden_layers": 1, "vocab_size": 1, **{key: value for key, value in head.config.items() if value is not None}}


def estimate(subject: Subject) -> Estimate | None:
    """The table; None when the GPU or the target's size is not known."""
    weights = target_bytes(subject)
    if subject.gpu_bytes is None or weights is None:
        return None
    head = head_of(subject)
    shards = model_shards(subject)
    drafter, drafter_how = drafter_bytes(subject, head)
    allowance = int(ALLOWANCE_BYTES + ALLOWANCE_SHARE * subject.gpu_bytes)
    rows = [Row("target weights", weights[0] // shards, f"{weights[0] / 1e9:.1f} GB of {weights[1]} over {shards}")]
    if drafter:
        rows.append(Row("drafter weights", drafter // shards, f"{drafter / 1e9:.2f} GB of {drafter_how} over {shards}"))
    held = sum(row.bytes for row in rows)
    caches = caches_of(subject, head, shards)
    rows.append(Row("graphs and activations", allowance, "a flat allowance: 2 GiB and 3 % of the GPU"))
    needed = None
    if subject.concurrency and (length := planned_length(subject)) and caches:
        needed = int(sum(cache.bytes(subject.concurrency, length) for cache in caches))
        rows.append(Row("KV cache", needed, f"{subject.concurrency} requests of {length} tokens, both models"))
    per_token = sum(cache.per_token for cache in caches)
    left = static_bytes(subject, allowance) - held
    tokens = max(0, int(left / per_token)) if per_token else 0
    return Estimate(tuple(rows), subject.gpu_bytes, shards, held, allowance, needed, weights[1] in (FILES, SHAPES), tokens)


def model_shards(subject: Subject) -> int:
    """GPUs that one copy of the target is split over: tensor and pipeline parallel."""
    pipeline = flag(subject, "pipeline-parallel-size", "pp-size", "pp")
    given = flag(subject, "tensor-parallel-size", "tp-size", "tp")
    tensor = above_zero(given) or subject.num_gpus or tensor_parallel(subject)
    return tensor * (above_zero(pipeline) or 1)


def planned_length(subject: Subject) -> int | None:
    served = served_length(subject)
    return subject.context_length or (served[0] if served else None)


def caches_of(subject: Subject, head: Head | None, shards: int) -> list[Cache]:
    size = element_bytes(flag(subject, "kv-cache-dtype"))
    caches = [cache_of(subject.target, shards, size)] if describable(subject.target) else []
    own = flag(subject, "speculative-draft-kv-cache-dtype")
    if head is not None and describable(config := one_layer(head)):
        caches.append(cache_of(config, shards, element_bytes(own) if own else size))
    return caches


def static_bytes(subject: Subject, allowance: int) -> int:
    """What the engine gives to weights and cache on one GPU: its flag, else all but the allowance."""
    assert subject.gpu_bytes is not None
    name = "mem-fraction-static" if subject.family == "sglang" else "gpu-memory-utilization"
    given = fraction(flag(subject, name))
    if subject.family == "sglang":
        return int(given * subject.gpu_bytes) if given else subject.gpu_bytes - allowance
    return int((given or VLLM_UTILIZATION) * subject.gpu_bytes) - allowance


def fraction(value: Any) -> float | None:
    """A share of the GPU's memory; None when it is none, which the engine refuses."""
    try:
        given = float(value) if value is not None and not isinstance(value, bool) else 0.0
    except ValueError:
        return None
    return given if 0 < given <= 1 else None


def memory_findings(subject: Subject) -> list[Finding]:
    """Weights, static fraction and cache against the GPU; the table as an info finding."""
    table = estimate(subject)
    if table is None or subject.cpu_build:
        return []
    shown = "; ".join(f"{row.name} {row.bytes / GIB:.1f} GiB ({row.how})" for row in table.rows)
    evidence = f"on each of {table.shards} GPUs of {table.gpu_bytes / GIB:.1f} GiB: {shown}"
    findings = [Finding("DS514", "info", evidence, f"about {table.tokens_left:,} tokens of KV cache fit", "nothing")]
    return findings + (fit_findings(subject, table) or fraction_findings(subject, table) or cache_findings(subject, table))


def fit_findings(subject: Subject, table: Estimate) -> list[Finding]:
    short = table.weights / table.gpu_bytes
    if short + table.allowance / table.gpu_bytes <= 1:
        return []
    evidence = f"weights alone need about {table.weights / GIB:.1f} GiB on each of {table.shards} GPUs, one has {table.gpu_bytes / GIB:.1f}"
    room = table.gpu_bytes - table.allowance
    fix = f"use at least {-(-table.weights * table.shards // room)} such GPUs, or a smaller quantisation" if room > 0 else "use larger GPUs"
    if short > NEAR and table.sure:
        return [Finding("DS510", "error", evidence, "loading ends with out of memory", fix)]
    return [Finding("DS510", "warning", evidence, "little or nothing is left for activations, graphs and KV cache", fix)]


def fraction_findings(subject: Subject, table: Estimate) -> list[Finding]:
    """SGLang's mem-fraction-static, vLLM's gpu-memory-utilization: what is left of it for the cache."""
    name = "mem-fraction-static" if subject.family == "sglang" else "gpu-memory-utilization"
    given = fraction(flag(subject, name))
    if given is None:
        return []
    left = static_bytes(subject, table.allowance) - table.weights
    if left > 0:
        return []
    gives, needs = given * table.gpu_bytes / GIB, table.weights / GIB
    evidence = f"{name} {given:g} gives {gives:.1f} GiB to weights and cache, the weights need {needs:.1f}"
    fix = f"raise {name} to at least {min(0.97, (table.weights + table.allowance) / table.gpu_bytes):.2f}, or use more GPUs"
    severity = "error" if table.sure and table.weights > NEAR * given * table.gpu_bytes else "warning"
    return [Finding("DS511", severity, evidence, "nothing is left for the KV cache, and the engine stops after loading", fix)]


def cache_findings(subject: Subject, table: Estimate) -> list[Finding]:
    if table.cache is None:
        return []
    left = static_bytes(subject, table.allowance) - table.weights
    if table.cache <= left:
        return []
    evidence = (
        f"{subject.concurrency} requests of {planned_length(subject)} tokens need {table.cache / GIB:.1f} GiB of KV cache on each GPU, "
        f"about {left / GIB:.1f} are left (some {table.tokens_left:,} tokens)"
    )
    fix = "plan fewer or shorter requests, give the engine more memory or GPUs, or use an fp8 KV cache"
    severity = "warning" if subject.context_length is not None else "info"  # nobody said that requests are that long
    return [Finding("DS512", severity, evidence, "requests queue or are preempted, and speed falls", fix)]
