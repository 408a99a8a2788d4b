"""`draftsmith data show RUN`: samples decoded, with the supervised text between ⟦ and ⟧."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

from draftsmith.data.mask import MaskRecord
from draftsmith.data.template import ChatTemplate
from draftsmith.errors import UsageError
from draftsmith.samples import Sample, read_samples, samples_file

OPEN, CLOSE = "⟦", "⟧"


def show(run: Path, n: int = 3, seed: int = 0) -> tuple[list[dict[str, Any]], str]:
    """(JSON form, text) of `n` training samples. run: a run folder, or its data folder. Raises EnvironmentFailed or UsageError."""
    folder = run / "data" if (run / "data").is_dir() else run
    if n < 1:
        raise UsageError(f"{n} samples cannot be shown", hint="-n 3: one or more")
    record = MaskRecord.read(folder)
    template = ChatTemplate.load(Path(record.target))
    samples = read_samples(samples_file(folder, "train"))
    chosen = random.Random(seed).sample(samples, min(n, len(samples)))
    document = [describe(sample, template) for sample in chosen]
    return document, "\n\n".join(render(sample, template) for sample in chosen)


def describe(sample: Sample, template: ChatTemplate) -> dict[str, Any]:
    """JSON form of one sample: what is fed and what is supervised."""
    return {
        "id": sample.id,
        "source": sample.source,
        "finish_reason": sample.finish_reason,
        "prompt": template.decode(sample.prompt_ids.tolist(), special=True),
        "supervised": template.decode(sample.token_ids[sample.loss_mask == 1].tolist(), special=True),
        "num_prompt_tokens": sample.num_prompt_tokens,
        "num_supervised_tokens": int(sample.loss_mask.sum()),
    }


def render(sample: Sample, template: ChatTemplate) -> str:
    """A heading and the whole sequence, every run of supervised tokens marked."""
    supervised = int(sample.loss_mask.sum())
    heading = (
        f"{sample.id}  {sample.source}  {sample.num_prompt_tokens} prompt + {supervised} supervised tokens  finish: {sample.finish_reason}"
    )
    parts = []
    for marked, pairs in itertools.groupby(
        zip(sample.token_ids.tolist(), sample.loss_mask.tolist(), strict=True), key=lambda pair: pair[1]
    ):
        text = template.decode([token for token, _ in pairs], special=True)
        parts.append(f"{OPEN}{text}{CLOSE}" if marked else text)
    return f"--- {heading}\n{''.join(parts)}"
