"""SGLang's rules for steps, topk and draft tokens, as its argument resolution applies them. Pure. Data: sglang.yaml.

`None` means that the flag is not given. A chain of depth k is steps = k, topk = 1, draft tokens = k + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from draftsmith.check.raises import raised
from draftsmith.check.since import at, table
from draftsmith.findings import Finding

FIX = "give all three: --speculative-num-steps K --speculative-eagle-topk 1 --speculative-num-draft-tokens K+1"


@dataclass(frozen=True)
class Triple:
    """What SGLang would really run with. Draft tokens are None where it starts without them and dies later."""

    steps: int
    topk: int
    draft_tokens: int | None


def candidates(steps: int, topk: int) -> int:
    """Most draft nodes that a tree can choose from: topk in the first step, topk^2 in each one after it."""
    return topk + (steps - 1) * topk**2


def automatic(architecture: str, version: Version, algorithm: str = "EAGLE3") -> Triple:
    """What SGLang chooses when none of the three is given, by the target's class."""
    rules = table("sglang")["automatic"]
    if algorithm == "STANDALONE":
        return Triple(*rules["standalone"])
    if architecture in rules["trees"]:
        return Triple(5, 4, 8)
    if architecture in at(rules["chains"], version):
        return Triple(3, 1, 4)
    return Triple(*at(rules["others"], version))


def resolve(steps: int | None, topk: int | None, draft_tokens: int | None, chosen: Triple) -> tuple[Triple | None, list[Finding]]:
    """The effective triple and what is wrong with the asked one; None when SGLang would not start.

    chosen: the automatic triple, used when nothing is given.
    """
    asked = ", ".join(f"{name} {value}" for name, value in given(steps, topk, draft_tokens).items())
    if steps is None:
        if topk is None and draft_tokens is None:
            evidence = f"none of steps, topk, draft tokens is given: SGLang takes {chosen.steps}, {chosen.topk}, {chosen.draft_tokens}"
            return chosen, [Finding("DS414", "warning", evidence, "the numbers change with target and version", FIX)]
        lost = f"{asked} without --speculative-num-steps"
        why = "SGLang dies in a bare AssertionError: steps is missing"
        return None, [dies(lost, why, f"add --speculative-num-steps; {FIX}", "steps_missing")]
    if topk is None:
        why = "SGLang dies comparing None with an integer (TypeError): topk is missing"
        fix = f"add --speculative-eagle-topk; {chain_fix(steps)}"
        return None, [dies(f"{asked} without --speculative-eagle-topk", why, fix, "topk_missing")]
    if steps < 1 or topk < 1:
        why = "the arguments resolve all the same: there is nothing to draft, and the workers fail or draft nothing"
        return Triple(steps, topk, steps + 1 if topk == 1 else draft_tokens), [
            dies(asked, f"steps and topk must be at least 1; {why}", FIX)
        ]
    if topk == 1:
        return Triple(steps, 1, steps + 1), chain_findings(steps, draft_tokens)
    if draft_tokens is None:
        why = "the arguments resolve, then SGLang dies in arithmetic on None (TypeError): draft tokens is missing"
        fix = f"add --speculative-num-draft-tokens 2..{candidates(steps, topk) + 1}, or a chain: {chain_fix(steps)}"
        return Triple(steps, topk, None), [dies(f"{asked} without --speculative-num-draft-tokens", why, fix)]
    return Triple(steps, topk, draft_tokens), tree_findings(steps, topk, draft_tokens)


def given(steps: int | None, topk: int | None, draft_tokens: int | None) -> dict[str, int]:
    """Those of the three that are given, by name."""
    return {name: value for name, value in {"steps": steps, "topk": topk, "draft tokens": draft_tokens}.items() if value is not None}


def dies(evidence: str, why: str, fix: str, name: str = "") -> Finding:
    """`name`: of the error in raises.yaml, the same in every version; empty where the arguments resolve."""
    return Finding("DS411", "error", evidence, why, fix, raised("sglang", None, name) if name else "")


def chain_fix(steps: int) -> str:
    """The flags of a chain of that depth."""
    return f"--speculative-num-steps {steps} --speculative-eagle-topk 1 --speculative-num-draft-tokens {steps + 1}"


def chain_findings(steps: int, draft_tokens: int | None) -> list[Finding]:
    """Topk 1: draft tokens are overwritten. Fewer than asked is an error, a number that merely repeats the steps a warning."""
    if draft_tokens == steps + 1:
        return []
    if draft_tokens is None:
        evidence = f"steps {steps}, topk 1 without --speculative-num-draft-tokens"
        why = f"SGLang sets it to {steps + 1}: a chain verifies one token more than it has steps"
        return [Finding("DS412", "warning", evidence, why, f"say so: --speculative-num-draft-tokens {steps + 1}")]
    evidence = f"steps {steps}, topk 1, draft tokens {draft_tokens}"
    drafted = "1 token is drafted" if steps == 1 else f"{steps} tokens are drafted"
    why = f"in a chain {drafted} and {steps + 1} are verified, one more than steps; SGLang overwrites {draft_tokens} in one log line"
    deeper = f"--speculative-num-steps {draft_tokens - 1} for a chain of {draft_tokens}" if draft_tokens > steps + 1 else ""
    fix = "; or ".join(filter(None, [f"--speculative-num-draft-tokens {steps + 1} for what will run", deeper]))
    return [Finding("DS412", "error" if draft_tokens > steps + 1 else "warning", evidence, why, fix)]


def tree_findings(steps: int, topk: int, draft_tokens: int) -> list[Finding]:
    """A tree cannot verify more nodes than it has."""
    most = candidates(steps, topk)
    if 1 <= draft_tokens - 1 <= most:
        return []
    evidence = f"steps {steps}, topk {topk}, draft tokens {draft_tokens}: such a tree has {most} nodes to choose {draft_tokens - 1} from"
    why = "the first request fails with 'selected index k out of range' in torch.topk"
    return [Finding("DS413", "error", evidence, why, f"set --speculative-num-draft-tokens to 2..{most + 1}")]
