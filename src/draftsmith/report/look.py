"""The data section: what the data stage says about itself, and a few samples decoded with the supervised part marked."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from draftsmith.report.files import Finished
from draftsmith.samples import Sample, read_samples, spread

SPLITS = ("train", "heldout")
COUNTED = ("samples", "sources", "tokens", "supervised_tokens", "finish_reasons")  # of the stage's summary; counted here again
SHOWN_CHARACTERS = 700  # of each part of a sample


def data_section(done: Finished, target: Path, num_samples: int) -> dict[str, Any] | None:
    """Counts of both splits, training samples by source, the rest of the stage's summary, and decoded training samples.

    Raises EnvironmentFailed when the samples are missing or damaged.
    """
    summary = done.summary("data")
    if summary is None:
        return None
    splits = {split: read_samples(done.path("data", f"samples-{split}.parquet")) for split in SPLITS}
    by_source: dict[str, list[Sample]] = {}
    for sample in splits["train"]:
        by_source.setdefault(sample.source, []).append(sample)
    largest_first = sorted(by_source.items(), key=lambda item: (-len(item[1]), item[0]))
    decoder = tokenizer_of(target)
    shown = None if decoder is None else [decoded(sample, decoder) for sample in spread(splits["train"], num_samples)]
    return {
        "splits": {split: counts(samples) for split, samples in splits.items()},
        "by_source": {source: counts(samples) for source, samples in largest_first},
        "summary": {key: value for key, value in summary.items() if key not in COUNTED},
        "samples": shown,
    }


def counts(samples: list[Sample]) -> dict[str, Any]:
    """Counted from the samples themselves."""
    return {
        "samples": len(samples),
        "tokens": sum(len(sample.token_ids) for sample in samples),
        "supervised_tokens": sum(int(sample.loss_mask.sum()) for sample in samples),
        "finish_reasons": dict(sorted(Counter(sample.finish_reason for sample in samples).items())),
    }


def tokenizer_of(target: Path) -> Tokenizer | None:
    """The target's tokenizer.json; None when it has none."""
    path = target / "tokenizer.json"
    return Tokenizer.from_file(str(path)) if path.is_file() else None


def decoded(sample: Sample, decoder: Tokenizer) -> dict[str, Any]:
    """The sample as text, cut into runs of equal loss mask."""
    parts = []
    for supervised, run in groupby(range(len(sample.token_ids)), key=lambda i: bool(sample.loss_mask[i])):
        ids: np.ndarray = sample.token_ids[list(run)]
        text = decoder.decode(ids.tolist(), skip_special_tokens=False)
        parts.append({"supervised": supervised, "tokens": len(ids), "text": shortened(text)})
    return {"id": sample.id, "source": sample.source, "finish_reason": sample.finish_reason, "parts": parts}


def shortened(text: str) -> str:
    """A long text without its middle."""
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]} … {text[-half:]}"
