"""Prompt mix and dedup: nothing that is held out occurs in training, and what counts as the same text."""

from __future__ import annotations

import pytest
import yaml
from pydantic import ValidationError

from draftsmith.data.dedup import Seen, normalise, repeated_share
from draftsmith.data.prompts import (
    WRITTEN,
    Mix,
    choose_written,
    is_heldout,
    split_synthesised,
    written_prompts,
)
from draftsmith.data.settings import DataSettings, HoldOut
from draftsmith.errors import UsageError


def topics_of_texts() -> dict[str, set[str]]:
    """Normalised prompt text -> the topics that it can have been made from."""
    found: dict[str, set[str]] = {}
    for part in yaml.safe_load(WRITTEN.read_text()).values():
        for topic in part["topics"]:
            for template in part["templates"]:
                found.setdefault(normalise(template.replace("{topic}", topic)), set()).add(topic)
    return found


def test_no_topic_is_in_both_splits() -> None:
    origin = topics_of_texts()
    topics: dict[str, set[str]] = {"train": set(), "heldout": set()}
    for prompt in choose_written(Mix.of(DataSettings(written=1500, synthesised=0, heldout=150)), "topic", seed=3):
        topics[prompt.split] |= origin[normalise(prompt.text)]
    assert topics["train"] and topics["heldout"]
    assert not topics["train"] & topics["heldout"]
    assert all(is_heldout(topic) for topic in topics["heldout"])


@pytest.mark.parametrize("hold_out", ["topic", "prompt"])
def test_no_training_prompt_is_nearly_a_heldout_one(hold_out: HoldOut) -> None:
    chosen = choose_written(Mix.of(DataSettings(written=1000, synthesised=0, heldout=100)), hold_out, seed=0)
    seen = Seen()
    for prompt in chosen:
        if prompt.split == "heldout":
            seen.add(prompt.text)
    assert all(seen.like(prompt.text) is None for prompt in chosen if prompt.split == "train")


@pytest.mark.parametrize("hold_out", ["topic", "prompt"])
def test_written_prompts_are_distinct_and_a_tenth_is_held_out(hold_out: HoldOut) -> None:
    prompts = written_prompts(hold_out)
    assert len({prompt.id for prompt in prompts}) == len({normalise(prompt.text) for prompt in prompts}) == len(prompts)
    assert not any("{" in prompt.text for prompt in prompts)
    heldout = sum(prompt.split == "heldout" for prompt in prompts)
    assert 0.05 < heldout / len(prompts) < 0.15


def test_the_default_recipe_can_be_met_and_the_seed_changes_the_choice() -> None:
    mix = Mix.of(DataSettings())
    assert (mix.written_train, mix.written_heldout, mix.synthesised_train, mix.synthesised_heldout) == (900, 72, 300, 24)
    first, again, other = (choose_written(mix, "topic", seed) for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == 972
    sources = {prompt.source for prompt in first if prompt.split == "heldout"}
    assert len(sources) >= 7  # the held-out prompts keep the mix


def test_too_many_prompts_asked() -> None:
    with pytest.raises(UsageError, match="asks for 5000 written train prompts") as error:
        choose_written(Mix.of(DataSettings(written=5000)), "topic", 0)
    assert "data.written" in error.value.hint


def test_categories_are_those_of_one_service() -> None:
    mix = Mix.of(DataSettings(written=300, synthesised=0, heldout=30))
    chosen = choose_written(mix, "prompt", 0, ("code",))
    assert {prompt.source for prompt in chosen} == {"code"} and len(chosen) == 330
    assert {prompt.source for prompt in choose_written(mix, "prompt", 0, ("code", "math"))} == {"code", "math"}


def test_an_unknown_category_is_named() -> None:
    with pytest.raises(UsageError, match=r"there is no cod\n") as error:
        choose_written(Mix.of(DataSettings(written=1)), "prompt", 0, ("cod",))
    assert "code" in error.value.hint


def test_nothing_asked() -> None:
    with pytest.raises(ValidationError, match="nothing to train on"):
        DataSettings(written=0, synthesised=0)


def test_synthesised_prompts_are_split_in_proportion_whatever_their_order() -> None:
    mix = Mix.of(DataSettings(written=10, synthesised=30, heldout=8))
    texts = [f"prompt number {n}" for n in range(36)]
    prompts = split_synthesised(texts, mix, 0)
    assert sum(prompt.split == "heldout" for prompt in prompts) == 6
    assert prompts == split_synthesised(texts[::-1], mix, 0)
    few = split_synthesised(texts[:12], mix, 0)  # the target wrote a third of what was wanted
    assert sum(prompt.split == "heldout" for prompt in few) == 2
    assert split_synthesised([], Mix.of(DataSettings(written=4, synthesised=0)), 0) == []


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("can you give me a SHORT list of tips for growing tomatoes", "duplicate"),
        ("Can you give me a short list of tips for growing tall tomatoes?", "near-duplicate"),
        ("Can you explain how tomatoes grow in winter?", None),
        ("Write C++ code", "duplicate"),
        ("Write C code", None),
    ],
)
def test_duplicates(text: str, verdict: str | None) -> None:
    seen = Seen()
    seen.add("Can you give me a short list of tips for growing tomatoes?")
    seen.add("write c++ code!")
    assert seen.like(text) == verdict


def test_repeated_share() -> None:
    assert repeated_share([], 8) == 0
    assert repeated_share(list(range(100)), 8) == 0
    assert repeated_share([1, 2, 3] * 20, 8) == pytest.approx(57 / 60)  # all but the first period
    period_20 = list(range(20)) * 3
    assert repeated_share(period_20, 8) == pytest.approx(40 / 60)
    assert repeated_share([*range(60), *range(8)], 8) == pytest.approx(8 / 68)
