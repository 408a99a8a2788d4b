"""SGLang's rules for steps, topk and draft tokens, as its argument parser applies them (read in 0.5.3 to 0.5.23). Pure.

`None` means that the flag is not given. A chain of depth k is steps = k, topk = 1, draft tokens = k + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from draftsmith.findings import Finding

FIX = "give all three: --speculative-num-steps K --speculative-eagle-topk 1 --speculative-num-draft-tokens K+1"


@dataclass(frozen=True)
class Triple:
    """What SGLang would really run with."""

    steps: int
    topk: int
    draft_tokens: int


def candidates(steps: int, topk: int) -> int:
    """Most draft nodes that a tree can choose from: topk in the first step, topk^2 in each one after it."""
    return topk + (steps - 1) * topk**2


def automatic(model_type: str, version: Version) -> Triple:
    """What SGLang chooses for EAGLE-3 when none of the three is given."""
    five = model_type in ("llama", "grok-1", "grok1") or (version <= Version("0.5.6") and not listed(model_type))
    return Triple(5, 4, 8) if five else Triple(3, 1, 4)


def listed(model_type: str) -> bool:
    """Families that had (3, 1, 4) in every version read."""
    return model_type.startswith(("deepseek", "gpt_oss", "glm", "bailing", "mistral", "mimo"))


def resolve(steps: int | None, topk: int | None, draft_tokens: int | None, chosen: Triple) -> tuple[Triple | None, list[Finding]]:
    """The effective triple and what is wrong with the asked one; None when SGLang would not start.

    chosen: the automatic triple, used when nothing is given.
    """
    asked = f"steps {steps}, topk {topk}, draft tokens {draft_tokens}"
    if steps is None:
        if topk is None and draft_tokens is None:
            evidence = f"none of steps, topk, draft tokens is given: SGLang takes {chosen.steps}, {chosen.topk}, {chosen.draft_tokens}"
            return chosen, [Finding("DS414", "warning", evidence, "the numbers change with target and version", FIX)]
        return None, [Finding("DS411", "error", asked, "SGLang dies in a bare AssertionError: steps is missing", FIX)]
    if topk is None:
        return None, [Finding("DS411", "error", asked, "SGLang dies comparing None with an integer (TypeError): topk is missing", FIX)]
    if steps < 1 or topk < 1:
        return None, [Finding("DS411", "error", asked, "steps and topk must be at least 1", FIX)]
    if topk == 1:
        effective = Triple(steps, 1, steps + 1)
        if draft_tokens == effective.draft_tokens:
            return effective, []
        evidence = f"{asked}: a chain of {steps} steps verifies {steps + 1} tokens"
        severity = "error" if draft_tokens is not None else "warning"
        return effective, [Finding("DS412", severity, evidence, f"SGLang overwrites draft tokens with {steps + 1} in one log line", FIX)]
    if draft_tokens is None:
        return None, [Finding("DS411", "error", asked, "SGLang dies in arithmetic on None: draft tokens is missing", FIX)]
    most = candidates(steps, topk)
    if not 1 <= draft_tokens - 1 <= most:
        evidence = f"{asked}: a tree of {steps} steps with topk {topk} has {most} nodes to choose {draft_tokens - 1} from"
        fix = f"set draft tokens to 2..{most + 1}"
        return None, [Finding("DS413", "error", evidence, "the first request fails with 'index k out of range'", fix)]
    return Triple(steps, topk, draft_tokens), []
