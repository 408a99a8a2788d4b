"""From a reply to a sample, and the proof that the loss mask covers the answer and nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftsmith.data.dedup import repeated_share
from draftsmith.data.prompts import Prompt
from draftsmith.data.template import ChatTemplate, as_user
from draftsmith.errors import CheckFailed, EnvironmentFailed
from draftsmith.manifest import atomic_write_json
from draftsmith.samples import Sample

LOOP_TOKENS, MAX_LOOP = 8, 0.5  # an answer of which more than half lies in repeated 8-grams is a loop
RECORD = "mask.json"


def make_sample(prompt: Prompt, row: dict[str, Any], template: ChatTemplate) -> tuple[Sample, str | None]:
    """(sample, why it must not be used or None). The ids are the prompt as it was sent and the answer as it came back."""
    asked = template.prompt_ids(prompt.text)
    answer: list[int] = row["token_ids"]
    tokens = np.array([*asked, *answer], dtype=np.int32)
    mask = np.zeros(len(tokens), dtype=np.uint8)
    mask[len(asked) :] = 1
    turns = [as_user(prompt.text), {"role": "assistant", "content": row["text"]}]
    sample = Sample(prompt.id, prompt.source, turns, tokens, mask, len(asked), row["finish_reason"])
    return sample, degenerate(answer, row["text"])


def degenerate(answer: list[int], text: str) -> str | None:
    """Why an answer teaches nothing, or None."""
    if not text.strip():
        return "empty answer"
    return "repeated loop" if repeated_share(answer, LOOP_TOKENS) > MAX_LOOP else None


def check_sample(sample: Sample, row: dict[str, Any], template: ChatTemplate) -> None:
    """Raises CheckFailed, naming what is wrong, unless the supervised tokens are exactly the answer behind the generation prompt."""
    hint = "compare the target's chat_template.jinja and eos_token_id with what the engine's log says"
    if row["prompt_tokens"] != sample.num_prompt_tokens:
        raise CheckFailed(
            f"prompt {sample.id}: {sample.num_prompt_tokens} tokens were sent, the engine counted {row['prompt_tokens']}",
            hint=hint,
        )
    supervised = sample.token_ids[sample.loss_mask == 1].tolist()
    check_end(sample, supervised, template)
    before = template.decode(sample.prompt_ids.tolist(), special=True).rstrip()
    opening = template.generation_prompt.rstrip()
    if not before.endswith(opening):
        raise CheckFailed(f"prompt {sample.id}: before the first supervised token stands {before[-40:]!r}, expected {opening!r}", hint=hint)
    decoded = template.decode(supervised, special=False)
    if plain(decoded) != plain(sample.turns[-1]["content"]):
        raise CheckFailed(f"prompt {sample.id}: the supervised tokens read {decoded[:80]!r}, the answer is {row['text'][:80]!r}", hint=hint)


def check_end(sample: Sample, answer: list[int], template: ChatTemplate) -> None:
    """Raises CheckFailed for an answer that stopped without an end token, or went on behind one. The last token of the longest answer
    that was allowed may be an end: SGLang then says "length", vLLM "stop"."""
    ends = [place for place, token in enumerate(answer, 1) if token in template.end_ids]
    if ends and ends[0] < len(answer):
        wrong = f"an end token is number {ends[0]} of {len(answer)}"
    elif not ends and sample.finish_reason == "stop":
        wrong = f"the last token is {template.decode(answer[-1:], special=True)!r}"
    else:
        return
    raise CheckFailed(
        f"prompt {sample.id}: finish_reason is {sample.finish_reason!r}, {wrong}; ends are {sorted(template.end_ids)}",
        hint="eos_token_id in the target's generation_config.json must name the token that ends a turn",
    )


def plain(text: str) -> str:
    """Text without outer spaces and without the marks for bytes that are no whole character (engines drop or keep them at the end)."""
    return text.replace("\ufffd", "").strip()


@dataclass(frozen=True)
class MaskRecord:
    """What the self-test looked at, and what `data show` needs to decode the samples."""

    target: str
    generation_prompt: str
    user_end: str
    end_ids: list[int]
    samples_checked: int

    def write(self, folder: Path) -> None:
        atomic_write_json(folder / RECORD, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> MaskRecord:
        """Raises EnvironmentFailed when the data stage has not come that far."""
        path = folder / RECORD
        if not path.exists():
            raise EnvironmentFailed(f"no samples in {folder}", hint="run the data stage first: draftsmith data RECIPE")
        return cls(**json.loads(path.read_text()))
