"""Where acceptance is low, and what of a gap that explains: place in the answer, length, category, draft, temperature. Pure.

A cause is named only when its interval over prompts says so (bootstrap.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftsmith.metrics import Acceptance
from draftsmith.verify.replay.bootstrap import Counts, Difference, compare, counts
from draftsmith.verify.replay.figures import Round, Walked

CUTS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
Inside = Callable[[Walked, Round], bool]


@dataclass(frozen=True)
class Trained:
    """What training saw, as far as it is known. depth: drafts that it unrolled. tokens, answer, prompt: its longest. block: slots of a
    block, when that is what the drafter fills."""

    depth: int | None = None
    tokens: int | None = None
    answer: int | None = None
    prompt: int | None = None
    block: int | None = None


@dataclass(frozen=True)
class Split:
    """Two groups of rounds. kind: "place", "length", "prompt" or "category"."""

    kind: str
    inside: Inside
    name: str
    other: str
    beyond: str = ""  # what training has to do with it


@dataclass(frozen=True)
class Cause:
    """A split whose two sides differ. shares: of the rounds that lie outside (the worse known side for lengths), here and elsewhere."""

    split: Split
    difference: Difference
    share: float  # of the rounds here that are in the second group
    share_elsewhere: float | None = None
    explained: float | None = None  # share of a gap between the two populations that the other mix accounts for

    def as_dict(self) -> dict[str, Any]:
        found = self.difference
        return {
            "kind": self.split.kind,
            "first": self.split.name,
            "second": self.split.other,
            "accept_len": [found.a, found.b],
            "difference": [found.value, found.low, found.high],
            "share": self.share,
            "share_elsewhere": self.share_elsewhere,
            "explained": self.explained,
        }

    def sentence(self) -> str:
        """accept_len on both sides, what training has to do with it, and what it does to the mean."""
        found, split = self.difference, self.split
        low, high = sorted((abs(found.low), abs(found.high)))
        text = f"accept_len is {found.a:.2f} {split.name} and {found.b:.2f} {split.other} (difference {low:.2f} to {high:.2f})"
        text += f": {split.beyond}" if split.beyond else ""
        if self.share_elsewhere is not None and self.explained is not None:
            text += f"; {100 * self.share:.0f} % of these rounds are {split.other}, {100 * self.share_elsewhere:.0f} % of the held-out ones"
            text += f", which accounts for {100 * min(self.explained, 1.0):.0f} % of the gap" if self.explained > 0 else ""
        return text


EVERYTHING = Split("all", lambda _, __: True, "everywhere", "nowhere")


def splits_of(answers: Sequence[Walked], trained: Trained) -> list[Split]:
    """Everything that is looked at: places at powers of two, the longest of training, each category against the rest."""
    found = [at_place(cut, trained) for cut in CUTS]
    if trained.tokens is not None:
        most = trained.tokens
        found.append(
            Split(
                "length",
                lambda answer, round_: answer.prompt_tokens + round_.place < most,
                f"in the first {most} tokens of a conversation",
                f"beyond token {most}",
                f"training saw at most {most} tokens",
            )
        )
    if trained.prompt is not None:
        longest = trained.prompt
        found.append(
            Split(
                "prompt",
                lambda answer, _: answer.prompt_tokens <= longest,
                f"behind prompts of up to {longest} tokens",
                "behind longer prompts",
                f"training's longest prompt has {longest} tokens",
            )
        )
    for category in sorted({answer.category for answer in answers if answer.category}):
        found.append(of_category(category))
    return found


def at_place(cut: int, trained: Trained) -> Split:
    beyond = f"training's longest answer has {trained.answer} tokens" if trained.answer is not None and cut >= trained.answer else ""
    name = f"in the first {cut} tokens of answers"
    return Split("place", lambda _, round_: round_.place < cut, name, f"beyond token {cut} of answers", beyond)


def of_category(category: str) -> Split:
    return Split("category", lambda answer, _: answer.category != category, "on the other prompts", f"on prompts of category {category!r}")


def sides(answers: Sequence[Walked], split: Split) -> tuple[Counts, Counts]:
    """Counts by prompt of both groups. Answers to the same prompt are one."""
    table: dict[str, list[int]] = {}
    for answer in answers:
        row = table.setdefault(answer.id, [0, 0, 0, 0])
        for round_ in answer.rounds:
            place = 0 if split.inside(answer, round_) else 2
            row[place] += 1
            row[place + 1] += round_.accepted
    return counts([(row[0], row[1]) for row in table.values()]), counts([(row[2], row[3]) for row in table.values()])


def causes(answers: Sequence[Walked], trained: Trained, elsewhere: Sequence[Walked] = ()) -> list[Cause]:
    """The splits that are sure, strongest first; of several cuts in length only the strongest. elsewhere: the population that a gap is
    counted from (the held-out samples)."""
    looked = [(split, *sides(answers, split)) for split in splits_of(answers, trained)]
    looked = [(split, a, b) for split, a, b in looked if a.enough and b.enough]
    found = []
    for split, a, b in looked:
        difference = compare(a, b, comparisons=len(looked))
        if difference.sure:
            found.append(with_mix(Cause(split, difference, share_of(a, b)), answers, elsewhere))
    found.sort(key=lambda cause: -cause.difference.strength)
    kept: list[Cause] = []
    for cause in found:
        lengths = {"place", "length", "prompt"}
        if cause.split.kind in lengths and any(other.split.kind in lengths for other in kept):
            continue
        kept.append(cause)
    return kept


def share_of(a: Counts, b: Counts) -> float:
    """Of all rounds, those of the second group."""
    return float(b.rounds_P.sum() / (a.rounds_P.sum() + b.rounds_P.sum()))


def with_mix(cause: Cause, answers: Sequence[Walked], elsewhere: Sequence[Walked]) -> Cause:
    """How much of the gap between the two populations comes from another mix of the two groups: by the accept_len of each group here,
    weighted as elsewhere."""
    if not elsewhere:
        return cause
    a, b = sides(elsewhere, cause.split)
    if not a.rounds_P.sum() + b.rounds_P.sum():
        return cause
    there, found = share_of(a, b), cause.difference
    whole = accept_len(elsewhere) - accept_len(answers)
    moved = (cause.share - there) * (found.a - found.b)
    return Cause(cause.split, found, cause.share, there, moved / whole if whole else 0.0)


def accept_len(answers: Sequence[Walked]) -> float:
    """Of all rounds together."""
    rounds = [round_.accepted for answer in answers for round_ in answer.rounds]
    return 1 + sum(rounds) / len(rounds)


# --- drafts ----------------------------------------------------------------------------------------------------------


def falling(answers: Sequence[Walked], depth: int, trained: Trained) -> str:
    """The first draft that is right less often, in the rounds that come to it, than the one before it; "" when none is, surely."""
    for k in range(1, depth):
        table: dict[str, list[int]] = {}
        for answer in answers:
            row = table.setdefault(answer.id, [0, 0, 0])
            for round_ in answer.rounds:
                row[0] += round_.accepted >= k - 1
                row[1] += round_.accepted >= k
                row[2] += round_.accepted >= k + 1
        pairs = [((row[0], row[1]), (row[1], row[2])) for row in table.values()]
        before, after = counts([pair[0] for pair in pairs]), counts([pair[1] for pair in pairs])
        if not (before.enough and after.enough):
            return ""
        found = compare(before, after, comparisons=depth - 1)
        if found.low > 0 and found.value >= 0.05:
            share, before_it = 100 * (found.b - 1), 100 * (found.a - 1)
            text = f"draft {k + 1} is right in {share:.0f} % of the rounds that come to it, draft {k} in {before_it:.0f} %"
            if trained.depth is not None and k + 1 > trained.depth:
                text += f": training unrolled {trained.depth} draft{'s' if trained.depth > 1 else ''}"
            return text
    return ""


def where_drafts_part(predicted: Acceptance, served: Acceptance, block: bool = False) -> str:
    """In words, at which draft the served rounds leave the replayed ones: every share beside the other, of the rounds that come to it."""
    shares = list(zip(predicted.conditional, served.conditional, strict=True))
    for number, (ours, theirs) in enumerate(shares, start=1):
        reached = served.rounds if number == 1 else served.reached[number - 2]
        if not reached or ours != ours or theirs != theirs:
            break
        error = (max(theirs * (1 - theirs), 0.25 / reached) / reached) ** 0.5
        if abs(ours - theirs) > max(0.05, 2.6 * error):
            right = f"draft {number} is right in {100 * ours:.0f} % of the rounds that come to it here, {100 * theirs:.0f} % on the server"
            if number == 1:
                return f"{right}: what the drafter is given, or its weights, differ already in the first step"
            agree = "draft 1 agrees" if number == 2 else f"drafts 1 to {number - 1} agree"
            its_own = "what the slots of a block are given differs (mask token, positions, what they see of each other)"
            chained = "what the drafter makes of its own states differs (positions, its own keys and values, its embedding of drafts)"
            return f"{agree}; {right}: {its_own if block else chained}"
    return ""


def where_gaps_lie(answers: Sequence[Walked], own: Mapping[str, Acceptance]) -> str:
    """Which answers the gap between replay and server comes from, where the server counts each answer; "" when it is in all of them.

    A group is named when its gap is sure, and what is left without it is not, and less than half.
    """
    if not own:
        return ""
    splits = [of_category(name) for name in sorted({answer.category for answer in answers if answer.category})]
    for cut in CUTS:
        short, long = f"of up to {cut} tokens", f"of more than {cut} tokens"
        splits.append(Split("answer", lambda a, _, cut=cut: a.answer_tokens <= cut, f"in answers {short}", f"in answers {long}"))
        splits.append(Split("prompt", lambda a, _, cut=cut: a.prompt_tokens <= cut, f"behind prompts {short}", f"behind prompts {long}"))
    sentences: list[tuple[float, str]] = []
    for split in splits:
        for inside, where in ((True, split.name), (False, split.other)):
            part = [answer for answer in answers if split.inside(answer, Round(1, 0)) is inside]
            rest = [answer for answer in answers if split.inside(answer, Round(1, 0)) is not inside]
            here, there = gap_of(part, own, 2 * len(splits)), gap_of(rest, own, 2 * len(splits))
            if here is not None and there is not None and here.sure and not there.sure and abs(there.value) < abs(here.value) / 2:
                both = f"{here.a:.2f} replayed and {here.b:.2f} served there, {there.a:.2f} and {there.b:.2f} elsewhere"
                text = f"the gap lies {where}: accept_len is {both}"
                sentences.append((here.strength, text))
    return max(sentences, default=(0.0, ""))[1]


def gap_of(answers: Sequence[Walked], own: Mapping[str, Acceptance], comparisons: int) -> Difference | None:
    """Replayed minus served accept_len of these answers, over prompts; None with too few."""
    ours = counts([(len(answer.rounds), sum(round_.accepted for round_ in answer.rounds)) for answer in answers])
    theirs = counts([(own[answer.id].rounds, own[answer.id].accepted) for answer in answers])
    return compare(ours, theirs, comparisons) if ours.enough and theirs.enough else None


def by_group(answers: Sequence[Walked]) -> Mapping[str, Any]:
    """prompts, rounds and accept_len by category, for the record; {} without categories."""
    groups: dict[str, list[Walked]] = {}
    for answer in answers:
        groups.setdefault(answer.category, []).append(answer)
    return {
        name: {"prompts": len({a.id for a in part}), "rounds": sum(len(a.rounds) for a in part), "accept_len": accept_len(part)}
        for name, part in sorted(groups.items())
        if name and any(a.rounds for a in part)
    }
