"""SGLang: the algorithms that draft without a chain: DFLASH, DSPARK, NGRAM, Gemma 4 assistants, UNO. Pure. Data: sglang.yaml."""

from __future__ import annotations

from packaging.version import Version

from draftsmith.check import pairing
from draftsmith.check.resolution import Case
from draftsmith.check.sglang_shared import ANY_DRAFT, DRAFT, NUMBERS, attention_dp, mixed_chunk, no_attention_dp, overlap_off, slots
from draftsmith.check.since import table


def blocks(case: Case, algorithm: str) -> None:
    """DFLASH and DSPARK draft one block: steps and topk are 1, whatever is asked."""
    for flag in NUMBERS[:2]:
        asked = case.args.number(flag)
        if asked not in (None, 1):
            why = f"SGLang sets it to 1 in one log line: {algorithm} drafts a block, not a chain of steps"
            case.say("DS421", "warning", f"--{flag} {asked} with {algorithm}", why, f"remove --{flag}")
        case.effective[flag.replace("-", "_")] = 1
    prefill = algorithm == "DSPARK" and case.version >= Version("0.5.21") and case.args.text("disaggregation-mode") == "prefill"
    if (case.args.number("pipeline-parallel-size") or 1) > 1 and not prefill:
        raises = case.raised(f"pipeline_{algorithm}")
        case.stop("DS425", f"{algorithm} with pipeline parallelism", "SGLang stops: pp_size must be 1", "use --tp instead", raises)
    if attention_dp(case) and algorithm == "DFLASH" and case.version < Version("0.5.23"):
        no_attention_dp(case, algorithm)
    elif attention_dp(case) and not case.args.switch("enable-dp-lm-head"):
        no_attention_dp(case, algorithm, "--enable-dp-lm-head")


def dflash(case: Case, algorithm: str) -> None:
    blocks(case, algorithm)
    if not case.args.has(DRAFT):
        raises = case.raised("draft_DFLASH")
        case.stop("DS416", "DFLASH without a drafter", "SGLang stops: the draft path is required", f"add {ANY_DRAFT}", raises)
    asked, block = case.args.number(NUMBERS[2]), case.args.number("speculative-dflash-block-size")
    if asked is not None and block is not None and asked != block:
        evidence = f"--speculative-dflash-block-size {block} and --speculative-num-draft-tokens {asked}"
        raises = case.raised("two_blocks", asked=asked, block=block)
        case.stop("DS418", evidence, "SGLang stops: the two are one number for DFLASH and must agree", "give one of them", raises)
    if block is not None and block <= 0:
        raises = case.raised("block_low", block=block)
        case.stop("DS418", f"--speculative-dflash-block-size {block}", "SGLang stops: it must be positive", "leave it out", raises)
    trained = pairing.block_size(case.subject.drafter)
    tokens = next((n for n in (block, asked, trained) if n is not None), table("sglang")["dflash_tokens"])
    if trained and tokens != trained:
        other = f"; {tokens} is what vLLM calls it" if tokens == trained - 1 else ""
        why = f"the drafter was trained on blocks of {trained}, in SGLang that is --speculative-num-draft-tokens {trained}{other}"
        case.say("DS419", "warning", f"DFLASH with blocks of {tokens}", why, f"--speculative-num-draft-tokens {trained}")
    window = case.args.number("speculative-draft-window-size", "speculative-dflash-draft-window-size")
    if window is not None and window < tokens:
        raises, fix = (
            case.raised("window" if window > 0 else "window_low", window=window, tokens=tokens),
            f"--speculative-draft-window-size {tokens} or more",
        )
        case.stop("DS441", f"draft window {window}, block {tokens}", "SGLang stops: the window must hold a block", fix, raises)
    case.effective |= {"speculative_num_draft_tokens": tokens, "speculative_draft_model_path": case.args.text(DRAFT)}
    after_blocks(case, algorithm)


def after_blocks(case: Case, algorithm: str) -> None:
    slots(case)
    case.effective["disable_overlap_schedule"] = case.args.switch("disable-overlap-schedule")
    if case.version < Version("0.5.14"):
        overlap_off(case, f"{algorithm} in SGLang {case.version}", True)
    mixed_chunk(case, algorithm)


def dspark(case: Case, algorithm: str) -> None:
    blocks(case, algorithm)
    carried = any(case.subject.target.get(key) is not None for key in pairing.BUNDLED_DSPARK)
    if not case.args.has(DRAFT) and case.subject.target and not carried and case.version < Version("0.5.20"):
        raises = case.raised("draft_DSPARK")
        case.stop("DS416", "DSPARK without a drafter", "SGLang stops: the target carries none", f"add {ANY_DRAFT}", raises)
    asked, given = case.args.number(NUMBERS[2]), case.args.number("speculative-dspark-block-size")
    gamma = given if given is not None else pairing.block_size(case.subject.drafter or (case.subject.target if carried else None))
    if gamma is None and asked is None:
        gamma = table("sglang")["dspark_gamma"]
    tokens = asked if gamma is None else gamma + 1
    if asked is not None and tokens != asked:
        other = f"; {asked} is what vLLM calls it" if asked == gamma else ""
        why = f"SGLang stops: draft tokens must be gamma + 1 = {tokens}{other}"
        evidence = f"DSPARK with gamma {gamma} and --speculative-num-draft-tokens {asked}"
        raises = case.raised("gamma", tokens=tokens, gamma=gamma, asked=asked)
        case.stop("DS420", evidence, why, f"--speculative-num-draft-tokens {tokens}", raises)
    elif tokens is not None and tokens < 2:
        evidence = f"DSPARK with draft tokens {tokens}"
        raises = case.raised("gamma_zero" if given is not None else "gamma_low", tokens=tokens, gamma=given)
        case.stop("DS420", evidence, "SGLang stops: at least 2", "--speculative-dspark-block-size 7", raises)
    case.effective |= {"speculative_num_draft_tokens": tokens, "speculative_draft_model_path": case.args.text(DRAFT)}
    after_blocks(case, algorithm)


def ngram(case: Case, algorithm: str) -> None:
    slots(case)
    tokens, steps = case.args.number(NUMBERS[2]), case.args.number(NUMBERS[0])
    if tokens is None:
        window = case.args.number("speculative-ngram-max-match-window-size") if case.version < Version("0.5.10") else None
        tokens = window or table("sglang")["ngram_tokens"]
    topk = case.args.number("speculative-ngram-max-bfs-breadth") or 10
    asked = case.args.number(NUMBERS[1])
    if asked not in (None, topk):
        why = f"SGLang takes the breadth of the n-gram search instead: {topk}"
        case.say("DS421", "warning", f"--{NUMBERS[1]} {asked} with NGRAM", why, "use --speculative-ngram-max-bfs-breadth")
    if steps is None and case.version >= Version("0.5.14"):
        steps = tokens // topk
    case.effective |= {"speculative_num_steps": steps, "speculative_eagle_topk": topk, "speculative_num_draft_tokens": tokens}
    case.effective["disable_overlap_schedule"] = case.args.switch("disable-overlap-schedule")
    if case.version < Version("0.5.14") or (case.subject.cpu_build and case.version >= Version("0.5.16")):
        overlap_off(case, f"NGRAM in SGLang {case.version}", not case.subject.cpu_build)
    mixed_chunk(case, algorithm)
    ngram_limits(case, topk, tokens)


def ngram_limits(case: Case, topk: int, tokens: int) -> None:
    page, backend = case.args.number("page-size") or 1, case.args.text("attention-backend")
    if topk > 1 and page > 1 and backend not in (None, "flashinfer"):
        why, fix = "SGLang stops: n-gram trees on pages only with flashinfer", "--page-size 1, or --attention-backend flashinfer"
        raises = case.raised("ngram_pages", topk=topk, page=page)
        case.stop("DS423", f"NGRAM, page size {page}, attention backend {backend}", why, fix, raises)
    if attention_dp(case):
        no_attention_dp(case, "NGRAM")
    budget = case.args.number("speculative-ngram-external-sam-budget") or 0
    if case.args.has("speculative-ngram-external-corpus-path") and not 0 < budget <= tokens - 1:
        evidence = f"--speculative-ngram-external-corpus-path with a budget of {budget}"
        why = f"SGLang stops: the budget must be 1 to {tokens - 1} (draft tokens - 1)"
        raises = case.raised("no_sam_budget" if budget <= 0 else "sam_budget", most=tokens - 1)
        case.stop("DS442", evidence, why, f"--speculative-ngram-external-sam-budget {min(8, tokens - 1)}", raises)


def frozen(case: Case, algorithm: str) -> None:
    """A Gemma 4 assistant: the numbers pass through as they are."""
    slots(case)
    case.effective |= {name.replace("-", "_"): case.args.number(name) for name in NUMBERS}
    case.effective["speculative_draft_model_path"] = case.args.text(DRAFT)
    case.effective["disable_overlap_schedule"] = case.args.switch("disable-overlap-schedule") or case.version < Version("0.5.14")
    case.effective["enable_mixed_chunk"] = False


def uno(case: Case, algorithm: str) -> None:
    """The target with a LoRA as its own drafter."""
    needs = [("uno-lora-path", True, "add --uno-lora-path"), (DRAFT, False, f"remove --{DRAFT}"), (NUMBERS[2], True, f"add --{NUMBERS[2]}")]
    for flag, wanted, fix in needs:
        if case.args.has(flag) is not wanted:
            case.stop("DS416", f"UNO {'without' if wanted else 'with'} --{flag}", "SGLang stops", fix, case.raised(flag))
    ranks = [case.args.number(flag) or 1 for flag in ("tensor-parallel-size", "pipeline-parallel-size")]
    if ranks != [1, 1]:
        why, fix = "SGLang stops: it runs on one GPU", "remove --tp-size and --pp-size"
        case.stop("DS425", f"UNO with {' x '.join(map(str, ranks))} ranks", why, fix, case.raised("parallel_UNO"))
    topk, steps = case.args.number(NUMBERS[1]) or 1, case.args.number(NUMBERS[0])
    case.effective |= {
        "speculative_num_steps": steps if topk > 1 else 1,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": case.args.number(NUMBERS[2]),
        "enable_mixed_chunk": False,
    }
