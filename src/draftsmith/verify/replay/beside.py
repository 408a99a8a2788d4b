"""The drafter replayed on what a server answered: the same tokens, the same count, and what explains a gap."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from draftsmith.errors import EnvironmentFailed, InvalidMeasurement
from draftsmith.findings import Finding
from draftsmith.job import Talk
from draftsmith.measure.prompts import Renderer
from draftsmith.models.drafter import Drafter
from draftsmith.models.target import Target
from draftsmith.verify.reference import ROWS_PER_BATCH, continued, features
from draftsmith.verify.replay.bootstrap import compare_apart
from draftsmith.verify.replay.causes import EVERYTHING, Trained, by_group, causes, sides, where_gaps_lie
from draftsmith.verify.replay.figures import Walked, counted, with_places
from draftsmith.verify.replay.prompts import Ids, expected_frame, frame_of_template, shift
from draftsmith.verify.replay.rounds import Replay, rounds_of
from draftsmith.verify.replay.rows import Rows
from draftsmith.verify.replay.served import Told
from draftsmith.verify.replay.suspects import Fit, accuse
from draftsmith.verify.replay.temperature import Sampled, sampled
from draftsmith.verify.replay.words import (
    LARGEST_GAP,
    frame_finding,
    heat_finding,
    local_findings,
    population_finding,
    served_findings,
)
from draftsmith.verify.sequences import Answer


@dataclass(frozen=True)
class Beside:
    """What the served answers are held against. heldout: the rows' own walks; empty without rows. of_training: the rows are of the run
    that trained this drafter."""

    depth: int
    dtype: str
    target: Target
    trained: Trained
    rows: Rows | None
    heldout: list[Walked]
    of_training: bool


def look(beside: Beside, told: Told, drafter: Drafter, served: Drafter, talk: Talk) -> tuple[dict[str, Any], list[Finding]]:
    """(the parts of replay.json, findings). drafter: float32; served: the same in the dtype that is served.

    Raises InvalidMeasurement without counters.
    """
    if told.acceptance is None:
        left = f", {told.left_out} replies have prompts that are not known" if told.left_out else ""
        hint = "a first line with `acceptance`, or rounds and reached in each reply"
        raise InvalidMeasurement(f"{told.source}: no acceptance of exactly these replies{left}", hint=hint)
    rows, accepted = replay(beside.target, served, told.answers, told.acceptance.depth, talk)
    answers = [
        Walked(answer.id, told.categories.get(answer.id, ""), len(answer.prompt), len(answer.tokens), tuple(with_places(rounds)))
        for answer, rounds in zip(told.answers, accepted, strict=True)
    ]
    replayed = Replay(counted(answers, told.acceptance.depth), told.acceptance, len(answers))
    fits: list[Fit] = []
    if told.acceptance.rounds and abs(replayed.gap) > LARGEST_GAP:
        fits = accuse(served, beside.target, told.answers, rows, told.acceptance, talk)
    heat = None
    if told.temperature and beside.rows is not None:
        heat = sampled(drafter, beside.target, beside.rows.samples, beside.depth, told.temperature, talk)
    findings = served_findings(
        f"{told.source}, {beside.dtype}", replayed, fits, where_gaps_lie(answers, told.own) if fits else "", bool(beside.trained.block)
    )
    findings += explain(beside, told, answers, heat)
    found = {
        "source": told.source,
        "dtype": beside.dtype,
        "temperature": told.temperature,
        "left_out": told.left_out,
        "replay": replayed.as_dict(),
        "by_category": by_group(answers),
        "suspects": [fit.as_dict() for fit in fits],
    }
    return {"served": found, "sampled": heat.as_dict() if heat else None}, findings


@torch.inference_mode()
def replay(target: Target, drafter: Drafter, answers: Sequence[Answer], depth: int, talk: Talk) -> tuple[list[list[int]], list[list[int]]]:
    """(tokens of each prompt, answer and `depth` greedy ones behind it; accepted drafts of each round). Equal answers are replayed once."""
    unique = list(dict.fromkeys((answer.prompt, answer.tokens) for answer in answers))
    found: dict[tuple[Ids, Ids], tuple[list[int], list[int]]] = {}
    started = time.monotonic()
    for start in range(0, len(unique), ROWS_PER_BATCH):
        part = [Answer("", prompt, tokens, "") for prompt, tokens in unique[start : start + ROWS_PER_BATCH]]
        rows = continued(target, [[*answer.prompt, *answer.tokens] for answer in part], [()] * len(part), depth)
        states = [features_TF.to(drafter.fc.weight.dtype) for features_TF in features(target, rows)]
        for answer, row, rounds in zip(part, rows, rounds_of(drafter, part, rows, states, depth), strict=True):
            found[answer.prompt, answer.tokens] = row, rounds
        talk.progress("replay: served answers", len(found), len(unique), started)
    pairs = [found[answer.prompt, answer.tokens] for answer in answers]
    return [row for row, _ in pairs], [rounds for _, rounds in pairs]


def explain(beside: Beside, told: Told, answers: Sequence[Walked], heat: Sampled | None) -> list[Finding]:
    """Why the served answers are accepted otherwise than the held-out ones, if they are; else where acceptance is low."""
    training = [prompt.token_ids for prompt in beside.rows.prompts.values()] if beside.rows is not None and beside.of_training else []
    renderer = renderer_of(beside.target)
    template = frame_of_template(renderer) if renderer is not None and renderer.tokenizer.chat_template else None
    frame = expected_frame(template, training)
    decode = renderer.tokenizer.decode if renderer is not None else str
    framed = shift(frame, [answer.prompt for answer in told.answers], lambda ids: decode(list(ids))) if frame is not None else ""
    hot = heat.sentence() if heat else ""
    heldout = like(beside.heldout, answers) if beside.of_training else []
    findings = heat_finding(hot) + frame_finding(framed)
    found = causes(answers, beside.trained, heldout)
    gap: list[Finding] = []
    if any(answer.rounds for answer in heldout):
        difference = compare_apart(sides(heldout, EVERYTHING)[0], sides(answers, EVERYTHING)[0])
        mixes = [cause.sentence() for cause in found if cause.explained is not None and cause.explained >= 0.1]
        gap = population_finding(difference, [*mixes, *filter(None, [hot, framed])])
    return gap + findings + local_findings(answers, beside.depth, beside.trained, "served answers", heldout)


def renderer_of(target: Target) -> Renderer | None:
    """The target's tokenizer and template; None when its folder has none."""
    try:
        return Renderer(Path(target.model.name_or_path))
    except EnvironmentFailed:
        return None


def like(heldout: Sequence[Walked], served: Sequence[Walked]) -> list[Walked]:
    """The held-out walks that the served ones can be held against: the same prompts, where those are asked, and no place in an answer that
    no served answer comes to."""
    asked, longest = {answer.id for answer in served}, max((answer.answer_tokens for answer in served), default=0)
    kept = [answer for answer in heldout if answer.id in asked] if asked <= {answer.id for answer in heldout} else heldout
    return [replace(answer, rounds=tuple(one for one in answer.rounds if one.place < longest)) for answer in kept]
