"""Do the served prompts begin and end as those of training do? A lost bos token, system prompt or generation prompt fails nowhere. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftsmith.measure.prompts import Prompt, Renderer, user

LEAST_PROMPTS = 10  # of training, to tell what they have in common when there is no template
SHOWN = 60
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Frame:
    """What stands around the user's text. whose: who says so."""

    begin: Ids
    end: Ids
    whose: str


def common_begin(rows: Sequence[Ids]) -> Ids:
    """The tokens that all rows begin with."""
    first = min(rows, key=len)
    same = next((i for i in range(len(first)) if any(row[i] != first[i] for row in rows)), len(first))
    return tuple(first[:same])


def common_end(rows: Sequence[Ids]) -> Ids:
    return tuple(reversed(common_begin([tuple(reversed(row)) for row in rows])))


def frame_of_template(renderer: Renderer) -> Frame:
    """From renderings of texts that have nothing in common."""
    rows = [renderer.render(Prompt(text, (), "", user(text))).token_ids for text in ("a b", "7 ?", "Q")]
    return Frame(common_begin(rows), common_end(rows), "the target's chat template")


def frame_of_training(prompts: Sequence[Ids]) -> Frame | None:
    """The first and the last token, where all agree: more may be the same by chance. None with too few prompts."""
    if len(prompts) < LEAST_PROMPTS:
        return None
    return Frame(common_begin(prompts)[:1], common_end(prompts)[-1:], "training")


def expected_frame(template: Frame | None, training: Sequence[Ids]) -> Frame | None:
    """The template's, unless training was rendered otherwise (by another day, a system prompt of its own): then training's."""
    if template is not None and all(fits(template, row) for row in training):
        return template
    return frame_of_training(training)


def fits(frame: Frame, row: Ids) -> bool:
    return begins(frame, row) and ends(frame, row)


def begins(frame: Frame, row: Ids) -> bool:
    return row[: len(frame.begin)] == frame.begin


def ends(frame: Frame, row: Ids) -> bool:
    return not frame.end or row[-len(frame.end) :] == frame.end


def shift(frame: Frame, served: Sequence[Ids], decode: Callable[[Ids], str]) -> str:
    """In words, which served prompts are framed otherwise; "" when all fit."""
    found = []
    wrong = [row for row in served if not begins(frame, row)]
    if wrong:
        is_, should = decode(wrong[0][: max(len(frame.begin), 4)]), decode(frame.begin)
        found.append(f"{len(wrong)} of {len(served)} served prompts begin with {shortened(is_)}, {frame.whose} with {shortened(should)}")
    wrong = [row for row in served if not ends(frame, row)]
    if wrong:
        is_, should = decode(wrong[0][-max(len(frame.end), 4) :]), decode(frame.end)
        found.append(f"{len(wrong)} of {len(served)} end with {shortened(is_)}, {frame.whose} with {shortened(should)}")
    return "; ".join(found)


def shortened(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[: SHOWN // 2]}...{text[-SHOWN // 2 :]}")
