"""Causes of low acceptance: each is planted and named, and none is named where there is none, over many seeds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from draftsmith.findings import Finding
from draftsmith.metrics import Acceptance
from draftsmith.verify.replay.bootstrap import Difference, compare, compare_apart, counts
from draftsmith.verify.replay.causes import EVERYTHING, Trained, causes, falling, sides, where_drafts_part, where_gaps_lie
from draftsmith.verify.replay.figures import Walked, with_places
from draftsmith.verify.replay.prompts import Frame, common_begin, common_end, expected_frame, frame_of_training, shift
from draftsmith.verify.replay.rounds import Replay
from draftsmith.verify.replay.suspects import Fit, Suspect, distance, fitting, suspects
from draftsmith.verify.replay.words import population_finding, served_findings, trained_findings

DEPTH = 3
Chance = Callable[[str, int, int], float]  # category, place, draft -> chance that the draft is right
CATEGORIES = ("code", "prose", "maths")


def population(chance: Chance, seed: int, prompts: int = 40, tokens: int = 200, spread: float = 0.05, begin: str = "p") -> list[Walked]:
    """Answers whose drafts are right by chance; prompts differ by `spread`."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(prompts):
        category, own, place, accepted = CATEGORIES[number % 3], rng.normal(0, spread), 1, []
        while place < tokens:
            drafts = 0
            while drafts < DEPTH and rng.random() < chance(category, place, drafts) + own:
                drafts += 1
            accepted.append(drafts)
            place += drafts + 1
        found.append(Walked(f"{begin}{number}", category, int(rng.integers(20, 60)), tokens, tuple(with_places(accepted))))
    return found


def even(_category: str, _place: int, _draft: int) -> float:
    return 0.5


SEEN = Trained(depth=3, tokens=150, answer=128, prompt=40)


def test_nothing_is_named_where_nothing_is() -> None:
    """40 populations without a cause, of prompts that differ: not one sentence, of causes, drafts or another population."""
    said = []
    for seed in range(40):
        here, there = population(even, seed, 24, 180), population(even, seed + 1000, 24, 180, begin="h")
        said += [cause.sentence() for cause in causes(here, SEEN, there)]
        said += [text for text in [falling(here, DEPTH, SEEN)] if text]
        said += population_finding(difference(there, here), [])
    assert said == []


def difference(a: list[Walked], b: list[Walked]) -> Difference:
    return compare_apart(sides(a, EVERYTHING)[0], sides(b, EVERYTHING)[0])


@pytest.mark.parametrize("seed", range(5))
def test_a_place_beyond_training_is_named_with_what_training_saw(seed: int) -> None:
    here = population(lambda _c, place, _d: 0.6 if place < 128 else 0.25, seed, tokens=256)
    [cause] = causes(here, SEEN)
    sentence = cause.sentence()
    assert "in the first 128 tokens of answers" in sentence and "training's longest answer has 128 tokens" in sentence, sentence
    assert cause.difference.a == pytest.approx(2.18, abs=0.15) and cause.difference.b == pytest.approx(1.33, abs=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_a_weak_category_is_named(seed: int) -> None:
    here = population(lambda category, _p, _d: 0.25 if category == "maths" else 0.6, seed, prompts=30)
    named = {cause.split.other: cause for cause in causes(here, Trained())}
    assert "on prompts of category 'maths'" in named
    weak = named["on prompts of category 'maths'"].difference
    assert weak.b < weak.a and weak.low < weak.value < weak.high


def test_how_much_of_a_gap_the_mix_explains() -> None:
    """Held-out answers are short, served ones long: all of the gap is in the places that the held-out ones do not have."""
    chance: Chance = lambda _c, place, _d: 0.6 if place < 128 else 0.2  # noqa: E731
    heldout, served = population(chance, 1, tokens=120, begin="h"), population(chance, 2, tokens=300)
    [cause] = causes(served, SEEN, heldout)
    assert cause.share_elsewhere == 0.0 and cause.share > 0.5
    assert cause.explained == pytest.approx(1.0, abs=0.1)
    [finding] = population_finding(difference(heldout, served), [cause.sentence()])
    assert (finding.code, finding.severity) == ("DS805", "error")
    assert (
        "0 % of the held-out ones, which accounts for" in finding.evidence
        and "training's longest answer has 128 tokens" in finding.evidence
    )


def test_a_gap_without_a_cause_says_so() -> None:
    here, there = population(lambda *_: 0.3, 1), population(lambda *_: 0.6, 2, begin="h")
    [finding] = population_finding(difference(there, here), [])
    assert "no cause is sure" in finding.evidence


@pytest.mark.parametrize(("deep", "says"), [(3, ""), (1, ": training unrolled 1 draft")])
def test_a_fall_after_the_first_draft_is_named(deep: int, says: str) -> None:
    here = population(lambda _c, _p, draft: (0.7, 0.3, 0.3)[draft], 3)
    text = falling(here, DEPTH, Trained(depth=deep))
    assert text.startswith("draft 2 is right in 3") and "draft 1 in 7" in text and text.endswith(says)


def test_few_prompts_or_rounds_name_nothing() -> None:
    here = population(lambda category, *_: 0.1 if category == "maths" else 0.9, 1, prompts=6)
    assert causes(here, Trained()) == [], "two prompts of each category are no evidence"


# --- the interval ----------------------------------------------------------------------------------------------------


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """95 % asked for, prompts of different length and kind: 91 to 99 of 100 hold the true difference of 0."""
    held = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        table = []
        for _ in range(2):
            rounds = rng.integers(5, 60, 25)
            table.append(counts([(int(n), int(rng.binomial(n, min(max(rng.normal(0.5, 0.15), 0), 1)))) for n in rounds]))
        found = compare(*table, confidence=0.95)
        held += found.low <= 0 <= found.high
    assert 91 <= held <= 99, held


def test_a_difference_must_be_large_enough_to_matter() -> None:
    assert not Difference(2.0, 1.95, 0.04, 0.06).sure
    assert Difference(2.0, 1.7, 0.2, 0.4).sure and not Difference(2.0, 1.7, -0.1, 0.7).sure


def test_sides_add_up_answers_to_the_same_prompt() -> None:
    one = population(even, 1, prompts=2)
    a, b = sides([*one, *one], EVERYTHING)
    assert len(a.rounds_P) == 2 and b.rounds_P.sum() == 0
    assert a.rounds_P[0] == 2 * len(one[0].rounds)


# --- replay beside the server ----------------------------------------------------------------------------------------


def test_where_the_drafts_part() -> None:
    predicted = Acceptance(1000, (600, 360, 216))
    assert where_drafts_part(predicted, predicted) == ""
    assert where_drafts_part(predicted, Acceptance(1000, (590, 350, 214))) == "", "a few flips are rounding"
    assert where_drafts_part(predicted, Acceptance(1000, (300, 180, 108))).startswith("draft 1 is right in 60 %")
    text = where_drafts_part(predicted, Acceptance(1000, (600, 120, 20)))
    assert text.startswith("draft 1 agrees; draft 2 is right in 60 % of the rounds that come to it here, 20 % on the server")
    assert where_drafts_part(predicted, Acceptance(1000, (600, 360, 30))).startswith("drafts 1 to 2 agree; draft 3")


def own(answers: list[Walked], spoilt: Callable[[Walked], bool]) -> dict[str, Acceptance]:
    """What a server says of each answer: as replayed, or nothing accepted where it is spoilt."""
    found = {}
    for answer in answers:
        rounds = [0 if spoilt(answer) else one.accepted for one in answer.rounds]
        found[answer.id] = Acceptance.from_rounds(rounds, DEPTH)
    return found


def test_a_gap_in_some_answers_is_placed_there() -> None:
    answers = population(even, 4, prompts=60)
    assert where_gaps_lie(answers, own(answers, lambda _: False)) == ""
    assert where_gaps_lie(answers, {}) == ""
    text = where_gaps_lie(answers, own(answers, lambda answer: answer.category == "maths"))
    assert text.startswith("the gap lies on prompts of category 'maths': accept_len is 1.8") and "1.00 served there" in text
    text = where_gaps_lie(answers, own(answers, lambda answer: answer.prompt_tokens > 32))
    assert text.startswith("the gap lies behind prompts of more than 32 tokens")
    assert where_gaps_lie(answers, own(answers, lambda _: True)) == "", "everywhere is no place"


def fit(says: str, reached: tuple[int, ...], served: Acceptance) -> Fit:
    predicted = Acceptance(1000, reached)
    return Fit(Suspect(says, (2, 4, 5)), predicted, distance(predicted, served))


def test_a_suspect_is_named_only_when_it_fits_and_the_straight_wiring_does_not() -> None:
    served = Acceptance(1000, (300, 100, 20))
    straight, guilty, other = (
        fit("as trained", (600, 300, 150), served),
        fit("tap 1 is late", (305, 101, 20), served),
        fit("x", (400, 0, 0), served),
    )
    assert fitting([guilty, other, straight]) == [guilty]
    assert fitting([other, straight]) == []
    assert fitting([fit("as trained", (310, 100, 20), served), guilty]) == [], "the straight wiring fits, too"
    replay = Replay(straight.predicted, served, 20)
    [finding, *_] = served_findings("x", replay, [guilty, other, straight])
    assert finding.code == "DS801" and "reaches when tap 1 is late (accept_len 1.426)" in finding.evidence
    assert finding.fix.startswith("make the engine pass boundaries [2, 4, 5]")


def test_suspects_are_all_different_and_inside_the_target() -> None:
    found = list(suspects((2, 15, 27), 30))
    keys = [(suspect.taps, suspect.shift) for suspect in found]
    assert len(set(keys)) == len(keys) == 4 + 6 + 5 + 2
    assert all(0 <= tap <= 30 for suspect in found for tap in suspect.taps)
    assert (0, 2, 15) in [suspect.taps for suspect in found], "embedding and two layers: the mistake that cost weeks"
    assert all(min(suspect.taps) >= 0 and max(suspect.taps) <= 6 for suspect in suspects((0, 3, 6), 6))


def test_training_and_export_are_held_to_a_hundredth() -> None:
    trained = Acceptance(1000, (600, 300, 150))
    assert trained_findings(trained, trained) == [] == trained_findings(Acceptance(1000, (601, 299, 150)), trained)
    [finding] = trained_findings(Acceptance(1000, (600, 200, 20)), trained)
    assert finding.code == "DS804" and "they part at draft 2" in finding.consequence
    [finding] = trained_findings(Acceptance(900, (540, 270, 135)), trained)
    assert "not the rows" in finding.consequence and isinstance(finding, Finding)


# --- prompts ---------------------------------------------------------------------------------------------------------


def test_frames() -> None:
    rows = [(1, 5, number, 9, 7) for number in range(12)]
    assert common_begin(rows) == (1, 5) and common_end(rows) == (9, 7)
    assert frame_of_training(rows[:5]) is None
    training = frame_of_training(rows)
    assert training == Frame((1,), (7,), "training")
    template = Frame((1, 5), (9, 7), "the target's chat template")
    assert expected_frame(template, rows) == template and expected_frame(None, rows) == training
    assert expected_frame(Frame((2,), (), "the target's chat template"), rows) == training, "training was rendered otherwise"
    assert shift(template, rows, str) == ""
    said = shift(template, [(5, 3, 9, 7), *rows, (1, 5, 3)], str)
    assert said.startswith("1 of 14 served prompts begin with '(5, 3, 9, 7)', the target's chat template with '(1, 5)'")
    assert "1 of 14 end with '(1, 5, 3)'" in said
