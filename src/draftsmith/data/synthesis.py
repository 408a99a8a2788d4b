"""Prompts that the target writes itself: it is sampled from the place in its chat template where the user's text begins."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from draftsmith.data.answers import Asker, Journal
from draftsmith.data.dedup import Seen, repeated_share
from draftsmith.data.prompts import Prompt
from draftsmith.data.settings import DataSettings
from draftsmith.data.template import ChatTemplate
from draftsmith.job import Talk
from draftsmith.measure.client import Request

MIN_WORDS, MIN_CHARACTERS, MAX_CHARACTERS = 3, 12, 600
MIN_LETTERS = 0.6  # share of the characters that are not spaces
LOOP_WORDS, MAX_LOOP = 4, 0.5
MOST_ASKED = 4  # requests per wanted prompt before the stage goes on with fewer


def more_to_ask(wanted: int, asked: int, kept: int) -> int:
    """How many more requests to send when `asked` of them gave `kept` new prompts. 0 when there are enough, or it is hopeless."""
    missing = wanted - kept
    if missing <= 0 or asked >= MOST_ASKED * wanted:
        return 0
    share = kept / asked if asked else 0.85
    return min(math.ceil(1.05 * missing / max(share, 0.1)) + 4, MOST_ASKED * wanted - asked)


def synthesise(
    asker: Asker, template: ChatTemplate, journal: Journal, wanted: int, written: Iterable[Prompt], settings: DataSettings
) -> None:
    """Ask until the journal holds `wanted` prompts that are new and sensible, or MOST_ASKED times as many requests were sent."""
    # tokenizers join a space to the word after it
    ids = {opening: template.ids((template.user_turn.before + opening).rstrip(" ")) for opening in settings.synthesis_openings}
    written, asked = list(written), 0
    while more := more_to_ask(wanted, asked, len(accepted(journal, asked, template, written, settings.synthesis_openings)[0])):
        asked += more
        requests = [
            Request(
                id=request_id(number),
                prompt_token_ids=ids[opening_of(number, settings.synthesis_openings)],
                max_tokens=settings.synthesis_max_tokens,
                temperature=settings.synthesis_temperature,
                top_p=settings.synthesis_top_p,
                seed=settings.seed * 1_000_003 + number,
                stop=(template.user_turn.end,),
            )
            for number in range(asked)
        ]
        asker.ask("synthesised prompts", requests, journal)


def request_id(number: int) -> str:
    return f"synthesised-{number:06d}"


def opening_of(number: int, openings: Sequence[str]) -> str:
    """The words that request `number` puts into the target's mouth."""
    return openings[number % len(openings)]


def accepted(
    journal: Journal, asked: int | None, template: ChatTemplate, written: Sequence[Prompt], openings: Sequence[str] = ("",)
) -> tuple[list[str], Counter[str]]:
    """(new and sensible prompts, how many were dropped for which reason), in the order of asking.

    asked: look at the first so many requests only; None: at all that the journal holds.
    """
    seen = Seen()
    for prompt in written:
        seen.add(prompt.text)
    kept: list[str] = []
    dropped: Counter[str] = Counter()
    for key in sorted(journal.rows):
        if asked is not None and key >= request_id(asked):
            continue
        number = int(key.rpartition("-")[2])
        text, fault = clean(journal.rows[key], template, opening_of(number, openings))
        fault = fault or seen.like(text)
        if fault:
            dropped[fault] += 1
            continue
        seen.add(text)
        kept.append(text)
    return kept, dropped


def clean(row: dict[str, Any], template: ChatTemplate, opening: str = "") -> tuple[str, str | None]:
    """(text of one sampled user turn, its opening included, why it is no prompt or None)."""
    ids: list[int] = row["token_ids"]
    ended = next((place for place, token in enumerate(ids) if token in template.end_ids), len(ids))
    # decoded together: a tokenizer may drop the space before the first token of a text
    whole = [*(template.ids(opening.rstrip(" ")) if opening else ()), *ids[:ended]]
    text, mark, _ = template.decode(whole, special=True).partition(template.user_turn.end)
    text = text.strip()
    if ended == len(ids) and not mark and row["finish_reason"] != "stop":
        return text, "unfinished"
    if len(text) < MIN_CHARACTERS or len(text.split()) < MIN_WORDS:
        return text, "too short"
    if len(text) > MAX_CHARACTERS:
        return text, "too long"
    if any(token in text for token in template.special_tokens):
        return text, "markup"
    visible = "".join(text.split())
    if "\ufffd" in text or sum(c.isalpha() for c in visible) < MIN_LETTERS * len(visible):
        return text, "not text"
    if repeated_share(text.casefold().split(), LOOP_WORDS) > MAX_LOOP:
        return text, "loop"
    return text, None


def tell_shortfall(wanted: int, kept: int, asked: int, talk: Talk) -> None:
    """Say so when the target did not write enough prompts."""
    if kept < wanted:
        talk.say(f"data: the target wrote {kept} usable prompts in {asked} tries, {wanted} were wanted; going on with those")
