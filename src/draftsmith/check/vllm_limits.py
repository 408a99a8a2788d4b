"""vLLM: what a method does not go with: target, vocabulary, lengths, batch, parallelism. Pure. Data: vllm.yaml."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from draftsmith.check.args import whole
from draftsmith.check.resolution import Case
from draftsmith.check.since import at, table
from draftsmith.check.vllm_method import LOOKUP
from draftsmith.models.text_config import text_part


def parallel(case: Case, config: dict[str, Any], method: str) -> None:
    """draft_tensor_parallel_size is 1 or the target's; a draft model must have the target's, and EAGLE heads do not read it."""
    draft, target = whole(config.get("draft_tensor_parallel_size")), case.args.number("tensor-parallel-size") or 1
    if draft is None or draft == target:
        return
    evidence = f"draft_tensor_parallel_size {draft}, tensor-parallel-size {target}"
    fix = f'"draft_tensor_parallel_size": {target}, or leave it out'
    if draft != 1:
        case.stop("DS456", evidence, "vLLM stops: it must be 1 or the target's", fix, case.raised("draft_tensor_parallel", draft=draft))
    elif method == "draft_model":
        why = "the workers die while loading: a draft model must be split as the target is (ValueError)"
        case.say("DS456", "error", evidence, why, fix)
    elif method in ("eagle", "eagle3", "mtp", "dflash"):
        case.say("DS456", "warning", evidence, "vLLM does not read it for this method: the head is split as the target is", fix)


def limits(case: Case, config: dict[str, Any], method: str) -> None:
    """What the method does not go with."""
    kind = str(text_part(case.subject.target).get("model_type") or "")
    old = case.version < Version(table("vllm")["eagle3_list_until"])
    able = at(table("vllm")["eagle3_targets"], case.version)
    if method == "eagle3" and kind and old and not any(part in kind for part in able):
        why = f"vLLM {case.version} stops: EAGLE-3 is only supported for {', '.join(able)}"
        raises = case.raised("eagle3_targets", method=method)
        case.stop("DS459", f"eagle3 with target model_type {kind}", why, "vLLM 0.22 or newer, which has no such list", raises)
    target, drafter = text_part(case.subject.target).get("vocab_size"), text_part(case.subject.drafter or {}).get("vocab_size")
    if method == "draft_model" and target and drafter and target != drafter and not config.get("use_heterogeneous_vocab"):
        why, fix = "vLLM stops: target and draft model should have the same vocabulary size", "a drafter of the target's own family"
        evidence = f"draft_model: vocabulary {drafter} of the drafter, {target} of the target"
        case.stop("DS443", evidence, why, fix, case.raised("vocabulary", target=target, drafter=drafter))
    lookup = [whole(config.get(f"prompt_lookup_{end}")) for end in ("min", "max")]
    if method in LOOKUP and lookup[0] is not None and lookup[1] is not None and lookup[0] > lookup[1]:
        evidence = f"prompt_lookup_min {lookup[0]}, prompt_lookup_max {lookup[1]}"
        raises, fix = case.raised("lookup", low=lookup[0], high=lookup[1]), f'"prompt_lookup_max": {lookup[0]} or more'
        case.stop("DS462", evidence, "vLLM stops: min must be at most max", fix, raises)
    length, served = whole(config.get("max_model_len")), case.args.number("max-model-len")
    if length is not None and served is not None and length > served > 0:
        evidence = f"max_model_len {length} of the drafter, --max-model-len {served}"
        raises, fix = case.raised("max_model_len", asked=length, served=served), f'"max_model_len": {served}, or leave it out'
        case.stop("DS462", evidence, "vLLM stops: it cannot be larger", fix, raises)
    synthetic(case, config)


def synthetic(case: Case, config: dict[str, Any]) -> None:
    """Forced acceptance: both parts or none, and a length that the number of drafts can reach."""
    length, drafts = config.get("synthetic_acceptance_length"), case.effective.get("num_speculative_tokens")
    forced = [key for key in ("synthetic_acceptance_rates", "synthetic_acceptance_length") if config.get(key) is not None]
    if config.get("rejection_sample_method") == "synthetic":
        if len(forced) != 1:
            why, fix = (
                "vLLM stops: exactly one of synthetic_acceptance_rates and synthetic_acceptance_length",
                '"synthetic_acceptance_length": 2.5',
            )
            case.stop("DS464", "rejection_sample_method synthetic", why, fix, case.raised("synthetic"))
        elif isinstance(length, int | float) and drafts is not None and not 1 <= length <= drafts + 1:
            raises, fix = (
                case.raised("synthetic_length", most=drafts + 1, asked=float(length)),
                f'"synthetic_acceptance_length": 1 to {drafts + 1}',
            )
            case.stop(
                "DS464", f"synthetic_acceptance_length {length} with {drafts} drafts a round", "vLLM stops: out of range", fix, raises
            )
        elif case.subject.cpu_build:
            why = "the first request kills the CPU engine: AssertionError, synthetic acceptance not supported with CPU sampling"
            case.say("DS460", "error", "rejection_sample_method synthetic on the CPU build", why, "remove it, or force acceptance on a GPU")
    elif forced:
        why, fix = "vLLM stops: only valid with rejection_sample_method synthetic", f"remove {forced[0]}"
        case.stop("DS464", f"{forced[0]} without it", why, fix, case.raised("not_synthetic"))


# --- the batch and the ranks -----------------------------------------------------------------------------------------


def batch(case: Case, config: dict[str, Any], method: str) -> None:
    """The slots that a round of drafts adds to the batch, against its size: an error where the size is known, else a warning."""
    extra, each = extra_slots(case, config, method), case.version < Version(table("vllm")["slots_each_until"])
    if extra == 0 or case.version < Version(table("vllm")["slots_since"]) or case.args.has("max-num-scheduled-tokens"):
        return
    sizes = batch_sizes(case)
    short = [(batched, seqs) for batched, seqs in sizes if batched <= extra * (seqs if each else 1)]
    if not short:
        return
    batched, seqs = short[0]
    taken, most = extra * (seqs if each else 1), extra * (max(seqs for _, seqs in short) if each else 1)
    requests = f" for each of {seqs} requests (--max-num-seqs)" if each else ""
    evidence = f"{method} adds {extra} token slots a round{requests}: {taken} of --max-num-batched-tokens {batched}"
    fix = f"--max-num-batched-tokens {most + 2048} or more" + (", or fewer requests: --max-num-seqs" if each else "")
    why = "vLLM stops: no slot is left to schedule a token"
    if len(sizes) > 1:
        why += "; these are a smaller GPU's own numbers" + (", a larger one's are no better" if short == sizes else "")
        case.say("DS447", "warning", evidence, why, fix, case.raised("slots_somewhere"))
    else:
        raises = case.raised("slots", left=batched - taken) if each else case.raised("few_slots", batched=batched, slots=taken)
        case.stop("DS447", evidence, why, fix, raises)


def extra_slots(case: Case, config: dict[str, Any], method: str) -> int:
    """Token slots that a round adds for a request; 0 for drafts one after the other."""
    drafts = case.effective.get("num_speculative_tokens") or 0
    model = method == "draft_model"
    if method in ("dflash", "dspark") or config.get("parallel_drafting"):
        full = case.version >= Version(table("vllm")["slots_each_until"]) and (model or method == "dflash")
        return drafts if full else drafts - 1 + model
    return int(model)


def batch_sizes(case: Case) -> list[tuple[int, int]]:
    """(tokens, requests) of a step, as written or by the device: one pair, or one for each kind of GPU that it may be."""
    rules, args, memory = table("vllm")["batch"], case.args, case.subject.gpu_bytes
    ranks = (args.number("tensor-parallel-size") or 1) * (args.number("pipeline-parallel-size") or 1)
    own = [(row["tokens"], row["requests"]) for row in rules if memory is None or row["from"] <= memory / 2**30]
    own = [(row["tokens"] * ranks, row["requests"] * ranks) for row in table("vllm")["batch_cpu"]] if case.subject.cpu_build else own
    tokens, requests = args.number("max-num-batched-tokens"), args.number("max-num-seqs")
    sizes = [(tokens or batched, requests or min(seqs, tokens or batched)) for batched, seqs in own]
    return list(dict.fromkeys(sizes))


def pipeline(case: Case, method: str) -> None:
    """Older releases split the drafter over the ranks as the target, and few drafters' classes can be."""
    rules, ranks = table("vllm")["pipeline"], case.args.number("pipeline-parallel-size") or 1
    able = method in rules["methods"] or set(case.subject.target.get("architectures") or ()) & set(rules["targets"])
    if ranks > 1 and not able and case.version < Version(rules["until"]):
        why = f"vLLM {case.version} stops: it splits the drafter over the ranks too, and the drafter's class cannot be split"
        fix = f"--tensor-parallel-size instead, or vLLM {rules['until']} or newer"
        case.stop("DS425", f"method {method} with --pipeline-parallel-size {ranks}", why, fix, case.raised("pipeline"))
