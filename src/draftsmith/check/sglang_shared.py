"""SGLang: what several algorithms do to the other arguments. Pure. Data: sglang.yaml."""

from __future__ import annotations

from packaging.version import Version

from draftsmith.check.resolution import Case
from draftsmith.check.since import table

NUMBERS = ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")
BACKENDS = ("attention-backend", "prefill-attention-backend", "decode-attention-backend")
DRAFT = "speculative-draft-model-path"
ANY_DRAFT = "--speculative-draft-model-path FOLDER"


def attention_dp(case: Case) -> bool:
    return case.args.switch("enable-dp-attention") or (case.args.number("attn-dp-size") or 1) > 1


def slots(case: Case) -> None:
    asked = case.args.number("max-running-requests")
    case.effective["max_running_requests"] = table("sglang")["slots"] if asked is None else asked


def overlap_off(case: Case, why: str, worth_saying: bool) -> None:
    if worth_saying and not case.args.switch("disable-overlap-schedule"):
        fix = "nothing; know it when you compare with a run without speculation"
        case.say("DS428", "info", why, "scheduling and GPU work no longer overlap: every step costs host time", fix)
    case.effective["disable_overlap_schedule"] = True


def mixed_chunk(case: Case, algorithm: str) -> None:
    """Mixed chunked prefill is switched off by most of them."""
    asked = case.args.switch("enable-mixed-chunk")
    kept = case.version >= Version("0.5.19") and algorithm in ("EAGLE", "EAGLE3", "DFLASH", "DSPARK")
    case.effective["enable_mixed_chunk"] = asked and kept
    if asked and not kept:
        why = f"{algorithm} in SGLang {case.version} switches it off in one log line"
        case.say("DS427", "warning", "--enable-mixed-chunk with speculation", why, "remove --enable-mixed-chunk")


def no_attention_dp(case: Case, algorithm: str, missing: str = "") -> None:
    """`missing`: the flag with which it would work."""
    without = f" without {missing}" if missing else ""
    why = f"SGLang {case.version} stops: ValueError, {algorithm} does not support attention data parallelism{without}"
    fix = f"add {missing}" if missing else "remove --enable-dp-attention: plain tensor parallelism"
    case.stop("DS424", f"{algorithm} with attention data parallelism", why, fix, case.raised(f"attention_dp_{algorithm}"))
