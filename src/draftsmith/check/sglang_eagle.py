"""SGLang: EAGLE, EAGLE3 and STANDALONE, in the order of SGLang's own resolution. Pure. Data: sglang.yaml."""

from __future__ import annotations

from packaging.version import Version

from draftsmith.check.args import switched
from draftsmith.check.resolution import Case
from draftsmith.check.sglang import automatic, resolve
from draftsmith.check.sglang_shared import (
    ANY_DRAFT,
    BACKENDS,
    DRAFT,
    NUMBERS,
    attention_dp,
    mixed_chunk,
    no_attention_dp,
    overlap_off,
    slots,
)
from draftsmith.check.since import at, known, table
from draftsmith.check.subject import Subject
from draftsmith.models.text_config import text_part


def eagle(case: Case, algorithm: str) -> None:
    if algorithm == "STANDALONE" and attention_dp(case):
        no_attention_dp(case, algorithm)
        return
    slots(case)
    overlap(case)
    mixed_chunk(case, algorithm)
    draft_path(case, algorithm)
    if case.stopped:
        return
    steps, topk, tokens = adaptive(case, *(case.args.number(name) for name in NUMBERS))
    triple, findings = resolve(steps, topk, tokens, automatic(target_class(case.subject), case.version, algorithm))
    case.findings += [finding for finding in findings if not (finding.code == "DS414" and not target_class(case.subject))]
    if triple is None:
        case.stopped = True
        return
    numbers = (triple.steps, triple.topk, triple.draft_tokens)
    unknown = steps is None and not target_class(case.subject)
    if unknown:
        why = "SGLang chooses by the target's class, which is not known here"
        case.say("DS414", "warning", "none of steps, topk, draft tokens is given", why, "give --target, or all three numbers")
        numbers = (None, None, None)
    case.effective |= dict(zip((name.replace("-", "_") for name in NUMBERS), numbers, strict=True))
    if not unknown:
        tree(case, triple.topk)
        rejection(case, algorithm, triple.topk)
    if algorithm == "STANDALONE":
        same_vocabulary(case)


def overlap(case: Case) -> None:
    """Which worker, and does scheduling overlap with it? EAGLE family."""
    version, env = case.version, switched(case.subject.env, "SGLANG_ENABLE_SPEC_V2")
    topk = case.args.number("speculative-eagle-topk") or 0
    case.effective["disable_overlap_schedule"] = case.args.switch("disable-overlap-schedule")
    if case.subject.cpu_build and version >= Version("0.5.16"):
        overlap_off(case, "speculation on a CPU", False)
    if version >= Version("0.5.14"):
        return
    if version >= Version("0.5.13"):
        if env is False:
            overlap_off(case, "SGLANG_ENABLE_SPEC_V2=0: the v2 worker runs without overlap", True)
    elif version >= Version("0.5.11"):
        if topk > 1:
            overlap_off(case, f"topk {topk} in SGLang {version}: the v1 worker without overlap", True)
        elif env is False:
            overlap_off(case, "SGLANG_ENABLE_SPEC_V2=0: the v1 worker without overlap", True)
    elif env and version >= Version("0.5.7") and topk > 1:
        why, fix = "SGLang stops: spec v2 only supports topk = 1", "unset SGLANG_ENABLE_SPEC_V2, or topk 1"
        case.stop("DS437", f"SGLANG_ENABLE_SPEC_V2 is on and topk is {topk}", why, fix, case.raised("spec_v2"))
    elif env and version >= Version("0.5.4"):
        if version >= Version("0.5.7") or case.effective["speculative_algorithm"] == "EAGLE":
            case.effective["disable_overlap_schedule"] = False
    else:
        overlap_off(case, f"SGLang {version} without SGLANG_ENABLE_SPEC_V2", False)


def draft_path(case: Case, algorithm: str) -> None:
    """The target's own folder where it holds the draft layer; an error where there is nothing to draft with."""
    architecture, rules = target_class(case.subject), table("sglang")
    bundled = architecture in known(rules["bundled"], case.version)
    path = case.args.text(DRAFT)
    empty = text_part(case.subject.target).get("num_nextn_predict_layers") == 0
    if path is None and empty and algorithm != "EAGLE3":
        why = "SGLang takes the target's folder for its drafter, and num_nextn_predict_layers 0 says that it holds no draft layer"
        case.say("DS416", "error", f"{algorithm} on {architecture} without a drafter", why, f"EAGLE3 and {ANY_DRAFT}")
        case.effective["speculative_draft_model_path"] = None
        return
    if path is None and bundled and algorithm == "EAGLE3":
        why = "SGLang drafts with the target's own MTP layer, and EAGLE3 hands it three hidden states for one: a shape error"
        fix = f"--speculative-algorithm NEXTN, or {ANY_DRAFT} of an EAGLE-3 head"
        case.say("DS417", "error", f"EAGLE3 on {architecture} without a drafter", why, fix)
    if path is None and bundled:
        path = case.args.text("model-path") or "the target"
    elif path is None and (algorithm == "STANDALONE" or architecture in rules["no_own_layer"] or (algorithm == "EAGLE3" and architecture)):
        why = "SGLang loads the target itself as its drafter: out of memory, or a class that cannot draft"
        case.say("DS416", "error", f"{algorithm} without {ANY_DRAFT.split()[0]}", why, f"add {ANY_DRAFT}")
    elif path is not None and bundled and architecture not in ("MistralLarge3ForCausalLM", "PixtralForConditionalGeneration"):
        why = "SGLang warns that it is not needed: the draft layer of the target's own folder is the default"
        case.say("DS444", "info", f"--{DRAFT} with {architecture}", why, "leave it out to draft with the target's own layer")
    case.effective["speculative_draft_model_path"] = path


def target_class(subject: Subject) -> str:
    """architectures[0] of the target, as SGLang reads it; empty when no config is given."""
    return (subject.target.get("architectures") or [""])[0]


def adaptive(case: Case, steps: int | None, topk: int | None, tokens: int | None) -> tuple[int | None, int | None, int | None]:
    """The three numbers after adaptive speculation has had its say."""
    if not case.args.switch("speculative-adaptive"):
        return steps, topk, tokens
    why = f"topk {topk}" if topk not in (None, 1) else "attention data parallelism" if attention_dp(case) else ""
    why = why or next(
        (f"--{name}" for name in ("enable-multi-layer-eagle", "enable-two-batch-overlap", "enable-pdmux") if case.args.switch(name)), ""
    )
    if why:
        case.effective["speculative_adaptive"] = False
        fix = "topk 1 and none of these, or remove --speculative-adaptive"
        case.say("DS440", "warning", f"--speculative-adaptive with {why}", "SGLang switches it off in one log line", fix)
        return steps, topk, tokens
    if case.version < Version("0.5.14"):
        return steps, topk, tokens
    options: list[int] = at(table("sglang")["adaptive_steps"], case.version)
    if case.args.has("speculative-adaptive-config"):
        return (None, None, None) if steps is None else (steps, 1, steps + 1)
    chosen = options[len(options) // 2] if steps is None else steps
    if chosen not in options:
        why = f"SGLang stops: the built-in configuration adapts between {', '.join(map(str, options))}"
        raises = case.raised("adaptive_steps", steps=chosen, options=options)
        case.stop("DS440", f"--speculative-adaptive with steps {chosen}", why, f"--speculative-num-steps {options[-1]}", raises)
    return chosen, 1, chosen + 1


def tree(case: Case, topk: int) -> None:
    """topk > 1 against attention backend and page size. SGLang reads what is typed; its own choice of backend avoids the clash."""
    backend = case.args.text("attention-backend")
    if topk <= 1:
        return
    if "trtllm_mha" in [case.args.text(name) for name in BACKENDS]:
        why, fix = "SGLang stops: trtllm_mha only does topk 1", "--speculative-eagle-topk 1, or --attention-backend flashinfer"
        case.stop("DS422", f"topk {topk} on trtllm_mha", why, fix, case.raised("trtllm_mha"))
    page = table("sglang")["pages"].get(backend) or case.args.number("page-size") or 1
    able = at(table("sglang")["tree_backends"], case.version)
    if page > 1 and backend is not None and backend not in able:
        why = f"SGLang stops: in {case.version} only {', '.join(able)} draft trees on pages"
        fix = "--page-size 1, --speculative-eagle-topk 1, or one of those backends"
        raises = case.raised("pages", able=tuple(able), backend=backend)
        case.stop("DS423", f"topk {topk}, page size {page}, attention backend {backend}", why, fix, raises)


def rejection(case: Case, algorithm: str, topk: int) -> None:
    """--speculative-use-rejection-sampling and what it does not go with."""
    if not case.args.switch("speculative-use-rejection-sampling"):
        return
    thresholds = ("speculative-accept-threshold-single", "speculative-accept-threshold-acc")
    lossy = [name for name in thresholds if case.args.has(name) and case.args.text(name) not in ("1", "1.0")]
    fixed = case.args.switch("enable-deterministic-inference") and case.version < Version("0.5.23")
    wrong = [
        ("rejection_algorithm", f"algorithm {algorithm}", algorithm not in ("EAGLE", "EAGLE3")),
        ("rejection_topk", f"topk {topk}", topk != 1),
        ("rejection_threshold", f"--{''.join(lossy[:1])}", bool(lossy)),
        ("rejection_fixed", "--enable-deterministic-inference", fixed),
    ]
    for name, said, there in wrong:
        if there:
            why = "SGLang stops: rejection sampling wants EAGLE or EAGLE3, topk 1, thresholds 1.0 and no deterministic inference"
            evidence, fix = f"--speculative-use-rejection-sampling with {said}", "remove one of the two"
            case.stop("DS438", evidence, why, fix, case.raised(name, name=algorithm))
            return


def same_vocabulary(case: Case) -> None:
    target, drafter = text_part(case.subject.target).get("vocab_size"), text_part(case.subject.drafter or {}).get("vocab_size")
    if target and drafter and target != drafter:
        why = "token ids mean other tokens in the drafter; SGLang stops when it compares the two"
        fix = "a drafter of the target's own family, with its tokenizer"
        case.say("DS443", "error", f"STANDALONE: vocabulary {drafter} of the drafter, {target} of the target", why, fix)
