"""The target's chat template, used from outside: where the user's text goes, what ends it, what opens the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from draftsmith.errors import CheckFailed, EnvironmentFailed

USER = "draftsmithusertext"  # stand-ins for content; plain letters, so that no template trims or escapes them
ANSWER = "draftsmithanswertext"


@dataclass(frozen=True)
class UserTurn:
    """What stands around the user's text in a rendered conversation."""

    before: str
    end: str  # the string that ends the turn


class ChatTemplate:
    """Rendering and token ids of one target. `end_ids`: the tokens with which the target ends its turn."""

    def __init__(self, tokenizer: Any, end_ids: frozenset[int]) -> None:
        if not tokenizer.chat_template:
            raise CheckFailed(
                "the target has no chat template", hint="use an instruction-tuned target, or put chat_template.jinja into its folder"
            )
        if not end_ids:
            raise CheckFailed("the target names no end-of-turn token", hint="set eos_token_id in its generation_config.json")
        self.tokenizer = tokenizer
        self.end_ids = end_ids

    @classmethod
    def load(cls, target: Path, trust_remote_code: bool = False) -> ChatTemplate:
        """From a Hugging Face folder. Raises EnvironmentFailed when the tokenizer cannot be read."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True, trust_remote_code=trust_remote_code)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:  # what a damaged file makes of them
            raise EnvironmentFailed(f"cannot load the tokenizer in {target}: {error!r}", hint="the folder needs tokenizer.json") from error
        return cls(tokenizer, read_end_ids(target, tokenizer.eos_token_id))

    def render(self, turns: list[dict[str, str]], generation: bool) -> str:
        """The conversation as text, with the opening of the next answer when `generation`. Raises CheckFailed."""
        try:
            return self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=generation)
        except jinja2.TemplateError as error:
            raise CheckFailed(
                f"the chat template refuses {[turn['role'] for turn in turns]}: {error}", hint="fix chat_template.jinja"
            ) from error

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids of rendered text; the template has already put in what special tokens there are."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def prompt_ids(self, user: str) -> tuple[int, ...]:
        """Token ids up to the first token of the answer."""
        return self.ids(self.render([as_user(user)], generation=True))

    def decode(self, ids: list[int], special: bool) -> str:
        """Text of token ids, special tokens spelled out or left out."""
        return self.tokenizer.decode(ids, skip_special_tokens=not special, clean_up_tokenization_spaces=False)

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Every string that is markup and not text."""
        added = (token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special)
        return tuple(sorted({*self.tokenizer.all_special_tokens, *added} - {""}))

    @cached_property
    def user_turn(self) -> UserTurn:
        """Raises CheckFailed when the rendering does not hold the user's text exactly once, or nothing follows it."""
        rendered = self.render([as_user(USER)], generation=False)
        if (count := rendered.count(USER)) != 1:
            raise CheckFailed(
                f"the chat template renders the user's text {count} times, expected once and unchanged", hint="set data.synthesised to 0"
            )
        before, after = rendered.split(USER)
        if not after.strip():  # templates in which only the answer's header ends the user's turn
            after = self.render([as_user(USER)], generation=True).split(USER)[1]
        if not after.strip():
            raise CheckFailed("nothing in the chat template ends the user's turn", hint="set data.synthesised to 0")
        return UserTurn(before, self._first_mark(after))

    def _first_mark(self, after: str) -> str:
        """The first special token of `after`, or the first line of text when that comes earlier."""
        text = after.strip()
        places = [(place, -len(token), token) for token in self.special_tokens if (place := text.find(token)) >= 0]
        if not places:
            return text.split("\n")[0].strip()
        place, _, token = min(places)
        return text[:place].split("\n")[0].strip() or token

    @cached_property
    def generation_prompt(self) -> str:
        """What stands between the user's text and the first answer token, end of the user's turn included."""
        return self.render([as_user(USER)], generation=True).split(USER)[-1]

    def check(self) -> None:
        """Raises CheckFailed when training on answers that follow this template's prompt would go wrong."""
        closed = self.render([as_user(USER)], generation=False)
        opened = self.render([as_user(USER)], generation=True)
        whole = self.render([as_user(USER), {"role": "assistant", "content": ANSWER}], generation=False)
        hint = "fix chat_template.jinja in the target's folder"
        same = common_length(closed, opened, whole)  # some templates close a conversation without answer in a way of its own
        if USER not in opened[:same]:
            raise CheckFailed("the chat template changes the user's text, or changes it when an answer follows", hint=hint)
        if ANSWER not in whole:
            raise CheckFailed("the chat template does not render the answer's text unchanged", hint=hint)
        opening = opened[same:].strip()
        header = whole[same : whole.index(ANSWER)].strip()
        if header and not opening:
            raise CheckFailed(
                f"the chat template ignores add_generation_prompt: the target would write {header!r} itself and be trained on it",
                hint=hint,
            )
        if not (header.startswith(opening) or opening.startswith(header)):
            raise CheckFailed(f"the chat template opens an answer with {opening!r}, but renders answers after {header!r}", hint=hint)


def as_user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def common_length(*texts: str) -> int:
    """Number of leading characters that all texts share."""
    columns = zip(*texts, strict=False)
    return next((place for place, column in enumerate(columns) if len(set(column)) > 1), min(map(len, texts)))


def read_end_ids(target: Path, tokenizer_eos: int | None) -> frozenset[int]:
    """Every token id that the target's files name as an end: the engines stop at all of them."""
    found = set() if tokenizer_eos is None else {tokenizer_eos}
    for name in ("generation_config.json", "config.json"):
        if (target / name).exists():
            value = json.loads((target / name).read_text()).get("eos_token_id")
            found.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(found)
