"""The drafter's context, rope, window, vocabulary, mask token, head sizes and origin against what is served. Pure.

SGLang builds the drafter with the target's context length and refuses a longer one than the drafter's own; vLLM stretches the drafter's
positions (since 0.27). Neither makes the drafter good past the length that it was trained for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from packaging.version import Version

from draftsmith.check.args import above_zero
from draftsmith.check.head import Head, flag, head_of, keys_table, speculative_config
from draftsmith.check.raises import raised
from draftsmith.check.subject import Subject
from draftsmith.check.tapping import runner_of
from draftsmith.findings import Finding
from draftsmith.models.config_keys import differs_by_layer
from draftsmith.models.text_config import text_part

OVERRIDE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
LENGTH_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
VLLM_STRETCHES_SINCE = Version("0.27")
DRAFT_WINDOW_SINCE = Version("0.5.12")  # SGLang's --speculative-draft-window-size
MIXED_WINDOWS_SINCE = Version("0.27")  # vLLM: DFlash layers with and without a window, on model runner 2 only


def context_findings(subject: Subject) -> list[Finding]:
    """Everything about the drafter that only shows against the target and the served length."""
    head = head_of(subject)
    if head is None:
        return published_findings(subject)
    return [
        *length_findings(subject, head),
        *rope_findings(head),
        *window_findings(subject, head),
        *token_findings(subject, head),
        *size_findings(subject, head),
        *origin_findings(subject, head),
    ]


# --- length and rope -------------------------------------------------------------------------------------------------


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rope settings under either of their names, {} when there are none."""
    return config.get("rope_scaling") or config.get("rope_parameters") or {}


def own_length(config: Mapping[str, Any]) -> int | None:
    """Positions that a config allows, as SGLang derives them.

    A rope factor counts unless the original length is given or the type is llama3.
    """
    scaling = config.get("rope_scaling") or {}
    factor = scaling.get("factor", 1) or 1
    if "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3":
        factor = 1
    value = next((config[key] for key in LENGTH_KEYS if config.get(key) is not None), None)
    return int(factor * value) if value is not None else None


def served_length(subject: Subject) -> tuple[int, str] | None:
    """Context length that the engine would serve, and where it comes from."""
    names = ("max-model-len",) if subject.family == "vllm" else ("context-length",)
    given = above_zero(flag(subject, *names))
    if given is not None:
        return given, f"--{names[0]}"
    length = own_length(text_part(subject.target))
    return (length, "the target's own, as no flag says less") if length is not None else None


def allowed(subject: Subject) -> bool:
    return subject.env.get(OVERRIDE, "").strip().lower() in ("1", "true", "yes", "y", "on")


def length_findings(subject: Subject, head: Head) -> list[Finding]:
    """Served length against the drafter's positions."""
    served, own = served_length(subject), own_length(head.config)
    if served is None or own is None or served[0] <= own:
        return []
    length, where = served
    evidence = f"served are {length} tokens of context ({where}), the drafter has {own} positions"
    within = f"--context-length {own}" if subject.family == "sglang" else f"--max-model-len {own}"
    if subject.family == "sglang" and not allowed(subject):
        consequence = f"SGLang builds the drafter with {length} positions and stops"
        raises = raised("sglang", None, "context", whose="Target model's", asked=length, limit=own)
        fix = f"add {within}, or set {OVERRIDE}=1 and accept fewer accepted tokens past {own}"
        return [Finding("DS360", "error", evidence, consequence, fix, raises)]
    if subject.context_length is not None and subject.context_length <= own:
        return []  # planned requests stay inside what the drafter knows
    consequence = f"acceptance falls towards 1 past {own} tokens: the drafter was made for no longer positions"
    if subject.family == "vllm" and subject.version < VLLM_STRETCHES_SINCE:
        consequence += f", and vLLM {subject.version} reads its rope table past the end"
    return [Finding("DS360", "warning", evidence, consequence, f"keep requests below {own} tokens ({within}), or train on longer ones")]


def published_findings(subject: Subject) -> list[Finding]:
    """A drafter that is not here, by what was published about it under its name."""
    path = flag(subject, "speculative-draft-model-path") if subject.family == "sglang" else speculative_config(subject).get("model")
    row = keys_table()["published"].get(PurePath(str(path)).name)
    served = served_length(subject)
    if subject.drafter or row is None or served is None or served[0] <= row["positions"]:
        return []
    length, where = served
    evidence = f"served are {length} tokens of context ({where}), {path} is known to have {row['positions']} positions ({row['source']})"
    within = f"--context-length {row['positions']}" if subject.family == "sglang" else f"--max-model-len {row['positions']}"
    stops = subject.family == "sglang" and not allowed(subject)
    why = (
        f"SGLang builds the drafter with {length} positions and stops"
        if stops
        else f"requests past {row['positions']} tokens fail, or accept little"
    )
    raises = raised("sglang", None, "context", whose="Target model's", asked=length, limit=row["positions"]) if stops else ""
    return [Finding("DS360", "warning", evidence, why, f"{within}; give --drafter to be sure", raises)]


def rope_findings(head: Head) -> list[Finding]:
    """A yarn drafter whose positions exceed what its factor reaches."""
    rope = rope_of(head.config)
    kind = rope.get("rope_type") or rope.get("type")
    original, factor, limit = rope.get("original_max_position_embeddings"), rope.get("factor"), head.config.get("max_position_embeddings")
    if kind != "yarn" or not original or not factor or not limit or limit <= original * factor:
        return []
    reach = int(original * factor)
    evidence = f"the drafter's yarn reaches {original} x {factor:g} = {reach} positions, max_position_embeddings is {limit}"
    consequence = "the engine accepts the longer context, and the rotation past the reach was never trained"
    return [Finding("DS361", "warning", evidence, consequence, "set max_position_embeddings to the reach, or raise the factor and train")]


def window_findings(subject: Subject, head: Head) -> list[Finding]:
    """Sliding windows that the drafter was trained with and the engine may not use."""
    kinds = head.config.get("layer_types") or []
    sliding = sum(kind == "sliding_attention" for kind in kinds)
    size = head.config.get("sliding_window")
    if head.method in ("dflash", "dspark"):
        if subject.family == "vllm" and 0 < sliding < len(kinds) and runner_of(subject) == 1:
            evidence = f"{sliding} of {len(kinds)} draft layers have a sliding window, and this is vLLM's model runner 1"
            sure = subject.version >= MIXED_WINDOWS_SINCE
            consequence = "vLLM stops with NotImplementedError" if sure else "the window is not applied layer by layer"
            fix = "use model runner 2: VLLM_USE_V2_MODEL_RUNNER=1 on a GPU"
            return [Finding("DS362", "error" if sure else "warning", evidence, consequence, fix)]
        return []
    if not size or not (sliding or head.config.get("use_sliding_window")) or subject.family != "sglang":
        return []
    given = flag(subject, "speculative-draft-window-size")
    if given is not None and str(given) == str(size):
        return []
    said = given if given is not None else "not set"
    evidence = f"the drafter was made with a sliding window of {size}, speculative-draft-window-size is {said}"
    consequence = "SGLang's EAGLE-3 head attends to the whole context unless the flag says otherwise: acceptance falls on long requests"
    fix = f"add --speculative-draft-window-size {size}" + ("" if subject.version >= DRAFT_WINDOW_SINCE else " (SGLang 0.5.12 or newer)")
    return [Finding("DS362", "warning", evidence, consequence, fix)]


# --- vocabulary, sizes, origin ---------------------------------------------------------------------------------------


def token_findings(subject: Subject, head: Head) -> list[Finding]:
    """Vocabulary of both, and the mask token of block drafters."""
    findings = []
    target, own = text_part(subject.target).get("vocab_size"), head.config.get("vocab_size")
    drafted = head.config.get("draft_vocab_size")
    if target and own and target != own:
        full = drafted is None or drafted == own
        evidence = f"the drafter's vocab_size is {own}, the target's {target}"
        consequence = "embedding and head do not fit the target's token ids" if full else "the draft map is made for another vocabulary"
        fix = "use the drafter with its own target, or correct vocab_size when only padding differs"
        other = full or abs(target - own) > target // 8  # more than padding
        findings.append(Finding("DS363", "error" if other else "warning", evidence, consequence, fix))
    if target and drafted and drafted > target:
        evidence = f"draft_vocab_size {drafted} is larger than the target's vocabulary {target}"
        findings.append(Finding("DS363", "error", evidence, "some drafts are no tokens", "correct draft_vocab_size"))
    if head.method not in ("dflash", "dspark"):
        return findings
    mask = head.dflash_config.get("mask_token_id", head.config.get("mask_token_id"))
    if mask is None:
        if head.method == "dspark" and subject.family == "sglang" and head.layout == "dspark":
            fix = "write mask_token_id into dflash_config"
            findings.append(Finding("DS364", "error", "the drafter has no mask_token_id", "SGLang's DSPARK requires one and stops", fix))
    elif target and not 0 <= int(mask) < target:
        evidence = f"mask_token_id {mask} is outside the target's vocabulary 0..{target - 1}"
        findings.append(Finding("DS364", "error", evidence, "the embedding has no such row", "use the id that training used"))
    return findings


def size_findings(subject: Subject, head: Head) -> list[Finding]:
    """Head sizes that attention and tensor parallelism can divide."""
    config, findings = head.config, []
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if not heads or not hidden or config.get("kv_lora_rank") or differs_by_layer(config):
        return []
    kv_heads: int = config.get("num_key_value_heads") or heads
    size = config.get("head_dim") or hidden / heads
    if size != int(size) or int(size) % 2 or heads % kv_heads:
        evidence = f"{heads} heads, {kv_heads} key-value heads, head size {size:g} over a width of {hidden}"
        fix = "correct num_attention_heads, num_key_value_heads or head_dim in the drafter's config.json"
        findings.append(Finding("DS365", "error", evidence, "grouped rotary attention needs whole groups and an even head size", fix))
    findings += head_dim_findings(subject, config, hidden, heads)
    shards = tensor_parallel(subject)
    if shards > 1 and (heads % shards or (kv_heads % shards and shards % kv_heads)):
        evidence = f"the drafter's {heads} heads and {kv_heads} key-value heads do not divide over {shards} GPUs"
        fix = "use a number of GPUs that divides them"
        if subject.family == "vllm":
            fix += ", or draft_tensor_parallel_size: 1"
        findings.append(Finding("DS365", "error", evidence, "the engine stops with an assertion while it builds the drafter", fix))
    return findings


def head_dim_findings(subject: Subject, config: Mapping[str, Any], hidden: int, heads: int) -> list[Finding]:
    """No head_dim, beside a target whose heads are not hidden_size / num_attention_heads wide. (With weights the ledger tells.)"""
    target = text_part(subject.target)
    same = (target.get("hidden_size"), target.get("num_attention_heads")) == (hidden, heads)
    size = target.get("head_dim")
    if subject.drafter_folder is not None or config.get("head_dim") or not same or size in (None, hidden // heads):
        return []
    evidence = (
        f"the drafter's config has no head_dim: the engine takes {hidden} / {heads} = {hidden // heads}, the target's head_dim is {size}"
    )
    why = f"weights made with heads of {size} do not fit: the engine stops while it loads them (speculators#149, #134)"
    return [Finding("DS365", "warning", evidence, why, f"write head_dim: {size} when its q_proj has {heads * size} rows")]


def tensor_parallel(subject: Subject) -> int:
    """GPUs that the drafter is split over."""
    own = speculative_config(subject).get("draft_tensor_parallel_size") if subject.family == "vllm" else None
    given = own or flag(subject, "tensor-parallel-size", "tp-size", "tp") or subject.num_gpus or 1
    return above_zero(given) or 1


def origin_findings(subject: Subject, head: Head) -> list[Finding]:
    """The target that the drafter says it was made for."""
    assert subject.drafter is not None
    findings, target = [], text_part(subject.target)
    note = subject.drafter.get("draftsmith") or {}
    made, is_type = note.get("target_model_type"), target.get("model_type")
    if made and is_type and made != is_type:
        evidence = f"the drafter was trained on a {made} target, this one is {is_type}"
        findings.append(Finding("DS367", "error", evidence, "it reads hidden states of another model", "use it with its own target"))
    verifier = (subject.drafter.get("speculators_config") or {}).get("verifier") or {}
    theirs, ours = verifier.get("architectures") or [], subject.target.get("architectures") or []
    if theirs and ours and not set(theirs) & set(ours):
        evidence = f"the drafter's verifier is a {theirs[0]}, this target is a {ours[0]}"
        findings.append(Finding("DS367", "error", evidence, "it reads hidden states of another model", "use it with its own target"))
        return findings
    name, folder = verifier.get("name_or_path"), subject.target_folder
    if name and folder is not None and not same_name(name, folder.name):
        evidence = f"the drafter names {name} as its verifier, the target's folder is {folder.name}"
        consequence = "a drafter of another fine-tune or revision accepts less; the name alone does not tell"
        findings.append(Finding("DS367", "info", evidence, consequence, "check that the target is the verifier, or a quantisation of it"))
    if head.config.get("quantization_config"):
        method = head.config["quantization_config"].get("quant_method", "unknown")
        evidence = f"the drafter is quantised by itself ({method})"
        consequence = "its own settings are used; shapes of packed weights were not audited"
        findings.append(Finding("DS366", "info", evidence, consequence, "nothing"))
    return findings


def same_name(one: str, other: str) -> bool:
    """Whether the last parts of two model names start the same, ignoring case and separators."""
    first, second = ("".join(c for c in PurePath(text).name.lower() if c.isalnum()) for text in (one, other))
    return first.startswith(second) or second.startswith(first)
